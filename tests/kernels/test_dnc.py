"""A step of a DNC's memory in one kernel, and whole sequences: on a CPU (simt/), and on a GPU."""

import importlib.util
import shutil
from functools import partial

import pytest
import torch

from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.dnc_memory import Memory, access
from relational_rnn.kernels import dnc
from tests.kernels.comparison import in_the_interpreter
from tests.kernels.interpreted_dnc import CASES, compare
from tests.kernels.simt.emulated import compiled

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def example(slots, words, reads, batch=3, device="cpu", fresh=False):
    """A core, what its controller says, a state, and cotangents. Usages are far enough apart that float64
    puts slots into the same order; in a `fresh` state all are equal."""
    generator = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(batch, *shape, generator=generator)  # noqa: E731
    torch.manual_seed(0)
    core = DNC(5, 6, slots, words, reads, 1, "lstm", 16)
    places = torch.rand(batch, slots, generator=generator).argsort(-1)
    state = [
        normal(slots, words),
        normal(reads, slots).softmax(-1),
        0.3 * normal(1, slots).softmax(-1),
        normal(1, slots, slots).sigmoid().tril(-1) / slots,
        normal(1, slots).softmax(-1),
        (places + 0.5) / slots,
    ]
    if fresh:
        state = list(core.initial_state(batch)[1:-1])
    raw = normal(dnc.Kind(slots, words, reads).raw)
    grads = [normal(reads, words), *(normal(*t.shape[1:]) for t in state)]
    move = lambda tensors: [t.to(device) for t in tensors]  # noqa: E731
    return core.to(device), raw.to(device), move(state), move(grads)


def expected(core, raw, state, grads):
    """(what the step makes, gradients of raw and state) by the specification, in float64."""
    raw, *state = (t.double().requires_grad_() for t in (raw, *state))
    interface = core.double()._interface_of(raw)
    reads, memory = access(interface, Memory(*state))
    made = [reads, *memory]
    wanted = [raw, *(t for i, t in enumerate(state) if i != 2)]
    found = torch.autograd.grad(made, wanted, [g.double() for g in grads], allow_unused=True)
    core.float()
    return made, found


def check(ours, true, tolerance):
    for i, (a, b) in enumerate(zip(ours, true, strict=True)):
        error = (a.double() - b).norm() / b.norm().clamp_min(1e-30)
        assert error < tolerance, (i, error.item())


@needs_compiler
@pytest.mark.parametrize(("slots", "words", "reads"), [(80, 64, 4), (7, 40, 1), (33, 5, 2)])
def test_the_kernels_give_what_the_specification_gives(slots, words, reads):
    core, raw, state, grads = example(slots, words, reads)
    made, gradients = expected(core, raw, state, grads)
    ours = dnc.forward(raw, state, compiled=compiled)
    check(ours, made, 1e-5)
    check(dnc.backward(raw, state, ours[2], grads, compiled=compiled), gradients, 2e-5)


@needs_compiler
def test_equally_free_slots_are_taken_in_order():
    core, raw, state, _ = example(9, 4, 2, fresh=True)
    _, made = access(core._interface_of(raw), Memory(*state))
    ours = dnc.forward(raw, state, compiled=compiled)
    check(ours[1:], [t.double() for t in made], 1e-6)


@pytest.mark.parametrize(
    ("kind", "write_heads", "dtype", "message"),
    [
        (dnc.Kind(80, 64, 4), 2, torch.float32, "there are 2 write heads; allowed: 1"),
        (dnc.Kind(80, 64, 4), 1, torch.float64, "torch.float64; allowed: float32"),
        (dnc.Kind(129, 64, 4), 1, torch.float32, "(129, 64, 4); allowed: up to (128, 128, 7)"),
        (dnc.Kind(128, 128, 7), 1, torch.float32, "bytes a sample"),
    ],
)
def test_where_it_does_not_apply_it_says_why(kind, write_heads, dtype, message):
    assert dnc.why_not(dnc.Kind(80, 64, 4), 1, torch.float32) is None
    assert message in dnc.why_not(kind, write_heads, dtype)


@needs_gpu
@pytest.mark.parametrize(("slots", "words", "reads"), [(80, 64, 4), (7, 40, 1), (128, 16, 7)])
def test_the_kernels_on_the_gpu(slots, words, reads, monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    core, raw, state, grads = example(slots, words, reads, batch=200, device="cuda")
    made, gradients = expected(core, raw, state, grads)
    raw, *state = (t.requires_grad_() for t in (raw, *state))
    ours = dnc._step(raw, state)
    check(ours, made, 1e-5)
    wanted = [raw, *(t for i, t in enumerate(state) if i != 2)]
    check(torch.autograd.grad(ours, wanted, grads), gradients, 2e-5)
    torch.use_deterministic_algorithms(False)


@needs_compiler
@needs_triton
def test_a_whole_sequence_in_the_interpreter():
    """Outputs, states and every gradient, with torch.empty full of NaN."""
    assert in_the_interpreter("tests.kernels.interpreted_dnc").count("worst") == len(CASES)


@needs_gpu
@pytest.mark.parametrize("name", CASES)
def test_a_whole_sequence_on_the_gpu(name):
    torch.set_float32_matmul_precision("highest")
    found = compare(name, "cuda")
    assert max(found.values()) < 1e-4, found


@needs_gpu
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_core_with_it_gives_what_one_without_gives(layers):
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    plain = DNC(5, 6, 12, 8, 2, 1, "lstm", 16, layers, device="cuda")
    fused = DNC(5, 6, 12, 8, 2, 1, "lstm", 16, layers, device="cuda", fused=True)
    fused.load_state_dict(plain.state_dict())
    assert fused._one_kernel(torch.device("cuda", 0))
    assert fused._one_sequence(torch.zeros(1, 1, 5, device="cuda")) == (layers < 3)
    x, found = torch.randn(9, 30, 5, device="cuda"), []
    for core in (plain, fused):
        y, _ = core(x, resets=torch.rand(9, 30, device="cuda", generator=_seeded()) < 0.2)
        y.square().mean().backward()
        found.append([y, *(p.grad for p in core.parameters() if p.grad is not None)])
    check(found[1], [t.double() for t in found[0]], 1e-4)


def _seeded():
    return torch.Generator("cuda").manual_seed(1)


@needs_compiler
def test_torch_sees_one_operator(monkeypatch):
    """Its shapes, its gradients, and a sequence that uses it; the kernels in the emulator."""
    monkeypatch.setattr(dnc, "forward", partial(dnc.forward, compiled=compiled))
    monkeypatch.setattr(dnc, "backward", partial(dnc.backward, compiled=compiled))
    core, raw, state, _ = example(7, 4, 2)
    raw, *state = (t.requires_grad_() for t in (raw, *state))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(dnc._step, (raw, state), test_utils=checks)
    monkeypatch.setattr(core, "_one_kernel", lambda device: True, raising=False)
    x, plain = torch.randn(3, 2, 5), example(7, 4, 2)[0]
    found = []
    for one in (plain, core):
        y, _ = one(x)
        y.square().mean().backward()
        found.append([y, *(p.grad for p in one.parameters() if p.grad is not None)])
    check(found[1], [t.double() for t in found[0]], 1e-5)
