"""Runs a core fused and as the specification in float64, and gives the error of everything that comes out."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import torch

from relational_rnn import RelationalMemory

ROOT = Path(__file__).parent.parent.parent


def in_the_interpreter(module):
    """Run a module in a process whose Triton kernels are interpreted on the CPU -> what it printed."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def build(config, *, inputs=5, device="cpu", seed=0):
    """A core whose biases and norms are not at their trivial starting values.

    The MLP's units are pushed far to one side of zero or the other: rounding would flip the ReLU of one that
    is close, and that moves a gradient by about the root of the rounding, in any implementation.
    """
    torch.manual_seed(seed)
    core = RelationalMemory(inputs, **config, device=device)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for layer in core.mlp[:-1]:
            layer.bias.copy_(6 * torch.randn_like(layer.bias).sign())
    return core


def run(core, backend, dtype, x, state, resets, cotangent, autocast=None):
    """Outputs, final state and every gradient, by name."""
    core = copy.deepcopy(core).to(dtype)
    core.backend = backend
    x, state = (t.detach().clone().to(dtype).requires_grad_() for t in (x, state))
    with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
        output, final = core(x, state, resets=resets)
    ((output * cotangent.to(output.dtype)).sum() + final.float().sin().sum()).backward()
    found = {
        "output": output.detach(),
        "final state": final.detach(),
        "d input": x.grad,
        "d state": state.grad,
    }
    return found | {f"d {name}": p.grad for name, p in core.named_parameters()}


def examples(core, steps, batch, *, resetting=False, seed=1):
    generator = torch.Generator().manual_seed(seed)
    device = core.input_projection.weight.device
    x = torch.randn(steps, batch, *core.input_shape, generator=generator).to(device)
    state = torch.randn(batch, core.mem_slots, core.slot_size, generator=generator).to(device)
    cotangent = torch.randn(steps, batch, core.output_size, generator=generator).to(device)
    resets = (torch.rand(steps, batch, generator=generator) < 0.3).to(device) if resetting else None
    return x, state, resets, cotangent


def errors(ours, exact):
    """RMS error over RMS, by name."""

    def ratio(a, b):
        return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()

    return {name: ratio(ours[name], exact[name]) for name in exact}
