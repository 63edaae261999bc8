"""Run folders as a GPU machine hands them back: config.json, environment.json, metrics.jsonl, nothing else.

The settings are those of a real preset; the numbers in metrics.jsonl are given by the test.
"""

import json
from dataclasses import replace

from relational_rnn.experiments import load_experiment
from relational_rnn.training.config import to_dict

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def session(**changes):
    return {
        "started": "2026-11-15T12:00:00+00:00",
        "ended": "2026-11-15T12:10:00+00:00",
        "command": "rmc train",
        "commit": COMMIT,
        "uncommitted_changes": False,
        "python": "3.11.7",
        "torch": "2.13.0",
        "relational_rnn": "0.1.0",
        "parameters": 1234,
        "system": "Linux x86_64",
        "cpu": "A CPU",
        "cpu_cores": 2,
        "cpu_threads": 1,
        "gpu": "A GPU",
        **changes,
    }


def preset(experiment, name):
    return load_experiment(experiment).PRESETS[name]()


def write_run(
    path, records, experiment="nth-farthest", preset_name="fast", *, sessions=None, seed=0, **fields
):
    """A folder whose records are {"step": ..., ...}; seconds are a tenth of the steps unless given."""
    config = preset(experiment, preset_name)
    training = replace(config.training, seed=seed, **fields.pop("training", {}))
    config = replace(config, training=training, **fields)
    path.mkdir(parents=True)
    described = {"experiment": experiment, "preset": preset_name, "config": to_dict(config)}
    (path / "config.json").write_text(json.dumps(described))
    (path / "environment.json").write_text(json.dumps([session()] if sessions is None else sessions))
    lines = [json.dumps({"seconds": record["step"] / 10, **record}) for record in records]
    (path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return path


def accuracies(*values, last=None):
    """Records with these eval accuracies, evenly spaced up to the last step of N-th farthest's `fast`."""
    last = STEPS if last is None else last
    gap = last // len(values)
    steps = [*range(gap, gap * len(values), gap), last]
    return [
        {"step": step, "loss": 1.0, "accuracy": value, "eval_accuracy": value}
        for step, value in zip(steps, values, strict=True)
    ]


STEPS = preset("nth-farthest", "fast").training.steps  # tuned now and then: no test depends on its value
