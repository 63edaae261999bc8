"""Table 1 from run folders: what each cell (a task and a core) scored, beside the paper's number."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.analysis.report import markdown as markdown_table
from relational_rnn.analysis.sections import read_progress, read_scores, updates
from relational_rnn.experiments import open_run
from relational_rnn.experiments.table1_lte import PAPER, TASKS
from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.training.progress import duration

OTHER_DIFFICULTY = "* at another length or nest than the paper's 5 and 2: the numbers cannot be compared"
WRITTEN = "+ with a calculation that is written down (tasks/lte_scratchpad.py), which the paper has not"
NAMES = {"rmc": "RMC", "lstm": "LSTM", "entnet": "EntNet", "dnc": "DNC"}


def read_cell(path: Path) -> dict:
    """What is known of one run: {"status": "not run"}, or "stopped" or "finished" with its scores.

    `accuracy` and `solved` are of the last evaluation, `best_accuracy` of the best one, which is what the
    paper reports. Accuracies are fractions.
    """
    cell = read_progress(path)
    if cell["status"] == "not run":
        return cell
    config = open_run(path)[2]
    task = LearningToExecute(config.task, config.length, config.nest)
    cell |= {"length": task.length, "nest": task.nest}
    cell["samples"] = cell["step"] * config.training.batch_size
    cell["paper_difficulty"] = task == LearningToExecute(task.task, 5)
    cell["scratchpad"] = config.model.scratchpad
    scores, solved = (read_scores(path, metric) for metric in ("eval_accuracy", "eval_solved"))
    if scores and solved:
        cell |= {"accuracy": scores["score"], "solved": solved["score"], "eval_step": scores["eval_step"]}
        cell |= {"best_accuracy": scores["best_score"], "best_step": scores["best_step"]}
    return cell


def read_table(name: str, runs: Path, cells: dict) -> dict:
    """All cells there are in the paper, whichever were asked for; as sections.read_table."""
    found = [
        {"task": task, "core": core, "paper_accuracy": number, **read_cell(runs / f"{task}-{core}")}
        for core, row in PAPER.items()
        for task, number in zip(TASKS, row, strict=True)
    ]
    return {"table": name, "metric": "accuracy per character at maximum difficulty", "cells": found}


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
        mark = ("" if cell.get("paper_difficulty", True) else "*") + "+" * cell.get("scratchpad", False)
        text = f"{shown(cell)}{mark} ({100 * cell['paper_accuracy']:.1f})"
        by_core.setdefault(cell["core"], [NAMES[cell["core"]]]).append(text)
    return [["", *tasks], *by_core.values()]


def title(table: dict) -> str:
    return "Accuracy per character in %: ours (the paper's)"


def notes(table: dict) -> list[str]:
    compares = all(cell.get("paper_difficulty", True) for cell in table["cells"])
    written = any(cell.get("scratchpad", False) for cell in table["cells"])
    return [OTHER_DIFFICULTY] * (not compares) + [WRITTEN] * written


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
        amounts = [updates(cell), f"{cell['samples']:,}", duration(cell["seconds"])]
        amounts.append(str(cell["gpu"] or "none"))  # whatever environment.json says
        names = [cell["run"], cell["preset"], str(cell["length"]), str(cell["nest"])]
        found.append([*names, *scores, *amounts])
    return [list(DETAILS), *found]


def markdown(table: dict) -> str:
    """Both tables as a page."""
    parts = [
        "# Table 1: program evaluation and memorisation",
        "Accuracy per character in percent at maximum difficulty, of the last evaluation; in brackets the "
        "paper's, which is the best evaluation of the best of several settings.",
        markdown_table(rows(table)),
        *(f"\\{note}" for note in notes(table)),  # or they would begin a list
        "Every run: its last and its best evaluation, answers with every character right, training time "
        "without evaluations.",
        markdown_table(details(table)),
    ]
    return "\n\n".join(parts) + "\n"
