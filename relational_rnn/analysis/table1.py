"""Table 1 from run folders: what each cell (a task and a core) scored, beside the paper's number."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.training.progress import duration
from relational_rnn.training.run_folder import RunFolder

OTHER_DIFFICULTY = "* at another length or nest than the paper's 5 and 2: the numbers cannot be compared"
NAMES = {"rmc": "RMC", "lstm": "LSTM", "entnet": "EntNet", "dnc": "DNC"}


def cell_path(runs: Path, task: str, core: str) -> Path:
    return runs / f"{task}-{core}"


def read_cell(path: Path) -> dict:
    """What is known of one run: {"status": "not run"}, or "stopped" or "finished" with its scores.

    `accuracy` and `solved` are of the last evaluation, `best_accuracy` of the best one, which is what the
    paper reports. Accuracies are fractions.
    """
    if not (path / "config.json").exists():  # not begun, or only just by another process
        return {"status": "not run"}
    run = RunFolder.open(path)
    described, records = run.config(), run.metrics()
    config = described["config"]
    training = config["training"]
    steps = training["steps"]
    # The checkpoint is the last thing a run writes; without it the last record may be made again.
    finished = run.checkpoint_path(steps).exists()
    cell = {"status": "finished" if finished else "stopped", "run": path.name, "preset": described["preset"]}
    task = LearningToExecute(config["task"], config["length"], config["nest"])
    cell |= {"length": task.length, "nest": task.nest, "seed": training["seed"]}
    cell["paper_difficulty"] = task == LearningToExecute(task.task, 5)
    step = records[-1]["step"] if records else 0
    cell |= {"step": step, "steps": steps, "samples": step * training["batch_size"]}
    cell["seconds"] = records[-1]["seconds"] if records else 0.0
    evaluations = [record for record in records if "eval_accuracy" in record]
    if evaluations:
        last, best = evaluations[-1], max(evaluations, key=lambda record: record["eval_accuracy"])
        cell |= {"accuracy": last["eval_accuracy"], "solved": last["eval_solved"], "eval_step": last["step"]}
        cell |= {"best_accuracy": best["eval_accuracy"], "best_step": best["step"]}
    session = (run.sessions() or [{}])[-1]
    return cell | {"commit": session.get("commit"), "gpu": session.get("gpu")}


def read_table(runs: Path, paper: dict[str, dict[str, float]]) -> dict:
    """All cells; `paper` has the paper's accuracy by core and task."""
    cells = [
        {"task": task, "core": core, "paper_accuracy": number, **read_cell(cell_path(runs, task, core))}
        for core, row in paper.items()
        for task, number in row.items()
    ]
    return {"table": "table1", "metric": "accuracy per character at maximum difficulty", "cells": cells}


def shown(cell: dict) -> str:
    """Ours in words: 99.8 | not run | step 10 of 40, perhaps with the accuracy so far."""
    if cell["status"] == "not run":
        return "not run"
    number = f"{100 * cell['accuracy']:.1f}" if "accuracy" in cell else ""
    if cell["status"] == "finished":
        return number
    return f"{number} at step {cell['step']} of {cell['steps']}".strip()


def rows(table: dict) -> list[list[str]]:
    """A head, then one row a core: "ours (the paper's)" for each task."""
    tasks = list(dict.fromkeys(cell["task"] for cell in table["cells"]))
    by_core: dict[str, list[str]] = {}
    for cell in table["cells"]:
        mark = "" if cell.get("paper_difficulty", True) else "*"
        text = f"{shown(cell)}{mark} ({100 * cell['paper_accuracy']:.1f})"
        by_core.setdefault(cell["core"], [NAMES[cell["core"]]]).append(text)
    return [["", *tasks], *by_core.values()]


def other_difficulty(table: dict) -> bool:
    return not all(cell.get("paper_difficulty", True) for cell in table["cells"])


DETAILS = (
    *("run", "preset", "length", "nest", "last %", "best %", "best at", "answers right %"),
    *("updates", "samples", "time", "GPU"),
)


def details(table: dict) -> list[list[str]]:
    """A head, then one row for every run there is."""
    found = []
    for cell in table["cells"]:
        if cell["status"] == "not run":
            continue
        scores = ["", "", "", ""]
        if "accuracy" in cell:
            last, best, solved = (f"{100 * cell[k]:.2f}" for k in ("accuracy", "best_accuracy", "solved"))
            scores = [last, best, f"{cell['best_step']:,}", solved]
        updates = f"{cell['step']:,}" + ("" if cell["status"] == "finished" else f" of {cell['steps']:,}")
        amounts = [updates, f"{cell['samples']:,}", duration(cell["seconds"]), cell["gpu"] or "none"]
        names = [cell["run"], cell["preset"], str(cell["length"]), str(cell["nest"])]
        found.append([*names, *scores, *amounts])
    return [list(DETAILS), *found]


def markdown(table: dict) -> str:
    """Both tables as a page."""
    parts = [
        "# Table 1: program evaluation and memorisation",
        "Accuracy per character in percent at maximum difficulty, of the last evaluation; in brackets the "
        "paper's, which is the best evaluation of the best of several settings.",
        _markdown_table(rows(table)),
        *([OTHER_DIFFICULTY.replace("*", "\\*", 1)] if other_difficulty(table) else []),
        "Every run: its last and its best evaluation, answers with every character right, training time "
        "without evaluations.",
        _markdown_table(details(table)),
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(lines: list[list[str]]) -> str:
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])
