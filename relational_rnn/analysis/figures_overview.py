"""All that was trained beside the paper, in one picture: the runs of README's table, a panel a row."""

from __future__ import annotations

from matplotlib.figure import Figure

from relational_rnn.analysis import figures, report_rows
from relational_rnn.analysis.claims import CLAIMS
from relational_rnn.analysis.results import as_run
from relational_rnn.analysis.runs import Run

FURTHER = "RMC, trained further"
PANELS = {  # title: a line's name and its claim
    "N-th farthest, 8 x 16": {"RMC": "nth-16-rmc", "LSTM": "nth-16-lstm", "DNC": "nth-16-dnc"},
    **{
        f"Programs: {what}": {
            name: f"lte-{task}-{core}"
            for name, core in (("RMC", "rmc"), ("LSTM", "lstm"), ("EntNet", "entnet"), ("DNC", "dnc"))
        }
        for what, task in (("addition", "addition"), ("control", "control"), ("full program", "program"))
    },
    "BoxWorld, viewport": {
        "RMC": "box-world-rmc",
        FURTHER: "box-world-rmc-further",
        "ConvLSTM": "box-world-conv-lstm",
    },
    "Mini Pacman, viewport": {"RMC": "pacman-viewport-rmc", "LSTM": "pacman-viewport-lstm"},
    "Mini Pacman, full view": {"RMC": "pacman-full-rmc", "LSTM": "pacman-full-lstm"},
    "WikiText-2, 11M parameters": {"RMC": "lm-wikitext2-rmc", "LSTM": "lm-wikitext2-lstm"},
    "Gutenberg, 45M tokens": {"RMC": "lm-gutenberg45-rmc", "LSTM": "lm-gutenberg45-lstm"},
}


@figures.styled
def overview(results: dict[str, dict], columns: int = 3) -> Figure | None:
    """A panel for every row of which there is a run; None if there is none."""
    found = {title: drawn for title, lines in PANELS.items() if (drawn := _runs(lines, results))}
    if not found:
        return None
    columns = min(columns, len(found))
    rows = -(-len(found) // columns)
    figure, axes = figures.new_figure(columns, rows, width=3.6, height=2.7)
    for place, (title, named) in zip(axes.flat, found.items(), strict=False):
        figures.panel(place, named)
        place.set_title(title)
    for place in axes.flat[len(found) :]:
        place.remove()
    return figure


def _runs(lines: dict[str, str], results: dict[str, dict]) -> dict[str, list[Run]]:
    """Of every claim the run that README shows."""
    claims, named = {claim.key: claim for claim in CLAIMS}, {}
    for name, key in lines.items():
        if outcomes := report_rows.outcomes(claims[key], results):
            runs = [as_run(result, path) for path, result in outcomes[0].results.items()]
            named[name if len(runs) == 1 else f"{name} ({len(runs)} seeds)"] = runs
    metric = figures.metric_of([run for runs in named.values() for run in runs]) if named else None
    drawn = {name: [run for run in runs if run.curves.get(metric)] for name, runs in named.items()}
    return {name: runs for name, runs in drawn.items() if runs}
