"""A result (results.py) from a run folder: what is kept of it, and under which name."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from relational_rnn.analysis import results
from relational_rnn.analysis.results import ResultError
from relational_rnn.analysis.runs import Run, read_run
from relational_rnn.experiments import load_experiment
from relational_rnn.training.config import from_dict, to_dict

POINTS = 200  # of a thinned curve
KEPT = (
    *("loss", "accuracy", "perplexity", "stage", "seconds", "frames"),
    *("episode_return", "episode_solved"),
)
# Settings that do not change what is learned; they are no difference between two runs of one kind.
NOT_LEARNED_FROM = (
    *("training.device", "training.seed", "training.track", "training.cuda_graph"),
    *("training.log_every", "training.eval_every", "training.checkpoint_every", "training.keep_checkpoints"),
    *("learning.compile", "dnc.compile", "dnc.fused"),
)
CORE_NAMES = ("rmc", "lstm", "entnet", "dnc")  # also of groups of settings, each for its core alone
# Settings the name of a result says anyway.
NAMED = (
    *("core", "task", "data", "prepared"),
    *(f"task.{key}" for key in ("view", "mode", "vectors", "dims")),
)


def make_result(path: Path, preset: dict, *, parameters: int | None = None, commit: str | None = None):
    """The result of the run folder at `path`.

    `preset` is the settings its preset has now. `parameters` and `commit` are for folders that do not say.
    """
    path = Path(path)
    run = read_run(path)
    # Settings may have come and gone since the run; these every run has.
    training = run.config.get("training", {})
    if missing := {"steps", "batch_size", "seed", "device"} - training.keys():
        raise ResultError(f"{path / 'config.json'} is damaged: training lacks {', '.join(sorted(missing))}")
    for key in ("steps", "batch_size", "seed"):
        if type(training[key]) is not int:
            wrong = f"training.{key} is {training[key]!r}; allowed: whole numbers"
            raise ResultError(f"{path / 'config.json'} is damaged: {wrong}")
    if not run.sessions:
        raise ResultError(f"{path} has no environment.json: where and with what it was made is not known")
    check_sessions(run.sessions, path / "environment.json")
    last = run.sessions[-1]
    evaluations = sorted({step for key in evaluation_keys(run) for step, _ in run.curves[key]})
    if not evaluations:
        raise ResultError(f"{path} has no evaluation in metrics.jsonl: there is no score to keep")
    if "seconds" not in run.curves:
        raise ResultError(f"{path} has no training time in metrics.jsonl")
    config = portable(run.config)
    overrides = differences(portable(completed(run.experiment, run.config)), portable(preset))
    done, asked = run.curves["seconds"][-1][0], training["steps"]
    if done == asked != evaluations[-1]:  # NaN, or the line is lost: an earlier score is not the run's
        raise ResultError(f"{path} has no number from the evaluation at its end, step {done:,}")
    commits = [session["commit"] for session in run.sessions if session.get("commit")]
    if not commits and commit is None:
        raise ResultError(f"{path} does not say of which commit it is; give it with --commit HASH")
    if last.get("parameters") is None and parameters is None:
        raise ResultError(f"{path} does not say how many parameters its model has")
    result = {
        "schema": results.SCHEMA,
        "experiment": run.experiment,
        "preset": run.preset,
        "task": run.task,
        "core": run.core,
        "seed": run.seed,
        "overrides": overrides,
        "command": command(run.experiment, run.preset, overrides),
        "config": config,
        "parameters": last.get("parameters") or parameters,
        "commit": commits[-1] if commits else commit,
        "commit_from": "run folder" if commits else "given when the result was added",
        "uncommitted_changes": last.get("uncommitted_changes") if commits else None,
        "versions": {key: last.get(key) for key in results.INSIDE["versions"]},
        "hardware": hardware(run),
        "started": run.sessions[0]["started"],
        "sessions": len(run.sessions),
        "status": "finished" if done == asked else "stopped",
        "steps": {"done": done, "asked": asked},
        "seen": seen(run, done),
        "training_seconds": run.curves["seconds"][-1][1],
        "wall_seconds": wall_seconds(run.sessions),
        "final": {"step": evaluations[-1], **values_at(run, evaluations[-1])},
        "best": {key: best(key, run.curves[key]) for key in evaluation_keys(run) if "length" not in key},
        "curve": {key: thinned(run.curves[key]) for key in run.curves if kept(key)},
        "skipped_lines": len(run.skipped),
        "missing_lines": run.missing,
        "metrics_sha256": hashlib.sha256((path / "metrics.jsonl").read_bytes()).hexdigest(),
    }
    result["sha256"] = results.seal(result)
    return results.check(result, str(path)), run


def renewed(result: dict, preset: dict) -> dict:
    """The result with the command that makes its settings today, where the preset has changed since."""
    config = completed(result["experiment"], result["config"])
    overrides = differences(portable(config), portable(preset))
    new = result | {
        "overrides": overrides,
        "command": command(result["experiment"], result["preset"], overrides),
    }
    return new | {"sha256": results.seal(new)}


def file_name(result: dict) -> str:
    """experiment, task, preset, core, what was set otherwise, seed: lte-copy-fast-rmc-seed0.json."""
    names = [result[key] for key in ("experiment", "task", "preset", "core")]
    changes = [f"{key.rpartition('.')[2]}{value}" for key, value in variant(result).items()]
    text = "-".join([*names, *changes])
    if len(text) > 100:
        text = "-".join([*names, hashlib.sha256(text.encode()).hexdigest()[:8]])
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-").lower() + f"-seed{result['seed']}.json"


def variant(result: dict) -> dict:
    """The overrides that make it another experiment than its preset's: neither seed, core nor task."""
    return {
        key: value for key, value in result["overrides"].items() if key not in (*NOT_LEARNED_FROM, *NAMED)
    }


# ------------------------------------------------------------------ settings


def completed(experiment: str, config: dict) -> dict:
    """A run's settings, with those that are younger than it as they were before they could be chosen."""
    try:
        return to_dict(from_dict(load_experiment(experiment).Config, config))
    except (ValueError, TypeError):  # of another version, or not ours
        return config


def flat(config: dict, prefix: str = "") -> dict[str, Any]:
    """{"training": {"steps": 5}} -> {"training.steps": 5}, as values JSON knows."""
    found = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = json.loads(json.dumps(value))
    return found


def differences(config: dict, preset: dict) -> dict[str, Any]:
    """The settings that differ from the preset's, but for those of cores that did not run."""
    usual, idle = flat(preset), {name for name in CORE_NAMES if name != config.get("core")}
    return {
        key: value
        for key, value in flat(config).items()
        if (key not in usual or usual[key] != value) and key.partition(".")[0] not in idle
    }


def command(experiment: str, preset: str, overrides: dict[str, Any]) -> str:
    """The command that makes such a run."""
    options = [option(name, value) for name, value in overrides.items()]
    return " ".join(["rmc train", experiment, "--preset", preset, *options])


def option(name: str, value) -> str:
    """One setting as the command line takes it."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        group, dot, leaf = dashed.rpartition(".")
        return f"--{dashed}" if value else f"--{group}{dot}no-{leaf}"
    words = _words(value) if isinstance(value, list) else [str(value)]
    return " ".join([f"--{dashed}", *map(shlex.quote, words)])


def _words(value) -> list[str]:
    return [word for part in value for word in _words(part)] if isinstance(value, list) else [str(value)]


def portable(config: dict) -> dict:
    """Settings without where things lie on a machine: of an absolute path only the name is kept."""
    return {
        key: portable(value)
        if isinstance(value, dict)
        else Path(value).name
        if isinstance(value, str) and Path(value).is_absolute()
        else value
        for key, value in config.items()
    }


# ------------------------------------------------------------------ what happened


def check_sessions(sessions: list[dict], path: Path) -> None:
    for session in sessions:
        if not isinstance(gpu := session.get("gpu"), str | None):
            raise ResultError(f"{path} is damaged: gpu is {gpu!r}; allowed: text, or null")
        for key, value in {"started": None, **session}.items():
            try:
                if key in ("started", "ended") and datetime.fromisoformat(value).tzinfo is None:
                    raise ValueError("of no time zone")
            except (TypeError, ValueError):
                raise ResultError(
                    f"{path} is damaged: {key} is {value!r}; allowed: a date and time with its zone"
                ) from None


def hardware(run: Run) -> dict:
    last = run.sessions[-1]
    gpus = list(dict.fromkeys(session["gpu"] for session in run.sessions if session.get("gpu")))
    on_gpu = bool(gpus) and run.config["training"]["device"] != "cpu"
    return {
        "device": "cuda" if on_gpu else "cpu",
        "gpu": ", ".join(gpus) if on_gpu else None,
        **{key: last.get(key) for key in ("cpu", "cpu_cores", "cpu_threads", "system")},
    }


def seen(run: Run, steps: int) -> dict:
    """How much was trained on, in the unit of the task."""
    if "frames" in run.curves:
        return {"amount": run.curves["frames"][-1][1], "unit": "frames"}
    samples = steps * run.config["training"]["batch_size"]
    if run.experiment == "lm":  # a sample is a window of so many tokens
        return {"amount": samples * run.config["steps"], "unit": "tokens"}
    return {"amount": samples, "unit": "samples"}


def wall_seconds(sessions: list[dict]) -> int | None:
    """From start to end of every session, evaluations and checkpoints too; unknown if one was killed."""
    if not all("ended" in session for session in sessions):
        return None
    spans = [
        datetime.fromisoformat(session["ended"]) - datetime.fromisoformat(session["started"])
        for session in sessions
    ]
    return round(sum(span.total_seconds() for span in spans))


def evaluation_keys(run: Run) -> list[str]:
    return [key for key in run.curves if key.startswith("eval_")]


def kept(key: str) -> bool:
    return key in KEPT or key.startswith("eval_")


def values_at(run: Run, step: int) -> dict[str, float]:
    """What was recorded at a step, of the keys that are kept; times and counts have their own fields."""
    others = ("seconds", "frames")
    found = {key: dict(curve).get(step) for key, curve in run.curves.items() if kept(key)}
    return {key: value for key, value in found.items() if value is not None and key not in others}


def lower_is_better(key: str) -> bool:
    return "loss" in key or "perplexity" in key


def best(key: str, curve: list[tuple[int, float]]) -> dict:
    step, value = (min if lower_is_better(key) else max)(curve, key=lambda point: point[1])
    return {"value": value, "step": step}


def thinned(curve: list[tuple[int, float]]) -> dict[str, list]:
    """At most POINTS points, the first and the last among them, to six digits."""
    if len(curve) > POINTS:
        curve = [curve[round(i * (len(curve) - 1) / (POINTS - 1))] for i in range(POINTS)]
    return {"step": [step for step, _ in curve], "value": [_rounded(value) for _, value in curve]}


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")
