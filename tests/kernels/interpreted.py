"""Checks the Triton kernels on the CPU, through Triton's interpreter; test_triton.py runs this as a process.

The interpreter must be asked for before Triton is imported, hence a process of its own.
"""

import sys

import torch

from tests.kernels.comparison import build, errors, examples, run

CASES = {
    "unit gates": dict(mem_slots=4, head_size=8, num_heads=2),
    "memory gates, odd sizes": dict(mem_slots=3, head_size=5, num_heads=3, gate_style="memory"),
    "no gates, one slot": dict(mem_slots=1, head_size=6, num_heads=1, gate_style=None),
    "narrow keys, one layer": dict(mem_slots=5, head_size=5, num_heads=2, key_size=3, attention_mlp_layers=1),
    "wide keys, three layers": dict(
        mem_slots=2, head_size=3, num_heads=4, key_size=7, attention_mlp_layers=3
    ),
    "recomputed": dict(mem_slots=3, head_size=4, num_heads=2, recompute=True),
}


def main() -> int:
    torch.set_num_threads(1)
    # torch.empty holds NaN, so that reading what nothing wrote cannot go unnoticed
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    failures = 0
    for name, config in CASES.items():
        for steps, batch, resetting in (
            ((5, 3, True), (1, 2, False)) if name != "recomputed" else ((11, 2, True),)
        ):
            core = build(config)
            arguments = examples(core, steps, batch, resetting=resetting)
            exact = run(core, "reference", torch.float64, *arguments)
            found = errors(run(core, "triton", torch.float32, *arguments), exact)
            worst = max(found, key=found.get)
            print(f"{name}, {steps} steps of {batch}: worst {worst} {found[worst]:.1e}")
            failures += not found[worst] < 1e-5
    # wide tiles: loops over slots that are not unrolled
    from relational_rnn.kernels import rows_triton

    unrolled, rows_triton.UNROLLED = rows_triton.UNROLLED, 0
    core = build(CASES["memory gates, odd sizes"])
    arguments = examples(core, 3, 2, resetting=True)
    exact = run(core, "reference", torch.float64, *arguments)
    found = errors(run(core, "triton", torch.float32, *arguments), exact)
    print(f"a loop over slots: worst {max(found.values()):.1e}")
    failures += not max(found.values()) < 1e-5
    rows_triton.UNROLLED = unrolled
    # 16-bit operands and buffers wider than their contents; bfloat16 is not exact in the interpreter
    core = build(dict(mem_slots=3, head_size=5, num_heads=3))
    arguments = examples(core, 4, 3, resetting=True)
    exact = run(core, "reference", torch.float64, *arguments)
    found = errors(run(core, "triton", torch.float32, *arguments, autocast=torch.float16), exact)
    print(f"16 bits: output {found['output']:.1e}, worst {max(found.values()):.1e}")
    failures += not (found["output"] < 2e-3 and max(found.values()) < 0.05)
    # gradients of many losses at once: the specification's
    core = build(CASES["unit gates"])
    core.backend = "triton"
    x, state, resets, cotangent = examples(core, 3, 2, resetting=True)
    leaves, cotangents = [x.requires_grad_(), *core.parameters()], torch.stack([cotangent, -2 * cotangent])
    output, _ = core(x, state, resets=resets)
    found = torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True, retain_graph=True)
    wanted = torch.autograd.grad(output, leaves, cotangent)
    for ours, theirs in zip(found, wanted, strict=True):
        failures += not (ours - torch.stack([theirs, -2 * theirs])).norm() < 1e-5 * theirs.norm()
    print(f"two gradients at once: {failures} failures")
    return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
