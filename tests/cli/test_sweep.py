"""rmc sweep in real processes: they share the points of a SQLite study, and a dead one's are taken up."""

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from relational_rnn.analysis import sweep as analysis
from relational_rnn.analysis.figures_sweep import accuracy_against_time
from relational_rnn.cli.__main__ import main
from relational_rnn.training.run_folder import RunFolder
from relational_rnn.training.sweep import FileLock
from tests.cli.commands import refused, rmc, wait_for

SWEEP = ["sweep", "nth-farthest", "--preset", "smoke"]
SMALL = ["--memories", "1", "2", "--heads", "1", "2", "--training.steps", "20"]


def sessions(run):
    """How often a run was started and resumed."""
    return len(json.loads((run / "environment.json").read_text()))


def trained(output):
    return re.findall(r"^point (\S+)$", output, re.MULTILINE)


def summary(folder):
    return {entry["run"]: entry for entry in json.loads((folder / "summary.json").read_text())["points"]}


def waits_for(process, path):
    """Whether a process has that file open."""
    found = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(link))
    return str(path.resolve()) in found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see both processes wait")
def test_two_processes_share_every_point_once(tmp_path):
    output = tmp_path / "sweep"
    grid = [
        "--memories",
        "1",
        "2",
        "--heads",
        "1",
        "2",
        "--gates",
        "unit",
        "memory",
        "--training.steps",
        "20",
    ]
    lock = FileLock(output / ".locks" / "claiming.lock")
    lock.path.parent.mkdir(parents=True)
    with lock:  # both are to begin at the same moment, however long each takes to import torch
        processes = [rmc(*SWEEP, *grid, "--output", output) for _ in range(2)]
        for process in processes:
            wait_for(lambda p=process: waits_for(p, lock.path), process, seconds=180)
    said = []
    for process in processes:
        out, wrong = process.communicate(timeout=240)
        assert process.returncode == 0, wrong
        assert "Traceback" not in wrong
        said.append(trained(out))
    runs = sorted(path.name for path in output.glob("mem-slots-*"))
    assert len(runs) == 8
    assert sorted(said[0] + said[1]) == runs  # every point, none twice
    assert said[0]
    assert said[1]
    assert {sessions(output / run) for run in runs} == {1}
    points = summary(output)
    assert {entry["status"] for entry in points.values()} == {"finished"}
    for run in runs:
        record = RunFolder.open(output / run).metrics()[-1]
        assert (record["step"], points[run]["accuracy"]) == (20, record["eval_accuracy"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_process_point_is_taken_up_from_its_checkpoint(tmp_path, capsys, number):
    output = tmp_path / "sweep"
    grid = ["--memories", "1", "2", "--training.steps", "600", "--training.schedule", "constant"]
    process = rmc(*SWEEP, *grid, "--output", output)
    wait_for(lambda: any(output.glob("*/checkpoints/step-*[1-9]0.safetensors")), process, seconds=180)
    process.send_signal(number)
    out, wrong = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in wrong
    (begun,) = output.glob("mem-slots-*")
    assert trained(out) == [begun.name]
    if number == signal.SIGTERM:
        assert summary(output)[begun.name]["status"] == "stopped"
    assert main([*SWEEP, *grid, "--output", str(output), "--summary-only"]) == 0
    assert sorted(entry["status"] for entry in summary(output).values()) == ["not run", "stopped"]
    capsys.readouterr()

    assert main([*SWEEP, *grid, "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert "2 points, 0 finished or being trained" in out
    assert trained(out)[0] == begun.name
    assert len(trained(out)) == 2
    resumed = json.loads((begun / "environment.json").read_text())
    assert len(resumed) == 2
    assert 0 < resumed[1]["resumed_at_step"] < 600
    assert {run: sessions(output / run) for run in summary(output) if run != begun.name}.popitem()[1] == 1
    assert {entry["status"] for entry in summary(output).values()} == {"finished"}
    assert {entry["step"] for entry in summary(output).values()} == {600}


def test_finished_points_stay_and_a_larger_grid_takes_them_over(tmp_path, capsys):
    output = ["--output", str(tmp_path / "sweep")]
    assert main([*SWEEP, "--memories", "1", "2", "--training.steps", "20", *output]) == 0
    said = capsys.readouterr().out
    assert len(trained(said)) == 2
    assert re.search(r"memories .* accuracy %", said)
    before = {run: sessions(tmp_path / "sweep" / run) for run in trained(said)}
    assert main([*SWEEP, "--memories", "1", "2", "--training.steps", "20", *output]) == 0
    said = capsys.readouterr().out
    assert "2 points, 2 finished" in said
    assert trained(said) == []

    wider = [*SWEEP, "--memories", "1", "2", "4", "--training.steps", "20", *output]
    refused(capsys, wider, "grid.model.mem-slots is ['1', '2'], not ['1', '2', '4']", "--study")
    assert main([*wider, "--study", "wider"]) == 0
    assert capsys.readouterr().out.count("is complete") == 2
    assert {run: sessions(tmp_path / "sweep" / run) for run in before} == before
    assert len(summary(tmp_path / "sweep")) == 3

    refused(capsys, [*wider, "--study", "third", "--training.seed", "5"], "training.seed is 0, not 5")
    assert main([*wider, "--study", "wider", "--summary-only"]) == 0
    assert trained(capsys.readouterr().out) == []


def test_any_option_of_a_baseline_can_be_swept(tmp_path, capsys):
    arguments = [*SWEEP, "--core", "lstm", "--over", "model.total-units", "8", "16", "--training.steps", "20"]
    assert main([*arguments, "--output", str(tmp_path / "sweep")]) == 0
    assert set(summary(tmp_path / "sweep")) == {"total-units-8", "total-units-16"}
    described = RunFolder.open(tmp_path / "sweep" / "total-units-16").config()
    assert (described["config"]["core"], described["config"]["model"]["total_units"]) == ("lstm", 16)
    assert "total-units" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["what?x=1", "50%41", "a#b", "Ünï ☃", "-dash"])
def test_the_study_lies_in_a_folder_of_any_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert main([*SWEEP, "--memories", "1", "--training.steps", "20", f"--output={name}"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "study.db").stat().st_size


def test_a_study_may_have_brackets_in_its_name(tmp_path, capsys):
    """To rich they are markup; control characters are nothing for a terminal."""
    few = ["--memories", "1", "--heads", "1", "--training.steps", "20", "--output", str(tmp_path / "sweep")]
    assert main([*SWEEP, *few, "--study", "[/]of [red]\x1b[31m"]) == 0
    said = capsys.readouterr().out
    assert r"[/]of [red]\x1b[31m: 1 point" in said
    assert "\x1b" not in said


def test_a_diverging_point_is_said_to_be_one(tmp_path, capsys):
    wild = ["--over", "training.learning-rate", "1e38", "1e-3", "--training.log-every", "1"]
    assert main([*SWEEP, *wild, "--training.steps", "20", "--output", str(tmp_path / "sweep")]) == 0
    assert "the loss is" in capsys.readouterr().err
    statuses = {run: entry["status"] for run, entry in summary(tmp_path / "sweep").items()}
    assert statuses == {"learning-rate-1e38": "diverged", "learning-rate-1e-3": "finished"}


def test_a_folder_killed_before_its_first_checkpoint_is_made_anew(tmp_path):
    begun = tmp_path / "sweep" / "mem-slots-1"
    (begun / "checkpoints").mkdir(parents=True)
    (begun / "metrics.jsonl").touch()
    (begun / "config.json.partial").write_text("{")
    arguments = [*SWEEP, "--memories", "1", "--training.steps", "20", "--output", str(tmp_path / "sweep")]
    assert main(arguments) == 0
    assert summary(tmp_path / "sweep")["mem-slots-1"]["status"] == "finished"


def test_a_folder_of_someone_else_is_left_alone(tmp_path, capsys):
    mine = tmp_path / "sweep" / "mem-slots-1"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("years")
    arguments = [*SWEEP, "--memories", "1", "--output", str(tmp_path / "sweep")]
    refused(capsys, arguments, "not a whole run folder")
    assert (mine / "thesis.txt").read_text() == "years"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["sweep", "lte"], ["'lte'", "nth-farthest"]),
        ([*SWEEP, "--preset", "quick"], ["'quick'", "paper, fast"]),
        ([*SWEEP, "--memories"], ["--memories needs values"]),
        ([*SWEEP, "--over", "model.num-blocks"], ["--over needs an option and values"]),
        ([*SWEEP, "--over"], ["--over needs an option and values"]),
        ([*SWEEP, "--memories", "1", "1"], ["names a value twice"]),
        ([*SWEEP, "--memories", "1", "--over", "model.mem_slots", "2"], ["model.mem-slots is swept twice"]),
        ([*SWEEP, "--memories", "1", "2", "--model.mem-slots", "4"], ["is given and swept"]),
        ([*SWEEP, "--memories", "1", "3"], ["total_units=32", "mem_slots x num_heads = 6"]),
        ([*SWEEP, "--gates", "unit", "door"], ["'door'"]),
        ([*SWEEP, "--memorys", "1"], ["'--memorys'", "perhaps --memories"]),
        ([*SWEEP, "--over", "model.slots", "1", "2"], ["'--model.slots'", "perhaps --model.mem-slots"]),
        ([*SWEEP, "--over", "training.device", "cpu", "cuda"], ["training.device cannot be swept"]),
        ([*SWEEP, "--core", "lstm", "--heads", "1", "2"], ["--heads is of core rmc alone", "'lstm'"]),
        ([*SWEEP, "--core", "lstm"], ["nothing to sweep for core 'lstm'", "--over"]),
        ([*SWEEP, "--summary-only", "--output", "missing"], ["missing is no folder of a sweep"]),
        ([*SWEEP, "--study", ""], ["--study ''"]),
        ([*SWEEP, "--output", __file__], ["test_sweep.py is a file"]),
        ([*SWEEP, "--summary-only", "--output", "."], [". is no folder of a sweep"]),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    refused(capsys, arguments, *parts)
    assert not any(tmp_path.iterdir())  # nothing was made


def test_without_optuna(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("relational_rnn.cli.sweep.find_spec", lambda name: None)
    refused(capsys, [*SWEEP, *SMALL, "--output", tmp_path / "sweep"], "relational-rnn[sweep]")


def test_help(capsys):
    assert main(["sweep", "--help"]) == 0
    assert "usage: rmc sweep nth-farthest" in capsys.readouterr().out


def test_the_papers_grid_is_the_default():
    from relational_rnn.cli.sweep import default_grid
    from relational_rnn.experiments.nth_farthest import paper
    from relational_rnn.training.sweep import points

    grid = default_grid(paper())
    assert len(points(grid)) == 3 * 3 * 2
    assert list(grid) == ["model.mem-slots", "model.num-heads", "model.gate-style"]


def test_the_figure_has_a_panel_for_each_number_of_memories(tmp_path):
    entries = []
    for memories in ("1", "8"):
        for heads in ("1", "8"):
            point = {"model.mem-slots": memories, "model.num-heads": heads}
            name = f"{memories}-{heads}"
            run = RunFolder.create(tmp_path / name, "nth-farthest", "smoke", {"training": {}})
            run.append({"step": 1, "seconds": 3600.0 * int(heads), "eval_accuracy": 0.5})
            run.close()
            entries.append({"run": name, "point": point})
    entries.append({"run": "8-16", "point": {"model.mem-slots": "8", "model.num-heads": "16"}})  # not begun
    one, eight = accuracy_against_time(analysis.curves(tmp_path, entries), "a sweep").axes
    assert [axes.get_title() for axes in (one, eight)] == ["memories 1", "memories 8"]
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in (one, eight)]
    assert labels == [["heads 1", "heads 8"], ["heads 1", "heads 8", "heads 16"]]
    assert one.lines[1].get_xdata().tolist() == [8]
    assert (one.get_xlabel(), one.get_ylabel()) == ("training time (hours)", "accuracy (%)")


@pytest.mark.parametrize(
    ("others", "labels"),
    [({}, {"seed 0", "seed 1"}), ({"model.num-heads": "1"}, {"heads 1 (2 seeds)"})],
    ids=["alone", "of a point"],
)
def test_swept_seeds_are_one_line_of_a_point(tmp_path, others, labels):
    entries = []
    for seed in ("0", "1"):
        run = RunFolder.create(tmp_path / seed, "nth-farthest", "smoke", {"training": {}})
        run.append({"step": 1, "seconds": 60.0, "eval_accuracy": 0.5})
        run.close()
        entries.append({"run": seed, "point": {**others, "training.seed": seed}})
    (axes,) = accuracy_against_time(analysis.curves(tmp_path, entries), "a sweep").axes
    assert {line.get_label() for line in axes.lines} == labels
