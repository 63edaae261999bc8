"""rmc play, rmc record and rmc bench."""

import io
import re
import subprocess
import sys

import pytest
from PIL import Image

from relational_rnn.cli import bench
from relational_rnn.cli.__main__ import main
from relational_rnn.environments import terminal
from tests.cli.commands import refused


@pytest.mark.parametrize("command", ["play", "record", "bench"])
def test_help(capsys, command):
    assert main([command, "--help"]) == 0
    assert f"usage: rmc {command}" in capsys.readouterr().out


def test_help_does_not_import_torch():
    code = """
import sys
from relational_rnn.cli.__main__ import main
for command in ("play", "record", "bench"):
    main([command, "--help"])
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_help_names_every_game_and_mode(capsys):
    main(["play", "--help"])
    said = capsys.readouterr().out
    from relational_rnn.environments.mini_pacman import MODES

    assert f"games: {', '.join(terminal.GAMES)} (its modes: {', '.join(MODES)})" in said


# ------------------------------------------------------------------ playing and filming


def test_play_prints_the_score(monkeypatch, capsys):
    asked = {}

    def keys():
        return terminal.contextlib.nullcontext(iter(["left", "up", "quit"]))

    def make(game, **options):
        asked.update(options)
        return terminal.GAMES[game](**options)

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal; without colours the game is refused
    monkeypatch.setattr(terminal, "_keyboard", keys)
    monkeypatch.setattr(terminal, "make_game", make)
    assert main(["play", "mini-pacman", "--seed", "3", "--mode", "hunt", "--view=viewport"]) == 0
    said = capsys.readouterr().out
    assert "given up" in said
    assert "step 2" in said
    assert re.search(r"score: -?\d+\n$", said)
    assert asked == {"mode": "hunt", "view": "viewport"}


def test_play_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("w"))
    refused(capsys, ["play", "box-world"], "not a terminal")


def test_record_the_agent_in_the_package(tmp_path, capsys):
    path = tmp_path / "film.gif"
    arguments = ["record", "box-world", str(path), "--run", "box-world-viewport", "--frames", "4"]
    assert main(arguments) == 0
    assert path.stat().st_size > 1000
    wrong = ["record", "mini-pacman", str(tmp_path / "other.gif"), "--run", "box-world-viewport"]
    assert main(wrong) == 2
    assert "box-world-viewport is of experiment 'box-world', not 'mini-pacman'" in capsys.readouterr().err


def test_record_a_short_film(tmp_path, capsys):
    path = tmp_path / "film.gif"
    arguments = ["record", "mini-pacman", str(path), "--frames", "5", "--seed", "1", "--mode", "hunt"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"film: {path}; scores: none, no episode ended\n"
    assert Image.open(path).n_frames > 1
    before = path.read_bytes()
    refused(capsys, arguments, path, "exists already")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["play", "chess"], ["'chess'", "box-world, mini-pacman"]),
        (["play", "box-world", "mini-pacman"], ["one game"]),
        (["play", "--seed", "1"], ["one game"]),
        (["play", "box-world", "--seed", "-1"], ["--seed '-1'", "0 to 2^63 - 1"]),
        (["play", "box-world", "--seed", str(2**63)], ["--seed"]),
        (["play", "box-world", "--seed", "9" * 5000], ["--seed '999", "999...' is not allowed"]),
        (["play", "box-world", "--view", "half"], ["'half'", "viewport, full"]),
        (["play", "box-world", "--mode", "hunt"], ["'hunt'", "only mini-pacman"]),
        (["play", "mini-pacman", "--mode", "fast"], ["'fast'", "regular"]),
        (["play", "mini-pacman", "--speed", "2"], ["--speed"]),
        (["record", "chess", "film.gif"], ["'chess'", "box-world, mini-pacman"]),
        (["record", "box-world"], ["a game and a path"]),
        (["record", "box-world", "film.avi"], ["film.avi", ".gif, .mp4"]),
        (["record", "box-world", "nowhere/film.gif"], ["nowhere does not exist"]),
        (["record", "box-world", "film.gif", "--frames", "0"], ["--frames '0'", "1 to "]),
        (["record", "box-world", "film.gif", "--episodes", "some"], ["--episodes 'some'"]),
        (["record", "box-world", "film.gif", "--mode", "hunt"], ["'hunt'"]),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    refused(capsys, arguments, *parts)
    assert not any(tmp_path.iterdir())  # nothing was made


# ------------------------------------------------------------------ bench


def test_bench_runs_the_repositorys_script(tmp_path, monkeypatch, capfd):
    script = tmp_path / "cores.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(2)\n")
    monkeypatch.setattr(bench, "SCRIPT", script)
    assert main(["bench", "--only", "acting"]) == 2
    assert capfd.readouterr().out == "['--only', 'acting']\n"


def test_bench_without_the_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "SCRIPT", tmp_path / "cores.py")
    refused(capsys, ["bench"], "benchmarks/cores.py is not here", "clone")
