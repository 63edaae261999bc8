"""Learning curves from run folders: one line a run, metrics.jsonl is all that is read."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.analysis.runs import read_records


def read_curve(run: Path, key: str) -> list[tuple[int, float]]:
    """(step, value) of every record that has the key; lines that cannot be read are left out."""
    path = Path(run) / "metrics.jsonl"
    records, _ = read_records(path) if path.exists() else ([], [])
    return [(record["step"], record[key]) for record in records if key in record]


def draw_curves(
    runs: dict[str, Path], key: str, picture: Path, *, title: str, level: tuple[float, str] | None = None
) -> None:
    """Draw the curves of labelled runs, percentages over steps, into a picture file.

    `level` is a height to mark and what to call it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for label, run in runs.items():
        curve = read_curve(run, key)
        axes.plot([step for step, _ in curve], [100 * value for _, value in curve], label=label)
    if level is not None:
        axes.axhline(100 * level[0], color="grey", linestyle=":", label=level[1])
    axes.set(xlabel="updates", ylabel="accuracy (%)", ylim=(0, 100), title=title)
    axes.legend()
    figure.savefig(picture, dpi=150)
