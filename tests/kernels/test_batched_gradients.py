"""Gradients of many losses at once: torch runs the backward pass under vmap, where operators have no rule."""

import copy

import pytest
import torch

from relational_rnn import RelationalMemory
from tests.kernels.comparison import build

STYLES = pytest.mark.parametrize("style", ["unit", "memory", None])


def example(style, **more):
    """A float64 core, inputs that want gradients, resets and five cotangents."""
    core = build(
        dict(mem_slots=3, head_size=2, num_heads=2, key_size=3, gate_style=style, **more), inputs=4
    ).double()
    x, state = torch.randn(4, 2, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    resets = torch.tensor([[False, True], [False, False], [True, False], [False, False]])
    return core, x.requires_grad_(), state.requires_grad_(), resets, torch.randn(5, 4, 2, 12).double()


def one_by_one(core, x, state, resets, cotangents):
    """Of input, state and all parameters that want one, by the specification."""
    reference = copy.deepcopy(core)
    reference.backend = "reference"
    output, _ = reference(x, state, resets=resets)
    leaves = [x, state, *(p for p in reference.parameters() if p.requires_grad)]
    found = [torch.autograd.grad(output, leaves, c, retain_graph=True) for c in cotangents]
    return [torch.stack(column) for column in zip(*found, strict=True)]


def assert_close(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@STYLES
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("resetting", [False, True])
def test_they_are_those_of_one_at_a_time(style, recompute, backend, resetting):
    core, x, state, resets, cotangents = example(style, recompute=recompute, backend=backend)
    resets = resets if resetting else None
    wanted = one_by_one(core, x, state, resets, cotangents)
    output, _ = core(x, state, resets=resets)
    leaves = [x, state, *core.parameters()]
    options = dict(is_grads_batched=True, retain_graph=True)
    assert_close(torch.autograd.grad(output, leaves, cotangents, **options), wanted)
    assert_close(torch.autograd.grad(output, leaves, cotangents, **options, create_graph=True), wanted)
    mapped = torch.func.vmap(lambda c: torch.autograd.grad(output, leaves, c, retain_graph=True))
    assert_close(mapped(cotangents), wanted)


def test_nobody_else_gets_a_gradient():
    core, x, state, resets, cotangents = example("unit", backend="torch")
    for parameter in (core.blocks[0].qkv.weight, core.mlp[0].bias, core.gate_from_memory.weight):
        parameter.requires_grad_(False)
    x.requires_grad_(False)
    output, _ = core(x, state, resets=resets)
    x.requires_grad_()  # for the others
    wanted = one_by_one(core, x, state, resets, cotangents)[1:]
    leaves = [state, *(p for p in core.parameters() if p.requires_grad)]
    assert_close(torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True), wanted)


@STYLES
def test_vectorised_jacobians_and_hessians(style):
    core, x, state, resets, _ = example(style, backend="torch")
    reference = copy.deepcopy(core)
    reference.backend = "reference"

    def last(core):
        return lambda x, state: core(x, state, resets=resets)[1][0]

    found = torch.autograd.functional.jacobian(last(core), (x, state), vectorize=True)
    assert_close(found, torch.autograd.functional.jacobian(last(reference), (x, state)))

    def loss(core):
        return lambda x: core(x, state, resets=resets)[0].sin().sum()

    found = torch.autograd.functional.hessian(loss(core), x, vectorize=True)
    wanted = torch.autograd.functional.hessian(loss(reference), x)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


def test_under_torch_func_auto_takes_the_reference():
    core, x, state, resets, cotangents = example("unit", recompute=True)
    wanted = one_by_one(core, x, state, resets, cotangents)[:2]
    _, vjp = torch.func.vjp(lambda x, state: core(x, state, resets=resets)[0], x, state)
    assert_close(torch.func.vmap(vjp)(cotangents), wanted)


def test_a_checkpointed_core():
    """Its forward pass runs again under vmap, or before it."""
    core, x, state, resets, cotangents = example("memory", recompute=True)
    output = torch.utils.checkpoint.checkpoint(
        lambda x: core(x, state, resets=resets)[0], x, use_reentrant=False
    )
    leaves = [x, state, *core.parameters()]
    found = torch.autograd.grad(output, leaves, cotangents, is_grads_batched=True)
    assert_close(found, one_by_one(core, x, state, resets, cotangents))


def test_autocast_around_a_second_derivative_rounds_nothing():
    """In the recurrence; what torch's own layers do around it is theirs."""
    core, state = RelationalMemory(3, 2, 4, 2, backend="torch"), torch.randn(2, 2, 8, requires_grad=True)
    output = core(torch.randn(3, 2, 3), state)[0].sin().sum()
    (wanted,) = torch.autograd.grad(output, state, create_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(output, state, create_graph=True)
    assert torch.equal(found, wanted)
