"""A section of the paper from run folders: what each cell (one run) scored, beside the paper's number."""

from __future__ import annotations

import json
from pathlib import Path

from relational_rnn.analysis.claims import CLAIMS, Claim
from relational_rnn.analysis.report import markdown as markdown_table
from relational_rnn.analysis.report_rows import number, paper_number
from relational_rnn.analysis.results_make import best, differences
from relational_rnn.experiments import load_experiment, open_run
from relational_rnn.experiments.sections import SECTIONS
from relational_rnn.training.config import to_dict
from relational_rnn.training.progress import duration
from relational_rnn.training.run_folder import RunFolder

HEAD = ("cell", "preset", "updates", "score", "the paper", "training time")


def read_progress(path: Path) -> dict:
    """How far a run is: {"status": "not run"}, or "stopped" or "finished" with its steps and time."""
    if not (path / "config.json").exists():  # not begun, or only just by another process
        return {"status": "not run"}
    run, _, config = open_run(path)
    records, training = run.metrics(), config.training
    steps = training.steps
    # The checkpoint is the last thing a run writes; without it the last record may be made again.
    finished = run.is_finished(steps)
    step = max([record["step"] for record in records[-1:]] + run.checkpoint_steps(), default=0)
    session = (run.sessions() or [{}])[-1]
    return {
        "status": "finished" if finished else "stopped",
        "run": path.name,
        "preset": run.config()["preset"],
        "seed": training.seed,
        "step": step,
        "steps": steps,
        "seconds": records[-1].get("seconds", 0.0) if records else 0.0,
        "commit": session.get("commit"),
        "gpu": session.get("gpu"),
    }


def read_scores(path: Path, metric: str) -> dict:
    """Of the last and the best evaluation of a run; nothing if there is none."""
    curve = [(r["step"], r[metric]) for r in RunFolder.open(path).metrics() if metric in r]
    if not curve:
        return {}
    step, score = curve[-1]
    top = best(metric, curve)
    return {"score": score, "eval_step": step, "best_score": top["value"], "best_step": top["step"]}


def read_table(name: str, runs: Path, cells: dict) -> dict:
    """`cells`: each `Cell` of the section with its settings, for those that have not run."""
    experiment, metric = SECTIONS[name].experiment, SECTIONS[name].metric
    claims = [claim for claim in CLAIMS if (claim.experiment, claim.metric) == (experiment, metric)]
    found = []
    for cell, config in cells.items():
        path = runs / cell.name
        entry = {"cell": cell.name, "preset": cell.preset, **read_progress(path)}
        began = entry["status"] != "not run"
        settings = to_dict(open_run(path)[2] if began else config)
        claim = claim_of(claims, experiment, cell.preset, settings)
        entry |= {"core": settings.get("core"), "metric": metric, "unit": claims[0].unit}
        entry |= {"paper": claim and claim.paper, "paper_text": paper_number(claim) if claim else ""}
        found.append(entry | (read_scores(path, metric) if began else {}))
    return {"section": name, "cells": found}


def claim_of(claims: list[Claim], experiment: str, preset: str, settings: dict) -> Claim | None:
    """The one of these claims of the paper that a run of these settings speaks to."""
    config = json.loads(json.dumps(settings))  # as it is in a file
    overrides = differences(config, to_dict(load_experiment(experiment).PRESETS[preset]()))
    result = {"experiment": experiment, "preset": preset, "core": config.get("core")}
    result |= {"config": config, "overrides": overrides}
    return next((claim for claim in claims if claim.fits(result)), None)


# ------------------------------------------------------------------ in words


def updates(cell: dict) -> str:
    """80,000 | 51,500 of 80,000 | not run"""
    if cell["status"] == "not run":
        return "not run"
    return f"{cell['step']:,}" + ("" if cell["status"] == "finished" else f" of {cell['steps']:,}")


def rows(table: dict) -> list[list[str]]:
    """A head, then one row a cell."""
    lines = [list(HEAD)]
    for cell in table["cells"]:
        score = number(cell["unit"], cell["score"]) if "score" in cell else ""
        time = duration(cell["seconds"]) if "seconds" in cell else ""
        lines.append([cell["cell"], cell["preset"], updates(cell), score, cell["paper_text"], time])
    return lines


def title(table: dict) -> str:
    metrics = {cell["metric"].removeprefix("eval_").replace("_", " ") for cell in table["cells"]}
    units = {f" in {cell['unit']}" for cell in table["cells"] if cell["unit"] not in cell["metric"]}
    return f"{table['section']}: {', '.join(sorted(metrics))}{', '.join(sorted(units))}"


def notes(table: dict) -> list[str]:
    return []


def markdown(table: dict) -> str:
    about = "The score is that of the last evaluation, on fresh data; training time leaves out evaluations."
    return "\n\n".join([f"# {title(table)}", about, markdown_table(rows(table))]) + "\n"
