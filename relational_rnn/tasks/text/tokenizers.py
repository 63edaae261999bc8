"""Text -> words. Every line end becomes `<eos>`; whether a line is a paragraph, the reader decides.

Text is split at white space first, and what that gives is taken apart on its own. So a preparation has to
take apart each different chunk only once: in 16 MB of English, one in twenty.
"""

from __future__ import annotations

import re
from collections.abc import Callable

UNK, EOS = "<unk>", "<eos>"

# A run of letters and digits, with apostrophes of either kind inside it (don't); or any one other sign.
# Underscores are left out: Project Gutenberg writes _italics_ with them.
_WORD = re.compile(r"<eos>|<unk>|[^\W_]+(?:['\u2019][^\W_]+)*|[^\w\s]")


def chunks(text: str) -> list[str]:
    return text.replace("\n", f" {EOS} ").split()


def whole(chunk: str) -> list[str]:
    """For text that is tokenised already, as WikiText is: words are what stands between white space."""
    return [chunk]


def parts(chunk: str) -> list[str]:
    """For plain text: words with their case, punctuation and hyphens apart."""
    return _WORD.findall(chunk)


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {"whitespace": whole, "words": parts}


def tokenize(text: str, tokenizer: str) -> list[str]:
    """The words of a short text, a prompt say; `prepare` gives the same ones faster."""
    return [word for chunk in chunks(text) for word in TOKENIZERS[tokenizer](chunk)]
