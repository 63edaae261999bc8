"""The command line: thin commands over experiments and training."""


class UsageError(Exception):
    """Something the user gave is wrong: one line, exit code 2."""
