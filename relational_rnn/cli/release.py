"""rmc release: a run's weights as files of the package."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors, whole_number

HELP = """\
usage: rmc release RUN NAME [--samples N] [--into FOLDER]
                   [--device auto|cpu|cuda] [--replace]

Writes NAME.safetensors (the run's newest weights in 16 bits) and NAME.json
(settings, command, commit, score, SHA-256) into the package's weights/ or
--into. Both precisions are scored on the same --samples (100,000) fresh
samples, of BoxWorld levels, of Mini Pacman episodes; a loss of more than half a
percentage point (of Mini Pacman 10 points), or a file over 4 MB, is refused.
In Python: relational_rnn.pretrained.load_pretrained(NAME).
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    replace = "--replace" in arguments
    rest = [argument for argument in arguments if argument != "--replace"]
    rest, samples = take_option(rest, "--samples", default="100000")
    rest, into = take_option(rest, "--into")
    rest, device = take_option(rest, "--device", default="auto")
    if len(rest) != 2:
        raise UsageError(f"rmc release takes a run folder and a name, got {rest}")
    count = whole_number("--samples", samples, 1)

    from relational_rnn.pretrained import SCORED, WEIGHTS, release

    run, name = rest
    folder = WEIGHTS if into is None else Path(into)
    with user_errors():
        about = release(run, name, samples=count, folder=folder, overwrite=replace, device=device)
    score = SCORED[about["experiment"]]
    rounded, full = score.text(about[score.name]), score.text(about[f"{score.name}_32_bits"])
    print(
        f"{name}: {rounded} on {count:,} fresh samples in 16 bits, {full} in 32; {about['bytes']:,} bytes\n"
        f"saved: {folder / name}.safetensors and {name}.json"
    )
    return 0
