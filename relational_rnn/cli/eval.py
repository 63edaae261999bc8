"""rmc eval: score a run's newest weights on fresh samples."""

from __future__ import annotations

import json

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import make_trainer, open_run, take_option, user_errors

HELP = """\
usage: rmc eval FOLDER [--device auto|cpu|cuda]

Prints one JSON object: the run, the step of its newest checkpoint and the scores on fresh samples.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    arguments, device = take_option(arguments, "--device", default="auto")
    if len(arguments) != 1:
        raise UsageError(f"rmc eval takes one run folder, got {arguments}")
    from dataclasses import replace

    from relational_rnn.training import checkpoint
    from relational_rnn.training.loop import load_checkpoint

    with user_errors():
        run, experiment, config = open_run(arguments[0])
        path = run.latest_checkpoint()
        tensors, meta = load_checkpoint(path)
        trainer = make_trainer(experiment, replace(config, training=replace(config.training, device=device)))
        checkpoint.load_model(trainer.problem.model, checkpoint.without_prefix("model", tensors), path)
    print(json.dumps({"run": str(run.path), "step": meta["step"], **trainer.evaluate()}))
    return 0
