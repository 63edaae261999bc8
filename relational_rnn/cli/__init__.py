"""The command line: thin commands over experiments and training."""


class UsageError(Exception):
    """Something the user gave is wrong: one line, exit code 2."""


def visible(text: str) -> str:
    """With escapes in place of control characters, which a name in a file could tell the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
