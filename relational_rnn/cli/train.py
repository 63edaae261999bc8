"""rmc train: a preset with overrides into a new run folder, or the continuation of an old one."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import signal
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.experiments import EXPERIMENTS, load_experiment, open_run

HELP = """\
usage: rmc train EXPERIMENT [--preset NAME] [--run FOLDER]
                 [--any.option VALUE ...]
       rmc train EXPERIMENT [--preset NAME] --help
          every option, with the preset's values
       rmc train --resume FOLDER
       torchrun --nproc-per-node N -m -- relational_rnn.cli train lm ...
                 --run FOLDER     several processes

experiments: {}
"""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(", ".join(EXPERIMENTS)), end="")
        return 0
    arguments, folder = take_option(arguments, "--resume")
    if folder is not None:
        return resume(folder, arguments)
    arguments, preset = take_option(arguments, "--preset")
    arguments, run = take_option(arguments, "--run")
    if not arguments:
        raise UsageError(f"no experiment given; allowed: {', '.join(EXPERIMENTS)}")
    name, *rest = arguments
    with user_errors():
        experiment = load_experiment(name)
    if preset is None:
        preset = getattr(experiment, "DEFAULT_PRESET", "fast")
    if preset not in experiment.PRESETS:
        raise UsageError(f"unknown preset {preset!r}; allowed: {', '.join(experiment.PRESETS)}")
    program = f"rmc train {name} --preset {preset}"
    config = from_anywhere(parse(experiment.PRESETS[preset], rest, program, HELP))
    if run is None and "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError("--run FOLDER is needed with torchrun: all processes must name the same folder")
    if run is None:
        moment = datetime.now().strftime("%Y%m%d-%H%M%S")
        task = getattr(config, "task", None)
        what = f"{task}-{config.core}" if isinstance(task, str) else config.core
        run = f"runs/{name}/{preset}-{what}-seed{config.training.seed}-{moment}"
    return start(name, preset, config, Path(run))


def from_anywhere(config):
    """With whole paths, so that a run finds its data wherever it is resumed or evaluated."""
    from relational_rnn.pretrained import packaged

    given = {name: getattr(config, name) for name in ("data", "prepared") if getattr(config, name, "")}
    weights = config.training.weights
    if weights and not packaged(weights):
        config = replace(config, training=replace(config.training, weights=str(Path(weights).absolute())))
    return replace(config, **{name: str(Path(path).absolute()) for name, path in given.items()})


def start(name: str, preset: str, config, path: Path) -> int:
    """Train in a new run folder."""
    from relational_rnn.analysis.runs import visible
    from relational_rnn.training import distributed
    from relational_rnn.training.config import to_dict
    from relational_rnn.training.run_folder import RunFolder
    from relational_rnn.training.stopping import StopRequest

    with user_errors():
        # Before the folder: a wrong size leaves nothing behind.
        trainer = make_trainer(load_experiment(name), config, begins=True)
        check_backends(trainer.problem.model)
        check_overruled(trainer, config, load_experiment(name).PRESETS[preset]())
        if distributed.restarted(path, trainer.ranks):  # torchrun runs the same command again
            return go_on(trainer, RunFolder.open(path))
    with StopRequest() as stop:  # a signal from here on waits: the folder shall have its first checkpoint
        run, refused = None, False
        if trainer.ranks.rank == 0:
            parameters = sum(p.numel() for p in trainer.problem.model.parameters())
            try:
                with user_errors():
                    run = RunFolder.create(path, name, preset, to_dict(config), parameters=parameters)
            except UsageError as error:
                if trainer.ranks.count == 1:
                    raise
                refused = True  # the others must know, and torchrun ends all when one has ended
                print(f"rmc: error: {visible(str(error))}", file=sys.stderr, flush=True)
        if trainer.ranks.any(refused):
            distributed.leave()
            return 2
        if run is None:
            return train(trainer, stop, started=True)
        trainer.run_folder = run
        with contextlib.closing(run):
            print(f"run folder: {path}", flush=True)
            if about := trainer.problem.describe(trainer.config.steps):
                print(about, flush=True)
            trainer.problem.write_files(path)
            distributed.note_job(path)
            return train(trainer, stop, started=True)


def resume(folder: str, rest: list[str]) -> int:
    with user_errors():
        run, experiment, config = open_run(folder)
        name = run.config()["experiment"]
        options = rest if rest and rest[0].startswith("-") else rest[1:]
        if options:
            raise UsageError(f"--resume takes no options (a run keeps its own), got {options[0]!r}")
        if rest and rest[0] != name:
            raise UsageError(f"run folder {folder} is of experiment {name!r}, not {rest[0]!r}")
        return go_on(make_trainer(experiment, config), run)


def go_on(trainer, run) -> int:
    """Train on from the newest checkpoint of a run folder."""
    from relational_rnn.training.stopping import StopRequest

    trainer.run_folder = run
    first = trainer.ranks.rank == 0
    with contextlib.closing(run):
        with user_errors():
            check_backends(trainer.problem.model)
            trainer.resume()
        with StopRequest() as stop:
            if trainer.step == trainer.config.steps:
                if first:
                    print(f"{run.path} is complete: {trainer.step} of {trainer.step} steps")
                return 0
            if first:
                print(f"resuming {run.path} at step {trainer.step}", flush=True)
            return train(trainer, stop)


def train(trainer, stop, started: bool = False) -> int:
    """Train to the end or until `stop()`; `started`: from the very beginning. Only the first of several
    processes speaks."""
    from relational_rnn.training import distributed
    from relational_rnn.training.loop import CannotGoOn
    from relational_rnn.training.progress import Display
    from relational_rnn.training.tracking import tracker

    run, steps = trainer.run_folder, trainer.config.steps
    if started:
        trainer.save()  # step 0: from here on the run can always be resumed
    if run is None:  # not the first process
        try:
            trainer.run(stop=stop)
            if trainer.step < steps:
                trainer.save()
        except CannotGoOn:  # as all processes; the first one says why
            return 1
        distributed.leave()
        return 128 + (stop.signal or signal.SIGTERM) if trainer.step < steps else 0
    track = tracker(trainer.config.track, run)
    try:
        with Display(steps, trainer.step) as display:
            trainer.problem.watch = display.note
            trainer.run(report=lambda record: (display(record), track(record)), stop=stop)
        if trainer.step < steps:
            trainer.save()
    except CannotGoOn as error:
        run.session_ends(trainer.step)
        print(f"rmc: stopped: {error}; the last checkpoint is {run.latest_checkpoint()}", file=sys.stderr)
        return 1
    run.session_ends(trainer.step)
    if trainer.step < steps:
        command = f"rmc train --resume {shlex.quote(str(run.path))}"
        print(f"stopped at step {trainer.step} of {steps}; resume with: {command}")
        return 128 + (stop.signal or signal.SIGTERM)
    distributed.leave()
    final = run.metrics()[-1]
    scores = ", ".join(f"{name} {value:.4f}" for name, value in final.items() if name.startswith("eval_"))
    print(f"done: {scores} on {trainer.problem.scored_on}; weights in {run.weights_path}")
    return 0


# ------------------------------------------------------------------ shared with the other commands


def make_trainer(experiment, config, begins: bool = False):
    """`begins`: with the weights `training.weights` names; a run that goes on has its own."""
    from relational_rnn.training import distributed
    from relational_rnn.training.device import pick_device
    from relational_rnn.training.loop import Trainer
    from relational_rnn.training.tracking import check_tracker

    check_tracker(config.training.track)
    device = pick_device(distributed.join(config.training.device))
    problem = experiment.make_problem(config, device)
    if begins and config.training.weights:
        from relational_rnn.pretrained import begin_with

        begin_with(config.training.weights, experiment.NAME, problem.model)
    return Trainer(problem, config.training, device)


def check_backends(model) -> None:
    """A ValueError if a core's backend cannot run here; without this the first update would say so."""
    from relational_rnn.cores.relational_memory import RelationalMemory

    for module in model.modules():
        if isinstance(module, RelationalMemory):
            module.kernels()


def check_overruled(trainer, config, preset) -> None:
    """What was asked for and cannot be is an error; of what merely is not used the user is told."""
    from relational_rnn.training.muon import SMALLEST
    from relational_rnn.training.optimizers import kind_of

    notes = []
    for name, reason in trainer.problem.overruled(config).items():
        asked = f"--{name.replace('_', '-')} {getattr(config, name)}"
        if getattr(config, name) != getattr(preset, name):
            raise ValueError(f"{asked} is not allowed: {reason}")
        notes.append(f"note: the preset's {asked} is not used: {reason}")
    if config.training.optimizer == "muon" and kind_of(trainer.optimizer) == "adam":
        reason = f"no matrix of this model has {SMALLEST} rows and columns; Adam trains all of it"
        notes.append(f"note: --training.optimizer muon is not used: {reason}")
    if notes and trainer.ranks.rank == 0:
        print(*notes, sep="\n", file=sys.stderr)


@contextlib.contextmanager
def user_errors():
    """While settings are checked and models built, a ValueError is about what the user gave."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error).replace("\n", " ")) from error


def take_option(arguments: list[str], name: str, default: str | None = None) -> tuple[list[str], str | None]:
    """Remove `--name value` or `--name=value` and return what is left, and the value."""
    rest, value = [], default
    remaining = iter(arguments)
    for argument in remaining:
        if argument == name:
            value = next(remaining, None)
            if value is None:
                raise UsageError(f"{name} needs a value")
        elif argument.startswith(f"{name}="):
            value = argument.partition("=")[2]
        else:
            rest.append(argument)
    return rest, value


def whole_number(name: str, value: str, least: int = 0) -> int:
    digits = value.isascii() and value.isdigit() and len(value) < 20  # Python refuses to read thousands
    if not digits or not least <= int(value) < 2**63:
        shown = value if len(value) < 50 else f"{value[:50]}..."
        raise UsageError(f"{name} {shown!r} is not allowed; allowed: a whole number, {least} to 2^63 - 1")
    return int(value)


def parse(preset, arguments: list[str], program: str, page: str = ""):
    """A preset's settings with overrides. tyro's boxed messages become one line. `page`: the command's help,
    which names its own options, for whoever mistypes one of those."""
    import tyro

    default = preset()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), user_errors():
            config, unknown = tyro.cli(
                type(default),
                default=default,
                args=arguments,
                prog=program,
                description=preset.__doc__,
                return_unknown_args=True,
            )
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise UsageError(f"{one_line(said.getvalue())}; see {program} --help") from exit_
    if unknown:
        own = re.findall(r"--[a-z-]+(?![a-z.-])", page)
        hint = suggestion(unknown[0], [*option_names(default), *own])
        raise UsageError(f"unknown option {unknown[0]!r}{hint}; see {program} --help")
    return config


def suggestion(option: str, names: list[str]) -> str:
    close = difflib.get_close_matches(option.partition("=")[0], names, 1, 0.5)
    return f"; perhaps {close[0]}" if close else ""


def option_names(config, prefix: str = "--"):
    for name, value in vars(config).items():
        dashed = prefix + name.replace("_", "-")
        if hasattr(value, "__dataclass_fields__"):
            yield from option_names(value, dashed + ".")
        else:
            yield dashed


def one_line(box: str) -> str:
    """The first paragraph of one of tyro's boxes, which are of hyphens where output has no other lines."""
    words = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]:
        text = line.strip("│ ")
        if re.fullmatch(r"[╰─╯]+|-{3,}", text):
            if words:
                break
        else:
            words.append(text)
    said = " ".join(words).rstrip(".")
    return re.sub(r"^Error parsing [\w.]+: ", "", said)  # ours follows, which names the value
