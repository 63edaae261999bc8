"""rmc eval: score a run's newest weights on fresh samples."""

from __future__ import annotations

import json
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import make_trainer, take_option, user_errors, whole_number
from relational_rnn.experiments import open_run

HELP = """\
usage: rmc eval FOLDER [--device auto|cpu|cuda] [--samples N | --episodes N]
                [--detail]

Prints one JSON object: the run, the step of its newest weights and the scores
on fresh samples (as many as in the run, or --samples); of an agent, with the
best action of every step (greedy) and with actions drawn from its policy
(sampled), each over --episodes (those of the run). --detail instead has the
parts of the score: programs by their operations and digits, BoxWorld by boxes
and distractors, with drawn actions. On a CPU a run in bf16 is scored in 32
bits. More options for language models: rmc eval FOLDER --help.
"""


def main(arguments: list[str]) -> int:
    asks = {"-h", "--help"} & set(arguments)
    folders = [argument for argument in arguments if argument not in asks]
    if any(map(is_language_model, folders)):  # options may come before the folder
        from relational_rnn.cli import eval_language

        if not asks:
            return eval_language.main(arguments)
        print(eval_language.HELP, end="")
        return 0
    if not arguments or asks:
        print(HELP, end="")
        return 0
    parts = "--detail" in arguments
    arguments = [argument for argument in arguments if argument != "--detail"]
    arguments, device = take_option(arguments, "--device", default="auto")
    arguments, episodes = take_option(arguments, "--episodes")
    arguments, samples = take_option(arguments, "--samples")
    if unknown := next((argument for argument in arguments if argument.startswith("-")), None):
        raise UsageError(f"unknown option {unknown!r}; see rmc eval --help")
    if len(arguments) != 1:
        raise UsageError(f"rmc eval takes one run folder, got {arguments}")
    from dataclasses import replace

    from relational_rnn.training.device import autocast, pick_device
    from relational_rnn.training.weights import load_weights

    with user_errors():
        run, experiment, config = open_run(arguments[0])
        if parts and not hasattr(experiment, "detail"):
            raise UsageError(f"--detail is for lte and box-world; {arguments[0]} is of {experiment.NAME!r}")
        training = replace(config.training, device=device, track="none")  # here nothing is sent anywhere
        if pick_device(device).type == "cpu" and training.precision == "bf16":
            # Autocast on a CPU rounds between products too, where the GPU's kernels do not: that would not be
            # the score of the run (0.7 points lower on N-th farthest).
            training = replace(training, precision="fp32")
        config = replace(config, training=training)
        if hasattr(config, "actors"):  # an agent is evaluated here, wherever it was acting
            config = replace(config, actors="local")
        if episodes is not None:
            if not hasattr(config, "actors"):
                raise UsageError(f"--episodes is for agents; {arguments[0]} is of {experiment.NAME!r}")
            count = whole_number("--episodes", episodes, 1)
            config = replace(config, evaluation=replace(config.evaluation, episodes=count))
        if samples is not None:
            if not hasattr(config, "eval_samples"):
                raise UsageError(f"--samples is not for agents; {arguments[0]} is of {experiment.NAME!r}")
            config = replace(config, eval_samples=whole_number("--samples", samples, 1))
        trainer = make_trainer(experiment, config)
        step = load_weights(run, trainer.problem.model)["step"]
        trainer.average = None  # the model has the averages already
        if parts:
            trainer.problem.model.eval()
            with autocast(trainer.device, training.precision):
                found = experiment.detail(config, trainer.problem.model, trainer.device)
    if not parts:
        found = trainer.evaluate()
    print(json.dumps({"run": str(run.path), "step": step, **found}))
    return 0


def is_language_model(folder: str) -> bool:
    """By config.json alone; what is wrong with a folder is said where it is opened."""
    try:
        return json.loads((Path(folder) / "config.json").read_text())["experiment"] == "lm"
    except (OSError, ValueError, KeyError, TypeError):
        return False
