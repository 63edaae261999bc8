"""A sweep's run folders as a table, and as the appendix's figure: accuracy against training time."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.analysis.runs import read_run
from relational_rnn.training.progress import duration

METRIC = "eval_accuracy"
TARGET = 0.91  # the paper's accuracy; the table has the time to it
SHORT = {"model.mem-slots": "memories", "model.num-heads": "heads", "model.gate-style": "gates"}
DASHES = ("-", "--", ":", "-.")


def summary(folder: Path, names: dict[str, dict[str, str]], statuses: dict[str, str]) -> list[dict]:
    """One entry a point; `names` has the points by the name of their run folder."""
    return [
        {"run": name, "point": point, **read_point(folder / name, statuses.get(name))}
        for name, point in names.items()
    ]


def read_point(path: Path, said: str | None) -> dict:
    """What is known of a point; `said` is what the study says of it."""
    if not (path / "config.json").exists():
        return {"status": said or "not run"}
    run = read_run(path)
    training = run.config["training"]
    curve, seconds = run.at_seconds(METRIC), run.curves.get("seconds", [])
    step = seconds[-1][0] if seconds else 0
    entry = {
        "status": said or "stopped",
        "step": step,
        "steps": training["steps"],
        "samples": step * training["batch_size"],
        "seconds": seconds[-1][1] if seconds else 0.0,
    }
    if curve:
        reached = [second for second, value in curve if value >= TARGET]
        entry |= {"accuracy": curve[-1][1], "best_accuracy": max(value for _, value in curve)}
        entry["seconds_to_target"] = reached[0] if reached else None
    return entry


def table(entries: list[dict]) -> list[list[str]]:
    """A head, then one row a point."""
    options = list(entries[0]["point"])
    columns = ["status", "accuracy %", "best %", "updates", "time", f"time to {100 * TARGET:.0f} %"]
    lines = [[*(short(option) for option in options), *columns]]
    for entry in entries:
        line = [*entry["point"].values(), entry["status"]]
        scores = [f"{100 * entry[k]:.2f}" if k in entry else "" for k in ("accuracy", "best_accuracy")]
        spent = [f"{entry['step']:,}", duration(entry["seconds"])] if "step" in entry else ["", ""]
        reached = entry.get("seconds_to_target")
        lines.append([*line, *scores, *spent, "" if reached is None else duration(reached)])
    return lines


def short(option: str) -> str:
    return SHORT.get(option, option.rpartition(".")[2])


def draw(folder: Path, entries: list[dict], picture: Path, *, title: str) -> list[Path]:
    """A panel for each value of the first option, a colour for each of the second, dashes for the third.

    A single option gets colours in one panel; options beyond the third are told apart by the legend alone.
    -> the files, PNG and SVG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = {entry["run"]: read_curve(folder / entry["run"]) for entry in entries}
    longest = max((curve[-1][0] for curve in curves.values() if curve), default=0)
    unit, word = (1, "seconds") if longest < 120 else (60, "minutes") if longest < 7200 else (3600, "hours")
    options = list(entries[0]["point"])
    values = {o: list(dict.fromkeys(entry["point"][o] for entry in entries)) for o in options}
    by_panel, by_style = (options[0], options[1:]) if len(options) > 1 else (None, options)
    groups = [None] if by_panel is None else values[by_panel]

    figure = Figure(figsize=(1 + 3.6 * len(groups), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, groups, strict=True):
        for entry in entries:
            point = entry["point"]
            if by_panel is not None and point[by_panel] != group:
                continue
            colour, dash = (*(values[option].index(point[option]) for option in by_style), 0)[:2]
            axes.plot(
                [second / unit for second, _ in curves[entry["run"]]],
                [100 * accuracy for _, accuracy in curves[entry["run"]]],
                DASHES[dash % len(DASHES)],
                color=f"C{colour % 10}",
                label=", ".join(f"{short(option)} {point[option]}" for option in by_style),
            )
        axes.set(xlabel=f"training time ({word})", ylim=(0, 101))
        axes.set_xlim(left=0)
        if by_panel is not None:
            axes.set_title(f"{short(by_panel)} {group}", fontsize=9)
        axes.legend(fontsize=7)
    panels[0].set_ylabel("accuracy (%)")
    figure.suptitle(title, fontsize=10)
    paths = [picture.with_suffix(ending) for ending in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def read_curve(path: Path) -> list[tuple[float, float]]:
    """(seconds, accuracy); nothing of a point that has not begun."""
    return read_run(path).at_seconds(METRIC) if (path / "config.json").exists() else []
