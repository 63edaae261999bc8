"""Steps per second of Mini Pacman and BoxWorld under a random policy, by batch size.

    python benchmarks/environments.py                    # this CPU -> results/environments_cpu.json
    python benchmarks/environments.py --device cuda      # a GPU, step by step and inside a CUDA graph

A step is: random actions, the rules, restarts (new levels included) and the observation. `rounds` timings of
about half a second each; the table has the best of them (others may be using the machine), the file all.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from provenance import provenance, save

from relational_rnn.environments import BoxWorld, MiniPacman
from relational_rnn.environments.base import copy_, tensors

GAMES = {"mini-pacman": MiniPacman, "box-world": BoxWorld}
STEPS_PER_GRAPH = 8


def stepper(env, batch_size: int, generator: torch.Generator):
    """-> a function that plays one step of B games."""
    state = env.reset(batch_size, generator)

    def step():
        nonlocal state
        actions = torch.randint(env.num_actions, (batch_size,), generator=generator, device=env.device)
        state, _ = env.step(state, actions, generator)
        env.observe(state)

    return step, 1


def graphed(env, batch_size: int, generator: torch.Generator):
    """-> a function that replays several steps captured in a CUDA graph."""
    state = env.reset(batch_size, generator)

    def steps():
        current, options = state, {}
        if isinstance(env, BoxWorld):
            current, options = env.restock(state, generator, STEPS_PER_GRAPH), {"restock": False}
        for _ in range(STEPS_PER_GRAPH):
            actions = torch.randint(env.num_actions, (batch_size,), generator=generator, device=env.device)
            current, _ = env.step(current, actions, generator, **options)
            env.observe(current)
        copy_(state, current)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        steps()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    before = [t.clone() for t in tensors(state)]
    with torch.cuda.graph(graph):
        steps()

    def replay():
        graph.replay()

    replay()
    torch.cuda.synchronize()
    if all(torch.equal(a, b) for a, b in zip(before, tensors(state), strict=True)):
        raise RuntimeError("the captured graph does not advance the games")
    return replay, STEPS_PER_GRAPH


def measure(run, steps_per_run: int, rounds: int, seconds: float, device: str) -> list[float]:
    """Steps per second, once per round, of a function that plays `steps_per_run` of them."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    run()
    wait()
    start = time.perf_counter()
    run()
    wait()
    repeats = max(1, round(seconds / (time.perf_counter() - start)))
    speeds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        wait()
        speeds.append(repeats * steps_per_run / (time.perf_counter() - start))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch-sizes", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    # Two threads wait for each other at every operation: on a machine that others use too, one is faster.
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = args.batch_sizes or (
        [64, 1024, 4096, 16384] if args.device == "cpu" else [4096, 16384, 65536, 262144]
    )
    output = args.output or Path(__file__).parent / "results" / f"environments_{args.device}.json"

    report = provenance(args.device) | {"unit": "steps of single games per second", "rows": []}
    print(f"{'game':12s} {'view':9s} {'games':>7s} {'how':6s} {'steps/s':>12s}")
    for name, game in GAMES.items():
        for view in ("viewport", "full"):
            env = game(view=view, device=args.device)
            for size in sizes:
                for how, make in {"eager": stepper, "graph": graphed}.items():
                    if how == "graph" and args.device == "cpu":
                        continue
                    generator = torch.Generator(device=args.device).manual_seed(0)
                    run, steps = make(env, size, generator)
                    speeds = measure(run, steps * size, args.rounds, args.seconds, args.device)
                    row = {"game": name, "view": view, "games": size, "how": how}
                    report["rows"].append(
                        row | {"best": round(max(speeds)), "all": [round(s) for s in speeds]}
                    )
                    print(f"{name:12s} {view:9s} {size:7d} {how:6s} {max(speeds):12,.0f}", flush=True)
                    del run
    save(report, output)
    print(f"written: {output}")


if __name__ == "__main__":
    main()
