"""Text -> words. Every line end becomes `<eos>`; whether a line is a paragraph, the reader decides.

Whole blocks of text go through one call of a C function each: no Python runs per word.
"""

from __future__ import annotations

import re
from collections.abc import Callable

UNK, EOS = "<unk>", "<eos>"

# A run of letters and digits, with apostrophes of either kind inside it (don't); or any one other sign.
# Underscores are left out: Project Gutenberg writes _italics_ with them.
_WORD = re.compile(r"<eos>|[^\W_]+(?:['\u2019][^\W_]+)*|[^\w\s]")


def whitespace(text: str) -> list[str]:
    """For text that is tokenised already, as WikiText is: split at white space."""
    return text.replace("\n", f" {EOS} ").split()


def words(text: str) -> list[str]:
    """For plain text: words with their case, punctuation and hyphens apart."""
    return _WORD.findall(text.replace("\n", f" {EOS} "))


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {"whitespace": whitespace, "words": words}
