"""rmc train and rmc eval as a user meets them: real processes for what is about processes, signals say."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from relational_rnn.cli.__main__ import main
from relational_rnn.training import checkpoint
from relational_rnn.training.loop import Problem
from relational_rnn.training.run_folder import RunFolder
from relational_rnn.training.stopping import SAME_REQUEST
from tests.cli.commands import SMOKE, outcome, refused, rmc, snapshot, wait_for


def test_on_a_cpu_a_run_in_bf16_is_scored_in_32_bits(tmp_path, capsys):
    run = tmp_path / "run"
    assert main([*SMOKE, "--run", str(run), "--training.precision", "bf16"]) == 0
    scores = []
    for _ in range(2):
        capsys.readouterr()
        assert main(["eval", str(run), "--samples", "20000", "--device", "cpu"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["accuracy"])
        settings = run / "config.json"
        settings.write_text(settings.read_text().replace('"bf16"', '"fp32"'))
    assert scores[0] == scores[1]  # with autocast a few of 20,000 answers are others


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_train_and_eval(tmp_path, capsys, core):
    run = tmp_path / "run"
    assert main([*SMOKE, "--core", core, "--run", str(run), "--training.seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "step 60 of 60" in said
    assert "done: eval_accuracy" in said
    records = RunFolder.open(run).metrics()
    assert [record["step"] for record in records] == [10, 20, 30, 40, 50, 60]
    assert [record["step"] for record in records if "eval_accuracy" in record] == [20, 40, 60]
    before = snapshot(run)
    assert main(["eval", str(run)]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == {"run": str(run), "step": 60, "accuracy": records[-1]["eval_accuracy"]}
    assert main(["eval", str(run), "--samples", "7"]) == 0  # of 7 samples a whole number is right
    assert round(json.loads(capsys.readouterr().out)["accuracy"] * 7, 6) % 1 == 0
    assert snapshot(run) == before
    described = RunFolder.open(run).config()
    assert (described["preset"], described["config"]["core"], described["config"]["training"]["seed"]) == (
        "smoke",
        core,
        3,
    )


def test_overrides_reach_the_model(tmp_path):
    sizes = {}
    for slots in (2, 4):
        run = tmp_path / str(slots)
        main([*SMOKE, "--run", str(run), "--model.mem-slots", str(slots), "--training.steps", "10"])
        weights, _ = checkpoint.load(run / "weights.safetensors")
        sizes[slots] = weights["core.input_projection.weight"].shape[0]
    assert sizes == {2: 16, 4: 8}  # 32 units in all


def test_default_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*SMOKE, "--training.steps", "10"]) == 0
    (run,) = (tmp_path / "runs" / "nth-farthest").iterdir()
    assert re.fullmatch(r"smoke-rmc-seed0-\d{8}-\d{6}", run.name)


def test_resume_of_a_complete_run_changes_nothing_that_matters(finished, capsys):
    before = outcome(finished)
    assert main(["train", "--resume", str(finished)]) == 0
    assert "is complete" in capsys.readouterr().out
    assert outcome(finished) == before


LONG = ["--training.steps", "800", "--training.checkpoint-every", "50", "--training.schedule", "constant"]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "run"
    assert main([*SMOKE, *LONG, "--run", str(path)]) == 0
    return outcome(path)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs terminals that hang up")
def test_a_closed_terminal_stops_it_at_a_checkpoint(tmp_path):
    run, (ours, its) = tmp_path / "run", os.openpty()
    command = [sys.executable, "-m", "relational_rnn.cli", *SMOKE, *LONG, "--run", str(run)]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    while not any(run.glob("checkpoints/step-000000[1-9]*.safetensors")):
        os.read(ours, 4096)  # or it would wait for somebody to read
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    os.close(ours)  # who writes there now gets an error
    assert process.wait(60) == 128 + signal.SIGHUP
    ended = json.loads((run / "environment.json").read_text())[-1]["ended_at_step"]
    assert RunFolder.open(run).latest_checkpoint().name == f"step-{ended:09d}.safetensors"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_process_resumes_exactly(tmp_path, long_run, number):
    run = tmp_path / "run"
    process = rmc(*SMOKE, *LONG, "--run", run)
    wait_for(lambda: any(run.glob("checkpoints/step-000000[1-9]*.safetensors")), process)
    process.send_signal(number)
    said, wrong = process.communicate(timeout=60)
    assert "Traceback" not in wrong
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + number
        step = int(re.search(r"stopped at step (\d+) of 800", said)[1])
        assert f"resume with: rmc train --resume {run}" in said
        assert RunFolder.open(run).latest_checkpoint().name == f"step-{step:09d}.safetensors"
    again = rmc("train", "--resume", run)
    said, wrong = again.communicate(timeout=120)
    assert again.returncode == 0, wrong
    assert "resuming" in said
    assert outcome(run) == long_run
    assert len(json.loads((run / "environment.json").read_text())) == 2


def test_a_signal_while_a_run_begins_leaves_one_that_can_go_on(tmp_path, monkeypatch, capsys):
    """The folder is there and its first checkpoint is not."""
    monkeypatch.setattr(Problem, "write_files", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert main([*SMOKE, "--run", str(tmp_path / "run")]) == 143
    assert "stopped at step 0 of 60" in capsys.readouterr().out
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0


def test_muon_without_a_matrix_for_it_says_so(tmp_path, capsys):
    few = [*SMOKE, "--training.optimizer", "muon", "--training.steps", "1", "--run"]
    assert main([*few, str(tmp_path / "small")]) == 0
    assert "note: --training.optimizer muon is not used: no matrix" in capsys.readouterr().err
    assert main([*few, str(tmp_path / "wide"), "--model.head-units", "64", "--model.head-layers", "2"]) == 0
    assert "muon" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_last_evaluation(tmp_path, number):
    """Which takes a minute here. What is left is a run that can be resumed, not one that looks complete."""
    run = tmp_path / "run"
    process = rmc(*SMOKE, "--training.eval-every", "0", "--eval-samples", "20000000", "--run", run)
    records = run / "metrics.jsonl"
    wait_for(lambda: records.exists() and '"step": 50' in records.read_text(), process)
    time.sleep(1.0)  # the ten updates that are left take a small part of that
    process.send_signal(number)
    time.sleep(SAME_REQUEST + 0.5)
    assert process.poll() is None
    process.send_signal(number)
    try:
        said, wrong = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, wrong) == (128 + number, "rmc: interrupted\n")
    assert "done" not in said
    assert not (run / "weights.safetensors").exists()
    left = RunFolder.open(run)
    assert left.latest_checkpoint().name == "step-000000040.safetensors"
    assert left.metrics()[-1]["step"] == 50


def test_resume_while_it_still_runs(tmp_path, capsys):
    run = tmp_path / "run"
    process = rmc(*SMOKE, *LONG, "--training.steps", "1000000", "--run", run)
    wait_for(lambda: list((run / "checkpoints").glob("step-*.safetensors")), process)
    refused(capsys, ["train", "--resume", run], run, "in use by another process")
    process.kill()
    process.communicate()
