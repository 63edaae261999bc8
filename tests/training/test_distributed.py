"""Two real processes (torchrun, gloo, CPU): the curve of one, and a rank that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from relational_rnn.training import checkpoint
from relational_rnn.training.distributed import Ranks, join
from tests.tasks.text.files import make_wikitext

WITHOUT_DROPOUT = [f"--model.dropout.{name}=0" for name in ("word", "input", "output", "recurrent")]
TIMINGS = ("seconds", "steps_per_second")


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def arguments(data, run, *options):
    return [
        "relational_rnn.cli",
        "train",
        "lm",
        "--preset",
        "smoke",
        f"--data={data}",
        *options,
        "--run",
        run,
    ]


def torchrun(data, run, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--max-restarts=3", "--monitor-interval=0.2", "-m", "--", *arguments(data, run, *options)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(), text=True, stdout=pipe, stderr=pipe)


def records(run: Path):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in lines]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_wikitext(tmp_path_factory.mktemp("text"), lines=150)


def test_two_processes_have_the_curve_of_one(tmp_path, data):
    """Half of the streams each, gradients averaged: the joint batch, up to the order of sums."""
    process = torchrun(data, tmp_path / "two", *WITHOUT_DROPOUT)
    command = [sys.executable, "-m", *arguments(data, tmp_path / "one", *WITHOUT_DROPOUT)]
    subprocess.run(command, env=environment(), check=True, capture_output=True)
    said, wrong = process.communicate(timeout=120)
    assert process.returncode == 0, wrong
    assert said.count("run folder:") == 1  # one process speaks
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert len(one) == len(two) == 3
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        for name in ("loss", "nats", "gradient_norm"):
            assert abs(a[name] - b[name]) < 1e-4, name
        assert b["eval_valid_perplexity"] == pytest.approx(a["eval_valid_perplexity"], rel=1e-4)
    tensors, meta = checkpoint.load(tmp_path / "two" / "checkpoints" / "step-000000030.safetensors")
    alone, _ = checkpoint.load(tmp_path / "one" / "checkpoints" / "step-000000030.safetensors")
    assert meta["ranks"] == 2
    assert tensors["problem/carried.0"].shape == alone["problem/carried.0"].shape  # of all streams
    # Whoever goes on must be as many.
    resumed = [sys.executable, "-m", "relational_rnn.cli", "train", "--resume", str(tmp_path / "two")]
    done = subprocess.run(resumed, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "was written by 2 processes, this is one of 1" in done.stderr


@pytest.mark.slow
def test_a_killed_rank_is_restarted_and_the_run_ends_as_if_nothing_had_happened(tmp_path, data):
    """pytest -m slow tests/training/test_distributed.py

    With dropout, so that every rank's random numbers must come back as well.
    """
    options = ["--training.steps=300", "--training.checkpoint-every=20", "--training.eval-every=0"]
    whole = torchrun(data, tmp_path / "whole", *options)
    _, wrong = whole.communicate(timeout=300)
    assert whole.returncode == 0, wrong

    run = tmp_path / "killed"
    process = torchrun(data, run, *options)
    until = time.monotonic() + 120
    while not any(run.glob("checkpoints/step-0000000[2-9]*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(rank_process(process.pid, 1), signal.SIGKILL)
    said, wrong = process.communicate(timeout=300)
    assert process.returncode == 0, wrong
    assert f"resuming {run} at step" in said
    assert records(run) == records(tmp_path / "whole")
    found, wanted = (
        checkpoint.load(folder / "checkpoints" / "step-000000300.safetensors")[0]
        for folder in (run, tmp_path / "whole")
    )
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def rank_process(parent: int, rank: int) -> int:
    """The process of a rank among torchrun's children."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(status[1]) == parent and f"RANK={rank}".encode() in variables:
            return int(entry.name)
    raise AssertionError("that rank is not running")


@pytest.mark.slow
def test_an_existing_folder_is_not_taken_over_by_a_restart(tmp_path, data):
    """pytest -m slow tests/training/test_distributed.py

    torchrun repeats a command that failed; the second time must fail as the first."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", *arguments(data, run, "--training.steps=10")]
    subprocess.run(command, env=environment(), check=True, capture_output=True)
    before = (run / "metrics.jsonl").read_bytes()
    process = torchrun(data, run, "--training.steps=10")
    _, wrong = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "exists already" in wrong
    assert (run / "metrics.jsonl").read_bytes() == before


def test_only_the_first_process_says_that_a_run_diverged(capsys):
    from relational_rnn.cli.train import train
    from relational_rnn.training.loop import Diverged
    from relational_rnn.training.stopping import StopRequest

    trainer = Mock(run_folder=None, step=10, run=Mock(side_effect=Diverged("the loss is nan at step 10")))
    assert train(trainer, StopRequest()) == 1
    assert capsys.readouterr().err == ""


def test_torchrun_without_a_folder(monkeypatch, capsys):
    from relational_rnn.cli.__main__ import main

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert main(["train", "lm", "--preset", "smoke", "--data", "x"]) == 2
    assert "--run FOLDER is needed with torchrun" in capsys.readouterr().err


def test_alone_nothing_communicates(tmp_path):
    ranks = Ranks.current()
    assert (ranks.rank, ranks.count) == (0, 1)
    assert join("cpu") == "cpu"
    tensor = torch.arange(4)
    assert ranks.gather(tensor) is tensor
    assert ranks.own(tensor) is tensor
    assert ranks.mean(tensor) is tensor
    assert ranks.any(True)
    assert not ranks.any(False)
