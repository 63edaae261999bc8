"""rmc reproduce: whole sections of the paper, several trainings at a time."""

import json
import signal
from types import SimpleNamespace

import pytest
import torch

from relational_rnn.cli.__main__ import main
from relational_rnn.training import checkpoint, many
from relational_rnn.training.run_folder import RunFolder
from tests.cli.commands import SMOKE, outcome, refused, rmc, snapshot, stopped_run, wait_for
from tests.tasks.text.files import make_wikitext

NTH = ["reproduce", "nth-farthest", "--preset", "smoke"]


def cells(runs, section):
    return {cell["cell"]: cell for cell in json.loads((runs / f"{section}.json").read_text())["cells"]}


def listed(capsys, *arguments):
    """{cell: state} of --list."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    return {line.split()[0]: line[len(line.split()[0]) :].partition("rmc train")[0].strip() for line in lines}


def begun(run):
    return any(run.glob("checkpoints/step-*[1-9]*"))


def test_help(capsys):
    assert main(["reproduce", "--help"]) == 0
    said = capsys.readouterr().out
    assert "usage: rmc reproduce SECTION" in said
    assert "--at-once K" in said


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([*NTH, "--preset", "dims32"], ["'dims32'", "fast, smoke"]),
        ([*NTH, "--only", "gru"], ["--only 'gru'", "rmc-seed0", "lstm-no-stages"]),
        ([*NTH, "--only", "lstm,"], ["--only ''", "rmc-seed0"]),
        ([*NTH, "--core", "lstm", "--only", "paper"], ["--core is not allowed", "--only"]),
        ([*NTH, "--model.mem_slots=2"], ["--model.mem_slots is not allowed", "--only"]),
        (["reproduce", "box-world", "--training.weights", "mine"], ["--training.weights is not allowed"]),
        ([*NTH, "--tasks", "copy"], ["'--tasks'"]),
        ([*NTH, "--at-once", "0"], ["--at-once '0'", "1 or more"]),
        ([*NTH, "--at-once", "two"], ["--at-once 'two'", "1 or more"]),
        ([*NTH, "--minutes", "-1"], ["--minutes '-1'", "more than 0"]),
        ([*NTH, "--minutes", "nan"], ["--minutes 'nan'", "more than 0"]),
        ([*NTH, "--list", "--table-only"], ["--list", "--table-only"]),
        ([*NTH, "--training.steps", "0"], ["steps=0", "1 or more"]),
        (["reproduce", "box-world", "--preset", "demo"], ["'demo'", "fast, paper, smoke"]),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    refused(capsys, arguments, *parts)
    assert not any(tmp_path.iterdir())  # nothing was made


def test_a_file_in_place_of_the_folder(tmp_path, capsys):
    (tmp_path / "runs").write_text("")
    refused(capsys, [*NTH, "--runs", tmp_path / "runs"], "--runs", "is no folder")


def test_a_section_two_at_once(tmp_path, capsys):
    runs = tmp_path / "runs"
    command = ["reproduce", "box-world", "--preset", "smoke", "--runs", str(runs), "--at-once", "2"]
    names = ("rmc", "rmc-2", "rmc-3", "conv-lstm")
    assert listed(capsys, *command) == dict.fromkeys(names, "not begun")
    assert not runs.exists()

    assert main(command) == 0
    said = capsys.readouterr().out
    assert said.index("conv-lstm: begun") < said.index("finished after")  # at once
    assert listed(capsys, *command) == dict.fromkeys(names, "finished")
    found = cells(runs, "box-world")
    for core in ("rmc", "conv-lstm"):
        last = RunFolder.open(runs / core).metrics()[-1]
        assert (found[core]["status"], found[core]["core"]) == ("finished", core)
        assert found[core]["score"] == last["eval_sampled_solved"]
        assert "done: " in (runs / f"{core}.log").read_text()
        assert f"| {core} | smoke | 12 |" in (runs / "box-world.md").read_text()

    before = snapshot(runs)
    assert main(command) == 0
    assert "4 of 4 cells are finished" in capsys.readouterr().out
    assert snapshot(runs) == before


def test_a_cell_begins_with_the_weights_of_another(tmp_path, capsys):
    runs = tmp_path / "runs"
    command = ["reproduce", "box-world", "--preset", "smoke", "--runs", str(runs), "--at-once", "2"]
    refused(capsys, [*command, "--only", "rmc-2"], "rmc-2 begins with the weights of rmc", "--only rmc,rmc-2")
    assert main([*command, "--only", "rmc-2,rmc"]) == 0
    said = capsys.readouterr().out
    assert said.index("rmc: finished") < said.index("rmc-2: begun")  # whatever their order
    last = checkpoint.load(RunFolder.open(runs / "rmc").latest_checkpoint())[0]
    first = checkpoint.load(runs / "rmc-2" / "checkpoints" / "step-000000000.safetensors")[0]
    model = [name for name in last if name.startswith("model/")]
    assert len(model) > 10
    for name in model:
        assert torch.equal(first[name], last[name]), name

    runs = runs.rename(tmp_path / "moved")
    command = ["reproduce", "box-world", "--preset", "smoke", "--runs", str(runs), "--only"]
    assert listed(capsys, *command, "rmc,rmc-2") == {"rmc": "finished", "rmc-2": "finished"}
    assert main([*command, "rmc-3"]) == 0  # what it begins with is there
    config = json.loads((runs / "rmc-2" / "config.json").read_text())
    config["config"]["training"]["weights"] = "/elsewhere/other"
    (runs / "rmc-2" / "config.json").write_text(json.dumps(config))
    refused(capsys, [*command, "rmc-2"], "training.weights is '/elsewhere/other'")


def test_what_comes_after_a_failure_is_not_begun(tmp_path, capsys):
    run = stopped_run(tmp_path / "rmc", "box-world", ["--core", "rmc"], 0)
    run.latest_checkpoint().write_bytes(b"damaged")
    some = ["--preset", "smoke", "--runs", str(tmp_path), "--only", "rmc,rmc-2"]
    assert main(["reproduce", "box-world", *some]) == 1
    said = capsys.readouterr().out
    assert "failed: rmc;" in said
    assert "not finished: rmc-2" in said
    assert not (tmp_path / "rmc-2").exists()


def test_language_models_of_one_text(tmp_path, capsys):
    """--data goes to every cell, and the table has the perplexity of the test text."""
    runs, data = tmp_path / "runs", make_wikitext(tmp_path / "text", lines=40)
    command = ["reproduce", "table2", "--preset", "smoke", "--runs", str(runs), "--data", str(data)]
    assert main(command) == 0
    found = cells(runs, "table2")
    assert found.keys() == {"rmc", "lstm"}
    for core, cell in found.items():
        assert (cell["status"], cell["core"]) == ("finished", core)
        assert cell["score"] == RunFolder.open(runs / core).metrics()[-1]["eval_test_perplexity"]
    assert "table2: test perplexity" in capsys.readouterr().out
    assert listed(capsys, *command) == {"rmc": "finished", "lstm": "finished"}


@pytest.mark.parametrize(
    ("preset", "numbers"), [("paper", ["31.6", "34.3"]), ("paper-gigaword", ["38.3", "43.7"])]
)
def test_language_models_stand_beside_the_papers_test_perplexity(tmp_path, capsys, preset, numbers):
    assert main(["reproduce", "table2", "--preset", preset, "--runs", str(tmp_path), "--table-only"]) == 0
    said = capsys.readouterr().out
    assert all(number in said for number in numbers)
    assert [cell["paper"] for cell in cells(tmp_path, "table2").values()] == [float(n) for n in numbers]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "data='' is not allowed; allowed: a folder of a corpus"),
        (["--data", "/no/text"], "/no/text is no folder; allowed: a folder of text, or of token files"),
    ],
)
def test_language_models_without_a_text(tmp_path, capsys, data, said):
    runs = tmp_path / "runs"
    assert main(["reproduce", "table2", "--preset", "smoke", "--runs", str(runs), *data]) == 2
    assert said in capsys.readouterr().err
    assert not runs.exists()  # nothing was begun


def test_time_is_up_and_the_same_command_goes_on(tmp_path, capsys, monkeypatch):
    runs, first = tmp_path / "runs", tmp_path / "runs" / "lstm"
    command = [*NTH, "--runs", str(runs), "--only", "lstm*", "--training.steps", "400", "--minutes", "5"]
    real = many.time
    # An hour passes with the first checkpoint, and is noticed at once.
    clock = SimpleNamespace(monotonic=lambda: real.monotonic() + 3600 * begun(first), sleep=real.sleep)
    monkeypatch.setattr(many, "time", clock)
    monkeypatch.setattr(many, "SAME_REQUEST", 0.0)
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "time is up" in said
    assert "not finished: lstm, lstm-no-stages" in said
    assert f"go on with: rmc {' '.join(command[:3])}" in said
    state = listed(capsys, *command)
    assert state.pop("lstm-no-stages") == "not begun"
    step = RunFolder.open(first).checkpoint_steps()[-1]
    assert 20 <= step < 400
    assert state == {"lstm": f"at {step} of 400"}
    assert cells(runs, "nth-farthest")["lstm"]["status"] == "stopped"

    monkeypatch.setattr(many, "time", real)
    assert main([*command, "--only", "lstm"]) == 0  # the last --only counts
    assert "go on" not in capsys.readouterr().out
    whole = tmp_path / "whole"
    assert main([*SMOKE, "--core", "lstm", "--training.steps", "400", "--run", str(whole)]) == 0
    assert outcome(first) == outcome(whole)


def test_a_signal_reaches_all_and_leaves_nothing_running(tmp_path, capsys):
    runs = tmp_path / "runs"
    long = [*NTH, "--runs", runs, "--only", "lstm,dnc,paper", "--at-once", "2", "--training.steps", "1000000"]
    process = rmc(*long)
    wait_for(lambda: begun(runs / "lstm") and begun(runs / "dnc"), process)
    state = listed(capsys, *long)
    assert state["paper"] == "not begun"
    assert state["lstm"].endswith("of 1,000,000")
    process.send_signal(signal.SIGTERM)
    said, wrong = process.communicate(timeout=60)
    assert process.returncode == 143, wrong
    assert "Traceback" not in wrong
    assert "not finished: " in said
    assert "go on with: rmc reproduce nth-farthest" in said
    for name in ("lstm", "dnc"):
        run = RunFolder.open(runs / name)
        run.lock()  # no process has it
        run.close()
        assert f"stopped at step {run.checkpoint_steps()[-1]}" in (runs / f"{name}.log").read_text()
    assert not (runs / "paper").exists()


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path, capsys):
    run = stopped_run(tmp_path / "lstm", "nth-farthest", ["--core", "lstm"], 0)
    run.latest_checkpoint().write_bytes(b"damaged")
    command = [*NTH, "--runs", str(tmp_path), "--only", "lstm,paper"]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "lstm: failed with exit status 2" in said
    assert f"the end of {tmp_path / 'lstm.log'}" in said
    assert "| rmc: error: checkpoint" in said
    assert "paper: finished" in said
    assert "failed: lstm" in said
    found = cells(tmp_path, "nth-farthest")
    assert (found["lstm"]["status"], found["paper"]["status"]) == ("stopped", "finished")


def test_other_settings_are_refused_before_anything_starts(tmp_path, capsys):
    run = stopped_run(tmp_path / "lstm", "nth-farthest", ["--core", "lstm"], 13)
    command = [*NTH, "--runs", str(tmp_path), "--only", "lstm,paper"]
    assert listed(capsys, *command) == {"lstm": "at 13 of 60", "paper": "not begun"}
    before = snapshot(tmp_path)
    other = [*command, "--training.learning-rate", "0.5"]
    refused(capsys, other, tmp_path / "lstm", "training.learning_rate is 0.001, not 0.5", "another --runs")
    assert "training.learning_rate is 0.001" in listed(capsys, *other)["lstm"]
    assert snapshot(tmp_path) == before
    for path in run.checkpoints.iterdir():
        path.unlink()
    refused(capsys, command, tmp_path / "lstm", "has no checkpoint")
