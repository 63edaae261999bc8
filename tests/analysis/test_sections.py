"""Sections beside the paper's numbers, from run folders that were never trained."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from relational_rnn.analysis import sections
from relational_rnn.analysis.claims import CLAIMS
from relational_rnn.cli.reproduce import settings
from relational_rnn.experiments import load_experiment
from relational_rnn.experiments.nth_farthest import Curriculum
from relational_rnn.experiments.sections import SECTIONS
from relational_rnn.tasks.nth_farthest import NthFarthest
from relational_rnn.training.config import to_dict
from relational_rnn.training.run_folder import RunFolder

PAPER = {claim.key: claim for claim in CLAIMS}


def planned(name, preset="fast"):
    section = SECTIONS[name]
    return {cell: settings(section.experiment, cell, [], Path("runs")) for cell in section.cells(preset)}


def table(name, runs, preset="fast"):
    found = sections.read_table(name, runs, planned(name, preset))
    return {cell["cell"]: cell for cell in found["cells"]}


def write_run(path, config, records):
    run = RunFolder.create(path, "nth-farthest", "fast", to_dict(config))
    for record in records:
        run.append(record)
    run.close()
    return run


def test_the_papers_numbers_are_those_of_its_claims(tmp_path):
    cells = table("nth-farthest", tmp_path)
    keys = {f"rmc-seed{seed}": "nth-16-rmc" for seed in range(3)}
    keys |= {f"dims32-seed{seed}": "nth-32-rmc" for seed in range(3)}
    keys |= {name: "nth-16-rmc" for name in ("paper", "rmc-no-stages")}
    keys |= {name: "nth-16-lstm" for name in ("lstm", "lstm-no-stages")}
    keys |= {name: "nth-16-dnc" for name in ("dnc", "dnc-no-stages", "dnc-512")}
    keys |= {"rmc-1-memory": "sweep-1-8-unit", "rmc-1-head": "sweep-8-1-unit"}
    keys |= {"rmc-1-memory-1-head": "sweep-1-1-unit"}
    assert {name: cell["paper"] for name, cell in cells.items()} == {
        n: PAPER[k].paper for n, k in keys.items()
    }
    assert cells["dnc"]["paper_text"] == PAPER["nth-16-dnc"].paper_text
    assert {cell["status"] for cell in cells.values()} == {"not run"}
    assert {name: cell["paper"] for name, cell in table("mini-pacman", tmp_path).items()} == {
        f"{view}-{core}": PAPER[f"pacman-{view}-{core}"].paper
        for view in ("viewport", "full")
        for core in ("rmc", "lstm")
    }
    cells = table("box-world", tmp_path)
    assert {n: (c["paper"], c["metric"]) for n, c in cells.items()} == {
        name: (PAPER[f"box-world-{name.rstrip('-23')}"].paper, "eval_sampled_solved")
        for name in ("rmc", "rmc-2", "rmc-3", "conv-lstm")
    }


def test_another_task_has_no_number_of_the_paper(tmp_path):
    for cell in table("nth-farthest", tmp_path, preset="smoke").values():
        assert (cell["paper"], cell["paper_text"], cell["metric"]) == (None, "", "eval_accuracy")
    config = load_experiment("nth-farthest").fast()
    other = replace(config, task=NthFarthest(dims=8), curriculum=Curriculum())
    for name, settings_ in (("rmc-seed0", other), ("rmc-seed1", config)):
        write_run(tmp_path / name, settings_, [])
    found = table("nth-farthest", tmp_path)
    assert [found[name]["paper"] for name in ("rmc-seed0", "rmc-seed1")] == [None, 91]


def test_scores_are_of_the_last_evaluation(tmp_path):
    config = next(iter(planned("nth-farthest").values()))
    records = [
        {"step": 5_000, "seconds": 20.0, "eval_accuracy": 0.97},
        {"step": 10_000, "seconds": 40.0, "eval_accuracy": 0.955},
        {"step": 10_100, "seconds": 41.0},
    ]
    run = write_run(tmp_path / "rmc-seed0", config, records)
    cell = table("nth-farthest", tmp_path)["rmc-seed0"]
    assert (cell["status"], cell["step"], cell["steps"]) == ("stopped", 10_100, 40_000)
    assert (cell["score"], cell["eval_step"], cell["best_score"], cell["best_step"]) == (
        0.955,
        10_000,
        0.97,
        5_000,
    )
    whole = sections.read_table("nth-farthest", tmp_path, planned("nth-farthest"))
    assert json.loads(json.dumps(whole)) == whole
    _, first, second, *_ = sections.rows(whole)
    assert first == ["rmc-seed0", "fast", "10,100 of 40,000", "95.5 %", "91 %", "0:41"]
    assert second == ["rmc-seed1", "fast", "not run", "", "91 %", ""]
    assert sections.title(whole) == "nth-farthest: accuracy in %"
    assert "| rmc-seed0 | fast | 10,100 of 40,000 | 95.5 % | 91 % | 0:41 |" in sections.markdown(whole)

    run.checkpoint_path(40_000).touch()
    cell = table("nth-farthest", tmp_path)["rmc-seed0"]
    assert (cell["status"], cell["step"]) == ("finished", 40_000)


def test_a_record_without_a_time(tmp_path):
    config = next(iter(planned("nth-farthest").values()))
    write_run(tmp_path / "rmc-seed0", config, [{"step": 100}])
    cell = table("nth-farthest", tmp_path)["rmc-seed0"]
    assert (cell["status"], cell["step"], cell["seconds"]) == ("stopped", 100, 0.0)


@pytest.mark.parametrize("settings_", [None, [], {"training": None}])
def test_settings_that_are_none(tmp_path, settings_):
    run = RunFolder.create(tmp_path / "rmc-seed0", "nth-farthest", "fast", settings_)
    run.close()
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        table("nth-farthest", tmp_path)


@pytest.mark.parametrize("name", ["box-world", "mini-pacman"])
def test_titles(tmp_path, name):
    said = sections.title(sections.read_table(name, tmp_path, planned(name)))
    assert (
        said
        == {
            "box-world": "box-world: sampled solved in %",
            "mini-pacman": "mini-pacman: sampled return in points",
        }[name]
    )
