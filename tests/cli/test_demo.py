"""rmc demo: what it shows, what it leaves behind, and that it ends in time."""

import json
import signal
import subprocess
import sys
import time

import pytest

from relational_rnn.analysis.curves import draw_curves, read_curve
from relational_rnn.cli import demo
from relational_rnn.cli.__main__ import main

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(path, accuracies, steps=1000):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"config": {"training": {"steps": steps}}}))
    with (path / "metrics.jsonl").open("w") as file:
        for i, accuracy in enumerate(accuracies, 1):
            record = {"step": 100 * i, "eval_accuracy": accuracy, "vectors": 3, "dims": 1}
            file.write(json.dumps(record) + "\n")
        file.write('{"step": 9999, "eval_acc')  # being written


def test_curves(tmp_path):
    write_run(tmp_path / "rmc", [0.25, 0.5, 1.0])
    write_run(tmp_path / "lstm", [0.25, 0.25])
    assert read_curve(tmp_path / "rmc", "eval_accuracy") == [(100, 0.25), (200, 0.5), (300, 1.0)]
    assert read_curve(tmp_path / "rmc", "no such key") == []
    assert read_curve(tmp_path / "nowhere", "loss") == []
    lines = demo.plot(tmp_path, 1000).plain.splitlines()
    column = 7  # after the axis
    assert lines[0][column + 21] == "R"  # 100 % after 300 of 1000 steps, 70 columns wide
    assert lines[7][column + 14] == "R"
    assert "L" not in "".join(lines[:7])
    assert demo.states(tmp_path)["rmc"] == "RMC  100.0 %  update    300  training on 3 x 1"
    draw_curves(
        {"RMC": tmp_path / "rmc"}, "eval_accuracy", tmp_path / "c.png", title="t", level=(0.5, "half")
    )
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)


def test_both_models_to_the_end(tmp_path, capsys):
    assert demo.demo(tmp_path, 0, 120, preset="smoke") == 0
    said = capsys.readouterr().out
    scores = json.loads((tmp_path / "scores.json").read_text())
    for core, label in (("rmc", "RMC"), ("lstm", "LSTM")):
        assert scores[core]["step"] == 60
        assert f"{label:<5}{100 * scores[core]['accuracy']:5.1f} % of 20,000 fresh samples" in said
        assert (tmp_path / core / "weights.safetensors").exists()
    assert f"picture of both curves: {tmp_path / 'curves.png'}" in said
    assert "stopped after" not in said
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_time_is_up(tmp_path, monkeypatch, capsys):
    """The clock runs from when both models train, so that a slow start of Python does not decide the test."""
    real = demo.start

    def start_and_wait(core, folder, *rest):
        process = real(core, folder, *rest)
        while not any((folder / core).glob("metrics.jsonl")):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(1)
        return process

    monkeypatch.setattr(demo, "start", start_and_wait)
    assert demo.demo(tmp_path, 0, 1) == 0
    assert "stopped after 1 s" in capsys.readouterr().out
    assert (tmp_path / "curves.png").exists()
    assert not (tmp_path / "rmc" / "weights.safetensors").exists()


def test_time_is_up_before_anything_began(tmp_path, capsys):
    assert demo.demo(tmp_path, 0, 0) == 1
    assert capsys.readouterr().err == "the RMC had not begun after 0 s; give it more --seconds\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, number):
    """A signal ends both models too, and leaves folders that can be resumed."""
    command = [sys.executable, "-m", "relational_rnn.cli", "demo", "--run", str(tmp_path / "demo")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("demo/*/checkpoints/step-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    said, wrong = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"interrupted; the runs so far are in {tmp_path / 'demo'}" in said
    assert wrong == ""
    for core in ("rmc", "lstm"):
        assert "resume with: rmc train --resume" in (tmp_path / "demo" / f"{core}.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--seed", "x"], "--seed 'x'"),
        (["--seconds", "-5"], "--seconds '-5'"),
        (["--seconds", "0"], "--seconds '0'"),
        (["--seconds", "²"], "--seconds '²'"),  # a digit to Python, and no number
        (["--fast"], "'--fast'"),
        (["--run", "."], "exists already"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, part):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())
