"""Files -> text, block by block, one unit per line. All text is UTF-8; a byte that is not is reported.

A piece is what one worker reads at a time: a file, or the lines of a large one between two byte positions.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["lines", "book", "gigaword"]

BLOCK = 1 << 24  # bytes read at a time
LONGEST_DOCUMENT = 1 << 26  # of GigaWord: a file without </DOC>, or one made to exhaust memory, ends here


class Piece(NamedTuple):
    kind: Kind
    path: Path
    start: int
    stop: int


def pieces(kind: Kind, path: Path, block: int = BLOCK) -> list[Piece]:
    """Cut a file of lines at line ends, about every `block` bytes; books and archives stay whole."""
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"{path} is empty; allowed: a file with text in it")
    if kind != "lines":
        return [Piece(kind, path, 0, size)]
    cuts = [0]
    with path.open("rb") as file:
        while cuts[-1] + block < size:
            file.seek(cuts[-1] + block)
            file.readline()  # the byte of "\n" is part of no other UTF-8 character
            cuts.append(file.tell())
    if cuts[-1] < size:
        cuts.append(size)
    return [Piece(kind, path, start, stop) for start, stop in pairwise(cuts)]


def read(piece: Piece) -> Iterator[str]:
    """The text of a piece, every unit ending with a newline."""
    if piece.kind == "gigaword":
        yield from _gigaword(piece.path)
        return
    with piece.path.open("rb") as file:
        file.seek(piece.start)
        text = decode(file.read(piece.stop - piece.start), piece.path, piece.start)
    if piece.kind == "book":
        text = paragraphs(_without_licence(text))
    yield text if text.endswith("\n") or not text else text + "\n"


def decode(data: bytes, path: Path, position: int = 0) -> str:
    """The text of bytes that stand at a position of a file, without a byte order mark at its beginning."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        where, byte = position + error.start, data[error.start]
        raise ValueError(f"{path} is not UTF-8: byte 0x{byte:02x} at position {where}") from error
    return text.removeprefix("\ufeff") if position == 0 else text


# ------------------------------------------------------------------ Project Gutenberg

# A long title goes on in the next line, or in two.
_START = re.compile(r"^\*\*\* ?START OF TH[^\n]*?(?:\n[^\n]+?){0,2}?\*\*\*[^\n]*\n", re.M)
_END = re.compile(r"^\*\*\* ?END OF TH[^\n]*", re.M)
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


def paragraphs(text: str) -> str:
    """Undo the hard line breaks: one paragraph per line; blank lines part paragraphs."""
    found = _BLANK_LINES.split(text.replace("\r\n", "\n").strip())
    return "".join(paragraph.replace("\n", " ") + "\n" for paragraph in found if paragraph)


def _without_licence(text: str) -> str:
    """Cut Project Gutenberg's own words around the book, where its marks are still there."""
    start = _START.search(text)
    end = _END.search(text, start.end() if start else 0)
    return text[start.end() if start else 0 : end.start() if end else len(text)]


# ------------------------------------------------------------------ GigaWord v5 (LDC2011T07)

_DOCUMENT = re.compile(r'<DOC id="[^"]*" type="(\w+)" ?>(.*?)</DOC>', re.S)
_TEXT = re.compile(r"<TEXT>(.*?)</TEXT>", re.S)
_PARAGRAPH = re.compile(r"<P>(.*?)</P>", re.S)


def _gigaword(path: Path) -> Iterator[str]:
    """Many documents per file and no root element: blocks are cut behind the last whole document."""
    rest, position, close = b"", 0, b"</DOC>"
    try:
        with gzip.open(path) as file:
            while block := file.read(BLOCK):
                rest += block
                cut = rest.rfind(close) + len(close)
                if cut >= len(close):
                    yield stories(decode(rest[:cut], path, position))
                    rest, position = rest[cut:], position + cut
                if len(rest) > LONGEST_DOCUMENT:
                    allowed = f"{LONGEST_DOCUMENT} bytes"
                    raise ValueError(f"{path}: the document at {position} is too long; allowed: {allowed}")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    if rest.strip():
        raise ValueError(f"{path} ends inside the document that begins at position {position}")


def stories(text: str) -> str:
    """The paragraphs of all documents of type story, one per line; only they mark paragraphs reliably."""
    lines = []
    for kind, document in _DOCUMENT.findall(text):
        if kind == "story":
            for body in _TEXT.findall(document):
                lines += [" ".join(paragraph.split()) for paragraph in _PARAGRAPH.findall(body)]
    joined = "".join(line + "\n" for line in lines if line)
    # The ampersand last, so that "&amp;lt;" gives "&lt;".
    return joined.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
