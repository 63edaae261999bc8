"""rmc figures: from folders and from results to files."""

from pathlib import Path

import pytest

from relational_rnn.cli.__main__ import main
from tests.analysis.folders import accuracies, write_run


def test_from_folders(tmp_path, capsys):
    write_run(tmp_path / "rmc", accuracies(0.1, 0.9, last=2000))
    bad = write_run(tmp_path / "lstm", accuracies(0.1, 0.2, last=2000), core="lstm")
    (bad / "metrics.jsonl").write_text((bad / "metrics.jsonl").read_text() + "garbage\n")
    out = tmp_path / "out"
    arguments = ["figures", str(tmp_path / "rmc"), str(bad), "--output", str(out), "--level", "3"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    names = [
        f"{name}.{kind}" for name in ("curves-nth-farthest", "box-world-level") for kind in ("png", "svg")
    ]
    assert said.out.splitlines() == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert "lstm: skipped 1 line of metrics.jsonl (line 3 is no JSON)" in said.err


def test_from_results(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", accuracies(0.1, 0.9))
    assert main(["results", "add", "run"]) == 0
    assert main(["figures", "--output", "out"]) == 0
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"overview", "curves-nth-farthest"}


def test_results_that_are_named_are_drawn_beside_other_things(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run", accuracies(0.1, 0.9))
    assert main(["results", "add", "run"]) == 0
    write_run(tmp_path / "games", [{"step": 1, "episode_return": 2.0}], "mini-pacman")
    capsys.readouterr()
    assert main(["figures", "games", "--level", "3", "--output", "out", "--results", "results"]) == 0
    drawn = {Path(line).stem for line in capsys.readouterr().out.splitlines()}
    assert drawn == {"overview", "curves-nth-farthest", "curves-mini-pacman", "box-world-level"}
    assert main(["figures", "--level", "3", "--output", "other"]) == 0
    assert {path.stem for path in (tmp_path / "other").iterdir()} == {"box-world-level"}


def test_an_experiments_name_is_no_path(tmp_path, capsys):
    path = write_run(tmp_path / "run", accuracies(0.1))
    config = path / "config.json"
    config.write_text(config.read_text().replace('"nth-farthest"', '"../../<script>"'))
    assert main(["figures", str(path), "--output", str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"curves-script.png", "curves-script.svg"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "--output"),
        (["missing", "--output", "out"], "missing does not exist"),
        (["--output", "out"], "nothing to draw"),
        (["--output", "file"], "is a file"),
        (["--output", "out", "--level", "x"], "--level"),
        (["--output", "out", "--wide"], "'--wide'"),
        (["empty", "--output", "out"], "nothing was drawn"),
        (["--output", "out", "--language", "none.json"], "none.json cannot be read"),
        (["--output", "out", "--language", "file"], "file cannot be read"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    write_run(tmp_path / "empty", [])
    assert main(["figures", *arguments]) == 2
    assert part in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
