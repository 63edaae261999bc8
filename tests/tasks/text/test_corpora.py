"""Which files and which words a corpus gives."""

import gzip
import subprocess
import sys
import types

import pytest

from relational_rnn.tasks.text import hub, reading
from relational_rnn.tasks.text.corpora import gigaword, gutenberg, text_folder, wikitext
from relational_rnn.tasks.text.prepare import prepare
from relational_rnn.tasks.text.reading import pieces, read, stories
from relational_rnn.tasks.text.tokenizers import tokenize
from tests.tasks.text.files import make_books, make_gigaword, make_wikitext, write


def names(corpus):
    return {split: [path.stem for path in paths] for split, paths in corpus.files.items()}


def text_of(kind, path):
    return "".join(text for piece in pieces(kind, path) for text in read(piece))


# ------------------------------------------------------------------ words


def test_whitespace_keeps_what_is_tokenised_already():
    assert tokenize(" = A @-@ b = \n \nc", "whitespace") == ["=", "A", "@-@", "b", "=", "<eos>", "<eos>", "c"]


def test_words_part_punctuation_and_keep_apostrophes():
    found = tokenize("“Don\u2019t _go_,” he'd said--well-known; café 3.5\n", "words")
    assert " ".join(found) == "“ Don\u2019t go , ” he'd said - - well - known ; café 3 . 5 <eos>"


def test_unknown_words_that_a_text_marks_stay_marked():
    """Penn Treebank's text, say, or a generated text that is read again."""
    found = tokenize("the <unk>'s <N> (<unk>)\n", "words")
    assert " ".join(found) == "the <unk> ' s < N > ( <unk> ) <eos>"


def test_words_of_hostile_text_hold_no_white_space():
    text = "".join(map(chr, [*range(0x3000), 0xFEFF, 0x1F600]))
    for tokenizer in ("whitespace", "words"):
        assert all(len(word.split()) == 1 for word in tokenize(text, tokenizer))


# ------------------------------------------------------------------ lines


def test_pieces_of_a_file_give_its_lines_once(tmp_path):
    lines = [f"{i} é戦{'x' * (i % 7)}\n" for i in range(100)]
    path = write(tmp_path / "a", "".join(lines))
    for block in (1, 5, 64, 10_000):
        parts = pieces("lines", path, block)
        assert "".join(text for part in parts for text in read(part)) == "".join(lines)
    assert len(pieces("lines", path, 1)) == 100


def test_a_last_line_without_an_end_ends(tmp_path):
    path = write(tmp_path / "a", "one\ntwo")
    assert text_of("lines", path) == "one\ntwo\n"


def test_a_byte_that_is_not_utf8_is_reported_with_its_position(tmp_path):
    path = write(tmp_path / "a", b"abc\n" * 10 + b"d\xe9f\n")
    for block in (8, 1000):
        with pytest.raises(ValueError, match=r"a is not UTF-8: byte 0xe9 at position 41$"):
            [text for piece in pieces("lines", path, block) for text in read(piece)]


def test_an_empty_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="a is empty"):
        pieces("lines", write(tmp_path / "a", ""))


@pytest.mark.parametrize("corpus", [wikitext, text_folder])
def test_a_missing_split_is_an_error(tmp_path, corpus):
    make_wikitext(tmp_path)
    for split in ("train", "valid"):
        write(tmp_path / f"{split}.txt", "a\n")
    (tmp_path / "wiki.test.tokens").unlink()
    with pytest.raises(ValueError, match="the split 'test' is missing; allowed: a file"):
        corpus(tmp_path)


# ------------------------------------------------------------------ Project Gutenberg


def test_a_book_is_one_paragraph_per_line_without_the_licence(tmp_path):
    book = "\ufeffThe eBook\n\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\nOne\r\ntwo.\r\n"
    path = write(
        tmp_path / "1.txt",
        book + "\r\n  \r\n\r\nThree.\r\n\r\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\nMore",
    )
    assert text_of("book", path) == "One two.\nThree.\n"


@pytest.mark.parametrize("title", ["X", "A LONG\nTITLE", "A\r\nLONGER\r\nTITLE", "A*B **C**"])
def test_the_licence_ends_behind_its_mark_whatever_the_title(tmp_path, title):
    book = f"Licence\n***START OF THE PROJECT GUTENBERG EBOOK {title}***\n\nOne *** two\n\n"
    path = write(tmp_path / "1.txt", f"{book}***END OF THE PROJECT GUTENBERG EBOOK {title}***\nMore\n")
    assert text_of("book", path) == "One *** two\n"


def test_books_in_folders_of_splits(tmp_path):
    corpus = gutenberg(make_books(tmp_path, {"12": "train", "7": "train", "100": "valid", "31": "test"}))
    assert names(corpus) == {"train": ["7", "12"], "valid": ["100"], "test": ["31"]}


def test_books_by_list_and_by_author(tmp_path):
    make_books(tmp_path)
    held_out = write(tmp_path / "held.list", "31\n\n7\n")
    corpus = gutenberg(tmp_path, books={"valid": ["100"], "test": held_out})
    assert names(corpus) == {"train": ["12"], "valid": ["100"], "test": ["7", "31"]}
    corpus = gutenberg(tmp_path, authors={"valid": ["Ann"], "test": ["Cyd"]})
    assert names(corpus) == {"train": ["100"], "valid": ["7", "12"], "test": ["31"]}


def test_books_by_the_manifests_split(tmp_path):
    make_books(tmp_path)
    manifest = tmp_path / "manifest.tsv"
    text = manifest.read_text().replace("train\t7\t", "valid\t7\t").replace("train\t31\t", "test\t31\t")
    manifest.write_text(text)
    assert names(gutenberg(tmp_path)) == {"train": ["12", "100"], "valid": ["7"], "test": ["31"]}
    manifest.write_text(text.replace("test\t", "../x\t"))
    with pytest.raises(ValueError, match=r"split '\.\./x' is not allowed; allowed: train, valid, test"):
        gutenberg(tmp_path)


@pytest.mark.parametrize("column", ["author", "split"])
def test_a_manifest_that_says_two_things_of_a_book_is_refused(tmp_path, column):
    manifest = make_books(tmp_path) / "manifest.tsv"
    text = manifest.read_text().replace("train\t7\t", "valid\t7\t").replace("train\t31\t", "test\t31\t")
    arguments = {"authors": {"valid": ["Ann"], "test": ["Cyd"]}} if column == "author" else {}
    manifest.write_text(text + "valid\t7\tAnn\n")  # the same again does no harm
    gutenberg(tmp_path, **arguments)
    manifest.write_text(text + "train\t7\tBob\n")
    with pytest.raises(ValueError, match=rf"the {column} of the book '7' is both '\w+' and '\w+'"):
        gutenberg(tmp_path, **arguments)


def test_a_line_of_a_manifest_that_ends_too_soon_is_refused(tmp_path):
    manifest = make_books(tmp_path) / "manifest.tsv"
    manifest.write_text(manifest.read_text().partition("Cyd")[0].rstrip())
    with pytest.raises(ValueError, match="has no author of the book '31'"):
        gutenberg(tmp_path, authors={"valid": ["Ann"], "test": ["Bob"]})


def test_manifests_and_lists_are_read_as_the_books_are(tmp_path):
    """A byte order mark, which spreadsheets write, is no letter; other encodings are named with the place."""
    manifest = make_books(tmp_path) / "manifest.tsv"
    manifest.write_text("\ufeff" + manifest.read_text(), encoding="utf-8")
    held_out = write(tmp_path / "held.list", "\ufeffCyd\n")
    corpus = gutenberg(tmp_path, authors={"valid": ["Ann"], "test": held_out})
    assert names(corpus) == {"train": ["100"], "valid": ["7", "12"], "test": ["31"]}
    held_out.write_bytes("Zoë".encode("latin-1"))
    with pytest.raises(ValueError, match=r"held\.list is not UTF-8: byte 0xeb at position 2"):
        gutenberg(tmp_path, authors={"valid": ["Ann"], "test": held_out})
    manifest.write_bytes(b"split\xe9")
    with pytest.raises(ValueError, match=r"manifest\.tsv is not UTF-8: byte 0xe9 at position 5"):
        gutenberg(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(books={"valid": ["../secret"], "test": ["7"]}), "has '../secret'; allowed: one of 4 found"),
        (dict(books={"valid": ["7"], "test": ["7"]}), "has '7' in valid and in test"),
        (dict(books={"valid": ["7"]}), "allowed: test and valid, both"),
        (dict(books={"valid": [], "test": ["7"]}), "split 'valid' of gutenberg has no files"),
        (dict(authors={"valid": ["Dee"], "test": ["Ann"]}), "has 'Dee'"),
        (dict(books={}, authors={}), "both given"),
    ],
)
def test_wrong_lists_are_errors(tmp_path, arguments, message):
    write(tmp_path / "secret.txt", "outside")
    make_books(tmp_path / "books")
    with pytest.raises(ValueError, match=message):
        gutenberg(tmp_path / "books", **arguments)


@pytest.mark.parametrize("arguments", [{}, {"books": {"valid": ["100"], "test": ["31"]}}])
def test_a_book_in_two_files_is_refused(tmp_path, arguments):
    """One of them would be lost, or its text would be in training and test."""
    make_books(tmp_path, {"12": "train", "7": "train", "100": "valid", "31": "test"})
    gutenberg(tmp_path, **arguments)
    write(tmp_path / "test" / "12.txt", "again")
    with pytest.raises(ValueError, match=r"the book '12' is both .*12\.txt and .*12\.txt; allowed: one file"):
        gutenberg(tmp_path, **arguments)


def test_books_without_splits_are_an_error(tmp_path):
    write(tmp_path / "1.txt", "text")
    with pytest.raises(ValueError, match="nothing tells the splits of its books"):
        gutenberg(tmp_path)


# ------------------------------------------------------------------ GigaWord


def test_gigaword_holds_out_months_and_reads_stories(tmp_path):
    corpus = gigaword(make_gigaword(tmp_path))
    assert names(corpus)["valid"] == ["afp_eng_201011", "nyt_eng_201011"]
    assert names(corpus)["test"] == ["afp_eng_201012", "nyt_eng_201012"]
    prepared = prepare(corpus, tmp_path / "out", workers=1)
    ids = prepared.tokens["train"]
    story = "AT & T said afp_eng it isn't < new > . <eos> In 201010 . <eos>".replace(
        "afp_eng", "afp eng"
    ).split()
    assert prepared.vocabulary.decode(ids[: len(story)]) == story
    assert len(ids) == 6 * len(story)


def test_blocks_of_gigaword_are_cut_between_documents(tmp_path, monkeypatch):
    path = make_gigaword(tmp_path, documents=9) / "data" / "afp_eng" / "afp_eng_201010.gz"
    whole = text_of("gigaword", path)
    assert whole.count("\n") == 18
    monkeypatch.setattr(reading, "BLOCK", 100)
    assert text_of("gigaword", path) == whole


def test_an_escaped_entity_is_unescaped_once():
    assert stories('<DOC id="A" type="story">\n<TEXT>\n<P>\n&amp;lt;\n</P>\n</TEXT>\n</DOC>') == "&lt;\n"


def test_damaged_gigaword_is_an_error(tmp_path, monkeypatch):
    path = make_gigaword(tmp_path) / "data" / "afp_eng" / "afp_eng_201010.gz"
    data = path.read_bytes()
    cut = write(tmp_path / "cut.gz", data[:-20])
    with pytest.raises(ValueError, match=r"cut\.gz is not a whole gzip file"):
        text_of("gigaword", cut)
    with pytest.raises(ValueError, match=r"plain\.gz is not a whole gzip file"):
        text_of("gigaword", write(tmp_path / "plain.gz", "text"))
    inside = write(tmp_path / "inside.gz", gzip.compress(gzip.decompress(data)[:-8]))
    with pytest.raises(ValueError, match="ends inside the document"):
        text_of("gigaword", inside)
    monkeypatch.setattr(reading, "LONGEST_DOCUMENT", 1000)
    bomb = write(tmp_path / "bomb.gz", gzip.compress(bytes(100_000)))
    with pytest.raises(ValueError, match="document at 0 is too long; allowed: 1000 bytes"):
        text_of("gigaword", bomb)


def test_a_month_may_be_empty_but_not_a_split(tmp_path):
    corpus = gigaword(make_gigaword(tmp_path))
    write(corpus.files["valid"][0], gzip.compress(b""))
    assert len(prepare(corpus, tmp_path / "out", workers=1).tokens["valid"]) > 0
    write(corpus.files["valid"][1], gzip.compress(b""))
    with pytest.raises(ValueError, match="the split 'valid' holds no text"):
        prepare(corpus, tmp_path / "out", workers=1)


def test_missing_months_are_errors(tmp_path):
    make_gigaword(tmp_path, months=("201010", "201011"))
    with pytest.raises(ValueError, match=r"the split 'test' is missing; allowed: files data/\*/\*_201012"):
        gigaword(tmp_path)
    with pytest.raises(ValueError, match="month '201011' is in valid and in test"):
        gigaword(tmp_path, test=("201011",))


# ------------------------------------------------------------------ the hub


def fake_hub(monkeypatch, rows):
    """Modules that answer as the hub and pyarrow do, with these lines per split."""
    listed = ["README.md", "wikitext-2-raw-v1/train-00000-of-00001.parquet", "../wikitext-2-v1/x.parquet"]
    parts = {f"wikitext-2-v1/{name}-0000{i}-of-00002.parquet": rows[name][i] for name in rows for i in (0, 1)}

    class ParquetFile:
        def __init__(self, part):
            self.lines = parts[part]

        def iter_batches(self, columns):
            assert columns == ["text"]
            column = types.SimpleNamespace(to_pylist=lambda: self.lines)
            yield types.SimpleNamespace(num_rows=len(self.lines), column=lambda _: column)

    package = types.ModuleType("huggingface_hub")
    package.list_repo_files = lambda *_, **__: [*reversed(parts), *listed]
    package.hf_hub_download = lambda repository, part, **_: part
    pyarrow, parquet = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.parquet")
    parquet.ParquetFile, pyarrow.parquet = ParquetFile, parquet
    for module in (package, pyarrow, parquet):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_download_gives_the_published_files(tmp_path, monkeypatch):
    rows = {name: [[" = A = \n", ""], [f" {name} \n"]] for name in ("train", "validation", "test")}
    fake_hub(monkeypatch, rows)
    monkeypatch.setitem(hub.SIZES, "wikitext-2", dict.fromkeys(("train", "valid", "test"), 3))
    corpus = hub.download_wikitext("wikitext-2", tmp_path)
    assert corpus.files["valid"][0].read_text() == " = A = \n\n validation \n"
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert hub.download_wikitext("wikitext-2", tmp_path) == corpus  # what is there is not downloaded again


def test_another_wikitext_is_not_taken_for_the_one_asked_for(tmp_path, monkeypatch):
    fake_hub(monkeypatch, {})
    write(tmp_path / "wiki.train.tokens", "a\n" * 36_718)  # as many as WikiText-2 has
    message = r"wiki\.train\.tokens is there and has 36718 lines; allowed: 1801350, as in wikitext-103"
    with pytest.raises(ValueError, match=message):
        hub.download_wikitext("wikitext-103", tmp_path)


def test_a_download_cut_short_leaves_nothing(tmp_path, monkeypatch):
    fake_hub(monkeypatch, {name: [["a\n"], []] for name in ("train", "validation", "test")})
    with pytest.raises(ValueError, match="'train' came with 1 lines; allowed: 36718"):
        hub.download_wikitext("wikitext-2", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'needs huggingface_hub: pip install "relational-rnn\[lm\]"'):
        hub.download_wikitext("wikitext-103", tmp_path)
    with pytest.raises(
        ValueError, match="name='wikitext-3' is not allowed; allowed: wikitext-2, wikitext-103"
    ):
        hub.download_wikitext("wikitext-3", tmp_path)


def test_text_does_not_import_torch():
    code = "import sys; from relational_rnn.tasks.text import hub, prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
