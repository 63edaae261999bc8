"""How fast a corpus becomes token files: tokenising, counting, the vocabulary, writing; and reading alone.

    python benchmarks/text_preparation.py --wikitext DIR --gutenberg DIR [--repeats 3] [--workers 1 2]

`tokens_per_second` is of the whole of prepare(), from the first byte read to the last one flushed to disk,
workers started and stopped; `after_reading` leaves out what reading alone takes with as many workers (files
to text: decoding, paragraphs). Every figure is the median of `--repeats`; files are in the page cache.
`command`, `commit`, `versions` and `hardware` in the file say where the numbers come from.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from provenance import provenance, save

from relational_rnn.tasks.text.corpora import SPLITS, Corpus, gutenberg, text_folder, wikitext
from relational_rnn.tasks.text.prepare import prepare
from relational_rnn.tasks.text.reading import pieces, read

READERS = {"wikitext": wikitext, "gutenberg": gutenberg, "text": text_folder}


def processor_seconds() -> float:
    """Of this process and of the workers that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def characters(piece) -> int:
    return sum(map(len, read(piece)))


def reading_seconds(corpus: Corpus, workers: int) -> float:
    """Every piece read and turned into text, and dropped; without the start of the workers."""
    parts = [p for split in SPLITS for path in corpus.files[split] for p in pieces(corpus.kind, path)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.2] * workers))  # all of them are there
        start = time.perf_counter()
        list(pool.map(characters, parts, chunksize=max(1, len(parts) // (8 * workers))))
        return time.perf_counter() - start


def measure(corpus: Corpus, workers: int, repeats: int) -> dict:
    walls, processors, readings, again = [], [], [], []
    for _ in range(repeats):
        readings.append(reading_seconds(corpus, workers))
        with tempfile.TemporaryDirectory() as folder:
            start, used = time.perf_counter(), processor_seconds()
            prepared = prepare(corpus, folder, workers=workers)
            walls.append(time.perf_counter() - start)
            processors.append(processor_seconds() - used)
            start = time.perf_counter()
            prepare(corpus, folder, workers=workers)
            again.append(time.perf_counter() - start)
    tokens = sum(map(len, prepared.tokens.values()))
    wall, reading, processor = map(statistics.median, (walls, readings, processors))
    return dict(
        corpus=corpus.folder.name,
        reader=corpus.name,
        workers=workers,
        tokens=tokens,
        vocabulary=len(prepared.vocabulary),
        seconds=round(wall, 3),
        all_seconds=[round(wall, 3) for wall in walls],
        reading_seconds=round(reading, 3),
        processor_seconds=round(processor, 3),
        processors_had=round(processor / wall, 2),  # fewer than workers where others use the machine
        second_run_seconds=round(statistics.median(again), 3),
        tokens_per_second=round(tokens / wall),
        tokens_per_second_after_reading=round(tokens / (wall - reading)),
        tokens_per_processor_second=round(tokens / processor),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in READERS:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/text_preparation.json"))
    arguments = parser.parse_args()

    rows, load = [], os.getloadavg()
    for name, reader in READERS.items():
        if (folder := getattr(arguments, name)) is not None:
            for workers in arguments.workers:
                rows.append(measure(reader(folder), workers, arguments.repeats))
                print(rows[-1])
    if not rows:
        parser.error("no corpus; allowed: " + ", ".join(f"--{name} DIR" for name in READERS))

    save(provenance(load_average_before=load) | dict(rows=rows), arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
