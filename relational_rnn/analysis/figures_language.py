"""The appendix's two looks at language models: perplexity by unroll length, and by how frequent words are.

Both are drawn from what `rmc eval RUN --unrolls 10,50,100 --frequencies --out FILE` wrote, one file a model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from relational_rnn.analysis.claims import NAMES
from relational_rnn.analysis.figures import colour_of, new_figure, plain, styled
from relational_rnn.analysis.labels import short, unused, wrapped

SPLITS = ("test", "valid", "train")


def read_evaluation(path: Path) -> dict:
    """What was measured on the test split, or else another: {"label", "core", "split", "perplexity", ...}.

    `unrolls` is {length: perplexity} and `frequencies` {kind of word: perplexity}; either may be empty.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or "core" not in content:
        raise ValueError(f"{path} is no evaluation of a language model; allowed: what rmc eval --out wrote")
    split = next((split for split in SPLITS if f"{split}_perplexity" in content), None)
    if split is None:
        raise ValueError(f"{path} has no perplexity of {', '.join(SPLITS)}")
    try:
        frequencies = content.get(f"{split}_frequencies", {})
        return {
            "core": str(content["core"]),
            "run": Path(content.get("run", path)).name,
            "file": Path(path).name,
            "split": split,
            "perplexity": float(content[f"{split}_perplexity"]),
            "unrolls": {int(k): float(v) for k, v in content.get(f"{split}_unrolls", {}).items()},
            "frequencies": {kind: score["perplexity"] for kind, score in frequencies.items()},
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def labelled(found: list[dict]) -> dict[str, dict]:
    """By the core's name, and what else it takes to tell them apart: the split, the run, the file."""
    names = [NAMES.get(one["core"], one["core"]) for one in found]
    if len({one["split"] for one in found}) > 1:
        names = [f"{name}, {one['split']}" for name, one in zip(names, found, strict=True)]
    for more in ("run", "file"):
        names = [
            f"{name}, {one[more]}" if names.count(name) > 1 else name
            for name, one in zip(names, found, strict=True)
        ]
    by_name: dict[str, dict] = {}
    for name, one in zip(names, found, strict=True):
        by_name[unused(name, by_name)] = one
    return by_name


def _splits(found: list[dict]) -> str:
    return " and ".join(dict.fromkeys(one["split"] for one in found))


def _colour_key(label: str, one: dict) -> str:
    """A core's own colour, unless there are several evaluations of it."""
    return label if "," in label else one["core"]


@styled
def unroll_length(found: list[dict]) -> Figure | None:
    """How much worse than in one unroll over all of the text; None where nothing of it was measured."""
    found = [one for one in found if one["unrolls"]]
    if not found:
        return None
    figure, axes = new_figure()
    place, used = axes[0, 0], {}
    for label, one in labelled(found).items():
        lengths = sorted(one["unrolls"])
        rises = [one["unrolls"][length] - one["perplexity"] for length in lengths]
        style = dict(color=colour_of(_colour_key(label, one), used), marker="o", markersize=3)
        place.plot(
            lengths,
            rises,
            label=plain(wrapped(f"{short(label)} ({one['perplexity']:,.1f} in one unroll)", 40)),
            **style,
        )
    place.set_xscale("log")
    measured = sorted({length for one in found for length in one["unrolls"]})
    place.set_xticks(measured, [f"{length:,}" for length in measured])
    place.set_xticks([], minor=True)
    place.axhline(0, color="#666666", linewidth=0.8)
    place.set(xlabel="words in an unroll, without state transfer", ylabel="increase of the perplexity")
    place.set_title(f"{_splits(found)} perplexity by unroll length")
    place.legend(fontsize=7.5)
    return figure


@styled
def word_frequency(found: list[dict]) -> Figure | None:
    """Perplexity of frequent, less frequent and rare words; None where nothing of it was measured."""
    found = [one for one in found if one["frequencies"]]
    if not found:
        return None
    kinds = list(found[0]["frequencies"])
    figure, axes = new_figure(width=5.2)
    place, used = axes[0, 0], {}
    width = 0.8 / len(found)
    for number, (label, one) in enumerate(labelled(found).items()):
        heights = [one["frequencies"].get(kind) or np.nan for kind in kinds]
        at = np.arange(len(kinds)) + (number - (len(found) - 1) / 2) * width
        bars = place.bar(
            at,
            heights,
            width * 0.92,
            color=colour_of(_colour_key(label, one), used),
            label=plain(wrapped(short(label), 40)),
        )
        texts = ["" if np.isnan(h) else f"{h:,.1f}" if h < 1000 else f"{h:,.0f}" for h in heights]
        place.bar_label(bars, texts, fontsize=6.5, padding=1)
    place.set_yscale("log")
    place.margins(y=0.1)  # for the numbers on the bars
    place.set_ylim(bottom=1)  # the perplexity of a model that is always right
    place.yaxis.set_major_formatter("{x:,.0f}")
    names = {">10K": "> 10,000", "10K-1K": "1,000 to 10,000", "<1K": "< 1,000", "all": "all words"}
    place.set_xticks(np.arange(len(kinds)), [names.get(kind, plain(kind)) for kind in kinds])
    place.grid(False, axis="x")
    place.set(xlabel="occurrences in the training text", ylabel=f"{_splits(found)} perplexity")
    place.legend(fontsize=7.5)
    return figure
