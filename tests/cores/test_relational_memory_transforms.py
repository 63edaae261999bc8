"""The Relational Memory Core under what torch does to functions: derivatives of derivatives, vmap, forward
mode, torch.compile, and torch's own checks of operators."""

import pytest
import torch
from torch.autograd import forward_ad

from relational_rnn import RelationalMemory
from relational_rnn.kernels import cpp_compiler, op
from tests.cores.test_relational_memory import BACKENDS, example, perturbed


def test_torch_compile_of_step():
    core = RelationalMemory(3, 2, 4, 2)
    compiled = torch.compile(core.step, fullgraph=True, backend="aot_eager")
    x, state = torch.randn(5, 3), core.initial_state(5)
    torch.testing.assert_close(compiled(x, state)[0], core.step(x, state)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients(backend):
    core = perturbed(dict(mem_slots=2, head_size=2, num_heads=2), backend=backend)
    x, state = example(core, 2, 1)
    assert torch.autograd.gradgradcheck(lambda x, s: core(x, s)[0], (x, state))


@pytest.mark.parametrize("style", ["unit", "memory", None])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_gradients_of_the_weights(style, recompute):
    """What the input's share and the recurrence make of the same weights is counted once; a second chunk's
    first memory hangs on them too."""
    found = []
    for backend in ("torch", "reference"):
        config = dict(mem_slots=3, head_size=2, num_heads=2, gate_style=style, key_size=3)
        core = perturbed(config, backend=backend, recompute=recompute)
        x, state = example(core, 4, 2)
        resets = torch.tensor([[False, True], [False, False]])
        _, middle = core(x[:2], state, resets=resets)
        output, _ = core(x[2:], middle)
        leaves = [x, state, *core.parameters()]
        first = torch.autograd.grad(output.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        found.append([*first, *second])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_gradients_in_low_precision(dtype):
    core = RelationalMemory(3, 2, 4, 2, backend="torch", dtype=dtype)
    x = torch.randn(3, 2, 3, dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(core(x)[0].sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in core.parameters())


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_vmap_over_states(backend):
    core = RelationalMemory(3, 2, 4, backend=backend)
    x, states = torch.randn(4, 2, 3), torch.randn(5, 2, 2, 4)
    mapped = torch.func.vmap(lambda s: core(x, s)[0])(states)
    torch.testing.assert_close(mapped, torch.stack([core(x, s)[0] for s in states]))


def test_vmap_of_the_hand_written_recurrence_is_a_clear_error():
    core, x = RelationalMemory(3, 2, 4, backend="torch"), torch.randn(4, 2, 3)
    with pytest.raises(ValueError, match=r"backend='torch'.*vmap"):
        torch.func.vmap(lambda s: core(x, s)[0])(torch.randn(5, 2, 2, 4))


def test_forward_mode_keeps_its_tangents():
    """The operators of the hand-written recurrence would drop them without a word."""
    core, x, tangent = RelationalMemory(3, 2, 4, 2, recompute=True), *torch.randn(2, 4, 2, 3)
    with torch.no_grad(), forward_ad.dual_level():
        found = forward_ad.unpack_dual(core(forward_ad.make_dual(x, tangent))[0]).tangent
    core.backend = "reference"
    _, expected = torch.func.jvp(lambda x: core(x)[0], (x,), (tangent,))
    torch.testing.assert_close(found, expected)
    core.backend = "torch"
    with forward_ad.dual_level(), pytest.raises(ValueError, match=r"backend='torch'.*forward-mode"):
        core(forward_ad.make_dual(x, tangent))


@pytest.mark.parametrize("how", ["torch", "cpp"])
def test_operators_pass_torchs_own_checks(how):
    if how == "cpp" and (missing := cpp_compiler.why_not(torch.float32)):
        pytest.skip(missing)
    core = RelationalMemory(3, 2, 4, 2)
    x, memory, weights = torch.randn(3, 2, 3), core.initial_state(2), core.weights()
    folded = core._fold(weights, op._rows(how))
    qkv, gates = (torch.nn.functional.linear(x, *part).detach() for part in (folded.qkv, folded.gates))
    leaves = [[t.detach().requires_grad_() for t in group] for group in (folded.matrices, folded.vectors)]
    arguments = (memory, qkv.requires_grad_(), gates, torch.rand(3, 2) < 0.5, *leaves)
    numbers = op._numbers(core.spec)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_static")
    torch.library.opcheck(op._scan, (*arguments, *numbers, True, how, False, []), test_utils=tests)


def test_torch_compile_sees_one_operator():
    core = RelationalMemory(3, 2, 4, 2, backend="torch")
    x = torch.randn(4, 2, 3)
    compiled = torch.compile(lambda x: core(x)[0], fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(core(x)[0].sin().sum(), list(core.parameters()))
    found = torch.autograd.grad(compiled(x).sin().sum(), list(core.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_torch_compile_of_transforms_takes_the_reference():
    core, xs = RelationalMemory(3, 2, 4, 2, recompute=True), torch.randn(3, 4, 2, 3)
    options = dict(fullgraph=True, backend="aot_eager")
    mapped = torch.compile(torch.func.vmap(lambda x: core(x)[0]), **options)(xs)
    torch.testing.assert_close(mapped, torch.stack([core(x)[0] for x in xs]))
    gradient = torch.func.grad(lambda x: core(x)[0].sin().sum())
    torch.testing.assert_close(torch.compile(gradient, **options)(xs[0]), gradient(xs[0]))
