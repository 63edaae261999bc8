"""A corpus -> vocabulary.tsv, train.bin, valid.bin, test.bin and, last of all, prepared.json in a folder.

Text is tokenised once. Workers take jobs of about 16 MB; each numbers the words of its job as they come,
writes these numbers to a scratch file and hands back the words and their counts. When all counts are known
the vocabulary is, and a table per job turns its numbers into ids: one pass over text, one over integers.

prepared.json says what was asked for and of which files. While it is there the rest is whole; the next call
that asks for the same returns at once.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np

from relational_rnn.tasks.text import reading
from relational_rnn.tasks.text.corpora import SPLITS, Corpus
from relational_rnn.tasks.text.reading import Piece, pieces, read
from relational_rnn.tasks.text.token_file import (
    MAGIC,
    flush,
    open_tokens,
    publish,
    temporary,
    token_dtype,
    write_tokens,
)
from relational_rnn.tasks.text.tokenizers import TOKENIZERS, UNK, chunks
from relational_rnn.tasks.text.vocabulary import UNK_ID, Vocabulary

try:
    import fcntl
except ImportError:  # Windows: there, do not prepare one folder twice at the same time
    fcntl = None

FORMAT = 1
SCRATCH, RECORD, VOCABULARY = "scratch.partial", "prepared.json", "vocabulary.tsv"


@dataclass(frozen=True)
class Prepared:
    """A vocabulary, and the ids of every split, mapped from disk."""

    folder: Path
    vocabulary: Vocabulary
    tokens: dict[str, np.ndarray]
    tokenizer: str
    """What made the words of the text."""
    max_size: int | None = None
    """The limits its vocabulary was made with."""
    min_count: int = 1


def prepare(
    corpus: Corpus,
    folder: str | Path,
    *,
    max_size: int | None = 250_000,
    min_count: int = 1,
    tokenizer: str | None = None,
    dtype: str | None = None,
    workers: int = 2,
) -> Prepared:
    """Tokenise a corpus into a folder, or open what an earlier call with the same arguments left there.

    `max_size` counts <unk> and <eos>; `tokenizer` is the corpus's own unless given; `dtype` is the smallest
    that does. With more than one worker, a script must call this under `if __name__ == "__main__":`.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker of an unguarded script runs it, down to here, where it would wait for its parent's lock.
        guard = 'call it under `if __name__ == "__main__":`, or with workers=1'
        raise RuntimeError(f"prepare() starts processes that import the script which calls it: {guard}")
    folder, tokenizer = Path(folder), tokenizer or corpus.tokenizer
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"tokenizer={tokenizer!r} is not allowed; allowed: {', '.join(TOKENIZERS)}")
    if workers < 1:
        raise ValueError(f"workers={workers} is not allowed; allowed: 1 or more")
    token_dtype(2, dtype)
    Vocabulary.from_counts([], max_size=max_size, min_count=min_count)  # complains now, not in an hour
    request = {
        "format": FORMAT,
        "corpus": corpus.name,
        "vocabulary_splits": list(corpus.vocabulary_splits),
        "rules": {"tokenizer": tokenizer, "max_size": max_size, "min_count": min_count, "dtype": dtype},
        "files": {
            split: [_identity(path, corpus.folder) for path in corpus.files[split]] for split in SPLITS
        },
    }
    if not os.access(folder, os.W_OK) and _is_done(folder, request):
        return open_prepared(folder)  # shared and read-only: there is no lock to be had, and nothing to do
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder):
        if _is_done(folder, request):
            return open_prepared(folder)
        _check_replaceable(folder)
        scratch = folder / SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)  # of a call that was killed
        scratch.mkdir()
        try:
            vocabulary, counts = _prepare(corpus, scratch, tokenizer, max_size, min_count, dtype, workers)
            # Between the old record's end and the new one's beginning the folder counts as unprepared.
            (folder / RECORD).unlink(missing_ok=True)
            flush(folder)
            for name in (VOCABULARY, *(f"{split}.bin" for split in SPLITS)):
                (scratch / name).replace(folder / name)
            flush(folder)
            record = {"request": request, "vocabulary": vocabulary.hash.hex(), "tokens": counts}
            temporary(folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
            publish(folder / RECORD)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return open_prepared(folder)


def open_prepared(folder: str | Path) -> Prepared:
    """What `prepare` left in a folder; a ValueError if it is not whole."""
    folder = Path(folder)
    if not (folder / RECORD).is_file():
        raise ValueError(
            f"{folder} is not prepared: it has no {RECORD}; allowed: a folder that prepare() finished"
        )
    record = _record(folder)
    if not (folder / VOCABULARY).is_file():
        raise ValueError(f"{folder} lacks {VOCABULARY}; delete {folder / RECORD} and prepare it again")
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    if vocabulary.hash.hex() != record["vocabulary"]:
        raise ValueError(
            f"{folder / VOCABULARY} is not the one {RECORD} names; delete that and prepare again"
        )
    tokens = {split: open_tokens(folder / f"{split}.bin", vocabulary) for split in SPLITS}
    for split, ids in tokens.items():
        if len(ids) != record["tokens"][split]:
            wanted = record["tokens"][split]
            raise ValueError(
                f"{folder / split}.bin has {len(ids)} tokens; allowed: {wanted}, as {RECORD} says"
            )
    rules = record["request"]["rules"]
    return Prepared(folder, vocabulary, tokens, rules["tokenizer"], rules["max_size"], rules["min_count"])


def _identity(path: Path, folder: Path) -> list:
    """Name, size and time of change: a file that differs in none of them is not read again."""
    status = path.stat()
    return [path.relative_to(folder).as_posix(), status.st_size, status.st_mtime_ns]


def _record(folder: Path) -> dict:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; delete it and prepare again") from error
    parts = [record.get(name) for name in ("request", "tokens")] if isinstance(record, dict) else []
    whole = bool(parts) and all(isinstance(part, dict) for part in parts) and "vocabulary" in record
    rules = parts[0].get("rules") if whole else None
    if not (isinstance(rules, dict) and _possible(**rules) and parts[1].keys() >= set(SPLITS)):
        raise ValueError(f"{path} was not written by this program; delete it and prepare again")
    return record


def _possible(tokenizer=None, max_size=0, min_count=0, **_) -> bool:
    sizes = isinstance(max_size, int | None) and isinstance(min_count, int)
    return sizes and (max_size is None or max_size >= 2) and min_count >= 1 and tokenizer in list(TOKENIZERS)


def _is_done(folder: Path, request: dict) -> bool:
    return (folder / RECORD).is_file() and _record(folder).get("request") == request


def _check_replaceable(folder: Path) -> None:
    """Files of our names that are not ours, another program's train.bin say, are left alone."""
    if (folder / RECORD).is_file():
        return
    for name, beginning in (
        (VOCABULARY, f"{UNK}\t".encode()),
        *((f"{split}.bin", MAGIC) for split in SPLITS),
    ):
        if (folder / name).exists():
            with (folder / name).open("rb") as file:
                if file.read(len(beginning)) != beginning:
                    said = "exists and is of no earlier preparation; allowed: another folder"
                    raise ValueError(f"{folder / name} {said}")


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One preparation of a folder at a time: the other ranks of a job wait, then find it done."""
    with (folder / ".lock").open("w") as handle:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)  # ends with the process, however that ends
        yield


# ------------------------------------------------------------------ the work


class _Job(NamedTuple):
    split: str
    pieces: list[Piece]
    tokenizer: str
    scratch: Path


class _Scan(NamedTuple):
    words: str  # one per line, in the order of their numbers
    counts: np.ndarray  # of each word


def _prepare(corpus, scratch, tokenizer, max_size, min_count, dtype, workers) -> tuple[Vocabulary, dict]:
    jobs = [
        _Job(split, batch, tokenizer, scratch / f"{split}-{number}")
        for split in SPLITS
        for number, batch in enumerate(_batches(corpus.kind, corpus.files[split]))
    ]
    # Every word of the corpus has one index; counts are those of the vocabulary's splits.
    index: defaultdict[str, int] = defaultdict(count().__next__)
    counts = np.zeros(1 << 16, np.int64)
    indices, totals = [], dict.fromkeys(SPLITS, 0)
    for job, scan in zip(jobs, _scans(jobs, workers), strict=True):
        words = scan.words.split("\n") if scan.words else []
        where = np.fromiter(map(index.__getitem__, words), np.uint32, len(words))
        if len(index) > len(counts):
            counts = np.concatenate([counts, np.zeros(len(index), np.int64)])
        if job.split in corpus.vocabulary_splits:
            counts[where] += scan.counts  # no index occurs twice in a job
        totals[job.split] += int(scan.counts.sum())
        indices.append(where)
    for split, total in totals.items():
        if total == 0:
            raise ValueError(f"{corpus.folder}: the split {split!r} holds no text")

    pairs = ((word, n) for word, n in zip(index, counts.tolist(), strict=False) if n)
    vocabulary = Vocabulary.from_counts(pairs, max_size=max_size, min_count=min_count)
    token_dtype(len(vocabulary), dtype)
    ids = np.full(len(index), UNK_ID, np.uint32)
    for number, word in enumerate(vocabulary.words):
        if (at := index.get(word)) is not None:
            ids[at] = number

    vocabulary.save(scratch / VOCABULARY)
    for split in SPLITS:
        blocks = (
            ids[where][np.fromfile(job.scratch, np.uint32)]
            for job, where in zip(jobs, indices, strict=True)
            if job.split == split
        )
        write_tokens(scratch / f"{split}.bin", blocks, vocabulary, dtype)
    return vocabulary, totals


def _batches(kind: reading.Kind, paths: Iterable[Path]) -> Iterator[list[Piece]]:
    """Pieces in their order, put together to about a block of bytes: a book alone is too little work."""
    batch, size = [], 0
    for piece in (piece for path in paths for piece in pieces(kind, path, reading.BLOCK)):
        if batch and size + piece.stop - piece.start > reading.BLOCK:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.stop - piece.start
    yield batch


def _scans(jobs: list[_Job], workers: int) -> Iterator[_Scan]:
    """The jobs' results in the jobs' order."""
    size = sum(piece.stop - piece.start for job in jobs for piece in job.pieces)
    if workers == 1 or size < 2 * reading.BLOCK:  # less than a second's work: starting workers takes as long
        yield from map(_scan, jobs)
        return
    # Not fork: the caller may have torch's threads running.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_begin_worker)
    try:
        yield from pool.map(_scan, jobs)
    finally:
        pool.shutdown(cancel_futures=True)  # an error in one job: do not wait for those not begun


def _begin_worker() -> None:
    # Workers make no reference cycles, but lists enough for the collector to look for some all the time.
    gc.disable()
    # A parent that was killed tells them nothing: they would wait for its next job for ever.
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _scan(job: _Job) -> _Scan:
    # A new key gets the next number. This runs in C, as do all loops over text here.
    chunk_numbers: defaultdict[str, int] = defaultdict(count().__next__)
    word_numbers: defaultdict[str, int] = defaultdict(count().__next__)
    read_chunks = [np.zeros(0, np.uint32)]  # a month may have no stories
    for piece in job.pieces:
        for text in read(piece):
            found = chunks(text)
            read_chunks.append(np.fromiter(map(chunk_numbers.__getitem__, found), np.uint32, len(found)))
    chunk = np.concatenate(read_chunks)  # [chunks read]

    # Every different chunk c is the words words[starts[c]], ..., sizes[c] of them.
    parts = list(map(TOKENIZERS[job.tokenizer], chunk_numbers))
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    words = np.fromiter(map(word_numbers.__getitem__, chain.from_iterable(parts)), np.uint32, sizes.sum())
    starts = np.cumsum(sizes) - sizes

    size = sizes[chunk]
    at = np.repeat(starts[chunk] - (np.cumsum(size) - size), size)  # [words read]
    at += np.arange(len(at))
    numbers = words[at]
    numbers.tofile(job.scratch)
    return _Scan("\n".join(word_numbers), np.bincount(numbers, minlength=len(word_numbers)))
