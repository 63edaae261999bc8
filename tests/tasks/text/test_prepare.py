"""Vocabularies, token files, preparing a corpus: whole or not at all, the same however it is cut up."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relational_rnn.tasks.text import prepare as preparing
from relational_rnn.tasks.text import reading
from relational_rnn.tasks.text.corpora import text_folder, wikitext
from relational_rnn.tasks.text.prepare import open_prepared, prepare
from relational_rnn.tasks.text.token_file import open_tokens, token_dtype, write_tokens
from relational_rnn.tasks.text.vocabulary import Vocabulary
from tests.tasks.text.files import make_wikitext, write

FILES = {".lock", "prepared.json", "vocabulary.tsv", "train.bin", "valid.bin", "test.bin"}


def vocabulary_of(size: int) -> Vocabulary:
    return Vocabulary(["<unk>", "<eos>", *map(str, range(size - 2))], [0] * size)


# ------------------------------------------------------------------ vocabulary


def test_the_most_frequent_words_come_first_and_ties_by_word():
    counts = [("b", 2), ("<eos>", 1), ("c", 5), ("a", 2), ("rare", 1), ("<unk>", 4)]
    vocabulary = Vocabulary.from_counts(counts, min_count=2)
    assert vocabulary.words == ("<unk>", "<eos>", "c", "a", "b")
    assert vocabulary.counts == (5, 1, 5, 2, 2)
    assert Vocabulary.from_counts(counts, max_size=4).words == ("<unk>", "<eos>", "c", "a")
    assert vocabulary.encode(["b", "rare", "<eos>"]) == [4, 0, 1]
    assert vocabulary.decode([4, 0, 1]) == ["b", "<unk>", "<eos>"]


@given(st.lists(st.text(min_size=1).filter(lambda w: w.split() == [w] and w.isprintable()), unique=True))
def test_a_vocabulary_survives_its_file(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("v") / "vocabulary.tsv"
    vocabulary = Vocabulary.from_counts([(word, n + 1) for n, word in enumerate(words)])
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert (loaded.words, loaded.counts, loaded.hash) == (
        vocabulary.words,
        vocabulary.counts,
        vocabulary.hash,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<unk>\t1\n<eos>\t1\nword", "cut off"),
        ("<unk>\t1\n<eos>\t1\nword\n", "line 3: 'word'; allowed: a word, a tab, a count"),
        ("<unk>\t1\n<eos>\t1\na\t1\na\t1\n", "has a word twice"),
        ("a\t1\nb\t1\n", "allowed: <unk>, <eos>"),
        (b"<unk>\t1\n\xff\t1\n", "not UTF-8 at position 8"),
    ],
)
def test_a_damaged_vocabulary_is_an_error(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.load(write(tmp_path / "v.tsv", text))


# ------------------------------------------------------------------ token files


@pytest.mark.parametrize(("size", "kind"), [(2, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_tokens_survive_their_file_in_the_smallest_type(tmp_path, size, kind):
    vocabulary = vocabulary_of(size)
    ids = np.array([0, 1, size - 1, size // 2])
    assert write_tokens(tmp_path / "a.bin", [ids[:1], ids[1:]], vocabulary) == 4
    loaded = open_tokens(tmp_path / "a.bin", vocabulary)
    assert loaded.dtype == kind
    assert loaded.tolist() == ids.tolist()
    assert (tmp_path / "a.bin").stat().st_size == 64 + 4 * loaded.itemsize
    assert not loaded.flags.writeable


def test_a_vocabulary_larger_than_its_type_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="has 65537 words; allowed: at most 65536 words"):
        token_dtype(65_537, "uint16")
    with pytest.raises(ValueError, match="dtype='int8' is not allowed"):
        token_dtype(2, "int8")
    with pytest.raises(ValueError, match="ids 0 to 5 are not allowed; allowed: 0 to 4"):
        write_tokens(tmp_path / "a.bin", [np.array([0, 5])], vocabulary_of(5))
    assert not (tmp_path / "a.bin").exists()


def test_damaged_token_files_are_errors(tmp_path):
    path, vocabulary = tmp_path / "a.bin", vocabulary_of(9)
    write_tokens(path, [np.arange(9)], vocabulary)
    data = path.read_bytes()
    with pytest.raises(ValueError, match=r"of another vocabulary .9 words, hash .*; allowed: 10 words"):
        open_tokens(path, vocabulary_of(10))
    for damaged, message in [
        (data[:-1], "it has 81 bytes; its header promises 82"),
        (data + b"\0", "it has 83 bytes"),
        (data[:63], "does not begin with a header"),
        (bytes(64) + data[64:], "does not begin with a header"),
        (data[:8] + b"\2" + data[9:], "version 2 with 2 bytes per token; allowed: version 1 with 2 or 4"),
        (data[:-2] + b"\x09\0", "is damaged: it has the id 9; allowed: 0 to 8"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            open_tokens(path, vocabulary)


# ------------------------------------------------------------------ preparation


def naive(folder: Path) -> dict[str, list[str]]:
    return {
        split: [w for line in (folder / f"wiki.{split}.tokens").open() for w in [*line.split(), "<eos>"]]
        for split in ("train", "valid", "test")
    }


@pytest.mark.parametrize(("block", "workers"), [(1 << 23, 1), (200, 1), (700, 2)])
def test_ids_are_those_of_a_naive_reading(tmp_path, monkeypatch, block, workers):
    make_wikitext(tmp_path / "corpus")
    monkeypatch.setattr(reading, "BLOCK", block)
    prepared = prepare(wikitext(tmp_path / "corpus"), tmp_path / "out", workers=workers)
    texts = naive(tmp_path / "corpus")
    for split, words in texts.items():
        assert prepared.vocabulary.decode(prepared.tokens[split]) == words
    counts = Counter(word for words in texts.values() for word in words)
    assert dict(zip(prepared.vocabulary.words, prepared.vocabulary.counts, strict=True)) == counts
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


def test_rare_and_unseen_words_become_unk(tmp_path):
    for split, text in {"train": "a a a b b c\n", "valid": "a new b\n", "test": "c\n"}.items():
        write(tmp_path / f"{split}.txt", text)
    prepared = prepare(text_folder(tmp_path), tmp_path / "out", min_count=2)
    assert prepared.vocabulary.words == ("<unk>", "<eos>", "a", "b")
    assert prepared.tokens["valid"].tolist() == [2, 0, 3, 1]
    assert prepare(text_folder(tmp_path), tmp_path / "out", max_size=3).vocabulary.words[2:] == ("a",)
    assert open_prepared(tmp_path / "out").tokens["train"].tolist() == [2, 2, 2, 0, 0, 0, 1]


def test_a_second_run_reads_nothing_until_something_changes(tmp_path, monkeypatch):
    corpus = make_wikitext(tmp_path / "corpus")
    first = prepare(wikitext(corpus), tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_prepare", None)
        again = prepare(wikitext(corpus), tmp_path / "out")
    assert again.vocabulary.words == first.vocabulary.words
    make_wikitext(corpus, seed=1)
    changed = prepare(wikitext(corpus), tmp_path / "out")
    assert changed.tokens["train"].tolist() != first.tokens["train"].tolist()


def test_what_is_prepared_can_be_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    corpus, out = wikitext(make_wikitext(tmp_path / "corpus")), tmp_path / "out"
    first = prepare(corpus, out)

    def refuse(folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(preparing, "_exclusive", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # chmod does not keep root out
    assert prepare(corpus, out).vocabulary.words == first.vocabulary.words
    with pytest.raises(PermissionError):
        prepare(corpus, out, min_count=2)


@pytest.mark.parametrize("when", ["scan", "write", "replace"])
def test_a_failure_leaves_nothing_that_looks_complete(tmp_path, monkeypatch, when):
    corpus = wikitext(make_wikitext(tmp_path / "corpus"))
    out = tmp_path / "out"
    prepare(corpus, out, min_count=2)  # an older preparation is there

    def fail(*_, **__):
        raise OSError("disk full")

    where = {"scan": (preparing, "_scan"), "write": (preparing, "write_tokens"), "replace": (Path, "replace")}
    with monkeypatch.context() as patch:
        patch.setattr(*where[when], fail)
        with pytest.raises(OSError, match="disk full"):
            prepare(corpus, out, workers=1)
    if when == "replace":
        with pytest.raises(ValueError, match="is not prepared"):
            open_prepared(out)
    else:
        assert json.loads((out / "prepared.json").read_text())["request"]["rules"]["min_count"] == 2
        open_prepared(out)
    assert not (out / "scratch.partial").exists()
    assert len(prepare(corpus, out).vocabulary) > 2


def run_script(folder: Path, text: str, timeout: int = 120) -> subprocess.CompletedProcess:
    """Returns when the script and all that have its standard output, its workers too, have ended."""
    script = folder / "script.py"
    script.write_text(text)
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, script]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def test_a_script_that_does_not_guard_its_workers_is_told_so(tmp_path):
    """Not: waits for ever, as its workers would for the lock that it holds."""
    make_wikitext(tmp_path / "corpus")
    ran = run_script(
        tmp_path,
        "from relational_rnn.tasks.text import prepare, reading, corpora\n"
        "reading.BLOCK = 10\n"  # so that even this corpus wants workers
        f"prepare.prepare(corpora.wikitext({str(tmp_path / 'corpus')!r}), {str(tmp_path / 'out')!r})\n",
    )
    assert ran.returncode == 1
    assert 'call it under `if __name__ == "__main__":`, or with workers=1' in ran.stderr
    assert not (tmp_path / "out" / "scratch.partial").exists()


def prepare_slowly(corpus, out):
    preparing._scan = lambda job: (job.scratch.write_bytes(b"half"), time.sleep(60))
    prepare(corpus, out, workers=1)


def test_a_killed_preparation_is_begun_anew(tmp_path):
    corpus, out = wikitext(make_wikitext(tmp_path / "corpus")), tmp_path / "out"
    process = multiprocessing.get_context("spawn").Process(target=prepare_slowly, args=(corpus, out))
    process.start()
    scratch = out / "scratch.partial" / "train-0"
    deadline = time.monotonic() + 20
    while not (scratch.exists() and scratch.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert scratch.exists()
    with pytest.raises(ValueError, match="is not prepared"):
        open_prepared(out)
    prepare(corpus, out)
    assert {path.name for path in out.iterdir()} == FILES


def test_workers_end_with_a_preparation_that_is_killed(tmp_path):
    """Not: wait for ever for its next job."""
    make_wikitext(tmp_path / "corpus")
    ran = run_script(
        tmp_path,
        "import os\n"
        "from relational_rnn.tasks.text import prepare, reading, corpora\n"
        "reading.BLOCK = 10\n"
        "def first(jobs, workers, scans=prepare._scans):\n"
        "    for scan in scans(jobs, workers):\n"
        "        os.kill(os.getpid(), 9)\n"
        "if __name__ == '__main__':\n"
        "    prepare._scans = first\n"
        f"    prepare.prepare(corpora.wikitext({str(tmp_path / 'corpus')!r}), {str(tmp_path / 'out')!r})\n",
        timeout=60,
    )
    assert ran.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("split", "data", "message"),
    [
        ("valid", b"", "wiki.valid.tokens is empty"),
        ("test", b"caf\xe9\n", "wiki.test.tokens is not UTF-8: byte 0xe9 at position 3"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_files_are_errors_and_nothing_is_left(tmp_path, monkeypatch, split, data, message, workers):
    monkeypatch.setattr(reading, "BLOCK", 700)
    corpus = make_wikitext(tmp_path / "corpus")
    write(corpus / f"wiki.{split}.tokens", data)
    with pytest.raises(ValueError, match=message):
        prepare(wikitext(corpus), tmp_path / "out", workers=workers)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(workers=0), "workers=0 is not allowed"),
        (dict(max_size=1), "max_size=1 is not allowed; allowed: 2 or more, or None"),
        (dict(min_count=0), "min_count=0 is not allowed"),
        (dict(tokenizer="bpe"), "tokenizer='bpe' is not allowed; allowed: whitespace, words"),
        (dict(dtype="int8"), "dtype='int8' is not allowed"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_is_read(tmp_path, arguments, message):
    corpus = wikitext(make_wikitext(tmp_path / "corpus"))
    with pytest.raises(ValueError, match=message):
        prepare(corpus, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["train.bin", "vocabulary.tsv"])
def test_files_of_others_are_left_alone(tmp_path, name):
    corpus = wikitext(make_wikitext(tmp_path / "corpus"))
    theirs = write(tmp_path / "out" / name, b"\x07\x00 of another program")
    with pytest.raises(ValueError, match=rf"{name} exists and is of no earlier preparation"):
        prepare(corpus, tmp_path / "out")
    assert theirs.read_bytes() == b"\x07\x00 of another program"
    theirs.unlink()
    prepare(corpus, tmp_path / "out")
    (tmp_path / "out" / "prepared.json").unlink()  # a preparation cut short while it put its files in place
    prepare(corpus, tmp_path / "out")


def test_files_of_different_preparations_do_not_pass_for_one(tmp_path):
    corpus = wikitext(make_wikitext(tmp_path / "corpus"))
    one, two = (prepare(corpus, tmp_path / str(n), min_count=n) for n in (1, 9))
    (one.folder / "train.bin").write_bytes((two.folder / "train.bin").read_bytes())
    with pytest.raises(ValueError, match="of another vocabulary"):
        open_prepared(one.folder)
    (one.folder / "vocabulary.tsv").write_bytes((two.folder / "vocabulary.tsv").read_bytes())
    with pytest.raises(ValueError, match=r"vocabulary\.tsv is not the one prepared\.json names"):
        open_prepared(one.folder)
    (one.folder / "prepared.json").write_text("{")
    with pytest.raises(ValueError, match=r"prepared\.json is damaged"):
        prepare(corpus, one.folder, min_count=1)


@pytest.mark.parametrize("part", ["request", "vocabulary", "tokens"])
@pytest.mark.parametrize("value", [None, {}])
def test_a_record_that_lacks_something_is_an_error(tmp_path, part, value):
    corpus = wikitext(make_wikitext(tmp_path / "text", lines=5))
    path = prepare(corpus, tmp_path / "out").folder / "prepared.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: value}))
    with pytest.raises(ValueError, match="prepare again"):
        open_prepared(tmp_path / "out")


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("max_size", "many"),
        ("max_size", 1),
        ("max_size", 9.5),
        ("min_count", None),
        ("min_count", 0),
        ("tokenizer", "bpe"),
        ("tokenizer", []),
    ],
)
def test_a_record_with_impossible_rules_is_an_error(tmp_path, rule, value):
    corpus = wikitext(make_wikitext(tmp_path / "text", lines=5))
    path = prepare(corpus, tmp_path / "out").folder / "prepared.json"
    record = json.loads(path.read_text())
    record["request"]["rules"][rule] = value
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"prepared\.json was not written by this program"):
        open_prepared(tmp_path / "out")


def test_a_record_too_deep_to_read_is_an_error(tmp_path):
    write(tmp_path / "prepared.json", "[" * 100_000)
    with pytest.raises(ValueError, match=r"prepared\.json is damaged"):
        open_prepared(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif("WIKITEXT2" not in os.environ, reason="WIKITEXT2 names the folder of wiki.*.tokens")
def test_wikitext_2_has_the_published_counts(tmp_path):
    prepared = prepare(wikitext(os.environ["WIKITEXT2"]), tmp_path / "out")
    counts = {split: len(ids) for split, ids in prepared.tokens.items()}
    assert counts == {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    assert len(prepared.vocabulary) == 33_278
    assert prepared.tokens["train"].dtype == np.uint16
