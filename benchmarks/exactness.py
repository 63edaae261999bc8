"""Whether what is to be timed computes the right numbers: outputs and every gradient against float64."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import Tensor

# RMS error over RMS that is right in any case. More is too where the plain PyTorch cell has it under the same
# precision: rounding flips ReLUs, and that moves gradients by about the root of it (kernels/README.md).
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}
FACTOR = 3  # times what that cell has


def error(ours: Tensor, exact: Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def outputs_and_gradients(core, x: Tensor, cotangent: Tensor, precision) -> dict[str, Tensor]:
    """`precision`: a context to compute in."""
    x = x.detach().clone().requires_grad_()
    with precision:
        output, _ = core(x)
    found = torch.autograd.grad(output, [x, *core.parameters()], cotangent.to(output.dtype))
    names = ["d input", *(f"d {name}" for name, _ in core.named_parameters())]
    return {"output": output.detach(), **dict(zip(names, found, strict=True))}


def references(core) -> tuple:
    """(the plain PyTorch cell, that in float64) with a core's weights."""
    plain = copy.deepcopy(core)
    plain.backend = "reference"
    return plain, copy.deepcopy(plain).double()


def errors(core, x: Tensor, precision) -> dict[str, tuple[float, float]]:
    """Of everything that comes out of forward and backward: ours, and the plain PyTorch cell's."""
    plain, exact = references(core)
    generator = torch.Generator(x.device).manual_seed(1)
    cotangent = torch.randn(*x.shape[:2], core.output_size, device=x.device, generator=generator)
    truth = outputs_and_gradients(exact, x.double(), cotangent, nullcontext())
    ours, other = (outputs_and_gradients(each, x, cotangent, precision) for each in (core, plain))
    return {name: (error(ours[name], truth[name]), error(other[name], truth[name])) for name in truth}


@torch.no_grad()
def acting_errors(core, x: Tensor, precision) -> dict[str, tuple[float, float]]:
    """The same of single steps without gradients, x [B, inputs], with weights folded and without."""
    plain, exact = references(core)
    state = torch.randn_like(core.initial_state(len(x)))
    truth = exact.step(x.double(), state.double())[0]
    with precision:
        ours = {"step": core.step(x, state)[0], "folded step": core.step(x, state, core.fold())[0]}
        other = error(plain.step(x, state)[0], truth)
    return {name: (error(each, truth), other) for name, each in ours.items()}


def wrong(found: dict[str, tuple[float, float]], precision: str) -> list[str]:
    """What is further off than it may be; NaN is."""
    return [
        f"{name} {ours:.1e} (plain {plain:.1e})"
        for name, (ours, plain) in found.items()
        if not ours <= max(TOLERANCE[precision], FACTOR * plain)
    ]
