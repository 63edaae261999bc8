"""What the page's results section shows: the paper's claims beside ours, and the curves of runs."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.analysis import results
from relational_rnn.analysis.claims import CLAIMS
from relational_rnn.analysis.report_rows import table
from relational_rnn.analysis.runs import Run

POINTS = 200  # of a curve
DIGITS = 5
MEASURES = {
    "eval_accuracy": "accuracy on fresh samples",
    "eval_solved": "whole answers right",
    "eval_sampled_return": "points an episode on fresh levels",
    "eval_sampled_solved": "fresh levels solved",
    "eval_valid_perplexity": "validation perplexity",
}
# Drawn in place of what is claimed, which is measured once only, when training has ended.
OVER_TIME = {"lm": "eval_valid_perplexity"}


def export_results(folder: Path | None, runs: list[Run]) -> dict:
    """`folder` is a results folder, or None where there is none."""
    kept = results.load_all(folder) if folder is not None else {}
    claims = table(kept)
    for claim in claims:
        for outcome in claim["outcomes"]:
            for curve in outcome["curves"]:
                curve["value"] = [round(value, DIGITS) for value in curve["value"]]
    return {"claims": claims, "runs": [curve_of(run) for run in runs]}


def curve_of(run: Run) -> dict:
    """A run's main measure over its updates; without an evaluation so far its points are empty."""
    measures = {claim.experiment: (claim.metric, claim.unit) for claim in reversed(CLAIMS)}
    metric, unit = measures.get(run.experiment, ("eval_accuracy", "%"))
    metric = OVER_TIME.get(run.experiment, metric)
    points = run.curves.get(metric, [])
    every = -(-len(points) // POINTS) or 1
    thinned = points[::-1][::every][::-1]  # counted from the end: the last one is always there
    return {
        "name": run.name,
        "experiment": run.experiment,
        "task": run.task,
        "core": run.core,
        "preset": run.preset,
        "measure": MEASURES.get(metric, metric),
        "unit": unit,
        "points": [[step, round(value, DIGITS)] for step, value in thinned],
        "notice": run.notice(),
    }
