"""rmc reproduce: a whole section of the paper, one run folder a cell."""

from __future__ import annotations

import json
import math
import shlex
from fnmatch import fnmatchcase
from pathlib import Path

from relational_rnn.analysis.runs import visible
from relational_rnn.cli import UsageError
from relational_rnn.cli.tables import print_table
from relational_rnn.cli.train import from_anywhere, parse, take_option, user_errors
from relational_rnn.experiments import load_experiment, open_run
from relational_rnn.experiments.sections import SECTIONS, Cell

HELP = """\
usage: rmc reproduce SECTION [--preset NAME] [--runs FOLDER] [--only A,B]
                     [--at-once K] [--minutes M] [--list | --table-only]
                     [--any.option VALUE ...]

  nth-farthest   RMC, LSTM, DNC, with and without stages; memories and heads; 32
                 dimensions
  table1         program evaluation and memorisation with every core (also:
                 --tasks A,B --cores A,B)
  box-world      RMC, which goes on twice, and ConvLSTM
  mini-pacman    RMC and LSTM, with the viewport and with the full view
  table2         language models, RMC and LSTM, of the text in --data FOLDER;
                 each text has its preset

A section is a list of cells, each one training; --list prints them and how far
each is, and trains nothing. Without it, what is missing under --runs
(runs/SECTION-PRESET) is trained, one run folder a cell, and what was stopped
goes on; finished runs are left as they are. Then the cells are printed beside
the paper's numbers and saved there as SECTION.json and SECTION.md; --table-only
does that alone.

  --only A,B     these cells, in this order; with * and ?: --only 'rmc-*'
  --at-once K    so many trainings at a time, each a process with its output in
                 CELL.log
  --minutes M    then ask those that run to stop, and begin no more; the same
                 command goes on later

Other options are those of `rmc train` and apply to every cell. Several of these
commands may work in one folder at a time, on different cells. A cell that fails
does not stop the others, and makes the exit status 1.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    name, *rest = arguments
    if name not in SECTIONS:
        raise UsageError(f"unknown section {name!r}; allowed: {', '.join(SECTIONS)}")
    section = SECTIONS[name]
    modes = [mode for mode in ("--list", "--table-only") if mode in rest]
    rest = [argument for argument in rest if argument not in modes]
    rest, preset = take_option(rest, "--preset", default=section.presets[0])
    rest, runs = take_option(rest, "--runs", default=f"runs/{name}-{preset}")
    rest, only = take_option(rest, "--only")
    rest, at_once = take_number(rest, "--at-once", "1", int, "1 or more")
    rest, minutes = take_number(rest, "--minutes", None, float, "a number of minutes, more than 0")
    if preset not in section.presets:
        raise UsageError(f"unknown preset {preset!r}; allowed for {name}: {', '.join(section.presets)}")
    runs, cells = Path(runs), section.cells(preset)
    if runs.exists() and not runs.is_dir():
        raise UsageError(f"--runs {runs} is no folder; allowed: a folder, or a name for a new one")
    if name == "table1":
        rest, only = take_tasks_and_cores(rest, only)
    chosen = choose(cells, only, name)
    if len(modes) > 1:
        raise UsageError("--list and --table-only are given; allowed: one of them")
    if "--table-only" in modes:
        if rest:
            raise UsageError(f"--table-only takes no options of training, got {rest[0]!r}")
        if not runs.is_dir():
            raise UsageError(f"--runs {runs} does not exist; allowed: a folder `rmc reproduce` made")
        report(name, runs, cells)
        return 0
    check_options(cells, rest)
    planned = {cell: settings(section.experiment, cell, rest, runs) for cell in chosen}
    if "--list" in modes:
        show_list(section.experiment, runs, planned, rest)
        return 0
    check_beginnings(section.experiment, runs, planned, cells, rest)
    code = train_missing(section.experiment, runs, planned, rest, at_once, minutes, arguments)
    report(name, runs, cells)
    return code


# ------------------------------------------------------------------ what to train


def take_number(arguments: list[str], option: str, default: str | None, kind: type, allowed: str):
    rest, text = take_option(arguments, option, default)
    try:
        value = None if text is None else kind(text)
        if value is not None and not 0 < value < math.inf:
            raise ValueError
    except ValueError:
        raise UsageError(f"{option} {text!r} is not allowed; allowed: {allowed}") from None
    return rest, value


def take_tasks_and_cores(arguments: list[str], only: str | None) -> tuple[list[str], str | None]:
    """Table 1 has two sides: --tasks and --cores as the cells --only would name."""
    experiment, given = load_experiment("lte"), {}
    for option, allowed in (("--tasks", experiment.TASKS), ("--cores", experiment.CORES)):
        arguments, value = take_option(arguments, option)
        given[option] = ["*"] if value is None else value.split(",")
        for word in given[option]:
            if word not in ("*", *allowed):
                raise UsageError(f"{option} {word!r} is not allowed; allowed: {', '.join(allowed)}")
    sides = [f"{task}-{core}" for task in given["--tasks"] for core in given["--cores"]]
    if sides == ["*-*"]:
        return arguments, only
    if only is not None:
        raise UsageError(f"--only {only} is given with --tasks or --cores; allowed: one or the other")
    return arguments, ",".join(sides)


def choose(cells: list[Cell], only: str | None, name: str) -> list[Cell]:
    """The cells that --only names, in its order."""
    chosen = {}
    for pattern in ["*"] if only is None else only.split(","):
        found = [cell for cell in cells if fnmatchcase(cell.name, pattern)]
        if not found:
            names = ", ".join(cell.name for cell in cells)
            raise UsageError(f"--only {pattern!r} is no cell of {name}; allowed: {names}, or patterns with *")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def check_options(cells: list[Cell], options: list[str]) -> None:
    """What cells differ in is chosen by choosing cells."""
    own = {word for cell in cells for word in own_options(cell, Path()) if word.startswith("--")}
    for option in (argument.partition("=")[0] for argument in options):
        if option.replace("_", "-") in own:
            raise UsageError(f"{option} is not allowed: cells differ in it; allowed: --only CELL,CELL")


def settings(experiment: str, cell: Cell, options: list[str], runs: Path):
    """A cell's settings, with options for all cells."""
    preset = load_experiment(experiment).PRESETS[cell.preset]
    program = f"rmc train {experiment} --preset {cell.preset}"
    return from_anywhere(parse(preset, [*own_options(cell, runs), *options], program, HELP))


def own_options(cell: Cell, runs: Path) -> list[str]:
    weights = ["--training.weights", str(runs / cell.begins_with)] if cell.begins_with else []
    return [*cell.options, *weights]


# ------------------------------------------------------------------ what is there


def is_finished(path: Path, experiment: str, config, otherwise: str) -> bool:
    """Whether a cell's run is complete; an error if it is no run of these settings or cannot go on.

    `otherwise`: what the user may do about other settings.
    """
    from relational_rnn.training.config import to_dict

    with user_errors():
        run, _, found = open_run(str(path))
        described = run.config()
        if described["experiment"] != experiment:
            raise UsageError(f"{path} is a run of {described['experiment']!r}; allowed: {experiment!r}")
        found, wanted = to_dict(found), to_dict(config)
        first = Path(wanted["training"]["weights"])  # of a cell beside this one: all of them may have moved
        if first.parent == path.absolute().parent and first.name == Path(found["training"]["weights"]).name:
            found["training"]["weights"] = str(first)
        difference = first_difference(found, wanted)
        if difference is not None:
            raise UsageError(f"{path} was run with other settings: {difference}; {otherwise}")
        finished = run.is_finished(config.training.steps)
        if not finished and not run.has_checkpoint():
            run.lock()  # or another process has only just begun it
            run.close()
            raise UsageError(f"{path} has no checkpoint, it was killed at its very start; remove it")
    return finished


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


def missing(experiment: str, runs: Path, planned: dict) -> list[Cell]:
    """The cells to train; nothing starts before all that is there was found to fit."""
    from relational_rnn.training.run_folder import discard_unborn

    cells, otherwise = [], "choose another --runs, or --table-only"
    for cell, config in planned.items():
        path = runs / cell.name
        if path.is_dir() and in_use(path):
            print(f"{cell.name} is left to another process, which trains it", flush=True)
            continue
        discard_unborn(path)
        if not path.exists() or not is_finished(path, experiment, config, otherwise):
            cells.append(cell)
    return cells


def in_use(path: Path) -> bool:
    """Whether another process is training in a run folder."""
    from relational_rnn.training.run_folder import RunFolder, RunFolderError

    run = RunFolder(path)
    try:
        run.lock()
    except RunFolderError:
        return True
    run.close()
    return False


def check_beginnings(
    experiment: str, runs: Path, planned: dict, cells: list[Cell], options: list[str]
) -> None:
    """A cell that is to begin with another's weights can, or will."""
    by_name = {cell.name: cell for cell in cells}
    for cell in planned:
        first = by_name.get(cell.begins_with)
        if first is None or first in planned or (runs / cell.name).exists():
            continue
        config, otherwise = settings(experiment, first, options, runs), "choose another --runs"
        path = runs / first.name
        if not path.exists() or not is_finished(path, experiment, config, otherwise):
            raise UsageError(
                f"{cell.name} begins with the weights of {first.name}, which is not finished; allowed: "
                f"--only {first.name},{cell.name}"
            )


def show_list(experiment: str, runs: Path, planned: dict, options: list[str]) -> None:
    """A line a cell: its name, how far it is, and its command."""
    from relational_rnn.analysis.sections import read_progress

    lines = []
    for cell, config in planned.items():
        path = runs / cell.name
        try:
            known = path.exists() and is_finished(path, experiment, config, "not trained")
            progress = read_progress(path)
        except (UsageError, ValueError) as error:
            lines.append((cell.name, "refused", visible(str(error))))
            continue
        state = "finished" if known else "not begun"
        if not known and "step" in progress:
            state = f"at {progress['step']:,} of {progress['steps']:,}"
        words = ["rmc", *command(experiment, cell, options, runs)]
        lines.append((cell.name, state, shlex.join(words)))
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    for name, state, text in lines:
        print(f"{name:{widths[0]}}  {state:{widths[1]}}  {text}")
    finished = sum(state == "finished" for _, state, _ in lines)
    print(f"{finished} of {len(lines)} cells are finished in {runs}")


def command(experiment: str, cell: Cell, options: list[str], runs: Path) -> list[str]:
    return ["train", experiment, "--preset", cell.preset, *own_options(cell, runs), *options]


# ------------------------------------------------------------------ training, and the table


def train_missing(
    experiment: str,
    runs: Path,
    planned: dict,
    options: list[str],
    at_once: int,
    minutes: float | None,
    arguments: list[str],
) -> int:
    from relational_rnn.training.many import Job, run_many

    jobs = []
    for cell in missing(experiment, runs, planned):
        path = runs / cell.name
        fresh = [*command(experiment, cell, options, runs), "--run", str(path)]
        begun = path.exists()
        words = ["train", "--resume", str(path)] if begun else fresh
        after = "" if begun else cell.begins_with
        jobs.append(Job(cell.name, path, words, planned[cell].training.steps, after))
        check_text(planned[cell])
    print(f"{len(planned) - len(jobs)} of {len(planned)} cells are finished", flush=True)
    if not jobs:
        return 0
    outcome = run_many(jobs, at_once, minutes)
    if outcome.failed:
        print(f"failed: {', '.join(outcome.failed)}; the same command tries again", flush=True)
    if left := [*outcome.stopped, *outcome.waiting]:
        print(f"not finished: {', '.join(left)}")
        print(f"go on with: {shlex.join(['rmc', 'reproduce', *arguments])}", flush=True)
    if outcome.signal is not None:
        return 128 + outcome.signal
    return 1 if outcome.failed else 0


def check_text(config) -> None:
    """Language models: that there is a text, before any of them begins."""
    if hasattr(config, "data"):
        from relational_rnn.experiments.language_problem import find_text

        with user_errors():
            find_text(config.data)


def report(name: str, runs: Path, cells: list[Cell]) -> None:
    """Print the table of all cells and save it."""
    from relational_rnn.analysis import sections, table1
    from relational_rnn.training.checkpoint import write_text

    analysis = table1 if name == "table1" else sections
    experiment = SECTIONS[name].experiment
    with user_errors():
        planned = {cell: settings(experiment, cell, [], runs) for cell in cells}
        table = analysis.read_table(name, runs, planned)
    head, *body = analysis.rows(table)
    print_table(analysis.title(table), head, body)
    for note in analysis.notes(table):
        print(note)
    runs.mkdir(parents=True, exist_ok=True)
    write_text(runs / f"{name}.json", json.dumps(table, indent=1) + "\n")
    write_text(runs / f"{name}.md", analysis.markdown(table))
    print(f"saved: {runs / f'{name}.json'} and {name}.md")
