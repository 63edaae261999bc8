"""rmc reproduce: a whole table of the paper, one run folder a cell."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import parse, resume, start, take_option, user_errors
from relational_rnn.experiments import load_experiment, open_run

HELP = """\
usage: rmc reproduce table1 [--preset NAME] [--runs FOLDER] [--tasks A,B] [--cores A,B] [--any.option VALUE]
       rmc reproduce table1 --table-only [--runs FOLDER]

table1: program evaluation and memorisation with every core of the paper (docs/learning-to-execute.md).
Trains what is missing under --runs (runs/table1-PRESET), one run folder a cell, and goes on with what was
stopped; finished runs are left as they are. Then prints the table with the paper's numbers beside ours and
saves it there as table1.json and table1.md. --table-only trains nothing. Options of `rmc train lte` apply to
every cell. Several of these commands may work in one folder at a time, on different --tasks or --cores.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    if arguments[0] != "table1":
        raise UsageError(f"unknown table {arguments[0]!r}; allowed: table1")
    table_only = "--table-only" in arguments
    rest = [argument for argument in arguments[1:] if argument != "--table-only"]
    rest, preset = take_option(rest, "--preset", default="fast")
    rest, runs = take_option(rest, "--runs", default=f"runs/table1-{preset}")
    rest, tasks = take_option(rest, "--tasks")
    rest, cores = take_option(rest, "--cores")

    experiment = load_experiment("lte")
    if preset not in experiment.PRESETS:
        raise UsageError(f"unknown preset {preset!r}; allowed: {', '.join(experiment.PRESETS)}")
    tasks = chosen("--tasks", tasks, experiment.TASKS)
    cores = chosen("--cores", cores, experiment.CORES)
    runs, code = Path(runs), 0
    for one, several in (("--task", "--tasks"), ("--core", "--cores")):
        if any(argument.partition("=")[0] == one for argument in rest):
            raise UsageError(f"{one} is not allowed here; allowed: {several}, with commas between the names")
    if table_only and rest:
        raise UsageError(f"--table-only takes no options of training, got {rest[0]!r}")
    if table_only and not runs.is_dir():
        raise UsageError(f"--runs {runs} does not exist; allowed: a folder `rmc reproduce` made")
    if not table_only:
        base = parse(experiment.PRESETS[preset], rest, f"rmc reproduce table1 --preset {preset}")
        with user_errors():
            cells = [replace(base, task=task, core=core) for task in tasks for core in cores]
        code = run_cells(cells, runs, preset)
    report(runs, experiment)
    return code


def chosen(option: str, value: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    names = allowed if value is None else tuple(value.split(","))
    for name in names:
        if name not in allowed:
            raise UsageError(f"{option} {name!r} is not allowed; allowed: {', '.join(allowed)}")
    return names


def run_cells(cells: list, runs: Path, preset: str) -> int:
    """Train what is not finished. Nothing starts before all that is there was found to fit."""
    from relational_rnn.analysis.table1 import cell_path

    missing = []
    for config in cells:
        path = cell_path(runs, config.task, config.core)
        if not path.exists() or not is_finished(path, config):
            missing.append((path, config))
    print(f"{len(cells) - len(missing)} of {len(cells)} runs are finished", flush=True)
    failed = 0
    for number, (path, config) in enumerate(missing, 1):
        print(f"{number} of {len(missing)}: {config.task} with {config.core}", flush=True)
        code = resume(str(path), []) if path.exists() else start("lte", preset, config, path)
        gc.collect()  # nothing of this cell may hold GPU memory while the next one trains
        if code > 128:  # a signal: the rest must not start
            return code
        failed = failed or code
    return failed


def is_finished(path: Path, config) -> bool:
    """Whether that cell's run is complete; an error if it is no run of these settings or cannot go on."""
    from relational_rnn.training.config import to_dict

    with user_errors():
        run, _, found = open_run(str(path))
        described = run.config()
        if described["experiment"] != "lte":
            raise UsageError(f"{path} is a run of {described['experiment']!r}; allowed: 'lte'")
        difference = first_difference(to_dict(found), to_dict(config))
        if difference is not None:
            raise UsageError(
                f"{path} was run with other settings: {difference}; choose another --runs, or --table-only"
            )
        if not any(run.checkpoints.glob("step-*.safetensors")):
            raise UsageError(f"{path} has no checkpoint, it was stopped at its very start; remove it")
    return run.checkpoint_path(config.training.steps).exists()


def first_difference(found: dict, wanted: dict, where: str = "") -> str | None:
    """`training.steps is 40, not 20`: the first setting that differs; where a run is made is none."""
    for name, value in wanted.items():
        if isinstance(value, dict):
            difference = first_difference(found[name], value, f"{where}{name}.")
            if difference is not None:
                return difference
        elif found[name] != value and where + name != "training.device":
            return f"{where}{name} is {found[name]!r}, not {value!r}"
    return None


def report(runs: Path, experiment) -> None:
    """Print the table and save it."""
    from rich.console import Console
    from rich.table import Table

    from relational_rnn.analysis import table1
    from relational_rnn.training.checkpoint import write_text

    paper = {core: dict(zip(experiment.TASKS, row, strict=True)) for core, row in experiment.PAPER.items()}
    with user_errors():
        table = table1.read_table(runs, paper)
    head, *body = table1.rows(table)
    shown = Table(title="Accuracy per character in %: ours (the paper's)")
    for name in head:
        shown.add_column(name)
    for line in body:
        shown.add_row(*line)
    console = Console()
    if not console.is_terminal:  # rich would fold the cells to fit 80 columns
        console = Console(width=140)
    console.print(shown)
    if table1.other_difficulty(table):
        print(table1.OTHER_DIFFICULTY)
    runs.mkdir(parents=True, exist_ok=True)
    write_text(runs / "table1.json", json.dumps(table, indent=1) + "\n")
    write_text(runs / "table1.md", table1.markdown(table))
    print(f"saved: {runs / 'table1.json'} and table1.md")
