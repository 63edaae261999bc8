"""rmc sweep: a grid of settings, one run folder a point, shared by as many processes as are started."""

from __future__ import annotations

import gc
import json
from importlib.util import find_spec
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.reproduce import is_finished
from relational_rnn.cli.tables import print_table
from relational_rnn.cli.train import parse, resume, start, take_option, user_errors
from relational_rnn.experiments import load_experiment
from relational_rnn.training.run_folder import discard_unborn

NAME = "nth-farthest"
HELP = """\
usage: rmc sweep nth-farthest [--preset NAME] [--output FOLDER] [--storage URL]
                 [--study NAME] [--memories N ...] [--heads N ...]
                 [--gates unit|memory ...] [--over OPTION VALUE ...]
                 [--any.option VALUE ...]
       rmc sweep nth-farthest --summary-only ...

Trains every combination: the paper's 1, 8, 16 memories x 1, 8, 16 heads x unit,
memory gates, or of the axes that are given. --over sweeps any other option, and
may be repeated:
    rmc sweep nth-farthest --core lstm --over model.total-units 64 512 4096
Each point is a run folder in --output (runs/sweep-PRESET). What is finished is
not run again; what was stopped or killed is resumed. Start the command several
times, on as many machines as see the --storage (an Optuna URL; a SQLite file in
--output by default), and they share the work. Each ends with a table of all
points, summary.json and a figure of accuracy against time; --summary-only does
that alone. Needs the extra `sweep`.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    if arguments[0] != NAME:
        raise UsageError(f"unknown experiment {arguments[0]!r}; allowed: {NAME}")
    if find_spec("optuna") is None:
        raise UsageError("rmc sweep needs a missing package: pip install 'relational-rnn[sweep]'")
    summary_only = "--summary-only" in arguments
    rest = [argument for argument in arguments[1:] if argument != "--summary-only"]
    rest, preset = take_option(rest, "--preset", default="fast")
    rest, output = take_option(rest, "--output", default=f"runs/sweep-{preset}")
    rest, storage = take_option(rest, "--storage")
    rest, study = take_option(rest, "--study", default=f"{NAME}-{preset}")
    if not study:
        raise UsageError("--study '' is not allowed; allowed: a name")
    experiment = load_experiment(NAME)
    if preset not in experiment.PRESETS:
        raise UsageError(f"unknown preset {preset!r}; allowed: {', '.join(experiment.PRESETS)}")
    rest, grid = take_grid(rest)
    program = f"rmc sweep {NAME} --preset {preset}"
    base = parse(experiment.PRESETS[preset], rest, program, HELP)
    grid = grid or default_grid(base)
    check_options(grid, rest)
    check_core(grid, base.core)

    from relational_rnn.analysis.runs import plural
    from relational_rnn.experiments.nth_farthest_sweep import check
    from relational_rnn.training.config import to_dict
    from relational_rnn.training.sweep import Sweep, point_name, points, sqlite_url

    folder, configs = Path(output), {}
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output {folder} is a file; allowed: a folder, or a name for a new one")
    if summary_only and not (folder / ("study.db" if storage is None else "")).exists():
        raise UsageError(f"--output {folder} is no folder of a sweep; allowed: one that `rmc sweep` made")
    with user_errors():
        for point in points(grid):  # all of them before anything starts
            flags = [part for option, value in point.items() for part in (f"--{option}", value)]
            configs[point_name(point)] = parse(experiment.PRESETS[preset], [*rest, *flags], program, HELP)
            check(configs[point_name(point)])
        shared = to_dict(base)
        del shared["training"]["device"]  # where a run is made is no setting
        url = storage or sqlite_url((folder / "study.db").absolute())
        sweep = Sweep(folder, url, study, grid, {"experiment": NAME, "preset": preset, "config": shared})
    code = 0
    if not summary_only:
        with sweep.claiming:  # or points of killed processes would pass for being trained
            sweep.bury_the_dead()
        left, count = len(sweep.remaining()), len(sweep.points)
        print(f"{plural(count, 'point')}, {count - left} finished or being trained elsewhere", flush=True)
        code = sweep.run(lambda point, path: train(path, configs[path.name], preset))
    report(sweep, study, preset)
    return code


# ------------------------------------------------------------------ one point


def train(path: Path, config, preset: str) -> int:
    """Make, resume or take over the run folder of a point."""
    import torch

    print(f"point {path.name}", flush=True)
    with user_errors():
        discard_unborn(path)
    if path.exists():
        if is_finished(path, NAME, config, "choose another --output"):
            print(f"{path} is complete")
            return 0
        code = resume(str(path), [])
    else:
        code = start(NAME, preset, config, path)
    gc.collect()  # nothing of this point may hold GPU memory while the next one trains
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return code


# ------------------------------------------------------------------ what is swept


def take_grid(arguments: list[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Take --memories, --heads, --gates and every --over -> what is left, and the values by option."""
    from relational_rnn.experiments.nth_farthest_sweep import AXES

    rest, grid = [], {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        axis = argument.removeprefix("--")
        if argument != "--over" and (not argument.startswith("--") or axis not in AXES):
            rest.append(argument)
            continue
        values = []
        while waiting and not waiting[0].startswith("--"):
            values.append(waiting.pop(0))
        option = AXES.get(axis)
        if argument == "--over":
            option, *values = [values[0].replace("_", "-"), *values[1:]] if values else [None]
        if not values:
            raise UsageError(f"{argument} needs {'an option and values' if axis == 'over' else 'values'}")
        if option in grid:
            raise UsageError(f"{option} is swept twice")
        if len(set(values)) < len(values):
            raise UsageError(f"{argument} names a value twice: {' '.join(values)}")
        grid[option] = tuple(values)
    return rest, grid


def default_grid(config) -> dict[str, tuple[str, ...]]:
    from relational_rnn.experiments.nth_farthest_sweep import AXES, PAPER

    if config.core != "rmc":
        raise UsageError(
            f"nothing to sweep for core {config.core!r}; give one or more --over OPTION VALUE ..."
        )
    return {AXES[axis]: values for axis, values in PAPER.items()}


def check_options(grid: dict, rest: list[str]) -> None:
    given = {argument.partition("=")[0].removeprefix("--").replace("_", "-") for argument in rest}
    for option in grid:
        if option in given:
            raise UsageError(f"--{option} is given and swept; give one value or several")
        if option == "training.device":
            raise UsageError("training.device cannot be swept: where a run is made is no setting")


def check_core(grid: dict, core: str) -> None:
    """Memories, heads and gates are the RMC's: another core would be the same at every point."""
    from relational_rnn.experiments.nth_farthest_sweep import AXES

    for axis, option in AXES.items():
        if option in grid and core != "rmc":
            raise UsageError(f"--{axis} is of core rmc alone, and this is {core!r}; allowed: --over OPTION")


# ------------------------------------------------------------------ the end


def report(sweep, study: str, preset: str) -> None:
    """Print all points, save them, draw the figure."""
    from relational_rnn.analysis import sweep as analysis
    from relational_rnn.analysis.figures import save
    from relational_rnn.analysis.figures_sweep import accuracy_against_time
    from relational_rnn.analysis.runs import plural
    from relational_rnn.training.checkpoint import write_text
    from relational_rnn.training.sweep import point_name

    names = {point_name(point): point for point in sweep.points}
    with sweep.claiming:  # another process may be writing its own
        with user_errors():
            sweep.bury_the_dead()
            entries = analysis.summary(sweep.folder, names, sweep.statuses())
        described = {"study": study, "experiment": NAME, "preset": preset, "points": entries}
        write_text(sweep.folder / "summary.json", json.dumps(described, indent=1) + "\n")
        title = f"N-th farthest, {preset}: accuracy on the full task"
        figure = accuracy_against_time(analysis.curves(sweep.folder, entries), title)
        save(figure, sweep.folder, "accuracy-against-time")
    head, *lines = analysis.table(entries)
    print_table(f"{study}: {plural(len(entries), 'point')}", head, lines)
    print(f"saved: {sweep.folder / 'summary.json'} and accuracy-against-time.png")
