"""The recurrence with its backward pass written by hand: what every fast path executes.

It covers one attention block and one input row per step, the paper's setting everywhere. A step is a few
matrix products and two row functions; the row functions exist twice, in torch (rows_torch.py) and fused in
Triton (rows_triton.py), and README.md derives them. Two things make it faster than autograd over the loop:
activations go into buffers allocated once, and each weight's gradient is ONE matrix product over all steps,
after the loop, instead of one per step.

Shapes: T time, B batch, N memory slots, F slot size, Q = H (2K + V) features, G gate size,
R = B * N memory rows, L MLP layers, C steps of a stretch.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from relational_rnn.kernels.reference import Spec

STRETCH = 8  # steps whose activations are held at once when the backward pass recomputes them


class Parameters(NamedTuple):
    """The weights, flat. Matrices in the dtype they are multiplied in; the rest as the module has them."""

    qkv_weight: Tensor  # [Q, F]
    qkv_bias: Tensor
    qkv_norm_weight: Tensor  # [Q]
    qkv_norm_bias: Tensor
    attention_norm_weight: Tensor  # [F]
    attention_norm_bias: Tensor
    mlp_norm_weight: Tensor  # [F]
    mlp_norm_bias: Tensor
    mlp_weights: list[Tensor]  # L of [F, F]
    mlp_biases: list[Tensor]
    gate_weight: Tensor | None  # [2G, F]

    def flat(self) -> list[Tensor]:
        tail = [] if self.gate_weight is None else [self.gate_weight]
        return [*self[:8], *self.mlp_weights, *self.mlp_biases, *tail]

    @staticmethod
    def unflatten(tensors: list[Tensor], gated: bool) -> Parameters:
        layers = (len(tensors) - 8 - gated) // 2
        mlp, biases = tensors[8 : 8 + layers], tensors[8 + layers : 8 + 2 * layers]
        return Parameters(*tensors[:8], list(mlp), list(biases), tensors[-1] if gated else None)


class Activations(NamedTuple):
    """What the backward pass needs of C steps; products are kept without their biases."""

    rows: Tensor  # [C, R, F] the memory before each step, as multiplied by the qkv weight
    hidden: Tensor  # [C, R, F] tanh of it, as multiplied by the gate weight; [0] without gates
    qkv: Tensor  # [C, R, Q]
    gates: Tensor  # [C, R, 2G]; [0] without gates
    attended: Tensor  # [C, R, F] after the attention and its norm
    mlp: list[Tensor]  # L - 1 of [C, R, F] after the ReLU, then the last layer's output

    @staticmethod
    def empty(steps: int, rows: int, p: Parameters) -> Activations:
        def buffer(features: int) -> Tensor:
            return p.qkv_weight.new_empty(steps, rows, features)

        features, size = p.qkv_weight.shape
        gates = 0 if p.gate_weight is None else p.gate_weight.shape[0]
        mlp = [buffer(size) for _ in p.mlp_weights]
        hidden = buffer(size) if gates else p.qkv_weight.new_empty(0)
        gates = buffer(gates) if gates else p.qkv_weight.new_empty(0)
        return Activations(buffer(size), hidden, buffer(features), gates, buffer(size), mlp)

    def flat(self) -> list[Tensor]:
        return [*self[:5], *self.mlp]

    @staticmethod
    def unflatten(tensors: list[Tensor]) -> Activations:
        return Activations(*tensors[:5], list(tensors[5:]))

    def at(self, c: int) -> Activations:
        gated = self.gates.numel() > 0
        hidden, gates = (self.hidden[c], self.gates[c]) if gated else (None, None)
        return Activations(
            self.rows[c], hidden, self.qkv[c], gates, self.attended[c], [m[c] for m in self.mlp]
        )


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
    """memory [B, N, F] -> (memories [T, B, N, F], starts, activations if `keep`).

    `starts` [T, B, N, F] are the memories each step begins with; empty unless resets make them differ from
    the memories that the steps before ended with.
    """
    steps = qkv_in.shape[0]
    memories = memory.new_empty(steps, *memory.shape)
    starts = memory.new_empty(steps if resets is not None else 0, *memory.shape)
    held = Activations.empty(steps if keep else 1, memory.shape[0] * memory.shape[1], p)
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
        _step(begin, qkv_in[t], gates, p, spec, rows, now, memories[t], following)
    return memories, starts, held if keep else None


def _step(
    memory, qkv_in, gates_in, p: Parameters, spec: Spec, rows, now: Activations, out: Tensor, following
) -> None:
    """One step: writes the next memory into `out` and the activations into `now`."""
    torch.mm(now.rows, p.qkv_weight.t(), out=now.qkv)
    if gates_in is not None:
        torch.mm(now.hidden, p.gate_weight.t(), out=now.gates)
    rows.attend(memory, now.qkv, qkv_in, p, spec, out=now.attended)
    x = now.attended
    for weight, bias, y in zip(p.mlp_weights[:-1], p.mlp_biases[:-1], now.mlp[:-1], strict=True):
        x = rows.linear_relu(x, weight, bias, out=y)
    torch.mm(x, p.mlp_weights[-1].t(), out=now.mlp[-1])
    rows.update(memory, now, gates_in, p, spec, following, out=out)


class Gradients(NamedTuple):
    memory: Tensor  # [B, N, F] of the initial memory
    qkv_in: Tensor  # [T, B, Q]
    gates_in: Tensor | None  # [T, B, 2G]
    parameters: Parameters


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
) -> Gradients:
    """Gradients of sum(memories * grad). With `held` None the activations are computed again in stretches."""
    steps, batch, slots, _ = memories.shape
    gated = p.gate_weight is not None
    sums = rows.Sums(p, batch)  # column sums: gradients of norms and biases
    weights = _WeightGradients(p)
    carry = rows.Carry(memory, p)  # gradient of the memory a step begins with, as it travels back
    d_qkv_in = torch.empty_like(qkv_in)
    d_gates_in = torch.empty_like(gates_in) if gated else None
    stretch = steps if held is not None else STRETCH
    again = None if held is not None else Activations.empty(min(stretch, steps), batch * slots, p)
    deltas = Activations.empty(min(stretch, steps), batch * slots, p)

    def begin(t: int) -> Tensor:
        if resets is not None:
            return starts[t]
        return memory if t == 0 else memories[t - 1]

    for last in range(steps, 0, -stretch):
        first = max(0, last - stretch)
        if held is None:
            scratch = torch.empty_like(memory)
            for t in range(first, last):
                now, gate = again.at(t - first), gates_in[t] if gated else None
                rows.begin(begin(t), None, now)
                _step(begin(t), qkv_in[t], gate, p, spec, rows, now, scratch, None)
        acts = held or again
        for t in range(last - 1, first - 1, -1):
            now, delta = acts.at(t - first), deltas.at(t - first)
            reset = resets[t + 1] if resets is not None and t + 1 < steps else None
            gate = gates_in[t] if gated else None
            d_gate = d_gates_in[t] if gated else None
            end = memories[t]
            rows.update_backward(
                grad[t], carry, end, reset, begin(t), now, gate, p, spec, delta, d_gate, sums
            )
            d = delta.mlp[-1]
            for i in range(len(p.mlp_weights) - 1, 0, -1):
                torch.mm(d, p.mlp_weights[i], out=delta.mlp[i - 1])
                d = rows.relu_backward(delta.mlp[i - 1], now.mlp[i - 1], i - 1, sums)
            torch.mm(d, p.mlp_weights[0], out=delta.attended)
            rows.attend_backward(carry, begin(t), now, qkv_in[t], p, spec, delta, d_qkv_in[t], sums)
            torch.mm(delta.qkv, p.qkv_weight, out=carry.through_qkv)
            if gated:
                torch.mm(delta.gates, p.gate_weight, out=carry.through_gates)
        weights.add(acts, deltas, last - first)
    d_memory = torch.empty_like(memory)
    rows.finish(carry, memory, resets[0] if resets is not None else None, out=d_memory)
    return Gradients(d_memory, d_qkv_in, d_gates_in, weights.with_sums(sums))


class _WeightGradients:
    """One product per weight over all steps of a stretch."""

    def __init__(self, p: Parameters):
        self.p, self.total = p, None

    def add(self, acts: Activations, deltas: Activations, steps: int) -> None:
        layers = [acts.attended, *acts.mlp[:-1]]
        pairs = [(deltas.qkv, acts.rows), *zip(deltas.mlp, layers, strict=True)]
        if self.p.gate_weight is not None:
            pairs.append((deltas.gates, acts.hidden))
        products = [_outer(d[:steps].flatten(0, 1), x[:steps].flatten(0, 1)) for d, x in pairs]
        self.total = (
            products if self.total is None else [a + b for a, b in zip(self.total, products, strict=True)]
        )

    def with_sums(self, sums) -> Parameters:
        layers = len(self.p.mlp_weights)
        gate = self.total[-1] if self.p.gate_weight is not None else None
        vectors, biases = sums.totals()
        qkv_bias, *norms = vectors
        return Parameters(self.total[0], qkv_bias, *norms, self.total[1 : 1 + layers], biases, gate)


def _outer(d: Tensor, x: Tensor) -> Tensor:
    """d^T x, summed in float32 where the operands are shorter."""
    if d.is_cuda and d.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(d.t(), x, out_dtype=torch.float32)
    return torch.mm(d.t(), x)
