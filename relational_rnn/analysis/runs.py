"""Run folders for readers: whatever can be read of one is used, and what cannot is named.

Only config.json has to be whole. A folder that came from another machine may lack its checkpoints, and lines
of metrics.jsonl may be damaged or missing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Run:
    """What is in a run folder, or in a result made of one."""

    name: str
    experiment: str
    preset: str
    config: dict
    curves: dict[str, list[tuple[int, float]]]
    """(step, value) by key of metrics.jsonl."""
    sessions: list[dict] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Lines that could not be read, each with its reason."""
    missing: int = 0
    """Lines that should be there by `log_every` and are not, skipped ones included."""

    @property
    def core(self) -> str:
        return self.config.get("core", "")

    @property
    def seed(self) -> int:
        return self.config.get("training", {}).get("seed", 0)

    @property
    def task(self) -> str:
        return task_name(self.config)

    def notice(self) -> str | None:
        """One line about what could not be read; None if all could."""
        parts = []
        if self.skipped:
            shown = "; ".join(self.skipped[:3]) + ("; ..." if len(self.skipped) > 3 else "")
            parts.append(f"skipped {plural(len(self.skipped), 'line')} of metrics.jsonl ({shown})")
        lost = self.missing - len(self.skipped)
        if lost > 0:
            parts.append(f"{plural(lost, 'line')} of metrics.jsonl {'is' if lost == 1 else 'are'} missing")
        return f"{self.name}: {', '.join(parts)}" if parts else None

    def at_seconds(self, key: str) -> list[tuple[float, float]]:
        """The curve of a key over training seconds instead of steps; points without a time are left out."""
        seconds = dict(self.curves.get("seconds", ()))
        known = sorted(seconds)
        points = []
        for step, value in self.curves.get(key, ()):
            if step in seconds:
                points.append((seconds[step], value))
            elif known and known[0] <= step <= known[-1]:  # a thinned curve: between its neighbours
                after = next(s for s in known if s > step)
                before = known[known.index(after) - 1]
                part = (step - before) / (after - before)
                points.append((seconds[before] + part * (seconds[after] - seconds[before]), value))
        return points


def read_run(path: Path) -> Run:
    """A run folder as far as it can be read; a ValueError where it is none."""
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"run folder {path} does not exist; allowed: a folder `rmc train` made")
    described = _described(path / "config.json")
    records, skipped = read_records(path / "metrics.jsonl")
    sessions = _json(path / "environment.json") if (path / "environment.json").exists() else []
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise ValueError(f"{path / 'environment.json'} is damaged: it must be a list of objects")
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for key, value in record.items():
            if key != "step":
                curves.setdefault(key, []).append((record["step"], value))
    every = described["config"].get("training", {}).get("log_every", 0)
    expected = records[-1]["step"] // every if records and every else 0
    found = sum(record["step"] % every == 0 for record in records) if every else 0
    return Run(
        name=path.resolve().name,
        experiment=described["experiment"],
        preset=described["preset"],
        config=described["config"],
        curves=curves,
        sessions=sessions,
        skipped=skipped,
        missing=max(expected - found, len(skipped)),
    )


def _described(path: Path) -> dict:
    """config.json: what every reader needs of it is there and of its kind."""
    described = _json(path)
    if not isinstance(described, dict) or not {"experiment", "preset", "config"} <= described.keys():
        raise ValueError(f"{path} is damaged: it must have experiment, preset and config")
    try:
        core = described["config"].get("core", "")
        every = described["config"].get("training", {}).get("log_every", 0)
    except AttributeError:  # no group of settings
        core = every = None
    texts = (described["experiment"], described["preset"], core)
    if not all(isinstance(text, str) for text in texts) or not isinstance(every, int):
        raise ValueError(f"{path} is damaged: experiment, preset and core must be text, config be settings")
    return described


def read_records(path: Path) -> tuple[list[dict], list[str]]:
    """The records of a metrics.jsonl that can be used, and a reason for every line that cannot.

    A last line without its end is one that is still being written, or was cut off by a kill: no fault.
    """
    if not path.exists():
        raise ValueError(f"{path} is missing: the folder is no run folder, or the run never began")
    records, skipped = [], []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        record, reason = _record(line, records[-1]["step"] if records else -1)
        if record is not None:
            records.append(record)
        elif not (number == len(lines) and not line.endswith(b"\n")):
            skipped.append(f"line {number} {reason}")
    return records, skipped


def _record(line: bytes, last_step: int) -> tuple[dict | None, str]:
    """One line as {"step": int, ...numbers}; None and why where it is no such thing."""
    try:
        record = json.loads(line)
    except ValueError:  # includes bytes that are not UTF-8
        return None, "is no JSON"
    step = record.get("step") if isinstance(record, dict) else None
    if not isinstance(step, int) or not _finite(step):
        return None, "has no step"
    if step <= last_step:
        return None, f"goes back to step {step}"
    return {key: value for key, value in record.items() if _finite(value)}, ""


def _finite(value) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max  # also of whole numbers too large to be a float


def _json(path: Path):
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path.parent} is no run folder: {path.name} is missing") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def task_name(config: dict) -> str:
    """A short name of what was trained on: program, 8x16, viewport, hunt-full, wikitext-2."""
    task = config.get("task")
    if isinstance(task, str):
        return task
    if isinstance(task, dict):
        if {"vectors", "dims"} <= task.keys():
            return f"{task['vectors']}x{task['dims']}"
        if "view" in task:
            mode = task.get("mode", "regular")
            return task["view"] if mode == "regular" else f"{mode}-{task['view']}"
    return Path(config["data"]).name if isinstance(config.get("data"), str) else ""


def visible(text: str) -> str:
    """With escapes in place of control characters, which a name in a file could tell the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
