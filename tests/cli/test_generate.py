"""rmc generate: what is printed of a language model's words."""

import pytest

from relational_rnn.cli.__main__ import main
from relational_rnn.cli.generate import shown
from tests.cli.commands import rmc
from tests.tasks.text.files import make_wikitext


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = make_wikitext(tmp_path_factory.mktemp("text"), lines=40)
    run = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["train", "lm", "--preset", "smoke", "--data", str(data), "--run", str(run)]
    assert main([*arguments, "--core", "lstm"]) == 0
    return run


def test_generate(run, capsys):
    arguments = ["generate", str(run), "--device", "cpu", "--length", "12"]
    assert main([*arguments, "--prompt", "the of strange", "--seed", "3"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("the of strange")
    assert "not in the vocabulary, read as <unk>: strange" in said.err
    words = {line.split("\t")[0] for line in (run / "vocabulary.tsv").read_text().splitlines()}
    drawn = said.out.removeprefix("the of strange").replace("\n", " <eos> ").split()[:12]
    assert set(drawn) <= words - {"<unk>"}
    assert main([*arguments, "--prompt", "the of strange", "--seed", "3"]) == 0
    assert capsys.readouterr().out == said.out
    assert main([*arguments, "--prompt", "the of strange", "--seed", "4"]) == 0
    assert capsys.readouterr().out != said.out


def test_lines_begin_without_a_space(run, capsys):
    arguments = ["generate", str(run), "--device", "cpu", "--length", "300", "--temperature", "3"]
    assert main([*arguments, "--prompt", "the\nof"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the\nof ")
    assert said.count("\n") > 3  # the model has drawn ends of lines, too
    assert main(arguments) == 0
    for line in (said + capsys.readouterr().out).splitlines():
        assert line == line.strip()
        assert "  " not in line
        assert "<eos>" not in line


def test_suggest(run, capsys):
    assert main(["generate", str(run), "--device", "cpu", "--prompt", "the", "--suggest", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    chances = [float(line.split("%")[0]) for line in lines]
    assert len(lines) == 5
    assert chances == sorted(chances, reverse=True)


def test_a_terminal_is_safe_from_the_words():
    assert shown("a\x1b[2Jb\u202ec") == "a?[2Jb?c"
    assert shown("café戦場") == "café戦場"


def test_output_without_the_words_letters(run, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = ["generate", run, "--device", "cpu", "--prompt", "naïve the naïve café", "--length", "0"]
    said, wrong = rmc(*command).communicate(timeout=60)
    assert said == "na?ve the na?ve caf?\n"
    assert wrong == "not in the vocabulary, read as <unk>: na?ve\n"  # once


def test_generate_wants_a_language_model(tmp_path, capsys):
    other = tmp_path / "other"
    short = ["--training.steps", "10", "--run", str(other)]
    assert main(["train", "nth-farthest", "--preset", "smoke", *short]) == 0
    assert main(["generate", str(other)]) == 2
    assert "is of 'nth-farthest'; allowed: a run of 'lm'" in capsys.readouterr().err
