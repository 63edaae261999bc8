"""A sweep's run folders as a table, and as curves to draw."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.analysis.runs import read_run
from relational_rnn.training.progress import duration

METRIC = "eval_accuracy"
TARGET = 0.91  # the paper's accuracy; the table has the time to it
SEED = "training.seed"
SHORT = {"model.mem-slots": "memories", "model.num-heads": "heads", "model.gate-style": "gates"}


def summary(folder: Path, names: dict[str, dict[str, str]], statuses: dict[str, str]) -> list[dict]:
    """One entry a point; `names` has the points by the name of their run folder."""
    return [
        {"run": name, "point": point, **read_point(folder / name, statuses.get(name))}
        for name, point in names.items()
    ]


def read_point(path: Path, said: str | None) -> dict:
    """What is known of a point; `said` is what the study says of it."""
    if not (path / "config.json").exists():
        return {"status": said or "not run"}
    run = read_run(path)
    training = run.config["training"]
    curve, seconds = run.at_seconds(METRIC), run.curves.get("seconds", [])
    step = seconds[-1][0] if seconds else 0
    entry = {
        "status": said or "stopped",
        "step": step,
        "steps": training["steps"],
        "samples": step * training["batch_size"],
        "seconds": seconds[-1][1] if seconds else 0.0,
    }
    if curve:
        reached = [second for second, value in curve if value >= TARGET]
        entry |= {"accuracy": curve[-1][1], "best_accuracy": max(value for _, value in curve)}
        entry["seconds_to_target"] = reached[0] if reached else None
    return entry


def table(entries: list[dict]) -> list[list[str]]:
    """A head, then one row a point."""
    options = list(entries[0]["point"])
    columns = ["status", "accuracy %", "best %", "updates", "time", f"time to {100 * TARGET:.0f} %"]
    lines = [[*(short(option) for option in options), *columns]]
    for entry in entries:
        line = [*entry["point"].values(), entry["status"]]
        scores = [f"{100 * entry[k]:.2f}" if k in entry else "" for k in ("accuracy", "best_accuracy")]
        spent = [f"{entry['step']:,}", duration(entry["seconds"])] if "step" in entry else ["", ""]
        reached = entry.get("seconds_to_target")
        lines.append([*line, *scores, *spent, "" if reached is None else duration(reached)])
    return lines


def short(option: str) -> str:
    return SHORT.get(option, option.rpartition(".")[2])


def curves(folder: Path, entries: list[dict]) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """For figures_sweep: each point, and its (seconds, accuracy), none if it has not begun. Of points that
    differ in nothing but the seed it makes one with many curves."""
    found = []
    for entry in entries:
        path, point = folder / entry["run"], entry["point"]
        curve = read_run(path).at_seconds(METRIC) if (path / "config.json").exists() else []
        told_apart = {short(option): value for option, value in point.items() if option != SEED}
        found.append((told_apart or {short(SEED): point[SEED]}, curve))
    return found
