"""README.md says what is so: its code runs, its tree exists, its numbers are those of its files."""

import json
import re

import pytest

from relational_rnn.cli.__main__ import COMMANDS
from relational_rnn.cli.demo import EVAL_SAMPLES
from relational_rnn.experiments import EXPERIMENTS, load_experiment
from tests.markdown import ROOT, blocks, execute, links, tree_paths

README = ROOT / "README.md"


def test_the_code_runs():
    assert execute(README) == 2


def test_the_core_fits_in_about_ten_lines():
    _, text = blocks(README, "python")[0]
    assert len([line for line in text.splitlines() if line.strip()]) <= 10


def test_every_path_of_the_tree_exists():
    (text,) = (text for _, text in blocks(README, "text") if "pyproject.toml" in text)
    paths = tree_paths(text)
    assert "relational_rnn/cores/relational_memory.py" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_file_a_number_comes_from_exists():
    files = {link for link in links(README) if link.startswith(("results/", "benchmarks/results/"))}
    assert files
    assert [link for link in files if not (ROOT / link).is_file()] == []


def test_the_demos_numbers_are_those_of_its_file():
    runs = json.loads((ROOT / "results" / "demo.json").read_text())["runs"]
    text = README.read_text()
    for core in ("rmc", "lstm"):
        scores = [100 * run[f"{core}_accuracy"] for run in runs]
        shown = float(re.search(rf"^{core.upper()} +([\d.]+) % of {EVAL_SAMPLES:,} fresh", text, re.M)[1])
        assert shown == pytest.approx(scores[0], abs=0.051)
        row = re.search(r"^\| .*\(the demo\).*$", text, re.M)[0].split("|")[2 if core == "rmc" else 3]
        low, high = map(float, re.findall(r"\d+\.\d", row))
        assert (low, high) == pytest.approx((min(scores), max(scores)), abs=0.051)
    low, high = map(int, re.search(r"five seeds took (\d+) to (\d+) s", text).groups())
    seconds = [run["seconds"] for run in runs]
    assert (low, high) == (round(min(seconds)), round(max(seconds)))


def test_the_commands_exist():
    lines = [line for _, text in blocks(README, "sh") for line in text.splitlines()]
    assert len(lines) > 15
    for line in lines:
        words = line.partition("#")[0].split()
        assert words[0] == "rmc"
        assert words[1] in COMMANDS
        if "--preset" in words and words[2] in EXPERIMENTS:
            presets = load_experiment(words[2]).PRESETS
            assert words[words.index("--preset") + 1] in presets, line
