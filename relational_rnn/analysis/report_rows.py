"""The paper's claims beside our results: runs of one kind together, whatever their seed.

`table` is what the report, README and explorer show.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from statistics import median

from relational_rnn.analysis.claims import BEYOND, CLAIMS, PERCENT, PERPLEXITY, Claim
from relational_rnn.analysis.results import as_run
from relational_rnn.analysis.results_make import option, variant
from relational_rnn.training.progress import duration

BESIDE = {
    "eval_solved": "whole answers",
    "eval_greedy_return": "greedy",
    "eval_greedy_solved": "greedy",
}


@dataclass
class Outcome:
    """Results of one claim that differ in their seed only, in the order of their seeds."""

    claim: Claim | None
    results: dict[str, dict]
    """By path from the results folder."""

    @property
    def first(self) -> dict:
        return next(iter(self.results.values()))

    @property
    def finished(self) -> bool:
        return all(result["status"] == "finished" for result in self.results.values())

    def values(self, metric: str) -> list[float]:
        return [r["final"][metric] for r in self.results.values() if metric in r["final"]]

    def best(self, metric: str) -> list[float]:
        return [r["best"][metric]["value"] for r in self.results.values() if metric in r["best"]]

    def command(self) -> str:
        """What makes such a run, with SEED where there are several."""
        first = self.first["command"]
        if len(self.results) == 1:
            return first
        seed = option("training.seed", self.first["seed"])
        words = shlex.split(first)
        if seed in first and "--training.seed" in words:
            first = first.replace(f" {seed}", "", 1)
        return f"{first} --training.seed SEED"

    def reached(self) -> tuple[list[float], int] | None:
        """Training seconds of each seed that came to the paper's number, and how many seeds there are."""
        claim = self.claim
        if claim is None or claim.paper is None or not claim.to_reach:
            return None
        found = []
        for name, result in self.results.items():
            for seconds, value in as_run(result, name).at_seconds(claim.metric):
                if not worse(claim, value):
                    found.append(seconds)
                    break
        return found, len(self.results)


def worse(claim: Claim, value: float) -> bool:
    """Whether a value is not yet the paper's number; both as they are shown: 99.95 % is 100.0 %."""
    shown = round(100 * value, 1) if claim.unit == PERCENT else round(value, claim.unit == PERPLEXITY)
    return shown > claim.paper if claim.unit == PERPLEXITY else shown < claim.paper


def outcomes(claim: Claim, results: dict[str, dict]) -> list[Outcome]:
    """What we have of a claim: the run its command makes first, the others with the newest first. Never by
    score: the best of many tries would say more of the tries."""
    usual = shlex.split(claim.command)[4]  # rmc train EXPERIMENT --preset NAME
    fitting = {name: result for name, result in results.items() if claim.fits(result)}

    def order(outcome: Outcome):
        first = outcome.first
        plain = first["preset"] == usual and not variant(first)
        return (not plain, first["preset"] != usual)

    newest = sorted(grouped(claim, fitting), key=lambda outcome: outcome.first["started"], reverse=True)
    return sorted(newest, key=order)


def grouped(claim: Claim | None, results: dict[str, dict]) -> list[Outcome]:
    groups: dict[tuple, dict[str, dict]] = {}
    for name, result in sorted(results.items(), key=lambda item: item[1]["seed"]):
        what = (result["experiment"], result["task"], result["core"])
        kind = (what, result["preset"], str(variant(result)), result["steps"]["asked"])
        groups.setdefault(kind, {})[name] = result
    return [Outcome(claim, group) for group in groups.values()]


def unclaimed(results: dict[str, dict]) -> list[Outcome]:
    """Results that speak to none of the claims."""
    rest = {name: r for name, r in results.items() if not any(claim.fits(r) for claim in CLAIMS)}
    return grouped(None, rest)


# ------------------------------------------------------------------ in words


def number(unit: str, value: float) -> str:
    if unit == PERCENT:
        return f"{100 * value:.1f} %"
    if unit == PERPLEXITY:
        return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}"


def spread(unit: str, values: list[float]) -> str:
    """95.3 %, or for several seeds 95.3 % (94.8 % to 95.8 %, 5 seeds): the median and the range."""
    if len(values) == 1:
        return number(unit, values[0])
    low, high = number(unit, min(values)), number(unit, max(values))
    return f"{number(unit, median(values))} ({low} to {high}, {len(values)} seeds)"


def paper_number(claim: Claim) -> str:
    if claim.paper_text is not None:
        return claim.paper_text
    if claim.paper is None:
        return "a curve, no number"
    digits = 1 if isinstance(claim.paper, float) else 0  # as many as the paper has
    return f"{claim.paper:,.{digits}f}" + (" %" if claim.unit == PERCENT else "")


def ours(outcome: Outcome) -> str:
    """The last evaluation, and how far a run came that is not finished."""
    claim = outcome.claim
    values = outcome.values(claim.metric)
    if not values:
        return "not measured"
    text = spread(claim.unit, values)
    if claim.beside and (beside := outcome.values(claim.beside)):
        text += f"; {BESIDE[claim.beside]} {spread(claim.unit, beside)}"
    return text if outcome.finished else f"{text}, stopped"


def updates(outcome: Outcome) -> str:
    steps = [result["steps"] for result in outcome.results.values()]
    texts = {
        f"{s['done']:,}" if s["done"] == s["asked"] else f"{s['done']:,} of {s['asked']:,}" for s in steps
    }
    return ", ".join(sorted(texts))


def amount_seen(outcome: Outcome) -> str:
    unit = outcome.first["seen"]["unit"]
    amounts = [result["seen"]["amount"] for result in outcome.results.values()]
    if min(amounts) == max(amounts):
        return f"{amounts[0]:,.0f} {unit}"
    return f"{min(amounts):,.0f} to {max(amounts):,.0f} {unit}"


def time_taken(outcome: Outcome) -> str:
    """Median training time, and wall time where it is known for every seed."""
    text = duration(median(r["training_seconds"] for r in outcome.results.values()))
    walls = [r["wall_seconds"] for r in outcome.results.values()]
    return text if None in walls else f"{text} (wall {duration(median(walls))})"


def time_to_paper(outcome: Outcome) -> str:
    reached = outcome.reached()
    if reached is None:
        return ""
    seconds, seeds = reached
    if not seconds:
        return "not reached"
    text = duration(median(seconds))
    return text if seeds == 1 else f"{text} ({len(seconds)} of {seeds} seeds)"


def hardware(outcome: Outcome) -> str:
    texts = []
    for result in outcome.results.values():
        facts = result["hardware"]
        threads = f"{facts['cpu_threads']} thread{'s' if facts['cpu_threads'] != 1 else ''}"
        texts.append(facts["gpu"] or f"CPU, {threads}, {facts['cpu'] or facts['system']}")
    return ", ".join(dict.fromkeys(texts))


# ------------------------------------------------------------------ as data


def table(results: dict[str, dict]) -> list[dict]:
    """One object a claim, JSON ready, with every outcome we have of it in `outcomes`; [] is "not run"."""
    return [
        {
            "key": claim.key,
            "section": claim.section,
            "what": claim.what,
            "model": claim.model,
            "unit": claim.unit,
            "metric": claim.metric,
            "paper": claim.paper,
            "paper_text": paper_number(claim),
            "whose": "published" if claim.section == BEYOND else "paper",  # whose number that is
            "command": claim.command,
            "outcomes": [as_data(outcome) for outcome in outcomes(claim, results)],
        }
        for claim in CLAIMS
    ]


def as_data(outcome: Outcome) -> dict:
    metric = outcome.claim.metric
    return {
        "preset": outcome.first["preset"],
        "overrides": variant(outcome.first),
        "seeds": [result["seed"] for result in outcome.results.values()],
        "files": list(outcome.results),
        "values": outcome.values(metric),
        "best": outcome.best(metric),
        "text": ours(outcome),
        "finished": outcome.finished,
        "updates": updates(outcome),
        "seen": amount_seen(outcome),
        "time": time_taken(outcome),
        "time_to_paper": time_to_paper(outcome),
        "hardware": hardware(outcome),
        "command": outcome.command(),
        "curves": [
            {"seed": result["seed"], **result["curve"].get(metric, {"step": [], "value": []})}
            for result in outcome.results.values()
        ],
    }
