"""How fast learning to execute makes samples: a whole batch at a time, on one CPU core or on a GPU.

    python benchmarks/lte_generation.py [--device cuda] [--out benchmarks/results/lte_generation.json]

Every figure is the median of `--repeats` timings of about a quarter of a second each. The file is written
anew; `command`, `versions` and `hardware` in it say where the numbers come from.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from provenance import provenance, save

from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_text import MEMORISATION, TASKS

BATCHES = (128, 1024, 8192)
SECONDS = 0.25


def samples_per_second(task, batch_size: int, device: torch.device, repeats: int, mix: bool) -> float:
    generator = torch.Generator(device).manual_seed(0)
    curriculum = Curriculum(task.length, task.nest, device=device) if mix else None

    def run(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            task.batch(batch_size, generator=generator, curriculum=curriculum)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    run(3)
    times = max(1, round(SECONDS / (run(10) / 10)))
    return batch_size * times / statistics.median(run(times) for _ in range(repeats))


def captured_samples_per_second(task, batch_size: int, repeats: int) -> float:
    """The same from a CUDA graph, as training runs it."""
    generator = torch.Generator("cuda").manual_seed(0)
    task.batch(batch_size, generator=generator)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        task.batch(batch_size, generator=generator)

    def run(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    times = max(1, round(SECONDS / (run(10) / 10)))
    return batch_size * times / statistics.median(run(times) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lte_generation.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)

    rows = []
    for name in TASKS:
        sizes = [(5, 1)] if name in MEMORISATION else [(5, 2), (6, 3)]
        for (length, nest), batch_size in ((size, b) for size in sizes for b in BATCHES):
            task = LearningToExecute(name, length, nest)
            row = dict(task=name, length=length, nest=nest, batch_size=batch_size)
            for kind, mix in (("maximum", False), ("mix", True)):
                speed = samples_per_second(task, batch_size, device, arguments.repeats, mix)
                row[f"{kind}_samples_per_second"] = round(speed)
            if device.type == "cuda":
                speed = captured_samples_per_second(task, batch_size, arguments.repeats)
                row["captured_samples_per_second"] = round(speed)
            rows.append(row)
            print(row)

    save(provenance(device.type) | dict(rows=rows), arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
