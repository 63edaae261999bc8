"""Figures of what `analysis.attention.analyse` found: the paper's, of single heads, of averages, by label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from relational_rnn.analysis.attention import POSITIONS, step_of

MARK, PLAIN = "#d62728", "#999999"  # the step of m, any other
COLOURS = "Greys"


def draw_all(found: dict, folder: Path) -> list[Path]:
    """attention, average, labels and one heads-POSITION for each, as PNG and SVG -> the PNGs."""
    figures = {
        "attention": sequences_figure(found),
        "average": average_figure(found),
        "labels": labels_figure(found),
    }
    for position in POSITIONS:
        first = next((s for s in found["sequences"] if s["position_of_m"] == position), None)
        if first is not None:
            figures[f"heads-{position}"] = heads_figure(first)
    return [path for name, figure in figures.items() for path in save(figure, folder / name)[:1]]


def save(figure: Figure, stem: Path) -> list[Path]:
    paths = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def sequences_figure(found: dict) -> Figure:
    """Rows: sequences. Columns: steps. Each panel: slot (down) by slot and, apart, input (across)."""
    sequences = found["sequences"]
    steps, slots = found["task"]["vectors"], found["model"]["slots"]
    tall = 1.25 * slots / (slots + 2)  # a panel has two columns more than rows
    figure = new_figure(max(6.0, 1.2 + 1.25 * steps), 0.7 + (tall + 0.65) * max(1, len(sequences)))
    if not sequences:
        figure.suptitle("no sequence was answered rightly")
        return figure
    grid = figure.add_gridspec(len(sequences), steps)
    image = None
    for row, sequence in enumerate(sequences):
        attention = np.asarray(sequence["attention"]).mean(1)  # [V, N, K] over heads
        for step in range(steps):
            axes = figure.add_subplot(grid[row, step])
            image = panel(axes, attention[step], marked=step == sequence["m_step"])
            axes.set_title(
                f"vector {sequence['labels'][step]}",
                fontsize=8,
                color=MARK if step == sequence["m_step"] else "black",
            )
            if step == 0:
                ticks(axes, slots, down=True)
                axes.set_ylabel("from slot", fontsize=7)
            if row == len(sequences) - 1:
                ticks(axes, slots, down=False)
            if step == steps // 2:
                said = f"{sequence['question']}  Answer: {sequence['answer']}, model: {sequence['predicted']}"
                axes.set_xlabel(said, fontsize=8)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.6, pad=0.01)
    bar.set_label("attention, mean over heads", fontsize=8)
    figure.suptitle("Attention of each slot at each step; red: the reference vector arrives", fontsize=10)
    return figure


def heads_figure(sequence: dict) -> Figure:
    """Rows: heads. Columns: steps."""
    attention = np.asarray(sequence["attention"])  # [V, H, N, K]
    steps, heads, slots, _ = attention.shape
    figure = new_figure(max(6.0, 1.2 + 1.1 * steps), 1.0 + (1.1 * slots / (slots + 2) + 0.1) * heads)
    grid = figure.add_gridspec(heads, steps)
    image = None
    for head in range(heads):
        for step in range(steps):
            axes = figure.add_subplot(grid[head, step])
            image = panel(axes, attention[step, head], marked=step == sequence["m_step"])
            if head == 0:
                colour = MARK if step == sequence["m_step"] else "black"
                axes.set_title(f"vector {sequence['labels'][step]}", fontsize=8, color=colour)
            if step == 0:
                axes.set_ylabel(f"head {head}", fontsize=8)
            if head == heads - 1:
                ticks(axes, slots, down=False)
    figure.colorbar(image, ax=figure.axes, shrink=0.6, pad=0.01).set_label("attention", fontsize=8)
    said = f"{sequence['question']}  Answer: {sequence['answer']}, model: {sequence['predicted']}"
    figure.suptitle(f"Each head by itself\n{said}", fontsize=10)
    return figure


def average_figure(found: dict) -> Figure:
    """Columns: when m is shown. Above: attention to the input; below: from others to each slot."""
    steps, slots = found["task"]["vectors"], found["model"]["slots"]
    average, counts = np.asarray(found["average"]["attention"]), found["average"]["samples"]
    figure = new_figure(1.5 + 0.9 * 3 * max(3, 0.4 * steps), 1.2 + 2 * max(1.2, 0.28 * slots))
    grid = figure.add_gridspec(2, len(POSITIONS))
    to_input = average[..., -1]  # [m_step, V, N]
    others = 1 - np.eye(slots)
    received = (average[..., :slots] * others).sum(2) / max(1, slots - 1)  # [m_step, V, key slot]
    for row, (what, values) in enumerate((("to the input", to_input), ("from the other slots", received))):
        shown = [step_of(position, steps) for position in ("first", "middle", "last")]
        panels = []
        for column, m_step in enumerate(shown):
            axes = figure.add_subplot(grid[row, column])
            image = axes.imshow(
                values[m_step].T, cmap=COLOURS, vmin=0, vmax=values[shown].max(), aspect="auto"
            )
            axes.axvspan(m_step - 0.5, m_step + 0.5, fill=False, edgecolor=MARK, linewidth=2)
            axes.set_xticks(range(steps), [str(step + 1) for step in range(steps)], fontsize=7)
            ticks(axes, slots, down=True)
            if row == 0:
                axes.set_title(f"m at step {m_step + 1} ({counts[m_step]} sequences)", fontsize=8)
            if column == 0:
                axes.set_ylabel("slot", fontsize=8)
            if row == 1:
                axes.set_xlabel("step", fontsize=8)
            panels.append(axes)
        bar = figure.colorbar(image, ax=panels, pad=0.01)
        bar.set_label(f"{what}, mean" if row else what, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    figure.suptitle(
        "Attention by slot and step, averaged over sequences and heads; red: m arrives", fontsize=10
    )
    return figure


def labels_figure(found: dict) -> Figure:
    """Slot (across) by label (down): attention to the input that shows a vector of this label."""
    attention = 100 * np.asarray(found["by_label"]["attention"], dtype=float)
    labels, slots = attention.shape
    most = max(np.nan_to_num(attention).max(), 1)
    figure = new_figure(2.6 + 0.42 * slots, 1.4 + 0.36 * labels)
    axes = figure.add_subplot()
    image = axes.imshow(attention, cmap=COLOURS, vmin=0, vmax=most, aspect="auto")
    numbers(axes, attention, white=attention >= most / 2)
    axes.set_xticks(range(slots))
    axes.set_yticks(range(labels))
    axes.set_xlabel("slot", fontsize=8)
    axes.set_ylabel("label of the vector that is shown", fontsize=8)
    figure.colorbar(image, ax=axes).set_label("attention to the input (%)", fontsize=8)
    figure.suptitle("Who reads whose vector; m and the first step left out", fontsize=9)
    return figure


def numbers(axes, values: np.ndarray, white: np.ndarray) -> None:
    """Each value in its cell, white where told so and black elsewhere; none where it is unknown."""
    for (y, x), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if white[y, x] else "black"
            axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=6, color=colour)


def panel(axes, attention: np.ndarray, *, marked: bool):
    """One attention matrix [N, K], the input's column set apart."""
    gap = np.full((attention.shape[0], 1), np.nan)
    shown = np.concatenate([attention[:, :-1], gap, attention[:, -1:]], axis=1)
    image = axes.imshow(shown, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(to_rgba(MARK if marked else PLAIN))
        spine.set_linewidth(2 if marked else 0.5)
    return image


def ticks(axes, slots: int, *, down: bool) -> None:
    every = 1 if slots <= 8 else slots // 4
    places = list(range(0, slots, every))
    names = [str(slot) for slot in places]
    if down:
        axes.set_yticks(places, names, fontsize=6)
    else:
        axes.set_xticks([*places, slots + 1], [*names, "in"], fontsize=6)
