"""Does the RMC need its memories to attend to each other? Train it where they cannot, and see.

    python examples/blocked_attention.py --blocked others

Trains the demo's N-th farthest (3 vectors of 2 dimensions, a minute or two on a CPU) with `attention_bias`
on the core from the first update on, which keeps slots from seeing what is named, and prints the accuracy on
fresh samples. Gates read the input in any case.

    nothing   the core as it is
    others    a slot sees itself and the input, not the other slots
    memory    a slot sees the input alone
    input     slots see each other, not the input
"""

import argparse
from dataclasses import replace

import torch

from relational_rnn.analysis.ablation import Cut
from relational_rnn.experiments.nth_farthest import NthFarthestProblem, accuracy, demo
from relational_rnn.training.config import Training
from relational_rnn.training.loop import Trainer

BLOCKED = ("nothing", "others", "memory", "input")


def problem_with(blocked: str, training: Training, slots: int, units: int) -> NthFarthestProblem:
    """The demo's, whose core always gets the `attention_bias` that blocks this."""
    config = demo()
    model = replace(config.model, mem_slots=slots, total_units=units)
    problem = NthFarthestProblem(replace(config, training=training, model=model), torch.device("cpu"))
    if blocked != "nothing":
        core = problem.model.core
        bias = Cut(blocked).bias(core)  # [1, 1, 1, heads, slots + 1, slots + 1], -inf where nothing is seen
        core.register_forward_pre_hook(
            lambda core, args, options: (args, {**options, "attention_bias": bias}), with_kwargs=True
        )
    return problem


def main(
    blocked: str = "others", steps: int = 9000, slots: int = 4, units: int = 128, seed: int = 0
) -> float:
    training = replace(demo().training, steps=steps, seed=seed, eval_every=0)
    problem = problem_with(blocked, training, slots, units)

    def report(record: dict) -> None:
        if record["step"] % 1000 == 0:
            print(f"update {record['step']}: {100 * record['accuracy']:.1f} % right, stage {record['stage']}")

    Trainer(problem, training, torch.device("cpu")).run(report=report)
    score = accuracy(problem.model.eval(), problem.task, 20_000, torch.device("cpu"))
    print(f"attention to {blocked} blocked: {100 * score:.1f} % of 20,000 fresh samples")
    return score


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocked", choices=BLOCKED, default="others")
    for name, default in (("steps", 9000), ("slots", 4), ("units", 128), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
