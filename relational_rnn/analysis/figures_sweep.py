"""The appendix's sweep on N-th farthest (figure 4): accuracy against training time.

`rmc sweep` draws the points of its grid, `rmc figures` runs that differ in memories, heads or gates.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from relational_rnn.analysis.figures import COLOURS, DASHES, OTHERS, band, new_figure, plain, styled
from relational_rnn.analysis.labels import learned_from
from relational_rnn.analysis.runs import Run
from relational_rnn.analysis.sweep import METRIC

SWEPT = ("mem_slots", "num_heads", "gate_style")
LINE_COLOURS = (*COLOURS.values(), *OTHERS)

Point = dict[str, str]  # what is swept -> value, in the same order for all points
Curve = list[tuple[float, float]]  # (seconds, accuracy); empty if the point has not begun


@styled
def accuracy_against_time(curves: list[tuple[Point, Curve]], title: str) -> Figure:
    """A panel for each value of the first thing swept, a colour for each of the second, dashes for the third.

    A single thing swept gets colours in one panel; those beyond the third are told apart by the legend alone.
    Several curves of a point are its seeds: a line for their median, a band for their range. What was trained
    in less time keeps its last accuracy, or the median would jump where the fastest seed ends.
    """
    longest = max((curve[-1][0] for _, curve in curves if curve), default=0)
    unit, word = (1, "seconds") if longest <= 120 else (60, "minutes") if longest <= 7200 else (3600, "hours")
    swept = list(curves[0][0])
    values = {name: list(dict.fromkeys(point[name] for point, _ in curves)) for name in swept}
    by_panel, by_style = (swept[0], swept[1:]) if len(swept) > 1 else (None, swept)
    panels = [None] if by_panel is None else values[by_panel]
    seeds: dict[tuple[str, ...], list[Curve]] = {}
    for point, curve in curves:
        seeds.setdefault(tuple(point.values()), []).append(curve)

    figure, axes = new_figure(len(panels), sharex=True, sharey=True)
    for place, panel in zip(axes.flat, panels, strict=True):
        for names, group in seeds.items():
            point = dict(zip(swept, names, strict=True))
            if by_panel is not None and point[by_panel] != panel:
                continue
            number, dash = (*(values[name].index(point[name]) for name in by_style), 0)[:2]
            colour = LINE_COLOURS[number % len(LINE_COLOURS)]
            label = ", ".join(f"{name} {point[name]}" for name in by_style)
            label += f" ({len(group)} seeds)" if len(group) > 1 else ""
            begun = [curve for curve in group if curve]
            end = max((curve[-1][0] for curve in begun), default=0)
            begun = [[*curve, (end, curve[-1][1])] if curve[-1][0] < end else curve for curve in begun]
            x, middle, low, high = band(begun) if begun else (np.empty(0),) * 4
            style = dict(color=colour, linestyle=DASHES[dash % len(DASHES)], label=plain(label), markersize=4)
            # The line of one point is not seen without a dot.
            place.plot(x / unit, 100 * middle, marker="o" if len(x) < 3 else None, **style)
            if len(begun) > 1:
                place.fill_between(x / unit, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
        place.set(xlabel=f"training time ({word})", ylim=(0, 101))
        place.set_xlim(left=0)
        if by_panel is not None:
            place.set_title(plain(f"{by_panel} {panel}"))
        place.legend(fontsize=7)
    axes[0, 0].set_ylabel("accuracy (%)")
    figure.suptitle(plain(title), fontsize=10)
    return figure


# ------------------------------------------------------------------ of whatever runs there are


def sweep(runs: list[Run]) -> Figure | None:
    """None where there is nothing to compare."""
    runs = sorted(alike(runs), key=_settings)
    if len({_settings(run) for run in runs}) < 2:
        return None
    points = [
        dict(zip(("memories", "heads", "gates"), map(str, _settings(run)), strict=True)) for run in runs
    ]
    curves = [run.at_seconds(METRIC) for run in runs]
    title = f"N-th farthest, {runs[0].task}, {runs[0].preset}: accuracy on the full task"
    return accuracy_against_time(list(zip(points, curves, strict=True)), title)


def alike(runs: list[Run]) -> list[Run]:
    """RMC runs of N-th farthest that differ in nothing but what is swept and the seed: the most there are."""
    fitting = [
        run
        for run in runs
        if run.experiment == "nth-farthest" and run.core == "rmc" and run.at_seconds(METRIC) and _swept(run)
    ]
    kinds = [(run.task, run.preset, _others(run)) for run in fitting]
    common = max(kinds, key=kinds.count, default=None)
    return [run for run, kind in zip(fitting, kinds, strict=True) if kind == common]


def _others(run: Run) -> dict:
    """Its settings but for what is swept."""
    swept = {f"model.{name}" for name in SWEPT}
    return {key: value for key, value in learned_from(run).items() if key not in swept}


def _swept(run: Run) -> bool:
    """Whether its settings say what is swept: a folder of another version may not."""
    model = run.config.get("model")
    return isinstance(model, dict) and {"total_units", *SWEPT} <= model.keys()


def _settings(run: Run) -> tuple[int, int, str]:
    slots, heads, gate = (run.config["model"][name] for name in SWEPT)
    return slots, heads, str(gate)
