"""Runs an LSTM's or a ConvLSTM's fused recurrence, and the specification in float64."""

import copy
from unittest import mock

import torch

from relational_rnn.cores.base import RecurrentCore, map_state
from relational_rnn.cores.conv_lstm import ConvLSTM
from relational_rnn.cores.lstm import LSTM
from relational_rnn.kernels import lstm as fused
from tests.kernels.comparison import errors

CASES = {  # core, steps, batch, share of resets (None: none are given)
    "lstm": (lambda: LSTM(5, 7), 6, 3, 0.3),
    "wide lstm": (lambda: LSTM(9, 520), 3, 5, 0.5),
    "one step": (lambda: LSTM(3, 4), 1, 2, 1.0),
    "boxes": (lambda: ConvLSTM((5, 5, 3), 4, 2), 5, 3, 0.3),
    "odd kernel": (lambda: ConvLSTM((3, 4, 2), 5, 3), 4, 2, 0.2),
    "flat kernel, wider than the grid": (lambda: ConvLSTM((2, 1, 3), 3, (1, 4)), 4, 2, 0.2),
    "no resets, no bias": (lambda: ConvLSTM((2, 3, 2), 6, 2, use_bias=False), 4, 3, None),
}


def run(core, x, state, resets, cotangent, scan):
    """Outputs, last state and every gradient, by name."""
    x, state = x.clone().requires_grad_(), map_state(lambda s: s.clone().requires_grad_(), state)
    output, last = scan(core)(x, state, resets)
    loss = (output * cotangent.to(output.dtype)).sum() + sum(part.float().sin().sum() for part in last)
    loss.backward()
    found = {"output": output, "hidden": last[0], "cell": last[1], "d input": x.grad}
    found |= {"d hidden": state[0].grad, "d cell": state[1].grad}
    found |= {f"d {name}": p.grad for name, p in core.named_parameters() if p.requires_grad}
    return {name: tensor.detach() for name, tensor in found.items()}


def compare(name, device, autocast=None):
    """Errors of the fused recurrence against the specification, by name."""
    build, steps, batch, share = CASES[name]
    torch.manual_seed(0)
    core = build().to(device)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    x = torch.randn(steps, batch, *core.input_shape, device=device)
    state = map_state(torch.randn_like, core.initial_state(batch))
    resets = None if share is None else torch.rand(steps, batch, device=device) < share
    cotangent = torch.randn(steps, batch, *core.output_shape, device=device)
    whole = copy.deepcopy(core).double()
    doubles = map_state(torch.Tensor.double, state)
    spec = run(
        whole, x.double(), doubles, resets, cotangent.double(), lambda c: lambda *a: RecurrentCore.scan(c, *a)
    )
    with (
        torch.autocast(device, autocast, enabled=autocast is not None),
        mock.patch.object(fused, "scan", wraps=fused.scan) as taken,
    ):
        ours = run(core, x, state, resets, cotangent, lambda c: c.scan)
    assert taken.called
    return errors(ours, spec)


def act(name, device, autocast=None):
    """Errors of steps as an agent takes them, against the specification in float64."""
    build, steps, batch, _ = CASES[name]
    torch.manual_seed(0)
    core = build().to(device)
    x = torch.randn(steps, batch, *core.input_shape, device=device)
    state = map_state(torch.randn_like, core.initial_state(batch))
    expected, last = RecurrentCore.scan(
        copy.deepcopy(core).double(), x.double(), map_state(torch.Tensor.double, state), None
    )
    with (
        torch.no_grad(),
        torch.autocast(device, autocast, enabled=autocast is not None),
        mock.patch.object(fused, "scan", wraps=fused.scan) as taken,
    ):
        folded = [core.fold()] if hasattr(core, "fold") else []
        for parameter in core.parameters() if folded else ():
            parameter.add_(1)  # which what is folded does not follow
        outputs = []
        for inputs in x:
            output, state = core.step(inputs, state, *folded)
            outputs.append(output)
    assert taken.call_count == steps
    assert state[1].dtype == torch.float32  # a cell is never rounded
    names = ("output", "hidden", "cell")
    ours, theirs = ((torch.stack(outputs), *state), (expected, *last))
    return errors(dict(zip(names, ours, strict=True)), dict(zip(names, theirs, strict=True)))
