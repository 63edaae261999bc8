"""The core on a CPU against a plain PyTorch loop of the same cell, in one run.

python benchmarks/cpu_step.py                      writes benchmarks/results/cpu_step.json

The plain loop is the cell as one would write it from the paper: memory and input row concatenated, everything
computed for both at every step, autograd through all of it. All run the same weights; results are compared
first. They are timed in turns, and a ratio is that of medians: how many times as fast as the plain loop the
core is with backend "auto", and beside it the specification ("reference") and the recurrence by hand in
torch ("torch"). Training is forward and backward; acting is one step without gradients, weights folded ahead
or not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from provenance import provenance, save

from relational_rnn import RelationalMemory

RESULT = Path(__file__).parent / "results" / "cpu_step.json"
REPEATS = 9
# (steps, batch, slots, head size, heads): the demo's, some of the paper's, and larger ones
SHAPES = [
    (3, 128, 4, 8, 4),
    (8, 32, 8, 8, 4),
    (8, 128, 4, 16, 4),
    (8, 32, 8, 32, 8),
    (40, 32, 4, 64, 4),
    (65, 16, 4, 64, 4),
]


def plain_loop(core: RelationalMemory, x: torch.Tensor) -> torch.Tensor:
    """x [T, B, input_size] -> outputs, with nothing saved or computed ahead."""
    block, spec = core.blocks[0], core.spec
    memory, outputs = core.initial_state(x.shape[1]), []
    sizes = [spec.key_size, spec.key_size, spec.head_size]
    for now in x:
        row = core.input_projection(now).unsqueeze(1)
        a = torch.cat([memory, row], dim=1)
        qkv = block.qkv_norm(block.qkv(a)).unflatten(-1, (spec.num_heads, -1)).transpose(1, 2)
        q, k, v = qkv.split(sizes, dim=-1)
        share = (q * spec.scale @ k.transpose(-1, -2)).softmax(-1)
        a = block.attention_norm(a + (share @ v).transpose(1, 2).flatten(2))
        m = a
        for i, layer in enumerate(core.mlp):
            m = layer(F.relu(m) if i else m)
        a = block.mlp_norm(a + m)[:, :-1]
        gates = core.gate_from_input(row) + core.gate_from_memory(memory.tanh())
        accept, retain = gates.chunk(2, dim=-1)
        accept, retain = (accept + core.input_bias).sigmoid(), (retain + core.forget_bias).sigmoid()
        memory = accept * a.tanh() + retain * memory
        outputs.append(memory.flatten(1))
    return torch.stack(outputs)


def in_turns(functions: dict, repeats: int) -> dict[str, float]:
    """Median milliseconds of each."""
    times = {name: [] for name in functions}
    for i in range(repeats + 3):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if i >= 3:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(t) for name, t in times.items()}


def training(core: RelationalMemory, x: torch.Tensor, precision: str) -> dict[str, float]:
    """Milliseconds of forward and backward."""

    def run(forward) -> None:
        core.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            output = forward()
        output.float().square().mean().backward()

    def ours(backend: str) -> torch.Tensor:
        core.backend = backend
        return core(x)[0]

    with torch.no_grad():
        plain = plain_loop(core, x)
        for backend in ("auto", "torch"):
            assert (ours(backend) - plain).norm() < 1e-3 * plain.norm(), backend
    names = {"auto": "auto", "specification": "reference", "by hand": "torch"}
    functions = {name: lambda backend=backend: run(lambda: ours(backend)) for name, backend in names.items()}
    return in_turns(functions | {"plain loop": lambda: run(lambda: plain_loop(core, x))}, REPEATS)


def acting(core: RelationalMemory, x: torch.Tensor) -> dict[str, float]:
    """Milliseconds of a step without gradients."""
    core.backend = "auto"
    folded, state = core.fold(), core.initial_state(x.shape[1])
    functions = {
        "auto": lambda: core.step(x[0], state),
        "folded": lambda: core.step(x[0], state, folded),
        "plain loop": lambda: plain_loop(core, x[:1]),
    }
    with torch.no_grad():
        plain = plain_loop(core, x[:1])[0]
        assert all((functions[name]()[0] - plain).norm() < 1e-3 * plain.norm() for name in ("auto", "folded"))
        return in_turns(functions, 5 * REPEATS)


def ratios(times: dict[str, float]) -> dict[str, float]:
    return {
        name: round(times["plain loop"] / time, 2) for name, time in times.items() if name != "plain loop"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for steps, batch, slots, head_size, heads in SHAPES:
            torch.manual_seed(0)
            core, x = RelationalMemory(12, slots, head_size, heads), torch.randn(steps, batch, 12)
            found = {precision: ratios(training(core, x, precision)) for precision in ("fp32", "bf16")}
            found["acting"] = ratios(acting(core, x))
            shape = dict(steps=steps, batch=batch, slots=slots, head_size=head_size, heads=heads)
            rows.append({"threads": threads, "shape": shape} | found)
            print(f"{threads} threads, {shape}: {found}", flush=True)
    save(provenance() | {"times_as_fast_as_a_plain_loop": rows}, options.output)


if __name__ == "__main__":
    main()
