"""The appendix's sweep on N-th farthest: accuracy against training time, by memories, heads and gates."""

from __future__ import annotations

from matplotlib.figure import Figure

from relational_rnn.analysis.figures import COLOURS, DASHES, band, new_figure, plain, styled
from relational_rnn.analysis.runs import Run

SLOT_COLOURS = (COLOURS["lstm"], COLOURS["rmc"], COLOURS["dnc"], COLOURS["entnet"], COLOURS["conv-lstm"])
METRIC = "eval_accuracy"


def settings(run: Run) -> tuple[int, int, str]:
    """(memories, heads, gates)."""
    model = run.config["model"]
    return model["mem_slots"], model["num_heads"], str(model["gate_style"])


def is_sweep(runs: list[Run]) -> bool:
    """Whether there is anything to compare."""
    return len({settings(run) for run in of_sweep(runs)}) > 1


def of_sweep(runs: list[Run]) -> list[Run]:
    """RMC runs of N-th farthest of one task, preset and number of units: those most of them have."""
    fitting = [
        run
        for run in runs
        if run.experiment == "nth-farthest" and run.core == "rmc" and run.at_seconds(METRIC)
    ]
    kinds = [(run.task, run.preset, run.config["model"]["total_units"]) for run in fitting]
    common = max(kinds, key=kinds.count, default=None)
    return [run for run, kind in zip(fitting, kinds, strict=True) if kind == common]


@styled
def sweep(runs: list[Run]) -> Figure:
    """A panel for each kind of gate; the colour is the number of memories, the dashes that of heads."""
    runs = of_sweep(runs)
    gates = sorted({settings(run)[2] for run in runs}, reverse=True)
    slots = sorted({settings(run)[0] for run in runs})
    heads = sorted({settings(run)[1] for run in runs})
    longest = max(run.at_seconds(METRIC)[-1][0] for run in runs)
    unit, name = (
        (3600, "hours") if longest > 2 * 3600 else (60, "minutes") if longest > 120 else (1, "seconds")
    )
    figure, axes = new_figure(len(gates), sharey=True)
    for place, gate in zip(axes.flat, gates, strict=True):
        for kind in sorted({settings(run) for run in runs if settings(run)[2] == gate}):
            group = [run for run in runs if settings(run) == kind]
            x, middle, low, high = band([run.at_seconds(METRIC) for run in group])
            colour = SLOT_COLOURS[slots.index(kind[0]) % len(SLOT_COLOURS)]
            dash = DASHES[heads.index(kind[1]) % len(DASHES)]
            label = f"{_count(kind[0], 'memory', 'memories')}, {_count(kind[1], 'head', 'heads')}"
            if len(group) > 1:
                label += f" ({len(group)} seeds)"
                place.fill_between(x / unit, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
            place.plot(x / unit, 100 * middle, dash, color=colour, label=plain(label))
        place.set(xlabel=f"training time ({name})", ylim=(0, 101))
        place.set_title(f"{runs[0].task}, {gate} gates" if gate != "None" else f"{runs[0].task}, no gates")
        place.legend(fontsize=7)
    axes[0, 0].set_ylabel("accuracy (%)")
    return figure


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
