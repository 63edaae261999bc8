"""A figure of what `analysis.ablation.measure` found."""

from __future__ import annotations

from itertools import product

import numpy as np
from matplotlib.figure import Figure

from relational_rnn.analysis.ablation import KINDS, select
from relational_rnn.analysis.attention_figures import new_figure, numbers

COLOURS = "viridis"


def draw(found: dict) -> Figure:
    """Accuracy against the step that blocking begins at: all slots, each slot, each pair, each head, by when
    m is shown; and of each slot by the labels of the answer and of m."""
    steps, slots, heads = found["task"]["vectors"], found["model"]["slots"], found["model"]["heads"]
    figure = new_figure(15, 10)
    grid = figure.add_gridspec(3, 4)
    lines(figure.add_subplot(grid[0, 0]), found)
    begins = ("blocked from step", [str(t + 1) for t in range(steps)])
    by_slot = [str(slot) for slot in range(slots)]
    image = None
    panels = []

    def heat(place, values, title, down, across) -> None:
        nonlocal image
        axes = figure.add_subplot(grid[place])
        if not len(values):
            axes.set_axis_off()
            axes.set_title(f"{title}:\nthere is only one", fontsize=8)
            return
        values = 100 * np.asarray(values, dtype=float)
        image = axes.imshow(values, cmap=COLOURS, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_ylabel(down[0], fontsize=8)
        axes.set_yticks(range(len(down[1])), down[1], fontsize=7)
        axes.set_xlabel(across[0], fontsize=8)
        axes.set_xticks(range(len(across[1])), across[1], fontsize=7)
        numbers(axes, values, white=values <= 60)
        panels.append(axes)

    def accuracies(kind: str, **fixed) -> list:
        return [cut["accuracy"] for cut in select(found, kind, **fixed)]

    heat((0, 1), accuracies("input", slot=..., head=None), "a slot to the input", ("slot", by_slot), begins)
    heat((0, 2), accuracies("read", slot=...), "other slots to a slot", ("slot", by_slot), begins)
    pairs = np.asarray([cut["accuracy"][0] for cut in select(found, "pair")])
    pairs = pairs.reshape(slots, slots) if pairs.size else pairs
    heat((0, 3), pairs, "a slot to a slot, from step 1 on", ("from slot", by_slot), ("to slot", by_slot))
    by_head = ("head", [str(head) for head in range(heads)])
    heat((1, 0), accuracies("input", slot=None, head=...), "to the input, in one head", by_head, begins)
    between = "others" if slots > 1 else "memory"
    title = f"{KINDS[between]},\nin one head"
    heat((1, 1), accuracies(between, slot=None, head=...), title, by_head, begins)
    shown = ("m shown at step", [str(t + 1) for t in range(steps)])
    for column, kind in ((2, "input"), (3, between)):
        (cut,) = select(found, kind, slot=None, head=None)
        by_m = np.asarray(cut["accuracy_by_m_step"], dtype=float).T  # [m_step, from]
        heat((1, column), by_m, f"{KINDS[kind]}, by when m is shown", shown, begins)
    labels = [str(label) for label in range(steps)]
    named = (("input", "a slot to the input"), ("read", "other slots to a slot"))
    for column, ((kind, name), label) in enumerate(product(named, ("answer", "m"))):
        values = [cut[f"accuracy_by_{label}"] for cut in select(found, kind, slot=..., head=None)]
        title = f"{name}, from step 1 on,\nby the label of {'the ' * (label == 'answer')}{label}"
        heat((2, column), values, title, ("slot", by_slot), (f"label of {label}", labels))
    if image is not None:
        figure.colorbar(image, ax=panels, shrink=0.6, pad=0.01).set_label("accuracy (%)")
    figure.suptitle(
        f"Accuracy when attention is blocked from a step on ({found['samples']:,} sequences; "
        f"{100 * found['accuracy']:.1f} % with all attention)"
    )
    return figure


def lines(axes, found: dict) -> None:
    steps = range(1, found["task"]["vectors"] + 1)
    for kind, name in KINDS.items():
        for cut in select(found, kind, slot=None, key=None, head=None):
            axes.plot(steps, [100 * value for value in cut["accuracy"]], marker="o", markersize=3, label=name)
    axes.axhline(100 * found["accuracy"], color="grey", linestyle=":", label="nothing blocked")
    axes.axhline(100 / found["task"]["vectors"], color="grey", linestyle="--", label="guessing")
    axes.set_xticks(list(steps))
    axes.set_ylim(0, 100)
    axes.set_xlabel("blocked from step", fontsize=8)
    axes.set_ylabel("accuracy (%)", fontsize=8)
    axes.set_title("all slots and heads", fontsize=9)
    axes.legend(fontsize=6)
