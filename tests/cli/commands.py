"""What the tests of the command line share: commands as processes, and what they leave behind."""

import os
import subprocess
import sys
import time

from relational_rnn.cli.__main__ import main
from relational_rnn.cli.train import make_trainer, parse
from relational_rnn.experiments import load_experiment
from relational_rnn.training import checkpoint
from relational_rnn.training.config import to_dict
from relational_rnn.training.run_folder import RunFolder

SMOKE = ["train", "nth-farthest", "--preset", "smoke"]
TIMINGS = ("seconds", "steps_per_second")


def rmc(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "relational_rnn.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        **options,
    )


def refused(capsys, arguments, *parts):
    """Exit code 2 and one line on stderr that has all the parts."""
    assert main([str(a) for a in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rmc: error: ")
    assert said.count("\n") == 1
    for part in parts:
        assert str(part) in said


def stopped_run(path, name, options, until):
    """A run folder of a smoke preset as a stopped process leaves it."""
    experiment = load_experiment(name)
    config = parse(experiment.smoke, options, "test")
    trainer = make_trainer(experiment, config)
    trainer.run_folder = RunFolder.create(path, name, "smoke", to_dict(config))
    trainer.run(until=until)
    trainer.save()
    trainer.run_folder.close()
    return trainer.run_folder


def snapshot(folder):
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def outcome(path):
    """What a run ended with, timings aside."""
    run = RunFolder.open(path)
    records = [{k: v for k, v in record.items() if k not in TIMINGS} for record in run.metrics()]
    tensors, _ = checkpoint.load(run.latest_checkpoint())
    return records, {name: t.tolist() for name, t in tensors.items()}


def wait_for(condition, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
