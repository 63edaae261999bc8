"""Whole sequences in one launch: the CUDA kernels, on a CPU, thread by thread (simt/)."""

import contextlib
import shutil
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relational_rnn.kernels import nvrtc, recurrence, rows_torch, sequence, shapes, wide
from relational_rnn.kernels.recurrence import Parameters
from relational_rnn.kernels.reference import EPSILON, Spec
from tests.kernels.simt.emulated import compiled

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

NARROW, SMALL, MIDDLE, LARGE = (16, 8, 1, 1, 8), (16, 8, 1, 1, 16), (32, 8, 1, 1, 16), (64, 8, 1, 2, 4)
# weights that stay
RESIDENT_16, RESIDENT_32, RESIDENT_48, RESIDENT_64 = ((rows, 8, 8, 1, 0) for rows in (16, 32, 48, 64))
RESIDENT_NARROW = (32, 8, 4, 1, 0)
CASES = {  # slots, heads, size, layers, gates, batch, how; "one episode" without resets
    "the paper's": (8, 8, 256, 2, "unit", 3, SMALL),
    "one wide slot, more inputs than a tile": (1, 4, 256, 1, "unit", 20, SMALL),
    "two gates a slot": (4, 4, 256, 2, "memory", 5, MIDDLE),
    "no gates, three layers": (2, 2, 256, 3, None, 9, SMALL),
    "narrow, one episode": (4, 8, 128, 2, "unit", 7, NARROW),
    "large tiles, sums in their place, one episode": (8, 8, 256, 2, "unit", 9, LARGE),
    "sixteen slots": (16, 16, 256, 2, "unit", 3, MIDDLE),
    "resident, the paper's": (8, 8, 256, 2, "unit", 3, RESIDENT_16),
    "resident, one layer, one episode": (1, 4, 256, 1, "unit", 20, RESIDENT_32),
    "resident, two gates a slot": (4, 4, 256, 2, "memory", 17, RESIDENT_64),
    "resident, no gates, three layers": (2, 2, 256, 3, None, 9, RESIDENT_32),
    "resident, tiles of 48 rows": (4, 4, 256, 2, "unit", 13, RESIDENT_48),
    "resident, narrow": (4, 8, 128, 2, "unit", 7, RESIDENT_NARROW),
    "by groups, the paper's": (8, 8, 256, 2, "unit", 9, LARGE),
    "by groups, two of them, two gates a slot": (4, 4, 256, 2, "memory", 21, LARGE),
    "by groups, two gates a slot": (4, 8, 256, 2, "memory", 9, LARGE),
    "by groups, full tiles, one slot, one layer, one episode": (1, 4, 256, 1, "unit", 70, LARGE),
    "by groups, no gates, three layers": (2, 8, 256, 3, None, 9, LARGE),
    "by groups, two of them, sixteen slots": (16, 8, 256, 2, "unit", 5, LARGE),
    "by groups, two slots, early": (2, 4, 256, 5, "unit", 3, LARGE),
}


def by_groups(monkeypatch, name):
    """As `name` says: wide.py's kernels, or not."""
    for question in ("fits", "wanted"):
        monkeypatch.setattr(wide, question, lambda *_: "by groups" in name)
    enough = 0 if "two of them" in name else 2 if "full tiles" in name else 132
    monkeypatch.setattr(shapes, "MULTIPROCESSORS", enough)


def example(slots, heads, size, layers, gates, batch, steps=2):
    """Parameters, inputs and cotangents. MLP biases hold units away from zero: comparison.py says why."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, scale=1.0, mean=0.0):
        return mean + scale * torch.randn(*shape, generator=generator)

    features, width = 3 * size, {"unit": 2 * size, "memory": 2, None: 0}[gates]
    matrices = [normal(features, size, scale=size**-0.5)]
    matrices += [normal(size, size, scale=size**-0.5) for _ in range(layers)]
    matrices += [normal(width, size, scale=size**-0.5)] if width else []
    vectors = [normal(features, scale=0.1), normal(features, scale=0.1, mean=1), normal(features, scale=0.1)]
    vectors += [normal(size, scale=0.1, mean=float(i % 2 == 0)) for i in range(4)]
    vectors += [6 * 40**i * normal(size).sign() for i in range(layers)]
    spec = Spec(heads, size // heads, size // heads, (size // heads) ** -0.5, gates)
    return SimpleNamespace(
        spec=spec,
        matrices=[m.bfloat16().float() for m in matrices],
        vectors=vectors,
        memory=normal(batch, slots, size, scale=0.5),
        qkv_in=normal(steps, batch, features).bfloat16(),
        gates_in=normal(steps, batch, width).bfloat16() if width else None,
        resets=torch.rand(steps, batch, generator=generator) < 0.3,
        grad=normal(steps, batch, slots, size),
    )


def exact(x):
    """(memories, gradients) by the recurrence in torch, float64."""
    p = Parameters.of([m.double() for m in x.matrices], [v.double() for v in x.vectors])
    gates = None if x.gates_in is None else x.gates_in.double()
    memory, qkv_in, grad = x.memory.double(), x.qkv_in.double(), x.grad.double()
    memories, starts, held = recurrence.forward(
        memory, qkv_in, gates, x.resets, p, x.spec, rows_torch, keep=True
    )
    return memories, recurrence.backward(
        grad, memory, memories, starts, qkv_in, gates, x.resets, held, p, x.spec, rows_torch
    )


class EmulatedRows:
    """rows_triton with the sequence kernels on the CPU, and its own two kernels in torch."""

    def __init__(self, options=()):
        self.options = options

    def sequence(self, slots, layers, qkv_in, spec):
        assert sequence.why_not(slots, spec, layers, qkv_in.dtype) is None
        build_kernel = lambda name, shape: compiled(name, shape, *self.options)  # noqa: E731
        return SimpleNamespace(
            activations=lambda *a: _poisoned(sequence.activations(*a)),
            forward=lambda *a: sequence.forward(*a, compiled=build_kernel),
            backward=lambda *a: sequence.backward(*a, compiled=build_kernel),
        )

    class Inputs:
        def __init__(self, raw, p, kept, computed=False):
            self.normed = torch.empty_like(raw) if kept is None else kept[0]
            self.raw, self.gradient = raw, None
            centred = raw.float() - raw.float().mean(-1, keepdim=True)
            self.normed.copy_(centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON))

        def backward(self, p, sums):
            raw, weight, bias = (
                t.double().requires_grad_() for t in (self.raw, p.qkv_norm_weight, p.qkv_norm_bias)
            )
            normed = torch.nn.functional.layer_norm(raw, raw.shape[-1:], weight, bias, EPSILON)
            d_raw, sums.weight, sums.bias = torch.autograd.grad(
                normed, (raw, weight, bias), self.gradient.double()
            )
            return d_raw

    class Sums:
        def __init__(self, p, spec):
            self.parameters = p

        def flat(self):
            features = self.weight.shape[0]
            total = torch.zeros(sum(v.shape[0] for v in self.parameters.vectors), dtype=torch.float64)
            total[features : 2 * features], total[2 * features : 3 * features] = self.weight, self.bias
            return total


def _poisoned(held):
    """NaN wherever nothing was written yet, but for the gates that are padded with zeros."""
    for tensor in (held.rows, held.hidden, held.qkv, held.attended, held.mlp, *held.extra):
        tensor.fill_(float("nan"))
    return held


def relative(ours, true):
    return ((ours.double() - true).norm() / true.norm().clamp_min(1e-30)).item()


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_give_what_the_recurrence_gives(name, monkeypatch):
    *sizes, how = CASES[name]
    monkeypatch.setattr(sequence, "how", lambda *_: how)
    by_groups(monkeypatch, name)
    x = example(*sizes)
    if "one episode" in name:
        x.resets = None
    memories, gradients = exact(x)
    p, rows = (
        Parameters.of(x.matrices, x.vectors),
        EmulatedRows(("-DEARLY",) if how == SMALL or "early" in name else ()),
    )
    gates_in = x.gates_in
    if x.spec.gate_style == "memory":  # padded to 16 bytes
        gates_in = torch.nn.functional.pad(gates_in, (0, 6))
    ours, starts, held = recurrence.forward(
        x.memory, x.qkv_in, gates_in, x.resets, p, x.spec, rows, keep=True
    )
    assert relative(ours, memories) < 5e-3
    backward = recurrence.backward
    arguments = (x.grad, x.memory, ours, starts, x.qkv_in, gates_in, x.resets, held, p, x.spec, rows)
    found = backward(*arguments)
    if name == "sixteen slots":
        assert backward(*arguments, wants_memory=False).memory is None  # as the operator's shapes promise
    worst = {
        "memory": relative(found.memory, gradients.memory),
        "qkv_in": relative(found.qkv_in, gradients.qkv_in),
    }
    for i, (a, b) in enumerate(zip(found.matrices, gradients.matrices, strict=True)):
        worst[f"matrix {i}"] = relative(a, b)
    counts = [v.shape[0] for v in x.vectors]
    pairs = zip(found.vectors.split(counts), gradients.vectors.split(counts), strict=True)
    worst |= {f"vector {i}": relative(a, b) for i, (a, b) in enumerate(pairs)}
    if gates_in is not None:
        d_gates = found.gates_in[..., : x.gates_in.shape[-1]]
        worst["gates_in"] = relative(d_gates, gradients.gates_in)
    assert max(worst.values()) < 8e-3, worst


@needs_compiler
@pytest.mark.parametrize(("how", "name"), [(MIDDLE, ""), (RESIDENT_16, ""), (LARGE, "by groups")])
def test_weights_packed_before_are_those_packed_in_the_call(how, name, monkeypatch):
    monkeypatch.setattr(sequence, "how", lambda *_: how)
    by_groups(monkeypatch, name)
    x = example(4, 4, 256, 2, "unit", 3)
    p, rows = Parameters.of([m.bfloat16() for m in x.matrices], x.vectors, ready=True), EmulatedRows()
    packed = sequence.prepacked(p, x.spec, 4, compiled)
    arguments = (x.memory, x.qkv_in, x.gates_in, None)
    expected, _, _ = recurrence.forward(*arguments, p, x.spec, rows, keep=False)
    monkeypatch.setattr(nvrtc, "launch", _only_forward(nvrtc.launch))  # nothing is packed
    found, _, _ = recurrence.forward(*arguments, p._replace(packed=packed), x.spec, rows, keep=False)
    assert torch.equal(found, expected)


def _only_forward(launch):
    def wrapper(compiled, name, *args):
        assert name.endswith("_forward")
        launch(compiled, name, *args)

    return wrapper


@given(
    rows=st.integers(1, 100_000),
    size=st.sampled_from(sequence.SIZES),
    layers=st.integers(1, shapes.LAYERS),
    gates=st.integers(0, 2),
    clusters=st.integers(0, 33),
)
def test_every_choice_fits_a_multiprocessor(rows, size, layers, gates, clusters):
    how = shapes.how(rows, size, layers, gates, clusters)
    shape = shapes.Shape(size, 8, 8, layers, gates, *how, True, True, "float")
    for name in (name for name in shapes.FILES if not name.startswith("wide")):
        if ("resident" in name) == (how.DEPTH == 0):
            assert how.TOGETHER * (shape.shared_bytes(name) + 1024) <= 228 * 1024
    assert how.ROWS in (16, 32, 48, 64)
    if how.DEPTH == 0:  # 32 columns and at most eight rows a program
        assert size // how.CLUSTER == 32
        assert how.ROWS // how.CLUSTER <= how.WARPS
        assert rows <= clusters * how.ROWS  # in one round
        return
    assert how.CLUSTER == 1
    tiles = size // (8 * how.WARPS)  # of 8 columns, that a warp has of a product
    assert tiles >= 2
    assert size // 16 * (tiles // 2) % how.DEPTH == 0
    assert how.DEPTH % (tiles // 2) == 0


@given(
    batch=st.integers(1, 70_000),
    slots=st.sampled_from([1, 2, 4, 8, 16]),
    layers=st.integers(1, shapes.LAYERS),
    gates=st.integers(0, 2),
)
def test_groups_fit_a_multiprocessor(batch, slots, layers, gates):
    how = shapes.how(batch * slots, 256, layers, gates, clusters=0)
    kind = shapes.by_groups(
        shapes.Shape(256, slots, 8, layers, gates, *how, True, True, "float"), batch * slots
    )
    assert kind.shared_bytes("wide_forward") <= shapes.SHARED_BYTES
    assert kind.shared_bytes("wide_forward") + shapes.SLAB > shapes.SHARED_BYTES  # the ring has what there is
    assert 2 <= kind.DEPTH <= 16  # places whose barriers have room
    assert kind.ROWS % 32 == 0
    assert (kind.ROWS // (kind.WARPS // 4 - 1)) in (32, 64)
    programs = shapes.programs(batch, kind)
    assert (programs - 1) * (kind.ROWS // slots) < batch <= programs * (kind.ROWS // slots)


def test_groups_take_many_rows_on_a_hopper_gpu(monkeypatch):
    gpu, capability = torch.device("cuda", 0), (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert wide.wanted(4096, 256, 64, gpu)
    assert wide.wanted(12_800, 256, 32, gpu)
    assert not wide.wanted(2112, 256, 64, gpu)
    assert wide.fits(256, 64, gpu)  # weights are packed for them before it is known how many rows come
    assert not any(wide.fits(*slots, gpu) for slots in ((128, 32), (256, 16), (256, 128)))
    assert not wide.fits(256, 64, torch.device("cpu"))
    capability = (10, 0)
    assert not wide.fits(256, 64, gpu)  # which has no wgmma


@given(batch=st.integers(1, 20_000), slots=st.sampled_from([1, 2, 4, 8, 16]))
def test_programs_share_all_samples(batch, slots):
    shape = shapes.Shape(256, slots, 8, 2, 2, *shapes.how(batch * slots, 256), True, True, "float")
    share, programs = shapes.share(batch, shape), shapes.programs(batch, shape) // shape.CLUSTER
    assert 1 <= share <= shape.ROWS // slots
    assert (programs - 1) * share < batch <= programs * share
    places, fewest = 132 * shape.TOGETHER, -(-batch // (shape.ROWS // slots))
    assert -(-programs // places) == -(-fewest // places)  # no more rounds than with full tiles


@pytest.mark.parametrize(
    ("rows", "gates", "tile"),
    [(240, 2, 16), (241, 2, 32), (512, 2, 48), (720, 2, 48), (960, 1, 64), (961, 1, None), (721, 2, None)],
)
def test_weights_stay_where_fifteen_clusters_take_all_rows(rows, gates, tile):
    """64 rows have no room beside the weights of gates for every feature."""
    how = shapes.how(rows, 256, 2, gates, clusters=15)
    assert (how.ROWS if how.DEPTH == 0 else None) == tile


def test_a_process_can_be_given_its_part_of_a_gpu(monkeypatch):
    assert nvrtc._allowed_clusters() >= 16
    monkeypatch.setenv("RELATIONAL_RNN_CLUSTERS", "5")
    assert nvrtc._allowed_clusters() == 5
    monkeypatch.setenv("RELATIONAL_RNN_CLUSTERS", "few")
    with pytest.raises(ValueError, match="CLUSTERS='few' is not allowed; allowed: a whole number"):
        nvrtc._allowed_clusters()


def test_the_papers_batch_is_shared_evenly():
    """200 full tiles would leave 64 multiprocessors with one, 68 with two."""
    shape = shapes.Shape(256, 8, 8, 2, 2, *shapes.how(12_800, 256), True, False, "float")
    assert shapes.share(1600, shape) == 7
    assert shapes.programs(1600, shape) == 229


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(dtype=torch.float32), "dtype is torch.float32; allowed: bfloat16"),
        (dict(slots=3), "slots are 3 of 256; allowed: 1, 2, 4, 8 or 16"),
        (dict(spec=Spec(8, 64, 64, 1.0, None)), "slots are 8 of 512"),
        (dict(spec=Spec(8, 16, 32, 1.0, None)), "heads are of 16 and 32; allowed: equal"),
        (dict(spec=Spec(32, 8, 8, 1.0, None)), "a multiple of 16"),
        (dict(layers=6), "MLP has 6 layers; allowed: up to 5"),
    ],
)
def test_what_cannot_go_in_one_launch_says_why(change, message):
    case = dict(slots=8, spec=Spec(8, 32, 32, 1.0, "unit"), layers=2, dtype=torch.bfloat16)
    assert sequence.why_not(**case) is None
    assert message in sequence.why_not(**case | change)


def test_without_a_compiler_steps_are_launched_one_by_one(monkeypatch):
    """On a GPU that could, as far as it says of itself."""

    def fails(*_):
        raise RuntimeError("CUDA error: no libnvrtc")

    properties = SimpleNamespace(shared_memory_per_block_optin=232448)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    device = torch.device("cuda", 0)
    nvrtc.works.cache_clear()
    with pytest.warns(UserWarning, match="launched one by one: CUDA error: no libnvrtc"):
        assert not sequence.usable.__wrapped__(device)
    monkeypatch.delattr(torch.cuda, "_compile_kernel")
    nvrtc.works.cache_clear()
    assert not sequence.usable.__wrapped__(device)
    nvrtc.works.cache_clear()
