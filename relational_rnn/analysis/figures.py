"""The look all figures share, and learning curves: one line for the median of several seeds, a band for their
range.

A figure is drawn from `Run`s, read from run folders or from results; nothing is trained or evaluated here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from relational_rnn.analysis.claims import CLAIMS, LTE_TASKS, NAMES, PERCENT
from relational_rnn.analysis.labels import labels, shortened, wrapped
from relational_rnn.analysis.runs import Run

# Okabe and Ito's colours, told apart by colour-blind readers too. A core keeps its colour in every figure.
COLOURS = {
    "rmc": "#0072b2",
    "lstm": "#d55e00",
    "dnc": "#009e73",
    "entnet": "#cc79a7",
    "conv-lstm": "#e69f00",
}
OTHERS = ("#56b4e9", "#000000", "#f0e442", "#999999")
DASHES = ("-", "--", "-.", ":")
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "relational-rnn",  # the same figure is the same file
}
FORMATS = ("png", "svg")
MANY, LONG = 7, 36  # lines of a panel, letters of a label: with more the legend stands beside or below it
SMALL = 7.5  # points: the letters of a legend
LINE = 0.155  # inches that a line of a legend takes
BELOW = 32  # points from a panel to a legend below it: between them are the numbers and name of the axis

# What is drawn of an experiment: the first of these a run has.
METRICS = {
    "nth-farthest": ("eval_accuracy", "accuracy"),
    "lte": ("eval_accuracy", "accuracy"),
    "mini-pacman": ("episode_return", "eval_sampled_return"),
    # Levels in play may be easier than the paper's (task.curriculum); those of the evaluation never are.
    "box-world": ("eval_sampled_solved", "episode_solved", "episode_return"),
    "lm": ("eval_valid_perplexity", "perplexity"),
}
TITLES = {
    "nth-farthest": "N-th farthest",
    "lte": "learning to execute",
    "mini-pacman": "Mini Pacman",
    "box-world": "BoxWorld",
    "lm": "language modelling",
}
AXES = {
    "accuracy": "accuracy on training batches (%)",
    "eval_accuracy": "accuracy (%)",
    "episode_return": "points an episode",
    "eval_sampled_return": "points an episode",
    "episode_solved": "levels solved in play (%)",
    "eval_sampled_solved": "levels solved (%)",
    "eval_valid_perplexity": "validation perplexity",
    "perplexity": "training perplexity",
}


def styled(draw: Callable) -> Callable:
    """While a figure is drawn, matplotlib's settings are ours; a caller's are not touched."""

    @functools.wraps(draw)
    def drawn(*arguments, **options):
        with matplotlib.rc_context(STYLE):
            return draw(*arguments, **options)

    return drawn


@styled
def new_figure(columns: int = 1, rows: int = 1, width: float = 4.6, height: float = 3.2, **options):
    """A figure of the shared style and its axes [rows, columns], without pyplot's global state."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


@styled
def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """name.png and name.svg in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def colour_of(core: str, used: dict[str, str]) -> str:
    """The core's own colour, or the next free one, remembered in `used`."""
    if core not in used:
        free = [colour for colour in OTHERS if colour not in used.values()] or list(OTHERS)
        used[core] = COLOURS.get(core, free[0])
    return used[core]


def plain(text: str) -> str:
    """Text as it is: matplotlib would read what stands between two dollars as a formula."""
    return text.replace("$", r"\$")


# ------------------------------------------------------------------ several runs together


def metric_of(runs: list[Run]) -> str | None:
    """The first of the experiment's metrics that any of the runs has."""
    usual = METRICS.get(runs[0].experiment, ())
    names = (*usual, *sorted({key for run in runs for key in run.curves if key.startswith("eval_")}), "loss")
    return next((name for name in names if any(run.curves.get(name) for run in runs)), None)


def scale_of(metric: str) -> float:
    return 100.0 if metric.endswith(("accuracy", "solved")) else 1.0


def band(curves: list[list[tuple[float, float]]]) -> tuple[np.ndarray, ...]:
    """x, and the median, lowest and highest of the curves there, each where it has values."""
    x = np.unique(np.concatenate([[x for x, _ in curve] for curve in curves]))
    table = np.stack([np.interp(x, *np.array(curve, float).T, left=np.nan, right=np.nan) for curve in curves])
    return x, np.nanmedian(table, 0), np.nanmin(table, 0), np.nanmax(table, 0)


# ------------------------------------------------------------------ learning curves


@styled
def learning_curves(runs: list[Run]) -> tuple[Figure, list[str]]:
    """One panel a task of one experiment, a line a core; and what was left out, in words."""
    metric = metric_of(runs)
    panels: dict[str, list[Run]] = {}
    left_out = []
    for run in sorted(runs, key=_place):
        if metric is None or not run.curves.get(metric):
            left_out.append(f"{run.name}: no {metric or 'metric'} to draw")
        else:
            panels.setdefault(_task(run), []).append(run)
    if not panels:
        raise ValueError(f"nothing to draw of {runs[0].experiment}: {'; '.join(left_out)}")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    legends = [legend_of(list(labels(group))) for group in panels.values()]
    beside = max((lines for where, lines in legends if where == "beside"), default=0)
    below = max((lines for where, lines in legends if where == "below"), default=0)
    height = max(3.2 + LINE * below, 0.6 + LINE * beside)
    figure, axes = new_figure(columns, rows, width=8.0 if beside else 4.6, height=height)
    for place, (task, group) in zip(axes.flat, panels.items(), strict=False):
        panel(place, labels(group))
        title = TITLES.get(group[0].experiment, group[0].experiment)
        place.set_title(plain(f"{title}, {task}" if task else title))
    for place in axes.flat[len(panels) :]:
        place.remove()
    return figure, left_out


def _task(run: Run) -> str:
    """What a panel is of: programs shorter or longer than the paper's are another task."""
    asked = run.config.get("length", 5), run.config.get("nest")
    if run.experiment != "lte" or asked in ((5, None), (5, 2)):
        return run.task
    length, nest = asked
    return f"{run.task}, length {length}" + ("" if nest is None else f", nest {nest}")


def _place(run: Run) -> tuple[int, int]:
    """Tasks and cores in the paper's order; others after them as they come."""
    return _index(LTE_TASKS, run.task), _index(tuple(NAMES), run.core)


def _index(known: tuple[str, ...], name: str) -> int:
    return known.index(name) if name in known else len(known)


def legend_of(names: list[str]) -> tuple[str, int]:
    """Where the legend of these lines stands, inside, beside or below the panel, and its lines of text."""
    where = "beside" if len(names) > MANY else "below" if max(map(len, names)) > LONG else "inside"
    return where, 1 + sum(wrapped(name).count("\n") + 1 for name in shortened(names))


def panel(axes: Axes, named: dict[str, list[Run]]) -> None:
    """Curves of runs of one task, a line for each name; runs of a name differ in their seed only."""
    runs = [run for group in named.values() for run in group]
    metric, frames = metric_of(runs), all(run.curves.get("frames") for run in runs)
    used: dict[str, str] = {}
    lines: dict[str, int] = {}
    scale = scale_of(metric)
    spectrum = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, len(named)))
    most = max(Counter(group[0].core for group in named.values()).values(), default=0)
    many = len(named) > MANY or most > len(DASHES)  # too many to tell apart by a core's colour and dashes
    texts = [plain(wrapped(text)) for text in shortened(list(named))]
    for number, (text, group) in enumerate(zip(texts, named.values(), strict=True)):
        core = group[0].core
        colour, dash = colour_of(core, used), DASHES[lines.setdefault(core, 0) % len(DASHES)]
        lines[core] += 1
        if many:
            colour = spectrum[number]
        curves = [_over(run, metric, frames) for run in group]
        x, middle, low, high = band(curves)
        dot = "o" if len(x) < 3 else None  # a line of one point is not seen
        axes.plot(x, scale * middle, dash, color=colour, label=text, marker=dot, markersize=4)
        if len(group) > 1:
            axes.fill_between(x, scale * low, scale * high, color=colour, alpha=0.18, linewidth=0)
    dotted = dict(linestyle=(0, (1, 2)), linewidth=1.1)
    levels = paper_levels(runs, metric)
    for core, value in levels.items():
        name = f"{NAMES[core]}, in the paper" if many else None  # where its colour does not say whose it is
        axes.axhline(value, color=colour_of(core, used), label=name, **dotted)
    if levels and not many:
        axes.plot([], [], color="#666666", label="in the paper", **dotted)
    axes.set(xlabel="frames" if frames else "updates", ylabel=AXES.get(metric, metric.replace("_", " ")))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if scale == 100.0:
        axes.set_ylim(0, 101)
    elif "perplexity" in metric:
        _logarithmic(axes)
    where, _ = legend_of(list(named))
    down = ScaledTranslation(0, -BELOW / 72, axes.figure.dpi_scale_trans)
    placed = {
        "beside": dict(loc="upper left", bbox_to_anchor=(1.0, 1.0)),
        "below": dict(loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=axes.transAxes + down),
    }
    axes.legend(fontsize=SMALL, **placed.get(where, {}))


def _logarithmic(axes: Axes) -> None:
    """A logarithmic y axis with as many numbers as have room."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 2 * low:  # matplotlib's would have no number here
        axes.yaxis.set_major_locator(MaxNLocator(6))
    else:
        numbers = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high < 20 * low else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(subs=numbers if high < 2000 * low else (1.0,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,g}")


def _over(run: Run, metric: str, frames: bool) -> list[tuple[float, float]]:
    """The curve over updates, or over the frames of all games."""
    curve = run.curves[metric]
    if not frames:
        return curve
    step, seen = run.curves["frames"][-1]
    return [(x * seen / step, value) for x, value in curve]


def paper_levels(runs: list[Run], metric: str) -> dict[str, float]:
    """The paper's number for each core of a panel, where the runs are of what it claims."""
    found = {}
    for run in runs:
        like = {"experiment": run.experiment, "core": run.core, "preset": run.preset, "overrides": {}}
        for claim in CLAIMS:
            fits = claim.paper is not None and claim.fits({**like, "config": run.config})
            if (
                fits
                and _same_kind(claim.metric, metric)
                and (claim.unit == PERCENT) == (scale_of(metric) == 100)
            ):
                found[run.core] = claim.paper
    return found


def _same_kind(claimed: str, drawn: str) -> bool:
    """eval_sampled_return and episode_return are both returns."""
    ending: Callable[[str], str] = lambda name: name.rpartition("_")[2]  # noqa: E731
    return ending(claimed) == ending(drawn) and "full_valid" not in claimed and "test" not in claimed
