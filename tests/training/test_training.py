"""Schedules, settings as dictionaries, checkpoint files, run folders, what is shown."""

import io
import json
import math
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from relational_rnn.agents import evaluation
from relational_rnn.analysis import attention
from relational_rnn.cli import record
from relational_rnn.experiments import lte_problem, nth_farthest
from relational_rnn.explorer import games, programs
from relational_rnn.training import checkpoint, stopping
from relational_rnn.training.config import Training, from_dict, to_dict
from relational_rnn.training.device import pick_device
from relational_rnn.training.progress import Display, duration, summary
from relational_rnn.training.run_folder import RunFolder, RunFolderError
from relational_rnn.training.schedules import learning_rate
from relational_rnn.training.stopping import StopRequest


def training(**changes):
    return replace(Training(steps=100, batch_size=1, learning_rate=1.0, final_learning_rate=0.2), **changes)


OTHER_SEEDS = {
    "evaluation of N-th farthest": nth_farthest.EVAL_SEED,
    "the demo's": nth_farthest.EVAL_SEED + 1,
    "evaluation of programs": lte_problem.EVAL_SEED,
    "evaluation of agents": evaluation.EVAL_SEED,
    "programs to look at": programs.SEED,
    "games to look at": games.SEED,
    "attention": attention.SEED,
    "films": record.FILM_SEED,
}


@pytest.mark.parametrize("seed", OTHER_SEEDS.values(), ids=list(OTHER_SEEDS))
def test_what_is_not_trained_on_has_random_numbers_of_its_own(seed):
    """On a CPU torch's generator reads 32 bits of a seed: 2**40 gave the numbers of seed 0."""

    def numbers(seed):
        return torch.rand(8, generator=torch.Generator().manual_seed(seed))

    for trained in (0, 1, seed % 2**31):
        assert not torch.equal(numbers(seed), numbers(training(seed=trained).seed))
    for wrong in (seed, 10**30):
        with pytest.raises(ValueError, match=f"seed={wrong} is not allowed; allowed: 0 or more, less than 2"):
            training(seed=wrong)


def test_an_unknown_schedule_is_not_a_constant_one():
    with pytest.raises(ValueError, match="schedule='cosin' is not allowed; allowed: constant"):
        training(schedule="cosin")


@pytest.mark.parametrize(
    ("changes", "step", "wanted"),
    [
        ({}, 99, 1.0),
        ({"warmup_steps": 3}, 0, 0.25),
        ({"warmup_steps": 3}, 2, 0.75),
        ({"warmup_steps": 3}, 3, 1.0),
        ({"schedule": "linear"}, 0, 1.0),
        ({"schedule": "linear"}, 50, 0.6),
        ({"schedule": "linear", "warmup_steps": 50}, 75, 0.6),
        ({"schedule": "cosine"}, 50, 0.6),
        ({"schedule": "cosine"}, 25, 0.2 + 0.4 * (1 + math.sqrt(0.5))),
        ({"schedule": "trapezoid"}, 80, 1.0),
        ({"schedule": "trapezoid"}, 90, 0.6),
        ({"schedule": "trapezoid", "warmup_steps": 3}, 0, 0.25),
        ({"schedule": "exponential", "steps": 10**6}, 10_000, 0.9),
        ({"schedule": "exponential", "steps": 10**6}, 10**6, 0.2),
    ],
)
def test_learning_rates(changes, step, wanted):
    assert learning_rate(training(**changes), step) == pytest.approx(wanted)


@pytest.mark.parametrize("preset", nth_farthest.PRESETS.values(), ids=nth_farthest.PRESETS)
def test_settings_survive_json(preset):
    config = preset()
    assert from_dict(type(config), json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("core",), "gru", r"config.core is 'gru'"),
        (("model", "mem_slots"), 2.5, r"config.model.mem_slots is 2.5; allowed: int"),
        (("model", "mem_slots"), True, r"config.model.mem_slots is True; allowed: int"),
        (("model", "slots"), 2, r"config.model has unknown \['slots'\]"),
        (("curriculum", "stages"), [[4, 4, 4]], r"config.curriculum.stages is \(\(4, 4, 4\),\)"),
        (("training",), 3, r"config.training is 3; allowed: an object"),
        (("training", "steps"), 0, r"steps=0 is not allowed; allowed: 1 or more"),
        (("training", "learning_rate"), math.inf, r"learning_rate=inf .* more than 0, less than inf"),
        (("training", "checkpoint_every"), 15, r"checkpoint_every=15 .* a multiple of log_every=10"),
    ],
)
def test_damaged_settings(path, value, message):
    values = json.loads(json.dumps(to_dict(nth_farthest.smoke())))
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        from_dict(nth_farthest.Config, values)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (((3, 2), (2, 1)), "stages that end with"),
        (((1, 1), (3, 2)), r"stage=\(1, 1\)"),
        (((3, 3),), r"stage=\(3, 3\)"),
    ],
)
def test_wrong_stages(stages, message):
    with pytest.raises(ValueError, match=message):
        replace(nth_farthest.smoke(), curriculum=nth_farthest.Curriculum(stages))


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu0", "cuda:99", ""])
def test_wrong_devices(name):
    with pytest.raises(ValueError, match=f"device={name!r}"):
        pick_device(name)


# ------------------------------------------------------------------ checkpoint files


def test_checkpoint_round_trip(tmp_path):
    weight = torch.randn(3, 4)
    tensors = {
        "a": weight,
        "tied": weight,
        "view": weight[:, ::2],
        "none": torch.empty(0),
        "step": torch.tensor(3),
    }
    checkpoint.save(tmp_path / "c.safetensors", tensors, {"step": 3, "names": ["loss"]})
    loaded, meta = checkpoint.load(tmp_path / "c.safetensors")
    assert meta == {"step": 3, "names": ["loss"]}
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, {"a": torch.arange(6.0)}, {"step": 3})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is damaged"):
            checkpoint.load(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, {"a": torch.zeros(2)}, {"step": 1})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        checkpoint.save(path, {"a": torch.ones(2)}, {"step": object()})
    assert path.read_bytes() == before


def test_a_full_disk_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError) as error:  # any error of the system will do
        checkpoint.save(tmp_path / "missing" / "c.safetensors", {"a": torch.zeros(2)}, {"step": 1})
    assert error.value.filename == str(tmp_path / "missing" / "c.safetensors.partial")


KILLED_WRITER = """
import sys, torch
from pathlib import Path
from relational_rnn.training import checkpoint
path = Path(sys.argv[1])
for step in range(10**9):
    checkpoint.save(path, {"a": torch.full((300_000,), float(step))}, {"step": step})
    print(step, flush=True)
"""


def test_killed_while_writing_the_last_checkpoint_is_whole(tmp_path):
    """kill -9 at arbitrary moments of a process that does nothing but write checkpoints."""
    path = tmp_path / "c.safetensors"
    for delay in (0.0, 0.001, 0.003, 0.007):
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED_WRITER, path], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3):
            said = int(writer.stdout.readline())
        time.sleep(delay)
        writer.kill()
        writer.wait()
        tensors, meta = checkpoint.load(path)
        assert meta["step"] >= said
        assert torch.equal(tensors["a"], torch.full((300_000,), float(meta["step"])))


# ------------------------------------------------------------------ run folders


def folder(path):
    return RunFolder.create(path, "nth-farthest", "smoke", {"a": 1})


def test_run_folder(tmp_path):
    run = folder(tmp_path / "deep" / "run")
    run.append({"step": 10, "loss": 1.0})
    run.close()
    again = RunFolder.open(tmp_path / "deep" / "run")
    assert again.config() == {"experiment": "nth-farthest", "preset": "smoke", "config": {"a": 1}}
    assert again.metrics() == [{"step": 10, "loss": 1.0}]
    (session,) = json.loads((run.path / "environment.json").read_text())
    assert session["torch"] == torch.__version__


@pytest.mark.parametrize(
    "make", [lambda p: p.mkdir(), lambda p: p.write_text("mine"), lambda p: folder(p).close()]
)
def test_what_exists_is_left_alone(tmp_path, make):
    path = tmp_path / "run"
    make(path)
    before = sorted((str(p), p.read_bytes() if p.is_file() else None) for p in tmp_path.rglob("*"))
    with pytest.raises(RunFolderError, match="exists already; choose another --run"):
        folder(path)
    assert sorted((str(p), p.read_bytes() if p.is_file() else None) for p in tmp_path.rglob("*")) == before


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    run = RunFolder.create(tmp_path / "run", "nth-farthest", "smoke", {})
    for name in ("step-000000009.safetensors.partial", ".tmpxjv7bl", "step-000000001.safetensors"):
        (run.checkpoints / name).touch()
    run.prune(keep=1)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000001.safetensors"]


def test_one_process_at_a_time(tmp_path):
    run = folder(tmp_path / "run")
    with pytest.raises(RunFolderError, match="in use by another process"):
        RunFolder.open(tmp_path / "run").resume(0)
    run.close()
    RunFolder.open(tmp_path / "run").resume(0)


NO_RECORDS = [b'{"step": 2', b"[1]", b"null", b"{}", b'{"step": "2"}', b'{"step": 2, "loss": "3"}', b"\xff"]


@pytest.mark.parametrize("line", NO_RECORDS)
def test_damage_in_the_middle_of_metrics(tmp_path, line):
    run = folder(tmp_path / "run")
    run.metrics_path.write_bytes(b'{"step": 10}\n' + line + b'\n{"step": 30}\n')
    with pytest.raises(RunFolderError, match="damaged in line 2"):
        run.metrics()


# ------------------------------------------------------------------ stopping and showing


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs terminals that hang up")
def test_nohup_is_left_alone():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_remembered(number, second, monkeypatch):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        signal.raise_signal(second)  # from timeout or torchrun: the same request
        assert stop.signal == number
        monkeypatch.setattr(stopping, "SAME_REQUEST", 0.0)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            signal.raise_signal(second)
        assert interrupt.value.args == (second,)
    assert signal.getsignal(number) is before


RECORD = {"step": 50, "loss": 0.5321, "accuracy": 0.8125, "stage": 3, "steps_per_second": 10.0}


def test_summary():
    assert summary(RECORD, 100) == "loss 0.5321  accuracy 81.2 %  stage 3  10 steps/s  0:05 left"
    assert [duration(s) for s in (0, 59.6, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]


def test_a_very_slow_run_is_shown_without_the_time_left():
    assert summary({**RECORD, "steps_per_second": 0.0}, 100).endswith("stage 3  0 steps/s")


def test_plain_lines_without_a_terminal(capsys):
    with Display(100, console=Console(file=io.StringIO())) as display:
        display(RECORD)
        display({**RECORD, "step": 60})  # too soon after the first
        display.note("evaluating")
        display({**RECORD, "step": 100})
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "step 50 of 100",
        "step 100 of 100",
    ]


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_the_step(width):
    said = io.StringIO()
    with Display(12_000, console=Console(file=said, force_terminal=True, width=width)) as display:
        display({**RECORD, "step": 9_000})
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue()).strip().splitlines()[-1]
    assert last.startswith("9,000 of 12,000 ")
    assert last.rstrip().endswith("…")  # and that something is missing
    assert len(last) <= width


def test_live_line_on_a_terminal():
    said = io.StringIO()
    with Display(100, console=Console(file=said, force_terminal=True, width=120)) as display:
        display(RECORD)
        display.progress.refresh()
        display.note("evaluating: all of it")
    assert "accuracy 81.2 %" in said.getvalue()
    assert "0:05 left" in said.getvalue()
    assert "evaluating: all of it" in said.getvalue()
