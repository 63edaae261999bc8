"""Samples per second of the N-th farthest generator against per-sample Python loops, on the same CPU.

python benchmarks/data_generation.py        writes benchmarks/results/data_generation.json

The loops make one sample at a time, as earlier implementations do: one in plain Python, one with numpy inside
a sample. All make the paper's task, 8 vectors x 16 dimensions, ours in batches of 1600.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
from provenance import provenance, save

from relational_rnn.tasks.nth_farthest import NthFarthest

RESULT = Path(__file__).parent / "results" / "data_generation.json"


def python_loop(samples: int, vectors: int, dims: int):
    """The same task, sample by sample."""

    def one_hot(k: int) -> list[float]:
        return [1.0 if i == k else 0.0 for i in range(vectors)]

    inputs, targets = [], []
    for _ in range(samples):
        x = [[random.uniform(-1, 1) for _ in range(dims)] for _ in range(vectors)]
        labels = random.sample(range(vectors), vectors)
        n, m = random.randrange(vectors), random.randrange(vectors)
        reference = x[labels.index(m)]
        ranked = sorted((math.dist(x[t], reference), t) for t in range(vectors))[::-1]
        targets.append(labels[ranked[n][1]])
        question = one_hot(n) + one_hot(m)
        inputs.append([x[t] + one_hot(labels[t]) + question for t in range(vectors)])
    return torch.tensor(inputs), torch.tensor(targets)


def numpy_loop(samples: int, vectors: int, dims: int, source: np.random.Generator):
    """The same, with numpy inside each sample."""
    inputs, targets = [], []
    for _ in range(samples):
        x = source.uniform(-1, 1, (vectors, dims))
        labels = source.permutation(vectors)
        n, m = source.integers(vectors), source.integers(vectors)
        reference = x[np.flatnonzero(labels == m)[0]]
        distances = [np.linalg.norm(vector - reference) for vector in x]
        targets.append(labels[np.argsort(distances)[::-1][n]])
        question = np.concatenate([np.eye(vectors)[n], np.eye(vectors)[m]])
        steps = [np.concatenate([x[t], np.eye(vectors)[labels[t]], question]) for t in range(vectors)]
        inputs.append(np.stack(steps))
    return torch.tensor(np.stack(inputs, 1), dtype=torch.float32), torch.tensor(np.array(targets))


def per_second(make, samples: int, repeats: int) -> float:
    """The best of several timings: what else runs on the machine only ever slows one down."""
    make()
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        make()
        best = min(best, time.perf_counter() - started)
    return samples / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()

    task, generator, source = NthFarthest(), torch.Generator().manual_seed(0), np.random.default_rng(0)
    ours = {}
    for threads in sorted({1, torch.get_num_threads()}):  # more help only on an idle machine
        torch.set_num_threads(threads)
        made = per_second(lambda: task.batch(1600, generator=generator), 1600, options.repeats)
        ours[f"{threads} threads" if threads > 1 else "1 thread"] = made
    loops = {
        "python_loop": per_second(lambda: python_loop(200, 8, 16), 200, options.repeats),
        "numpy_loop": per_second(lambda: numpy_loop(200, 8, 16, source), 200, options.repeats),
    }
    result = provenance() | {
        "task": "8 vectors x 16 dimensions, batch 1600",
        "samples_per_second": {name: round(value) for name, value in (ours | loops).items()},
        "times_as_fast": {f"{a} / {b}": round(ours[a] / loops[b], 1) for a in ours for b in loops},
        "numpy": np.__version__,
    }
    print(json.dumps(result, indent=1))
    save(result, options.output)


if __name__ == "__main__":
    main()
