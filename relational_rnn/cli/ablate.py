"""rmc ablate: a trained memory's accuracy when parts of its attention are blocked."""

from __future__ import annotations

import json

from relational_rnn.cli.attention import load_nth_farthest, new_folder, one_source, take_numbers
from relational_rnn.cli.train import take_option, user_errors

HELP = """\
usage: rmc ablate RUN --output FOLDER [--samples N] [--seed N]
                  [--device auto|cpu|cuda]

RUN is a run folder of nth-farthest, or the name of a model in the package.
Blocks, from each step on, every slot's attention to the input, to other slots
and to all slots; one slot's to the input; the others' to one slot; one slot's
to one slot; and the first three in one head only. Each is scored on the same
--samples (2000) sequences. Writes ablation.json and ablation.png (.svg) into a
new FOLDER and prints a table.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, output = take_option(arguments, "--output")
    rest, device = take_option(rest, "--device", default="auto")
    rest, numbers = take_numbers(rest, {"--samples": 2000, "--seed": 0})
    source, folder = one_source("ablate", rest), new_folder(output)

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from relational_rnn.analysis.ablation import measure, table

    console = Console()
    with user_errors():
        model, config, about = load_nth_farthest(source, device)
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("blocking", total=1.0)
            found = measure(
                model, config.task, **numbers, progress=lambda done: bar.update(task, completed=done)
            )
    from relational_rnn.analysis.ablation_figure import draw
    from relational_rnn.analysis.attention_figures import save
    from relational_rnn.training.checkpoint import write_text

    folder.mkdir(parents=True, exist_ok=True)
    found = {"source": source, "step": about["step"], "commit": about["commit"], **found}
    write_text(folder / "ablation.json", json.dumps(found) + "\n")
    pictures = save(draw(found), folder / "ablation")
    head, *lines = table(found)
    shown = Table(title=f"Accuracy in %, {found['samples']:,} sequences")
    shown.add_column(head[0])
    for name in head[1:]:
        shown.add_column(name, justify="right")
    for line in lines:
        shown.add_row(*line)
    (console if console.is_terminal else Console(width=140)).print(shown)
    for path in (folder / "ablation.json", pictures[0]):
        print(f"saved: {path}")
    return 0
