"""Which files make up the splits of a corpus, and how they are read. Nothing is read here but lists of books.

Names in lists and manifests only choose among the files that were found; they are never made into paths.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relational_rnn.tasks.text.reading import Kind, decode

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Corpus:
    name: str
    folder: Path
    files: dict[str, tuple[Path, ...]]
    """Of each split, in the order in which they are read."""
    kind: Kind = "lines"
    tokenizer: str = "whitespace"
    vocabulary_splits: tuple[str, ...] = ("train",)
    """The splits whose words are counted."""

    def __post_init__(self):
        for split in SPLITS:
            if not self.files.get(split):
                raise ValueError(f"{self.folder}: the split {split!r} of {self.name} has no files")
            for path in self.files[split]:
                if not path.is_file():
                    raise ValueError(f"{self.folder}: the split {split!r} is missing; allowed: a file {path}")


def wikitext(folder: str | Path) -> Corpus:
    """WikiText-2 or -103: wiki.{train,valid,test}.tokens, tokenised, rare words written <unk> already.

    The published vocabularies (33,278 and 267,735 words) are those of the three files together. That gives
    nothing away: its authors wrote <unk> for every word that is rare in the training text.
    """
    folder = Path(folder)
    files = {split: (folder / f"wiki.{split}.tokens",) for split in SPLITS}
    return Corpus("wikitext", folder, files, vocabulary_splits=SPLITS)


def text_folder(folder: str | Path, *, tokenizer: str = "words") -> Corpus:
    """Any folder of train.txt, valid.txt and test.txt; every line ends with <eos>."""
    folder = Path(folder)
    files = {split: (folder / f"{split}.txt",) for split in SPLITS}
    return Corpus("text", folder, files, tokenizer=tokenizer)


def find_corpus(folder: str | Path) -> Corpus:
    """The corpus in a folder, by the names of its files; with each reader's own choice of splits."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; allowed: a folder of text, or of token files")
    if any(folder.glob("wiki.*.tokens")):
        return wikitext(folder)
    if any((folder / f"{split}.txt").is_file() for split in SPLITS):
        return text_folder(folder)
    if any(folder.glob("data/*/*.gz")):
        return gigaword(folder)
    if (folder / "manifest.tsv").is_file() or any((folder / split).is_dir() for split in SPLITS):
        return gutenberg(folder)
    allowed = "wiki.*.tokens, train.txt valid.txt test.txt, data/*/*.gz, or books in train/ valid/ test/"
    raise ValueError(f"{folder} holds no corpus; allowed: a folder with {allowed}")


# ------------------------------------------------------------------ Project Gutenberg

Names = Mapping[str, Sequence[str] | Path]


def gutenberg(folder: str | Path, *, books: Names | None = None, authors: Names | None = None) -> Corpus:
    """A folder of plain-text books <ebook id>.txt; every paragraph ends with <eos>.

    The splits are, the first of these that is given: `books`, ids to hold out as {"valid": ..., "test": ...};
    `authors`, the same with authors, all of whose books in manifest.tsv are held out; the folders train/,
    valid/ and test/; the column `split` of manifest.tsv. Whatever is not held out is training text. A list
    may be a file with one name per line.
    """
    folder = Path(folder)
    if books is None and authors is None and all((folder / split).is_dir() for split in SPLITS):
        files = {split: tuple(sorted((folder / split).glob("*.txt"), key=_by_number)) for split in SPLITS}
        _once(path for paths in files.values() for path in paths)
        return Corpus("gutenberg", folder, files, "book", "words")
    found = _once(sorted(folder.rglob("*.txt")))
    if books is not None and authors is not None:
        raise ValueError("books and authors are both given; allowed: one of them")
    if books is not None:
        split_of = _held_out("books", books, set(found))
    elif authors is not None:
        rows = _manifest(folder, "author")
        by_author = _held_out("authors", authors, {row["author"] for row in rows})
        author_of = {row["ebook_id"]: row["author"] for row in rows}
        if unknown := sorted(found.keys() - author_of.keys()):
            raise ValueError(f"{folder / 'manifest.tsv'} has no author of the book {unknown[0]!r}")
        split_of = {book: by_author.get(author_of[book], "train") for book in found}
    else:
        split_of = {row["ebook_id"]: row["split"] for row in _manifest(folder, "split")}
        if unknown := sorted(found.keys() - split_of.keys()):
            raise ValueError(f"{folder / 'manifest.tsv'} has no split of the book {unknown[0]!r}")
        if wrong := sorted(set(split_of.values()) - set(SPLITS)):
            allowed = ", ".join(SPLITS)
            raise ValueError(
                f"{folder / 'manifest.tsv'}: split {wrong[0]!r} is not allowed; allowed: {allowed}"
            )
    paths = sorted(found.values(), key=_by_number)
    files = {s: tuple(p for p in paths if split_of.get(p.stem, "train") == s) for s in SPLITS}
    return Corpus("gutenberg", folder, files, "book", "words")


def _once(paths: Iterable[Path]) -> dict[str, Path]:
    """{book: its file}. A second file of the same book would be lost, or be in training and test text."""
    found: dict[str, Path] = {}
    for path in paths:
        if found.setdefault(path.stem, path) != path:
            raise ValueError(
                f"the book {path.stem!r} is both {found[path.stem]} and {path}; allowed: one file"
            )
    return found


def _by_number(path: Path) -> tuple[int, str]:
    """12 before 100: the order does not depend on the file system."""
    return (int(path.stem) if path.stem.isdecimal() else 0, path.stem)


def _held_out(argument: str, lists: Names, known: set[str]) -> dict[str, str]:
    """{name: split} of the lists; names must be known and in one list only."""
    if set(lists) != {"valid", "test"}:
        raise ValueError(f"{argument} has the keys {sorted(lists)}; allowed: test and valid, both")
    split_of: dict[str, str] = {}
    for split, names in lists.items():
        if isinstance(names, Path):
            lines = decode(names.read_bytes(), names).splitlines()
            names = [line.strip() for line in lines if line.strip()]
        for name in names:
            if name not in known:
                raise ValueError(f"{argument}[{split!r}] has {name!r}; allowed: one of {len(known)} found")
            if split_of.setdefault(name, split) != split:
                raise ValueError(f"{argument} has {name!r} in valid and in test; allowed: one of them")
    return split_of


def _manifest(folder: Path, column: str) -> list[dict[str, str]]:
    path = folder / "manifest.tsv"
    if not path.is_file():
        allowed = "a file manifest.tsv, or folders train/, valid/ and test/"
        raise ValueError(f"{folder}: nothing tells the splits of its books; allowed: {allowed}")
    text = io.StringIO(decode(path.read_bytes(), path), newline="")
    rows = list(csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE))
    for name in ("ebook_id", column):
        if not rows or rows[0].get(name) is None:
            raise ValueError(f"{path} has no column {name!r}")
    told: dict[str, str] = {}
    for row in rows:
        book, value = row["ebook_id"], row[column]
        if value is None:  # a line that ends too soon
            raise ValueError(f"{path} has no {column} of the book {book!r}")
        if told.setdefault(book, value) != value:
            raise ValueError(
                f"{path}: the {column} of the book {book!r} is both {told[book]!r} and {value!r}"
            )
    return rows


# ------------------------------------------------------------------ GigaWord v5

_MONTH = re.compile(r"[a-z]{3}_eng_(\d{6})\.gz")


def gigaword(
    folder: str | Path, *, valid: Sequence[str] = ("201011",), test: Sequence[str] = ("201012",)
) -> Corpus:
    """LDC2011T07: data/<source>/<source>_YYYYMM.gz; stories only, every paragraph ends with <eos>.

    Months are held out. Which ones the paper held out is not published: the last two are our choice.
    """
    folder = Path(folder)
    months = {p: m[1] for p in sorted(folder.glob("data/*/*.gz")) if (m := _MONTH.fullmatch(p.name))}
    if both := sorted(set(valid) & set(test)):
        raise ValueError(f"the month {both[0]!r} is in valid and in test; allowed: one of them")
    held_out = dict.fromkeys(valid, "valid") | dict.fromkeys(test, "test")
    if unknown := sorted(held_out.keys() - set(months.values())):
        split = held_out[unknown[0]]
        raise ValueError(f"{folder}: the split {split!r} is missing; allowed: files data/*/*_{unknown[0]}.gz")
    files = {s: tuple(p for p, m in months.items() if held_out.get(m, "train") == s) for s in SPLITS}
    return Corpus("gigaword", folder, files, "gigaword", "words")
