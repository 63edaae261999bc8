"""The recurrence with its backward pass written by hand: what every fast path executes.

It covers one attention block and one input row per step, the paper's setting everywhere. A step is a few
matrix products and two row functions; the row functions exist twice, in torch (rows_torch.py) and fused in
Triton (rows_triton.py), and README.md derives them. Two things make it faster than autograd over the loop:
activations go into buffers allocated once, and each weight's gradient is ONE matrix product over all steps,
after the loop, instead of one per step.

Shapes: T time, B batch, N memory slots, F slot size, Q = H (2K + V) features, G gate size,
R = B * N memory rows, L MLP layers, C steps of a stretch. Buffers may be wider than F, Q and 2G:
`rows.padded` says by how much, and what is beyond is zero.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.kernels import LOW_PRECISION
from relational_rnn.kernels.reference import Spec

STRETCH = 8  # steps of a backward pass at once, where it recomputes their activations or has a cache


class Parameters(NamedTuple):
    """The weights, flat; once `prepared`, matrices in the dtype they are multiplied in."""

    qkv_weight: Tensor  # [Q, F]
    mlp_weights: list[Tensor]  # L of [F, F]
    gate_weight: Tensor | None  # [2G, F]
    qkv_bias: Tensor  # [Q]
    qkv_norm_weight: Tensor  # [Q]
    qkv_norm_bias: Tensor
    attention_norm_weight: Tensor  # [F]
    attention_norm_bias: Tensor
    mlp_norm_weight: Tensor  # [F]
    mlp_norm_bias: Tensor
    mlp_biases: list[Tensor]  # L of [F]
    wide_biases: tuple[Tensor, ...] = ()  # those of all layers but the last, as the matrices are; by `padded`
    ready: bool = False  # prepared
    packed: tuple[Tensor, ...] = ()  # the same in the order of sequence.py's kernels, if made before

    @property
    def matrices(self) -> list[Tensor]:
        return [self.qkv_weight, *self.mlp_weights, *([] if self.gate_weight is None else [self.gate_weight])]

    @property
    def vectors(self) -> list[Tensor]:
        return [*self[3:10], *self.mlp_biases]

    @staticmethod
    def of(matrices: list[Tensor], vectors: list[Tensor], ready: bool = False, packed=()) -> Parameters:
        layers = len(vectors) - 7
        gate = matrices[1 + layers] if len(matrices) > 1 + layers else None
        mlp = list(matrices[1 : 1 + layers])
        more = dict(ready=ready, packed=tuple(packed))
        return Parameters(matrices[0], mlp, gate, *vectors[:7], list(vectors[7:]), **more)

    def prepared(self, kind: torch.dtype, rows: ModuleType) -> Parameters:
        """Matrices in the dtype to multiply in; where the row functions want that, queries, keys and values
        without their common mean, which their norm would take off. Their gradients need nothing for that: the
        norm's sum to zero."""
        if self.ready:
            return self
        weight, bias = self.qkv_weight, self.qkv_bias
        if rows.CENTRED:
            weight, bias = weight - weight.mean(0), bias - bias.mean()
        matrices = [m.to(kind) for m in (weight, *self.matrices[1:])]
        return Parameters.of(matrices, [bias, *self.vectors[1:]], ready=True)

    def padded(self, rows: ModuleType) -> Parameters:
        """With zeros around the matrices, where the row functions want their buffers wider."""
        p = Parameters.of([self._pad(m, rows) for m in self.matrices], self.vectors)
        wider, kind = p.qkv_weight.shape[1] - self.qkv_weight.shape[1], p.qkv_weight.dtype
        biases = (b.to(kind) for b in p.mlp_biases[:-1])
        return p._replace(wide_biases=tuple(F.pad(b, (0, wider)) if wider else b for b in biases))

    def buffer(self, shape: tuple[int, ...], true: int) -> Tensor:
        """Rows of `true` values, and zeros where they are wider: there they meet the zeros of `padded` in
        products, so they may be anything but NaN."""
        made = self.qkv_weight.new_empty(shape)
        if shape[-1] > true:
            made[..., true:].zero_()
        return made

    @staticmethod
    def _pad(matrix: Tensor, rows: ModuleType) -> Tensor:
        out, into = (rows.padded(n, matrix.dtype) - n for n in matrix.shape)
        return F.pad(matrix, (0, into, 0, out)) if out or into else matrix


class _Sizes(NamedTuple):
    """Without what buffers are wider by."""

    size: int  # F
    features: int  # Q
    gates: int  # 2G


def _true_sizes(p: Parameters, spec: Spec) -> _Sizes:
    size = spec.num_heads * spec.head_size
    return _Sizes(size, p.qkv_bias.shape[0], {"unit": 2 * size, "memory": 2, None: 0}[spec.gate_style])


class Activations(NamedTuple):
    """What the backward pass needs of C steps; products are kept without their biases."""

    rows: Tensor  # [C, R, F] the memory before each step, as multiplied by the qkv weight
    hidden: Tensor  # [C, R, F] tanh of it, as multiplied by the gate weight; none without gates
    qkv: Tensor  # [C, R, Q]
    gates: Tensor  # [C, R, 2G]; none without gates
    attended: Tensor  # [C, R, F] after the attention and its norm
    mlp: Tensor  # [L, C, R, F] after the ReLU; the last layer's output without its bias
    extra: list[Tensor]  # what else the row functions keep, [C, R, ...]

    @staticmethod
    def make(steps: int, memory: Tensor, p: Parameters, spec: Spec, rows: ModuleType) -> Activations:
        """Empty buffers for so many steps of such a memory; `p` is padded."""
        count, true = memory.shape[0] * memory.shape[1], _true_sizes(p, spec)
        features, size = p.qkv_weight.shape
        gates = 0 if p.gate_weight is None else p.gate_weight.shape[0]
        gated = count if gates else 0
        return Activations(
            p.buffer((steps, count, size), true.size),
            p.buffer((steps, gated, size), true.size),
            p.buffer((steps, count, features), true.features),
            p.buffer((steps, gated, gates), true.gates),
            p.buffer((steps, count, size), true.size),
            p.buffer((len(p.mlp_weights), steps, count, size), true.size),
            rows.extra(steps, tuple(memory.shape), p, spec),
        )

    def gradients(self, steps: int, p: Parameters, spec: Spec) -> Activations:
        """Buffers for the gradients of what so many steps computed; what they only read needs none."""
        true, unused = _true_sizes(p, spec), self.qkv.new_empty(steps, 0)
        return Activations(
            unused,
            unused,
            p.buffer(self.qkv[:steps].shape, true.features),
            p.buffer(self.gates[:steps].shape, true.gates),
            p.buffer(self.attended[:steps].shape, true.size),
            p.buffer(self.mlp[:, :steps].shape, true.size),
            [],
        )

    def between(self, first: int, last: int) -> Activations:
        """Those of some steps."""
        parts = [part[first:last] for part in self[:5]]
        return Activations(*parts, self.mlp[:, first:last], [e[first:last] for e in self.extra])

    def flat(self) -> list[Tensor]:
        return [*self[:6], *self.extra]

    @staticmethod
    def unflatten(tensors: list[Tensor]) -> Activations:
        return Activations(*tensors[:6], list(tensors[6:]))

    def at(self, c: int) -> Activations:
        gated = self.gates.numel() > 0
        hidden, gates = (self.hidden[c], self.gates[c]) if gated else (None, None)
        mlp, extra = self.mlp[:, c], [e[c] for e in self.extra]
        return Activations(self.rows[c], hidden, self.qkv[c], gates, self.attended[c], mlp, extra)


def activations(memory: Tensor, qkv_in: Tensor, p: Parameters, spec: Spec, rows: ModuleType) -> Activations:
    """Empty buffers for what `forward` keeps."""
    sequence = rows.sequence(memory.shape[1], len(p.mlp_weights), qkv_in, spec)
    if sequence is not None:
        return sequence.activations(qkv_in.shape[0], memory, qkv_in, p, spec)
    return Activations.make(qkv_in.shape[0], memory, p.prepared(qkv_in.dtype, rows).padded(rows), spec, rows)


def forward(
    memory: Tensor,
    qkv_in: Tensor,
    gates_in: Tensor | None,
    resets: Tensor | None,
    p: Parameters,
    spec: Spec,
    rows: ModuleType,
    keep: bool,
) -> tuple[Tensor, Tensor, Activations | None]:
    """memory [B, N, F], qkv_in [T, B, Q] (before its norm), gates_in [T, B, 2G] ->
    (memories [T, B, N, F], starts, activations if `keep`).

    `starts` [T, B, N, F] are the memories each step begins with; empty unless resets make them differ from
    the memories that the steps before ended with.
    """
    steps = qkv_in.shape[0]
    memories = memory.new_empty(steps, *memory.shape)
    starts = memory.new_empty(steps if resets is not None else 0, *memory.shape)
    sequence = rows.sequence(memory.shape[1], len(p.mlp_weights), qkv_in, spec)
    if sequence is not None:  # all steps in one launch
        held = sequence.activations(steps, memory, qkv_in, p, spec) if keep else None
        inputs = rows.Inputs(qkv_in, p, held.extra[5:] if keep else None)
        sequence.forward(memory, inputs, gates_in, resets, p, spec, held, memories, starts)
        return memories, starts, held
    p = p.prepared(qkv_in.dtype, rows).padded(rows)
    held = Activations.make(steps if keep else 1, memory, p, spec, rows)
    inputs, aside = rows.Inputs(qkv_in, p), rows.Aside()
    for t in range(steps):
        now = held.at(t if keep else 0)
        begin, following = (memory if t == 0 else memories[t - 1]), None
        if resets is not None:
            rows.begin(begin, resets[t], now, out=starts[t])
            begin = starts[t]
        elif t == 0:
            rows.begin(begin, None, now)
        if resets is None and t + 1 < steps:  # a step's last row function also begins the next one
            following = held.at(t + 1 if keep else 0)
        gates = None if gates_in is None else gates_in[t]
        _step(begin, inputs, t, gates, p, spec, rows, aside, now, memories[t], following)
    return memories, starts, held if keep else None


def _step(
    memory, inputs, t, gates_in, p: Parameters, spec, rows, aside, now: Activations, out: Tensor, following
) -> None:
    """One step: writes the next memory into `out` and the activations into `now`."""
    torch.mm(now.rows, p.qkv_weight.t(), out=now.qkv)
    if gates_in is not None and rows.gate_products(spec):  # not wanted before the end of the step
        aside.product(now.hidden, p.gate_weight.t(), out=now.gates)
    rows.attend(memory, now, inputs, t, p, spec)
    x = now.attended
    for weight, bias, y in zip(p.mlp_weights[:-1], p.wide_biases, now.mlp[:-1], strict=True):
        x = rows.linear_relu(x, weight, bias, out=y)
    torch.mm(x, p.mlp_weights[-1].t(), out=now.mlp[-1])
    aside.join()
    rows.update(memory, now, gates_in, p, spec, following, out=out)


class Gradients(NamedTuple):
    memory: Tensor | None  # [B, N, F] of the initial memory, if wanted
    qkv_in: Tensor  # [T, B, Q]
    gates_in: Tensor | None  # [T, B, 2G]
    matrices: list[Tensor]  # as Parameters.matrices
    vectors: Tensor  # as Parameters.vectors, one after the other


def backward(
    grad: Tensor,
    memory: Tensor,
    memories: Tensor,
    starts: Tensor,
    qkv_in: Tensor,
    gates_in: Tensor | None,
    resets: Tensor | None,
    held: Activations | None,
    p: Parameters,
    spec: Spec,
    rows: ModuleType,
    wants_memory: bool = True,
) -> Gradients:
    """Gradients of sum(memories * grad). With `held` None the activations are computed again in stretches."""
    steps, batch, slots, _ = memories.shape
    sequence = None if held is None else rows.sequence(slots, len(p.mlp_weights), qkv_in, spec)
    if sequence is not None:
        found = _backward_at_once(
            grad, memory, memories, starts, qkv_in, gates_in, resets, held, p, spec, rows, sequence
        )
        return found if wants_memory else found._replace(memory=None)
    true, p = p, p.prepared(qkv_in.dtype, rows).padded(rows)
    gated = p.gate_weight is not None
    inputs, aside = rows.Inputs(qkv_in, p), rows.Aside()
    inputs.gradient = p.buffer(qkv_in.shape, p.qkv_bias.shape[0])
    sums = rows.Sums(p, spec)  # column sums: gradients of norms and biases
    carry = rows.Carry(memory, p, spec)  # gradient of the memory a step begins with, as it travels back
    d_gates_in = torch.empty_like(gates_in) if gated else None
    products = None
    stretch = steps if held is not None and memory.is_cuda else min(STRETCH, steps)
    again = None if held is not None else Activations.make(stretch, memory, p, spec, rows)
    deltas = (held or again).gradients(stretch, p, spec)

    def begin(t: int) -> Tensor:
        if resets is not None:
            return starts[t]
        return memory if t == 0 else memories[t - 1]

    # tanh of the memory that the step after begins with; nothing comes back from behind the last one
    after = (held or again).hidden[-1] if gated else None
    for last in range(steps, 0, -stretch):
        first = max(0, last - stretch)
        if held is None:
            scratch = torch.empty_like(memory)
            for t in range(first, last):
                now, gate = again.at(t - first), gates_in[t] if gated else None
                rows.begin(begin(t), None, now)
                _step(begin(t), inputs, t, gate, p, spec, rows, aside, now, scratch, None)
        acts = again if held is None else held.between(first, last)
        for t in range(last - 1, first - 1, -1):
            now, delta = acts.at(t - first), deltas.at(t - first)
            reset = resets[t + 1] if resets is not None and t + 1 < steps else None
            gate = gates_in[t] if gated else None
            aside.join()
            start = begin(t)
            rows.update_backward(grad[t], carry, after, reset, start, now, gate, p, spec, delta, sums)
            further = t > 0 or wants_memory  # somebody wants the gradient of the memory it began with
            if gated and further and rows.gate_products(spec):  # not before the step before this one
                aside.product(delta.gates, p.gate_weight, out=carry.through_gates)
            elif gated:
                carry.through_gates = delta.gates
            _mlp_backward(now, delta, p, rows, sums)
            rows.attention_backward(carry, start, now, inputs, t, p, spec, delta, sums)
            if further:
                torch.mm(delta.qkv, p.qkv_weight, out=carry.through_qkv)
            after = now.hidden
        if gated and first > 0:  # the next stretch takes their place
            after, carry.through_gates = after.clone(), carry.through_gates.clone()
        aside.join()
        more = _weight_gradients(acts, deltas, last - first, true)
        products = more if products is None else [a + b for a, b in zip(products, more, strict=True)]
        if gated:
            _gates_of_the_input(deltas.gates[: last - first], batch, out=d_gates_in[first:last])
    d_memory = None
    if wants_memory:
        d_memory = torch.empty_like(memory)
        rows.finish(carry, after, resets[0] if resets is not None else None, p, spec, out=d_memory)
    d_qkv_in = inputs.backward(p, sums)
    return Gradients(d_memory, d_qkv_in, d_gates_in, products, sums.flat())


def _backward_at_once(
    grad, memory, memories, starts, qkv_in, gates_in, resets, held, p, spec, rows, sequence
) -> Gradients:
    """The same with all steps in one launch."""
    steps, batch = memories.shape[:2]
    inputs, sums = rows.Inputs(qkv_in, p, held.extra[5:], computed=True), rows.Sums(p, spec)
    inputs.gradient = torch.empty_like(qkv_in)
    like = torch.zeros_like if spec.gate_style == "memory" else torch.empty_like  # two gates are padded
    gates = like(held.gates)
    deltas = held._replace(qkv=torch.empty_like(held.qkv), gates=gates, mlp=torch.empty_like(held.mlp))
    d_gates_in = None if gates_in is None else torch.empty_like(gates_in)
    d_memory, columns = sequence.backward(
        grad, memory, memories, starts, inputs, gates_in, resets, p, spec, held, deltas, d_gates_in
    )
    if resets is not None:
        d_memory.masked_fill_(resets[0, :, None, None], 0)
    if spec.gate_style == "memory":
        _gates_of_the_input(gates, batch, out=d_gates_in)
    d_qkv_in = inputs.backward(p, sums)
    products = _weight_gradients(held, deltas, steps, p)
    return Gradients(d_memory, d_qkv_in, d_gates_in, products, sums.flat() + columns)


def _gates_of_the_input(d_gates: Tensor, batch: int, out: Tensor) -> None:
    """Its share is the same for all slots."""
    torch.sum(d_gates.unflatten(1, (batch, -1)), dim=2, out=out)


def _mlp_backward(now: Activations, delta: Activations, p: Parameters, rows: ModuleType, sums) -> None:
    """From the gradient of the MLP's output (delta.mlp[-1]) to that of its input (delta.attended)."""
    d = delta.mlp[-1]
    for i in range(len(p.mlp_weights) - 1, 0, -1):
        torch.mm(d, p.mlp_weights[i], out=delta.mlp[i - 1])
        d = rows.relu_backward(delta.mlp[i - 1], now.mlp[i - 1], i - 1, sums)
    torch.mm(d, p.mlp_weights[0], out=delta.attended)


def _weight_gradients(acts: Activations, deltas: Activations, steps: int, true: Parameters) -> list[Tensor]:
    """One product per matrix over all steps of a stretch."""
    pairs = [(deltas.qkv, acts.rows), *zip(deltas.mlp, [acts.attended, *acts.mlp[:-1]], strict=True)]
    if true.gate_weight is not None:
        pairs.append((deltas.gates, acts.hidden))
    products = [outer(d[:steps].flatten(0, 1), x[:steps].flatten(0, 1)) for d, x in pairs]
    return [d[: m.shape[0], : m.shape[1]].contiguous() for d, m in zip(products, true.matrices, strict=True)]


def outer(d: Tensor, x: Tensor) -> Tensor:
    """d^T x, summed in float32 where the operands are shorter."""
    if d.dtype not in LOW_PRECISION:
        return torch.mm(d.t(), x)
    if d.is_cuda:
        return torch.mm(d.t(), x, out_dtype=torch.float32)
    return torch.mm(d.t(), x).float()  # rounded once, but those of several stretches are not
