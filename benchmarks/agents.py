"""Environment steps per second of acting and learning together, by game, core and number of games.

    python benchmarks/agents.py                       # this CPU -> results/agents_cpu.json
    python benchmarks/agents.py --device cuda         # a GPU; whole updates as CUDA graphs

What is timed is what `rmc train` does with the preset `fast`: an unroll acted, then `--updates` updates (4),
each of which replays its share of the games, V-trace, gradient and optimiser. Acting alone is timed too, in a
graph of its own on a GPU. The best of `rounds` timings is shown (others may be using the machine); the file
has all. On a CPU the cores are those of `fast` too, so it is slow there and fewer games are taken.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from provenance import provenance, save

from relational_rnn.experiments import box_world, mini_pacman
from relational_rnn.training.device import autocast
from relational_rnn.training.loop import GRAPH_WARMUP, Trainer

HERE = Path(__file__).parent


def make_trainer(
    experiment, core: str, view: str, games: int, device: torch.device, precision: str, updates: int
):
    config = experiment.fast()
    config = replace(
        config,
        core=core,
        task=replace(config.task, view=view),
        learning=replace(config.learning, updates_per_unroll=updates),
        training=replace(config.training, batch_size=games, precision=precision),
    )
    return Trainer(experiment.make_problem(config, device), config.training, device)


def acting(trainer: Trainer):
    """A function that acts one unroll; on a GPU a graph of it."""
    problem, device = trainer.problem, trainer.device

    def act():
        with autocast(device, trainer.config.precision):
            problem.act()

    if device.type != "cuda":
        return act
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        act()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in problem.generators.values():
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        act()
    return graph.replay


def speeds(run, frames: int, rounds: int, seconds: float, device: torch.device) -> list[float]:
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    wait()
    start = time.perf_counter()
    run()
    wait()
    repeats = max(1, round(seconds / (time.perf_counter() - start)))
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        wait()
        found.append(repeats * frames / (time.perf_counter() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--games", type=int, nargs="+")
    parser.add_argument("--cores", nargs="+", default=["rmc", "lstm", "conv-lstm"])
    parser.add_argument("--views", nargs="+", default=["viewport"])
    parser.add_argument("--updates", type=int, default=4, help="of each unroll")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], help="default: bf16 on a GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    precision = args.precision or ("bf16" if args.device == "cuda" else "fp32")
    sizes = args.games or ([32] if args.device == "cpu" else [512, 2048, 4096, 8192])
    output = args.output or HERE / "results" / f"agents_{args.device}.json"

    unit = "steps of single games per second"
    report = provenance(args.device) | {"unit": unit, "rows": []}
    print(
        f"{'game':12s} {'view':9s} {'core':10s} {'games':>6s} {'acting':>12s} {'learning':>14s} {'GiB':>6s}"
    )
    for experiment in (box_world, mini_pacman):
        for view in args.views:
            for core in args.cores:
                for games in sizes:
                    trainer = make_trainer(experiment, core, view, games, device, precision, args.updates)
                    frames = games * trainer.problem.learning.unroll
                    options = (frames, args.rounds, args.seconds, device)
                    if args.device == "cuda":
                        torch.cuda.reset_peak_memory_stats()

                    def learn(trainer=trainer):
                        for _ in range(args.updates):
                            trainer._update()

                    for _ in range(GRAPH_WARMUP + 1 if args.device == "cuda" else 1):
                        learn()  # warm-up and capture
                    learning = speeds(learn, *options)
                    memory = torch.cuda.max_memory_allocated() / 2**30 if args.device == "cuda" else None
                    acted = speeds(acting(trainer), *options)
                    row = {"game": experiment.NAME, "view": view, "core": core, "games": games}
                    row |= {"precision": precision, "unroll": trainer.problem.learning.unroll}
                    row["updates_per_unroll"] = args.updates
                    row |= {
                        "acting": [round(s) for s in acted],
                        "acting_and_learning": [round(s) for s in learning],
                    }
                    report["rows"].append(row | {"gibibytes": memory})
                    shown = f"{max(acted):12,.0f} {max(learning):14,.0f} {memory or 0:6.1f}"
                    print(f"{experiment.NAME:12s} {view:9s} {core:10s} {games:6d} {shown}", flush=True)
                    save(report, output)  # kept if a later row fails
                    del trainer
    print(f"written: {output}")


if __name__ == "__main__":
    main()
