"""The specification: the recurrence of the Relational Memory Core in plain torch, differentiated by autograd.

It is Sonnet v1's function (docs/model.md), arranged so that nothing is computed twice or for nothing:
what depends on the input alone is computed for all steps at once, before the loop, and rows whose result is
dropped (the input's, after the last block) are never computed. Everything faster is checked against this.

Shapes: T time, B batch, N memory slots, R input rows per step, F slot size = H heads x V head size,
K key size, Q = H (2K + V) query-key-value features, G gate size (F for unit gates, 1 for memory gates).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5  # of every LayerNorm


class Spec(NamedTuple):
    """What is fixed when a core is built."""

    num_heads: int
    key_size: int
    head_size: int
    scale: float  # of the attention logits
    gate_style: str | None  # "unit", "memory" or None


class Block(NamedTuple):
    """One attention block's own weights, in torch's layout [out, in]."""

    qkv_weight: Tensor  # [Q, F]
    qkv_bias: Tensor
    qkv_norm_weight: Tensor  # [Q]
    qkv_norm_bias: Tensor
    attention_norm_weight: Tensor  # [F]
    attention_norm_bias: Tensor
    mlp_norm_weight: Tensor  # [F]
    mlp_norm_bias: Tensor


class Weights(NamedTuple):
    """Everything the recurrence multiplies the memory with."""

    blocks: tuple[Block, ...]
    mlp: tuple[tuple[Tensor, Tensor], ...]  # (weight [F, F], bias [F]) per layer, shared by the blocks
    gate_weight: Tensor | None  # [2G, F] (3G with an output gate), applied to tanh(memory)


class InputRows(NamedTuple):
    """What the inputs contribute at each step; leading dimensions [T, B] (or [B] for one step)."""

    rows: Tensor  # [..., R, F] the projected input
    qkv: Tensor  # [..., R, Q] the first block's normalised queries, keys and values of those rows
    gates: Tensor | None  # [..., 1, 2G] the input's share of the gates, every bias included


class Trace(NamedTuple):
    """What happened inside; leading dimensions [T, B] (or [B, T], or [T], as the input had them)."""

    attention: Tensor  # [T, B, blocks, H, N+R, N+R]: query row x key row, the R input rows last
    input_gate: Tensor | None  # [T, B, N, G]
    forget_gate: Tensor | None  # [T, B, N, G]


def project_qkv(rows: Tensor, block: Block) -> Tensor:
    """[..., F] -> [..., Q]: queries, keys and values of all heads, normalised jointly."""
    qkv = F.linear(rows, block.qkv_weight, block.qkv_bias)
    return F.layer_norm(qkv, qkv.shape[-1:], block.qkv_norm_weight, block.qkv_norm_bias, EPSILON)


def split_heads(qkv: Tensor, spec: Spec) -> tuple[Tensor, Tensor, Tensor]:
    """[..., rows, Q] -> q, k [..., H, rows, K] and v [..., H, rows, V]."""
    per_head = qkv.unflatten(-1, (spec.num_heads, -1)).transpose(-3, -2)  # [..., H, rows, 2K+V]
    return per_head.split([spec.key_size, spec.key_size, spec.head_size], dim=-1)


def apply_mlp(rows: Tensor, mlp) -> Tensor:
    """ReLU between the layers, none after the last."""
    for i, (weight, bias) in enumerate(mlp):
        rows = F.linear(rows.relu() if i else rows, weight, bias)
    return rows


def attend(memory: Tensor, inputs: InputRows, weights: Weights, spec: Spec, need_weights=False, bias=None):
    """Equations 1-2 and the MLP, block after block: [B, N, F] -> ([B, N, F], attention per block).

    `bias` [B, blocks, H, N+R, N+R] is added to the logits; -inf keeps a query row from seeing a key row.
    """
    slots, rows, input_rows = memory.shape[-2], memory, inputs.rows
    attention = []
    for i, block in enumerate(weights.blocks):
        last = i == len(weights.blocks) - 1
        input_qkv = inputs.qkv if i == 0 else project_qkv(input_rows, block)
        q, k, v = split_heads(torch.cat([project_qkv(rows, block), input_qkv], dim=-2), spec)
        if not last:
            rows = torch.cat([rows, input_rows], dim=-2)
        elif not need_weights and not _tiny(slots, k):
            q = q[..., :slots, :]  # nobody reads what the input rows would attend to
        logits = q * spec.scale @ k.transpose(-1, -2)  # [B, H, N(+R), N+R]
        if bias is not None:
            logits = logits + bias[:, i, :, : q.shape[-2]]
        share = logits.softmax(dim=-1)
        if need_weights:
            attention.append(share)
        read = (share @ v)[..., : rows.shape[-2], :].transpose(-3, -2).flatten(-2)  # [B, N(+R), F]
        shape = rows.shape[-1:]
        rows = F.layer_norm(
            rows + read, shape, block.attention_norm_weight, block.attention_norm_bias, EPSILON
        )
        rows = F.layer_norm(
            rows + apply_mlp(rows, weights.mlp), shape, block.mlp_norm_weight, block.mlp_norm_bias, EPSILON
        )
        if not last:
            rows, input_rows = rows[..., :slots, :], rows[..., slots:, :]
    return rows, attention


def _tiny(slots: int, k: Tensor) -> bool:
    """torch multiplies batches of matrices on a CPU in a slow loop where one takes under 400 multiplications:
    where leaving the input rows' queries out would fall below that, they are cheaper left in."""
    rows, size = k.shape[-2:]
    return k.device.type == "cpu" and slots * rows * size < 400 <= rows * rows * size


def step(
    memory: Tensor,
    hidden: Tensor,
    inputs: InputRows,
    weights: Weights,
    spec: Spec,
    need_weights: bool = False,
    bias: Tensor | None = None,
):
    """One step. `hidden` is what the gates read: tanh(memory), or the gated output where there is one.

    Returns (next memory, gate values or (), attention per block); gates come as (input, forget[, output]).
    """
    candidate, attention = attend(memory, inputs, weights, spec, need_weights, bias)
    if spec.gate_style is None:
        return candidate, (), attention
    gates = inputs.gates + F.linear(hidden, weights.gate_weight)  # [B, N, 2G]
    size = memory.shape[-1] if spec.gate_style == "unit" else 1
    gates = gates.sigmoid().split(size, dim=-1)
    return gates[0] * candidate.tanh() + gates[1] * memory, gates, attention


def scan(
    memory: Tensor,
    inputs: InputRows,
    weights: Weights,
    spec: Spec,
    resets: Tensor | None = None,
    fresh: Tensor | None = None,
    need_weights: bool = False,
    bias: Tensor | None = None,
) -> tuple[Tensor, Trace | None]:
    """All steps: memory [B, N, F] -> (memories after each step [T, B, N, F], trace).

    Where `resets[t, b]`, step t of b starts from `fresh` [B, N, F]. `bias` [T, B, blocks, H, N+R, N+R] is
    added to the attention logits.
    """
    memories, attention, input_gates, forget_gates = [], [], [], []
    # unbind, not indexing: the gradient of an index is a tensor as large as all steps, once for each step
    parts = [[None] * inputs.rows.shape[0] if part is None else part.unbind() for part in inputs]
    for t, now in enumerate(map(InputRows, *parts)):
        if resets is not None:
            memory = torch.where(resets[t, :, None, None], fresh, memory)
        now_bias = None if bias is None else bias[t]
        memory, gates, shares = step(memory, memory.tanh(), now, weights, spec, need_weights, now_bias)
        memories.append(memory)
        if need_weights:
            attention.append(torch.stack(shares, dim=1))
            input_gates.extend(gates[:1])
            forget_gates.extend(gates[1:2])
    if not memories:
        return memory.new_empty(0, *memory.shape), None
    trace = None
    if need_weights:
        gates = [torch.stack(g) if g else None for g in (input_gates, forget_gates)]
        trace = Trace(torch.stack(attention), *gates)
    return torch.stack(memories), trace
