"""What the lines of a figure are called: runs of the same settings together, no two lines alike."""

from __future__ import annotations

import textwrap
from collections.abc import Container
from typing import Any

from relational_rnn.analysis.claims import NAMES
from relational_rnn.analysis.results_make import CORE_NAMES, NOT_LEARNED_FROM, completed, flat
from relational_rnn.analysis.runs import Run

SAID = 4  # settings in a label; runs that differ in more are called by their names
WIDTH, MOST = 60, 120  # letters of a line, and of a label


def labels(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, under a name that says in what they differ from the others."""
    presets: dict[str, set[str]] = {}
    for run in runs:
        presets.setdefault(run.core, set()).add(run.preset)
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        preset = run.preset if len(presets[run.core]) > 1 else ""
        settings = tuple((key, str(value)) for key, value in learned_from(run).items())
        groups.setdefault((run.core, preset, settings), []).append(run)
    named: dict[str, list[Run]] = {}
    for (core, preset, settings), group in groups.items():
        others = [dict(other) for *kind, other in groups if kind == [core, preset]]
        name = [NAMES.get(core, core)]
        if preset:
            name.append(preset)  # which says more than all the settings it stands for
        values = learned_from(group[0])
        apart = [
            _said(key, values[key])
            for key, value in settings
            if any(other.get(key) != value for other in others)
        ]
        name += apart if len(apart) <= SAID else [f"run {group[0].name}"]
        label = ", ".join(name) + (f" ({len(group)} seeds)" if len(group) > 1 else "")
        named[unused(label, named)] = group
    return named


def _said(key: str, value) -> str:
    """`learning rate 0.001`, `16 stages`, `no stages`."""
    name = key.rpartition(".")[2].replace("_", " ")
    if isinstance(value, list):
        return f"{len(value) or 'no'} {name}"
    return f"{name} {value}"


def learned_from(run: Run) -> dict[str, Any]:
    """The settings that change what is learned, but for those of cores that did not run."""
    idle = {name for name in CORE_NAMES if name != run.core}
    return {
        key: value
        for key, value in flat(completed(run.experiment, run.config)).items()
        if key not in NOT_LEARNED_FROM and key.partition(".")[0] not in idle
    }


def unused(name: str, used: Container[str]) -> str:
    """The name, with a number if it is used: folders in different places may be called the same."""
    number, free = 1, name
    while free in used:
        number += 1
        free = f"{name} [{number}]"
    return free


def short(name: str, most: int = MOST) -> str:
    """Without its middle if it is too long for a legend."""
    half = (most - 5) // 2
    return name if len(name) <= most else f"{name[:half]} ... {name[-half:]}"


def shortened(names: list[str], most: int = MOST) -> list[str]:
    """Each name as `short` has it; those it would make alike with the place where they part instead."""
    found: list[str] = []
    for name in names:
        text = short(name, most)
        alike = [other for other in names if other != name and short(other, most) == text]
        if alike:
            parting = max(_parting(name, other) for other in alike)
            room = (most - 9) // 2
            after = name[max(parting - room // 2, 0) :]
            text = f"{name[:room]} ... {after[:room]}{' ...' if len(after) > room else ''}"
        found.append(unused(text, found))
    return found


def _parting(one: str, other: str) -> int:
    """How many letters two names begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def wrapped(text: str, width: int = WIDTH) -> str:
    """In lines, so that no label is wider than its panel."""
    return "\n".join(textwrap.wrap(text, width))
