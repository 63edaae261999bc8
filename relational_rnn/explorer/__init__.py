"""The explorer: a page that looks inside trained memories. `rmc explore` exports its data and serves it."""
