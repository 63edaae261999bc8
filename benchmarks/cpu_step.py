"""A training step of the core on a CPU against a plain PyTorch loop of the same cell, in one run.

python benchmarks/cpu_step.py [--threads 2]        writes benchmarks/results/cpu_step.json

The plain loop is the cell as one would write it from the paper: memory and input row concatenated, everything
computed for both at every step, autograd through all of it. Both run the same weights; results are compared
first. They are timed in turns, and a ratio is that of medians. The hand-written recurrence (backend="torch")
stands beside them, to show why "auto" does not take it on a CPU.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from provenance import provenance, save

from relational_rnn import RelationalMemory

RESULT = Path(__file__).parent / "results" / "cpu_step.json"
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


def ours_loop(core: RelationalMemory, x: torch.Tensor) -> torch.Tensor:
    return core(x)[0]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for steps, batch, slots, head_size, heads in SHAPES:
        torch.manual_seed(0)
        core = RelationalMemory(12, slots, head_size, heads)
        x = torch.randn(steps, batch, 12)
        ours, plain = core(x)[0], plain_loop(core, x)
        assert (ours - plain).norm() < 1e-3 * plain.norm()

        def train(run, core=core, x=x):
            core.zero_grad()
            run(core, x).square().mean().backward()

        by_hand = copy.deepcopy(core)
        by_hand.backend = "torch"
        functions = {
            "ours": lambda t=train: t(ours_loop),
            "plain loop": lambda t=train: t(plain_loop),
            "by hand": lambda t=train, core=by_hand: t(ours_loop, core),
        }
        times = in_turns(functions, options.repeats)
        ratio, other = (times["plain loop"] / times[name] for name in ("ours", "by hand"))
        shape = dict(steps=steps, batch=batch, slots=slots, head_size=head_size, heads=heads)
        rows.append({"shape": shape, "ratio": round(ratio, 3), "backend_torch_ratio": round(other, 3)})
        print(f"{shape}: {ratio:.2f} times as fast as a plain loop (backend torch: {other:.2f})", flush=True)
    save(provenance() | {"rows": rows}, options.output)


if __name__ == "__main__":
    main()
