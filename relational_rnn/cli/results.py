"""rmc results: keep what a run came to, check what was kept, and write the report from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from relational_rnn.analysis.runs import visible
from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors
from relational_rnn.experiments import load_experiment

HELP = """\
usage: rmc results add RUN [RUN ...] [--commit HASH] [--replace]
                   [--results FOLDER]
       rmc results check [--results FOLDER]
       rmc results build [--check] [--results FOLDER]

add    makes one JSON under results/runs/ of each run folder; only config.json,
       environment.json and metrics.jsonl are read. --commit is for runs made
       where there was no git. A file of another run with the same settings is
       replaced with --replace only; the same run, gone further, replaces
       itself.
check  refuses files that are incomplete or were edited by hand.
build  writes results/REPRODUCTION.md and the table in README.md from those
       files, and files of presets that have changed since anew, with the
       command that makes their settings today; with --check it only says what
       is out of date (exit code 1).
--results (results) is the folder; README.md is looked for beside it.
docs/results.md explains the files.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, folder = take_option(arguments, "--results", default="results")
    folder = Path(folder)
    if rest[:1] == ["add"]:
        return add(rest[1:], folder)
    for name, function in (("check", check), ("build", build)):
        if rest[:1] == [name]:
            if not folder.is_dir():
                raise UsageError(
                    f"--results {folder} does not exist; allowed: the repository's results folder"
                )
            return function(rest[1:], folder)
    raise UsageError(f"unknown action {rest[0] if rest else ''!r}; allowed: add, check, build")


# ------------------------------------------------------------------ add


def add(arguments: list[str], folder: Path) -> int:
    from relational_rnn.analysis.results_make import file_name

    rest, commit = take_option(arguments, "--commit")
    replace = "--replace" in rest
    runs = [argument for argument in rest if argument != "--replace"]
    if not runs:
        raise UsageError("no run folder given; usage: rmc results add RUN [RUN ...]")
    if unknown := [argument for argument in runs if argument.startswith("--")]:
        raise UsageError(f"unknown option {unknown[0]!r}; allowed: --commit, --replace, --results")
    commit = full_commit(commit) if commit is not None else None
    with user_errors():  # all are looked at before any is written
        made = [make(Path(run), commit) for run in runs]
    paths = [folder / "runs" / file_name(result) for result, _ in made]
    for run, path, (result, _) in zip(runs, paths, made, strict=True):
        first = paths.index(path)
        if made[first][0]["metrics_sha256"] != result["metrics_sha256"]:
            both = f"{runs[first]} and {run} have the same settings"
            raise UsageError(f"{both}, and both would become {path}; give one of them")
    there = [not replace and has_it(path, result) for path, (result, _) in zip(paths, made, strict=True)]
    for path, (result, run), same in zip(paths, made, there, strict=True):
        if notice := run.notice():
            print(f"note: {notice}", file=sys.stderr)
        if same:
            print(f"{path} is of this run already")
        else:
            keep(result, path)
    print("write the report anew with: rmc results build")
    return 0


def make(path: Path, commit: str | None):
    from relational_rnn.analysis.results_make import make_result
    from relational_rnn.analysis.runs import read_run
    from relational_rnn.training.config import to_dict

    run = read_run(path)
    experiment = load_experiment(run.experiment)
    if run.preset not in experiment.PRESETS:
        allowed = ", ".join(experiment.PRESETS)
        raise UsageError(f"{path} is of preset {run.preset!r}; allowed: {allowed}")
    noted = run.sessions and run.sessions[-1].get("parameters")
    parameters = None if noted else count_parameters(experiment, run.config)
    return make_result(path, to_dict(experiment.PRESETS[run.preset]()), parameters=parameters, commit=commit)


def count_parameters(experiment, config: dict) -> int:
    """For run folders older than the note of it: build the model and count."""
    import torch

    from relational_rnn.training.config import from_dict

    problem = experiment.make_problem(from_dict(experiment.Config, config), torch.device("cpu"))
    return sum(parameter.numel() for parameter in problem.model.parameters())


def has_it(path: Path, result: dict) -> bool:
    """Whether the file there is of this very run and step; an error if it is of another run."""
    from relational_rnn.analysis import results

    if not path.exists():
        return False
    with user_errors():
        old = results.load(path)
    if old["metrics_sha256"] == result["metrics_sha256"]:
        return True
    if old["started"] != result["started"] or old["steps"]["done"] > result["steps"]["done"]:
        raise UsageError(
            f"{path} is of another run with the same settings, begun {old['started']}; "
            "give --replace to put this one in its place"
        )
    return False


def keep(result: dict, path: Path) -> None:
    from relational_rnn.analysis import results
    from relational_rnn.training.checkpoint import write_text

    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, results.dumps(result))
    scores = ", ".join(f"{key} {value:.4g}" for key, value in result["final"].items() if key[:5] == "eval_")
    print(f"{path}: {result['status']} at step {result['steps']['done']:,}, {visible(scores)}")


def full_commit(commit: str) -> str:
    """All 40 digits of a commit of this checkout."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        found = ""
    if not found:
        raise UsageError(f"--commit {commit!r} is no commit of the repository this was called in")
    return found


# ------------------------------------------------------------------ check and build


def check(arguments: list[str], folder: Path) -> int:
    from relational_rnn.analysis import results

    if arguments:
        raise UsageError(f"rmc results check takes no arguments, got {arguments[0]!r}")
    wrong, checked, found = [], 0, {}
    for pattern, look in (("runs/*.json", results.load), ("*.json", results.check_other)):
        for path in sorted(folder.glob(pattern)):
            checked += 1
            try:
                content = look(path)
                if look is results.load:
                    found[str(path)] = content
            except results.ResultError as error:
                wrong.append(str(error))
    wrong += results.copies(found)
    for message in wrong:
        print(f"rmc: {message}", file=sys.stderr)
    print(f"{checked} files checked, {len(wrong)} refused")
    return 1 if wrong else 0


def build(arguments: list[str], folder: Path) -> int:
    from relational_rnn.analysis import report
    from relational_rnn.training.checkpoint import write_text

    only_check = arguments == ["--check"]
    if arguments and not only_check:
        raise UsageError(f"unknown option {arguments[0]!r}; allowed: --check")
    with user_errors():
        changed = renew(folder, only_check)
        texts = report.build(folder)
    old = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if only_check:
        for path in [*changed, *old]:
            print(f"{path} is out of date; run: rmc results build")
        return 1 if changed or old else 0
    for path in texts:
        if path in old:
            write_text(path, texts[path])
        print(f"{path}: {'written' if path in old else 'was up to date'}")
    return 0


def renew(folder: Path, only_check: bool) -> list[Path]:
    """Files whose command no longer makes their settings, as their preset has changed, are written anew."""
    from relational_rnn.analysis import results
    from relational_rnn.analysis.results_make import file_name, renewed
    from relational_rnn.training.checkpoint import write_text
    from relational_rnn.training.config import to_dict

    found = {folder / name: result for name, result in results.load_all(folder).items()}
    moved: dict[Path, tuple[Path, dict]] = {}  # new place: old place, what it becomes
    for path, result in found.items():
        presets = load_experiment(result["experiment"]).PRESETS
        if result["preset"] not in presets:
            continue
        new = renewed(result, to_dict(presets[result["preset"]]()))
        if new != result:
            target = path.with_name(file_name(new))
            if target in moved:
                raise ValueError(f"{path} and {moved[target][0]} would both become {target}; remove one")
            moved[target] = path, new
    changed = [path for path, _ in moved.values()]
    for target, (path, _) in moved.items():
        if target in found and target not in changed:
            raise ValueError(f"{path} would become {target}, which is there; remove one of them")
    if not only_check:
        for target, (path, new) in moved.items():
            write_text(target, results.dumps(new))
            print(f"{path}: its preset has changed; now {target.name}")
        for path in set(changed) - moved.keys():
            path.unlink()
    return changed
