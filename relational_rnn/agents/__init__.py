"""Section 4.2 and A.3: an actor-critic around any core, learned with V-trace (IMPALA)."""
