"""Samples of learning to execute, ours and recorded ones of the original, and a comparison of their kinds."""

from collections import Counter
from pathlib import Path

import torch

from relational_rnn.tasks.lte_text import MEMORISATION

DATA = Path(__file__).parent.parent / "data"


def draw(task, samples, seed=0, curriculum=None):
    return task.batch(samples, generator=torch.Generator().manual_seed(seed), curriculum=curriculum)


def recorded(task):
    nest = 1 if task in MEMORISATION else 2
    lines = (DATA / f"lte_{task}_nest{nest}_len5.tsv").read_text().splitlines()
    return [tuple(line.split("\t")) for line in lines]


def chi_square_p(first: Counter, second: Counter) -> float:
    """Probability that two samples of one distribution differ this much; rare kinds are put together."""
    totals = {kind: first[kind] + second[kind] for kind in first | second}
    n, m = first.total(), second.total()
    rare = {kind for kind, total in totals.items() if total * min(n, m) / (n + m) < 5}

    def merge(counts):
        merged = Counter({kind: count for kind, count in counts.items() if kind not in rare})
        merged["rare"] += sum(counts[kind] for kind in rare)
        return merged

    first, second = merge(first), merge(second)
    kinds = [kind for kind in first | second if first[kind] + second[kind]]
    statistic = 0.0
    for kind in kinds:
        both = first[kind] + second[kind]
        for counts, size in ((first, n), (second, m)):
            expected = both * size / (n + m)
            statistic += (counts[kind] - expected) ** 2 / expected
    freedom = len(kinds) - 1
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*half)) if freedom else 1.0
