"""rmc attention: figures and data of what a trained memory attends to."""

from __future__ import annotations

import json
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors, whole_number

HELP = """\
usage: rmc attention RUN --output FOLDER [--sequences N] [--samples N]
                     [--seed N] [--device auto|cpu|cuda]

RUN is a run folder of nth-farthest, or the name of a model in the package.
Writes into a new FOLDER:
attention.json   the attention of every slot and head at every step, for
                 --sequences (1) with the reference vector last, first and in
                 the middle, and averages over --samples (2000)
attention.png    these sequences, in the manner of the paper's figure
heads-*.png      every head by itself, one sequence each
average.png      the averages
labels.png       which slot reads the vectors of which label; all figures as
                 .svg too
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, output = take_option(arguments, "--output")
    rest, device = take_option(rest, "--device", default="auto")
    rest, numbers = take_numbers(rest, {"--sequences": 1, "--samples": 2000, "--seed": 0})
    source, folder = one_source("attention", rest), new_folder(output)

    from relational_rnn.analysis.attention import analyse

    with user_errors():
        model, config, about = load_nth_farthest(source, device)
        found = analyse(model, config.task, **numbers)
    if not found["sequences"]:
        wanted = "is answered rightly with m first, in the middle or last, and another answer than m"
        said = f"of {found['samples']} sequences none {wanted}"
        raise UsageError(f"{source}: {said}; try more --samples")
    from relational_rnn.analysis.attention_figures import draw_all
    from relational_rnn.training.checkpoint import write_text

    folder.mkdir(parents=True, exist_ok=True)
    found = {"source": source, "step": about["step"], "commit": about["commit"], **found}
    write_text(folder / "attention.json", json.dumps(found) + "\n")
    pictures = draw_all(found, folder)
    print(
        f"{100 * found['accuracy']:.1f} % of {found['samples']:,} sequences answered rightly; "
        f"{len(found['sequences'])} shown"
    )
    for path in (folder / "attention.json", *pictures):
        print(f"saved: {path}")
    return 0


# ------------------------------------------------------------------ shared with rmc ablate


def load_nth_farthest(source: str, device: str):
    """The model of a run folder or a packaged one, which must be of N-th farthest."""
    from relational_rnn.pretrained import load

    loaded = load(source, device=device)
    if loaded.about["experiment"] != "nth-farthest":
        raise UsageError(f"{source} is of experiment {loaded.about['experiment']!r}; allowed: nth-farthest")
    return loaded


def one_source(command: str, rest: list[str]) -> str:
    if len(rest) != 1 or rest[0].startswith("-"):
        raise UsageError(f"rmc {command} takes one run folder or packaged name, got {rest}")
    return rest[0]


def new_folder(output: str | None) -> Path:
    if output is None:
        raise UsageError("--output is missing; allowed: a new folder")
    folder = Path(output)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"--output {folder} exists already; choose another")
    return folder


def take_numbers(arguments: list[str], defaults: dict[str, int]) -> tuple[list[str], dict[str, int]]:
    """Options with whole numbers -> what is left, and the numbers by name without dashes."""
    numbers = {}
    for option, default in defaults.items():
        arguments, text = take_option(arguments, option, default=str(default))
        numbers[option.removeprefix("--")] = whole_number(option, text)
    return arguments, numbers
