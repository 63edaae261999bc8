"""Samples per second of the N-th farthest generator against a per-sample Python loop, on one CPU.

python benchmarks/data_generation.py        writes benchmarks/results/data_generation.json

The loop is what the earlier implementations do: one sample at a time, numpy for the vectors. Both make the
paper's task, 8 vectors x 16 dimensions, batches of 1600.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

from relational_rnn.tasks.nth_farthest import NthFarthest

RESULT = Path(__file__).parent / "results" / "data_generation.json"


def python_loop(samples: int, vectors: int, dims: int, random: np.random.Generator):
    """The same task, sample by sample."""
    inputs, targets = [], []
    for _ in range(samples):
        x = random.uniform(-1, 1, (vectors, dims))
        labels = random.permutation(vectors)
        n, m = random.integers(vectors), random.integers(vectors)
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
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()

    task, generator, random = NthFarthest(), torch.Generator().manual_seed(0), np.random.default_rng(0)
    ours = per_second(lambda: task.batch(1600, generator=generator), 1600, options.repeats)
    loop = per_second(lambda: python_loop(200, 8, 16, random), 200, options.repeats)
    result = {
        "command": "python benchmarks/data_generation.py",
        "task": "8 vectors x 16 dimensions, batch 1600",
        "samples_per_second": {"relational_rnn": round(ours), "python_loop": round(loop)},
        "ratio": round(ours / loop, 1),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads",
    }
    print(json.dumps(result, indent=1))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
