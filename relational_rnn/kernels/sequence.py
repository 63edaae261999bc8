"""A whole sequence in one launch: the recurrence as CUDA C++ (cuda/), compiled when it is first wanted.

It takes the place of the loop of recurrence.py where it applies (`why_not`); README.md says how it works.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from relational_rnn.kernels import nvrtc, wide
from relational_rnn.kernels.recurrence import Activations, Parameters
from relational_rnn.kernels.reference import Spec
from relational_rnn.kernels.shapes import (
    CLUSTERS,
    GATES,
    LAYERS,
    SHARED_BYTES,
    Shape,
    by_groups,
    how,
    programs,
    share,
)

SIZES = (128, 256)  # of a slot; above, products are large enough to be launches of their own


def why_not(slots: int, spec: Spec, layers: int, dtype: torch.dtype) -> str | None:
    """Why a sequence cannot go in one launch, or None if it can."""
    size = spec.num_heads * spec.head_size
    if dtype != torch.bfloat16:
        return f"the dtype is {dtype}; allowed: bfloat16"
    if size not in SIZES or 16 % slots:
        return f"slots are {slots} of {size}; allowed: 1, 2, 4, 8 or 16 of {SIZES}"
    if spec.key_size != spec.head_size or spec.head_size % 16:
        return f"heads are of {spec.key_size} and {spec.head_size}; allowed: equal, a multiple of 16"
    return None if layers <= LAYERS else f"the MLP has {layers} layers; allowed: up to {LAYERS}"


@functools.cache
def usable(device: torch.device) -> bool:
    """Whether this GPU has clusters and enough shared memory, and this torch can compile for it."""
    if torch.cuda.get_device_capability(device) < (9, 0):
        return False
    enough = torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= 216 * 1024
    return enough and nvrtc.works(device)


def shape(memory: Tensor, p: Parameters, spec: Spec, keep: bool, resets: bool) -> Shape:
    """How such a call is made."""
    batch, slots, size = memory.shape
    gates = GATES[spec.gate_style]
    source = "bf16" if p.qkv_weight.dtype == torch.bfloat16 else "float"
    layers = len(p.mlp_weights)
    clusters = nvrtc.clusters_at_once(size // 32, SHARED_BYTES, memory.device) if memory.is_cuda else CLUSTERS
    way = how(batch * slots, size, layers, gates, clusters)
    return Shape(size, slots, spec.num_heads, layers, gates, *way, keep, resets, source)


def _aligned(tensor: Tensor) -> Tensor:
    """Where vectors of 16 bytes can be read: a view may begin anywhere."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _of_one_type(p: Parameters) -> Parameters:
    """Matrices that the packing kernel can read: all float32, or all bfloat16."""
    kinds = {m.dtype for m in p.matrices}
    if len(kinds) == 1 and kinds <= {torch.float32, torch.bfloat16}:
        return p
    return Parameters.of([m.float() for m in p.matrices], p.vectors, p.ready)


def _given(
    inputs, gates_in, resets, packed: Tensor, p: Parameters, spec: Spec, vectors: Tensor
) -> list[Tensor]:
    """What both kernels read, in their order; what there is none of is never read."""
    weight = _aligned(p.gate_weight.to(torch.bfloat16)) if spec.gate_style == "memory" else None
    given = [inputs.normed, gates_in, resets, packed, weight, vectors]
    return [vectors if each is None else each for each in given]


def activations(steps: int, memory: Tensor, qkv_in: Tensor, p: Parameters, spec: Spec) -> Activations:
    """Empty buffers for what the backward pass wants. The last of `mlp` are rows of the MLP's norm before its
    weight. `extra`: 1/deviation of the three norms, rows of the attention's norm before its weight, the
    logarithm of the softmax's sum, weights packed for the way back, all vectors, and the input's norm."""
    batch, slots, size = memory.shape
    rows, layers = batch * slots, len(p.mlp_weights)
    gates = _gate_width(spec)
    fresh, exact = qkv_in.new_empty, memory.new_empty
    extra = [
        exact(steps, rows, 3),
        fresh(steps, rows, size),
        exact(steps, rows, spec.num_heads),
        fresh(_products(p, spec), size, size),
        exact(sum(v.shape[0] for v in p.vectors)),
        torch.empty_like(qkv_in),
        exact(qkv_in.shape[0] * qkv_in.shape[1]),
    ]
    return Activations(
        fresh(steps, rows, size),
        fresh((steps, rows, size) if gates else 0),
        fresh(steps, rows, 3 * size),
        (qkv_in.new_zeros if spec.gate_style == "memory" else fresh)((steps, rows, gates) if gates else 0),
        fresh(steps, rows, size),
        fresh(layers, steps, rows, size),
        extra,
    )


def _gate_width(spec: Spec) -> int:
    """Of a row of gates; two are padded to 16 bytes, for the products of their gradients."""
    return {None: 0, "memory": 8, "unit": 2 * spec.num_heads * spec.head_size}[spec.gate_style]


def _products(p: Parameters, spec: Spec) -> int:
    return 3 + len(p.mlp_weights) + (2 if spec.gate_style == "unit" else 0)


def _means(p: Parameters, kind: Shape, vectors: Tensor, compiled) -> Tensor:
    """-> means of the weights of queries, keys and values [F]; writes all vectors, their bias centred."""
    torch.cat(p.vectors, out=vectors)
    means = vectors.new_empty(kind.F)
    args = [p.qkv_weight, means, vectors]
    nvrtc.launch(compiled, "sequence_means", _any_tile(kind), kind.F // 32 + 1, 256, args)
    return means


def _any_tile(kind: Shape) -> Shape:
    """What is done before the first step is the same for all tiles."""
    depth = min(kind.DEPTH, 8)
    return kind._replace(ROWS=16, WARPS=8, CLUSTER=1, TOGETHER=1, DEPTH=depth, RESETS=False)


def _pack(p: Parameters, spec: Spec, kind: Shape, means: Tensor, back: Tensor | None, compiled) -> Tensor:
    """-> the forward products' weights; writes those of the way back."""
    kind, source = _any_tile(kind), p.qkv_weight
    packed = source.new_empty(_products(p, spec), kind.F, kind.F, dtype=torch.bfloat16)
    mlp = [*p.mlp_weights, *[source] * (LAYERS - kind.LAYERS)]
    gate = source if p.gate_weight is None else p.gate_weight
    blocks = -(-packed.numel() * (1 if back is None else 2) // (8 * 256))
    args = [source, *mlp, gate, means, packed, packed if back is None else back]
    nvrtc.launch(compiled, "sequence_pack", kind, blocks, 256, args)
    return packed


def prepacked(p: Parameters, spec: Spec, slots: int, compiled=nvrtc.compiled) -> tuple[Tensor, ...]:
    """For Parameters.packed: all vectors, forward products' weights as they stay and as they stream, and,
    where groups multiply, what wide.pack gives."""
    p, size = _of_one_type(p), spec.num_heads * spec.head_size
    source = "bf16" if p.qkv_weight.dtype == torch.bfloat16 else "float"
    sizes = (size, slots, spec.num_heads, len(p.mlp_weights), GATES[spec.gate_style])
    vectors = p.vectors[0].new_empty(sum(v.shape[0] for v in p.vectors))
    stay, stream = (Shape(*sizes, 16, 8, 1, 1, depth, False, False, source) for depth in (0, 8))
    means = _means(p, stream, vectors, compiled)
    packed = (_pack(p, spec, kind, means, None, compiled) for kind in (stay, stream))
    more = ()
    if wide.fits(size, spec.head_size, vectors.device):
        more = wide.pack(p, by_groups(stream, 0), means, vectors, compiled)
    return vectors, *packed, *more


def forward(
    memory: Tensor,
    inputs,
    gates_in: Tensor | None,
    resets: Tensor | None,
    p: Parameters,
    spec: Spec,
    held: Activations | None,
    memories: Tensor,
    starts: Tensor,
    compiled=nvrtc.compiled,
) -> None:
    """As recurrence.forward; writes `memories`, `starts` and, if given, `held`."""
    steps, batch = inputs.normed.shape[:2]
    memory, p = _aligned(memory), _of_one_type(p)
    kind = shape(memory, p, spec, held is not None, resets is not None)
    rows = batch * memory.shape[1]
    in_groups = kind.DEPTH > 0 and wide.wanted(rows, kind.F, spec.head_size, memory.device)
    if held is None:
        kept, back, vectors = [memory] * 9, None, memory.new_empty(sum(v.shape[0] for v in p.vectors))
    else:
        back, vectors = held.extra[3:5]
        kept = [held.rows, held.hidden, held.qkv, held.gates, held.attended, held.mlp, *held.extra[:3]]
    if held is None and p.packed:
        vectors, stay, stream, *for_groups = p.packed
        packed = for_groups if in_groups else [stream if kind.DEPTH else stay]
    else:
        means = _means(p, kind, vectors, compiled)
        if back is not None or not in_groups:
            packed = [_pack(p, spec, kind, means, back, compiled)]
        if in_groups:
            packed = wide.pack(p, kind, means, vectors, compiled)
    if in_groups:
        kind = by_groups(kind, rows)
    args = [
        memory,
        *_given(inputs, gates_in, resets, packed[0], p, spec, vectors),
        memories,
        starts,
        *kept,
        *_numbers(steps, batch, kind, gates_in, spec),
        *packed[1:],
    ]
    name = f"{kind.way}_forward"
    nvrtc.launch(compiled, name, kind, programs(batch, kind), 32 * kind.WARPS, args)


def _numbers(steps: int, batch: int, kind: Shape, gates_in: Tensor | None, spec: Spec) -> list[int | float]:
    """The last arguments of both kernels."""
    width = 0 if gates_in is None else gates_in.shape[-1]
    return [steps, batch, share(batch, kind), width, _gate_width(spec), float(spec.scale)]


def backward(
    grad: Tensor,
    memory: Tensor,
    memories: Tensor,
    starts: Tensor,
    inputs,
    gates_in: Tensor | None,
    resets: Tensor | None,
    p: Parameters,
    spec: Spec,
    held: Activations,
    deltas: Activations,
    d_gates_in: Tensor | None,
    compiled=nvrtc.compiled,
) -> tuple[Tensor, Tensor]:
    """-> (gradient of the memory the first step begins with, column sums as Parameters.vectors has them);
    fills `deltas`, the gradients of `inputs` and, of unit gates, `d_gates_in`."""
    steps, batch, slots, _ = memories.shape
    memory, grad, p = _aligned(memory), _aligned(grad), _of_one_type(p)
    kind = shape(memory, p, spec, True, resets is not None)
    count = programs(batch, kind)
    carry = torch.empty_like(memory)
    scales, normed, total, packed, vectors = held.extra[:5]
    totals = vectors.new_zeros(count, vectors.shape[0])
    inner = vectors.new_empty(batch * slots, spec.num_heads)
    args = [
        grad,
        memory,
        memories,
        starts,
        *_given(inputs, gates_in, resets, packed, p, spec, vectors),
        held.hidden,
        held.qkv,
        held.gates,
        held.mlp,
        scales,
        normed,
        total,
        carry,
        inputs.gradient,
        carry if d_gates_in is None else d_gates_in,  # never written then
        deltas.qkv,
        deltas.gates,
        deltas.mlp,
        inner,
        totals,
        *_numbers(steps, batch, kind, gates_in, spec),
    ]
    nvrtc.launch(compiled, f"{kind.way}_backward", kind, count, 32 * kind.WARPS, args)
    return carry, totals.sum(0)
