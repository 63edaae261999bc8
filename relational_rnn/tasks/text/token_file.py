"""Token files: ids of a vocabulary, memory-mapped, behind a header of 64 bytes.

    offset  bytes  little-endian
    0       8      magic "RMCTOKEN"
    8       4      version, 1
    12      4      bytes per token: 2 (uint16) or 4 (uint32)
    16      8      number of tokens
    24      8      size of the vocabulary
    32      32     sha256 of the vocabulary's words
    64      ...    the tokens

A file appears under its name only when it is whole: it is written beside it, flushed to disk and renamed; and
its header is written last.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from relational_rnn.tasks.text.vocabulary import Vocabulary

MAGIC, VERSION = b"RMCTOKEN", 1
_HEADER = struct.Struct("<8sIIQQ32s")
_DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


def token_dtype(vocabulary_size: int, name: str | None = None) -> np.dtype:
    """The smallest type that holds all ids, or the one asked for, if it does."""
    names = {None: 2 if vocabulary_size <= 1 << 16 else 4, "uint16": 2, "uint32": 4}
    if name not in names:
        raise ValueError(f"dtype={name!r} is not allowed; allowed: uint16, uint32 or None")
    if vocabulary_size > 1 << 8 * names[name]:
        most = 1 << 8 * names[name]
        kind = f"the vocabulary has {vocabulary_size} words"
        raise ValueError(f"dtype={name!r} is not allowed, {kind}; allowed: at most {most} words, or None")
    return _DTYPES[names[name]]


def write_tokens(
    path: Path, blocks: Iterable[np.ndarray], vocabulary: Vocabulary, dtype: str | None = None
) -> int:
    """Write blocks of ids one after the other -> how many ids."""
    kind, count = token_dtype(len(vocabulary), dtype), 0
    with temporary(path).open("wb") as file:
        file.write(bytes(_HEADER.size))
        for block in blocks:
            if len(block) and not 0 <= block.min() <= block.max() < len(vocabulary):
                allowed = f"0 to {len(vocabulary) - 1}"
                raise ValueError(f"ids {block.min()} to {block.max()} are not allowed; allowed: {allowed}")
            block.astype(kind, copy=False).tofile(file)
            count += len(block)
        file.seek(0)
        file.write(_HEADER.pack(MAGIC, VERSION, kind.itemsize, count, len(vocabulary), vocabulary.hash))
    publish(path)
    return count


def open_tokens(path: Path, vocabulary: Vocabulary) -> np.ndarray:
    """The ids [count], mapped read-only; a ValueError if the file is not whole or of another vocabulary."""
    if not path.is_file():
        raise ValueError(f"token file {path} is missing")
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise ValueError(f"{path} is not a token file: it does not begin with a header")
    _, version, width, count, words, digest = _HEADER.unpack(header)
    if version != VERSION or width not in _DTYPES:
        found = f"version {version} with {width} bytes per token"
        raise ValueError(f"token file {path} has {found}; allowed: version {VERSION} with 2 or 4")
    if size != _HEADER.size + width * count:
        wanted = _HEADER.size + width * count
        raise ValueError(f"token file {path} is damaged: it has {size} bytes; its header promises {wanted}")
    if (words, digest) != (len(vocabulary), vocabulary.hash):
        found = f"{words} words, hash {digest.hex()[:8]}"
        allowed = f"{len(vocabulary)} words, hash {vocabulary.hash.hex()[:8]}"
        raise ValueError(f"token file {path} is of another vocabulary ({found}); allowed: {allowed}")
    if count == 0:
        return np.zeros(0, _DTYPES[width])
    tokens = np.memmap(path, _DTYPES[width], mode="r", offset=_HEADER.size, shape=(count,))
    if (largest := int(tokens.max())) >= words:
        allowed = f"0 to {words - 1}"
        raise ValueError(f"token file {path} is damaged: it has the id {largest}; allowed: {allowed}")
    return tokens


# ------------------------------------------------------------------ files whole or not at all


def temporary(path: Path) -> Path:
    """Where `path` is written before it is published."""
    return path.with_name(path.name + ".partial")


def publish(path: Path) -> None:
    """Make the finished temporary file the file `path`, in one step that survives a power cut."""
    flush(temporary(path))
    os.replace(temporary(path), path)
    flush(path.parent)


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
