"""Results worth keeping: one JSON a run under results/runs/, complete and unedited, or refused.

`sha256` is over everything else in the file, so that an edit by hand is noticed. It is a seal against
mistakes, not against fraud: `metrics_sha256`, of the run's own metrics.jsonl, is there to compare a file with
its run folder where that was kept. docs/results.md explains every field.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from relational_rnn.analysis.runs import Run

SCHEMA = 1
STATUS = ("finished", "stopped")
NUMBER = (int, float)
FIELDS: dict[str, type | tuple] = {
    "schema": int,
    "experiment": str,
    "preset": str,
    "task": str,
    "core": str,
    "seed": int,
    "overrides": dict,
    "command": str,
    "config": dict,
    "parameters": int,
    "commit": str,
    "commit_from": str,
    "uncommitted_changes": (bool, type(None)),
    "versions": dict,
    "hardware": dict,
    "started": str,
    "sessions": int,
    "status": str,
    "steps": dict,
    "seen": dict,
    "training_seconds": NUMBER,
    "wall_seconds": (*NUMBER, type(None)),
    "final": dict,
    "best": dict,
    "curve": dict,
    "skipped_lines": int,
    "missing_lines": int,
    "metrics_sha256": str,
    "sha256": str,
}
INSIDE = {
    "versions": ("python", "torch", "relational_rnn"),
    "hardware": ("device", "gpu", "cpu", "cpu_cores", "cpu_threads", "system"),
    "steps": ("done", "asked"),
    "seen": ("amount", "unit"),
    "final": ("step",),
}
# Files that are no single run; docs/results.md says what they are. They have no seal, but must say these.
OTHER_FIELDS = ("command", "commit", "date", "versions", "hardware", "runs")


class ResultError(ValueError):
    """A result that cannot be trusted; the message names the file and what is wrong, in one line."""


def seal(result: dict) -> str:
    """The hash that `sha256` must be."""
    content = {key: value for key, value in result.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check(result, name: str) -> dict:
    """The result itself, if it is complete and its seal fits."""
    if not isinstance(result, dict):
        raise ResultError(f"{name} is no result: it must be a JSON object")
    lacking, unknown = FIELDS.keys() - result.keys(), result.keys() - FIELDS.keys()
    if lacking:
        raise ResultError(f"{name} is incomplete: it lacks {', '.join(sorted(lacking))}")
    if unknown:
        raise ResultError(f"{name} has fields that are not allowed: {', '.join(sorted(unknown))}")
    if result["schema"] != SCHEMA:
        raise ResultError(f"{name} has schema {result['schema']!r}; allowed: {SCHEMA}")
    for field, kind in FIELDS.items():
        value = result[field]
        if not isinstance(value, kind) or (isinstance(value, bool) and field != "uncommitted_changes"):
            raise ResultError(f"{name}: {field} is {value!r}, which is of the wrong kind")
    for field, keys in INSIDE.items():
        if missing := [key for key in keys if key not in result[field]]:
            raise ResultError(f"{name} is incomplete: {field} lacks {', '.join(missing)}")
    for field, key in (("steps", "done"), ("steps", "asked"), ("seen", "amount"), ("final", "step")):
        value = result[field][key]
        if not isinstance(value, NUMBER) or isinstance(value, bool):
            raise ResultError(f"{name}: {field}.{key} is {value!r}; allowed: numbers")
    if result["status"] not in STATUS:
        raise ResultError(f"{name}: status is {result['status']!r}; allowed: {', '.join(STATUS)}")
    if not re.fullmatch(r"[0-9a-f]{40}", result["commit"]):
        raise ResultError(f"{name}: commit is {result['commit']!r}; allowed: 40 hexadecimal digits")
    if not any(key.startswith("eval_") for key in result["final"]):
        raise ResultError(f"{name} is incomplete: final has no evaluation")
    for key, series in result["curve"].items():
        if not isinstance(series, dict) or len(series.get("step", ())) != len(series.get("value", "-")):
            raise ResultError(f"{name}: curve {key!r} must have as many steps as values")
    if result["sha256"] != seal(result):
        raise ResultError(
            f"{name} was edited or damaged: its sha256 does not fit its contents; make it anew with "
            "`rmc results add RUN`"
        )
    return result


def load(path: Path) -> dict:
    """A checked result; a ResultError says why it is none."""
    path = Path(path)
    return check(_read(path), str(path))


def load_all(folder: Path) -> dict[str, dict]:
    """Every result of a results folder, checked, by its path from there (`runs/NAME.json`), sorted."""
    found = {f"runs/{path.name}": load(path) for path in sorted((Path(folder) / "runs").glob("*.json"))}
    for message in copies(found):
        raise ResultError(f"{folder}: {message}")
    return found


def copies(found: dict[str, dict]) -> list[str]:
    """What to say of files that are copies of others: a run counted twice would pass for two seeds."""
    first: dict[str, str] = {}
    return [
        f"{name} is a copy of {first[result['sha256']]}; remove one"
        for name, result in found.items()
        if first.setdefault(result["sha256"], name) != name
    ]


def check_other(path: Path) -> dict:
    """A file beside runs/ that is no single run: no seal, but it must say how it was made."""
    content = _read(Path(path))
    if not isinstance(content, dict):
        raise ResultError(f"{path} must be a JSON object")
    if missing := [key for key in OTHER_FIELDS if key not in content]:
        raise ResultError(f"{path} is incomplete: it lacks {', '.join(missing)}")
    for key in ("command", "hardware", "what", "experiment"):
        if not isinstance(content.get(key, ""), str):
            raise ResultError(f"{path}: {key} is {content[key]!r}; allowed: text")
    if not isinstance(content["runs"], list) or not content["runs"]:
        raise ResultError(f"{path}: runs is {content['runs']!r}; allowed: a list of one or more")
    return content


def _read(path: Path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read: {error}") from error


def dumps(result: dict) -> str:
    """One field a line, and one series of the curve a line: short, and a change is seen in a diff."""
    lines = []
    for key, value in result.items():
        if key in ("curve", "config", "best"):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_run(result: dict, name: str) -> Run:
    """A result as what figures are drawn from."""
    curves = {
        key: list(zip(series["step"], series["value"], strict=True))
        for key, series in result["curve"].items()
    }
    return Run(name, result["experiment"], result["preset"], result["config"], curves)
