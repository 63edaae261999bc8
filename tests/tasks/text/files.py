"""Small corpora in the real layouts."""

import gzip
import random
from pathlib import Path

WORDS = ["the", "The", "of", ",", ".", "and", "in", "=", "@-@", "'", "café", "戦場", "<unk>"]


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def make_wikitext(folder: Path, lines: int = 50, seed: int = 0) -> Path:
    """wiki.*.tokens: blank lines, headings, and in the training text some words of its own."""
    draw = random.Random(seed)
    for split in ("train", "valid", "test"):
        extra = [f"word{i}" for i in range(40)] if split == "train" else []
        rows = [" \n", " = Title = \n", " \n"]
        rows += [f" {' '.join(draw.choices(WORDS + extra, k=draw.randint(1, 20)))} \n" for _ in range(lines)]
        write(folder / f"wiki.{split}.tokens", "".join(rows))
    return folder


def make_gigaword(folder: Path, months=("201010", "201011", "201012"), documents: int = 3) -> Path:
    """LDC2011T07 in little: stories with headline and paragraphs, and a document of another type between."""
    for source in ("afp_eng", "nyt_eng"):
        for month in months:
            records = []
            for number in range(documents):
                name = f"{source.upper()}_{month}01.{number:04}"
                records.append(
                    f'<DOC id="{name}" type="story" >\n<HEADLINE>\nNot read\n</HEADLINE>\n<DATELINE>\nPARIS\n'
                    f"</DATELINE>\n<TEXT>\n<P>\nAT&amp;T said {source}\nit isn't &lt;new&gt;.\n</P>\n<P>\n"
                    f"In {month}.\n</P>\n</TEXT>\n</DOC>\n"
                )
                records.append(f'<DOC id="{name}1" type="other" >\n<TEXT>\nBare lines\n</TEXT>\n</DOC>\n')
            path = folder / "data" / source / f"{source}_{month}.gz"
            write(path, gzip.compress("".join(records).encode()))
    write(folder / "docs" / "other.file-doc.map", "not read")
    return folder


BOOKS = {"12": "Ann", "7": "Ann", "100": "Bob", "31": "Cyd"}


def make_books(folder: Path, split_of: dict[str, str] | None = None) -> Path:
    """<ebook id>.txt and manifest.tsv; in folders of the splits where these are given."""
    rows = ["split\tebook_id\tauthor\ttitle\twords\n"]
    for book, author in BOOKS.items():
        split = (split_of or {}).get(book, "")
        write(folder / split / f"{book}.txt", f'Book {book}\nby "{author}"\n\n \nDon\'t _go_,\nhe said.\n')
        rows.append(f'{split or "train"}\t{book}\t{author}\tA "title\t9\n')
    write(folder / "manifest.tsv", "".join(rows))
    return folder
