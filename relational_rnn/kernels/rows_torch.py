"""The row functions of recurrence.py in torch: what a step does besides its matrix products.

Runs anywhere and in any precision; it is the CPU's fast path and what the Triton kernels are compared with.
Shapes as in recurrence.py; M is the memory a step begins with, delta a gradient of what `now` holds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.ops import aten

from relational_rnn.kernels.reference import EPSILON, split_heads


class Sums:
    """Column sums over all rows and steps: gradients of biases and norms."""

    def __init__(self, p, batch: int):
        self.vectors = [torch.zeros_like(v) for v in (p.qkv_bias, *p[2:8])]
        self.biases = [torch.zeros_like(b) for b in p.mlp_biases]

    def totals(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.vectors, self.biases


class Carry:
    """The gradient of the memory a step begins with, in the three parts a backward step leaves."""

    def __init__(self, memory: Tensor, p):
        rows, size = memory.shape[0] * memory.shape[1], memory.shape[2]
        self.direct = torch.zeros_like(memory)  # through the gate and the residual
        self.through_qkv = p.qkv_weight.new_zeros(rows, size)
        self.through_gates = None if p.gate_weight is None else p.qkv_weight.new_zeros(rows, size)

    def total(self, memory: Tensor, reset: Tensor | None) -> Tensor:
        """All parts; zero where the memory was thrown away because an episode began."""
        total = self.direct + self.through_qkv.view_as(memory)
        if self.through_gates is not None:
            total += self.through_gates.view_as(memory) * (1 - memory.tanh() ** 2)
        return total if reset is None else total.masked_fill_(reset[:, None, None], 0)


def begin(memory: Tensor, reset: Tensor | None, now, out: Tensor | None = None) -> None:
    """Start an episode where it begins; write what the step multiplies."""
    if reset is not None:
        fresh = torch.eye(*memory.shape[1:], dtype=memory.dtype, device=memory.device)
        memory = torch.where(reset[:, None, None], fresh, memory, out=out)
    memory = memory.flatten(0, 1)
    now.rows.copy_(memory)
    if now.hidden is not None:
        now.hidden.copy_(memory.tanh())


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    return torch.addmm(bias.to(x.dtype), x, weight.t(), out=out).relu_()


def relu_backward(delta: Tensor, activated: Tensor, layer: int, sums: Sums) -> Tensor:
    delta.masked_fill_(activated == 0, 0)
    sums.biases[layer] += delta.sum(0, dtype=sums.biases[layer].dtype)
    return delta


def _norm(x: Tensor, weight: Tensor, bias: Tensor):
    return aten.native_layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


def _attention(memory: Tensor, qkv: Tensor, qkv_in: Tensor, p, spec):
    """Everything up to the residual, from the product without its bias; the input is the last key."""
    batch, slots, _ = memory.shape
    biased = qkv.to(memory.dtype) + p.qkv_bias
    normed, mean, deviation = _norm(biased, p.qkv_norm_weight, p.qkv_norm_bias)
    keyed = torch.cat([normed.view(batch, slots, -1), qkv_in.to(memory.dtype).unsqueeze(1)], dim=1)
    q, k, v = split_heads(keyed, spec)
    q = q[..., :slots, :] * spec.scale
    share = (q @ k.transpose(-1, -2)).softmax(-1)  # [B, H, N, N+1]
    rows = memory + (share @ v).transpose(1, 2).flatten(2)
    return biased, mean, deviation, q, k, v, share, rows


def attend(memory: Tensor, qkv: Tensor, qkv_in: Tensor, p, spec, out: Tensor) -> None:
    rows = _attention(memory, qkv, qkv_in, p, spec)[-1]
    out.copy_(_norm(rows, p.attention_norm_weight, p.attention_norm_bias)[0].flatten(0, 1))


def _gates(memory: Tensor, now, gates_in: Tensor):
    gates = now.gates.view(*memory.shape[:2], -1) + gates_in.unsqueeze(1).to(memory.dtype)
    return gates.sigmoid().chunk(2, dim=-1)


def _candidate(memory: Tensor, now, p):
    attended = now.attended.to(memory.dtype).view_as(memory)
    rows = now.mlp[-1].to(memory.dtype).view_as(memory) + p.mlp_biases[-1] + attended
    return rows, *_norm(rows, p.mlp_norm_weight, p.mlp_norm_bias)


def update(memory: Tensor, now, gates_in: Tensor | None, p, spec, following, out: Tensor) -> None:
    candidate = _candidate(memory, now, p)[1]
    if gates_in is None:
        out.copy_(candidate)
    else:
        accept, retain = _gates(memory, now, gates_in)
        torch.mul(memory, retain, out=out).addcmul_(accept, candidate.tanh_())
    if following is not None:
        begin(out, None, following)


def update_backward(
    grad, carry, end, reset, memory, now, gates_in, p, spec, delta, d_gates_in, sums: Sums
) -> None:
    """From the gradient of the step's result to those of the gates (delta.gates), of the last MLP layer
    (delta.mlp[-1]) and, through the retain gate, of M (carry.direct)."""
    total = carry.total(end, reset) + grad
    rows, candidate, mean, deviation = _candidate(memory, now, p)
    if gates_in is None:
        carry.direct.zero_()
    else:
        accept, retain = _gates(memory, now, gates_in)
        candidate = candidate.tanh()
        d_accept, d_retain = total * candidate, total * memory
        if spec.gate_style == "memory":
            d_accept, d_retain = d_accept.sum(-1, keepdim=True), d_retain.sum(-1, keepdim=True)
        gates = torch.cat([d_accept * accept * (1 - accept), d_retain * retain * (1 - retain)], dim=-1)
        delta.gates.copy_(gates.flatten(0, 1))
        d_gates_in.copy_(gates.sum(1))
        torch.mul(total, retain, out=carry.direct)
        total = total * accept * (1 - candidate**2)
    d_rows, d_weight, d_bias = aten.native_layer_norm_backward(
        total, rows, rows.shape[-1:], mean, deviation, p.mlp_norm_weight, p.mlp_norm_bias, [True] * 3
    )
    sums.vectors[5] += d_weight
    sums.vectors[6] += d_bias
    sums.biases[-1] += d_rows.sum((0, 1))
    delta.mlp[-1].copy_(d_rows.flatten(0, 1))


def attend_backward(carry, memory, now, qkv_in, p, spec, delta, d_qkv_in: Tensor, sums: Sums) -> None:
    """From the gradients of the attended rows, through the MLP (delta.attended) and around it
    (delta.mlp[-1]), to those of the product (delta.qkv), of the input's keys and values, and of M."""
    batch, slots, _ = memory.shape
    biased, mean, deviation, q, k, v, share, rows = _attention(memory, now.qkv, qkv_in, p, spec)
    _, row_mean, row_deviation = _norm(rows, p.attention_norm_weight, p.attention_norm_bias)
    total = (delta.attended.to(memory.dtype) + delta.mlp[-1].to(memory.dtype)).view_as(memory)
    d_rows, d_weight, d_bias = aten.native_layer_norm_backward(
        total,
        rows,
        rows.shape[-1:],
        row_mean,
        row_deviation,
        p.attention_norm_weight,
        p.attention_norm_bias,
        [True] * 3,
    )
    sums.vectors[3] += d_weight
    sums.vectors[4] += d_bias
    carry.direct += d_rows
    d_read = d_rows.unflatten(-1, (spec.num_heads, -1)).transpose(1, 2)  # [B, H, N, V]
    d_share = d_read @ v.transpose(-1, -2)
    d_logits = aten._softmax_backward_data(d_share, share, -1, share.dtype)
    d_q = (d_logits @ k) * spec.scale  # [B, H, N, K]
    d_k = d_logits.transpose(-1, -2) @ q  # [B, H, N+1, K]; q is scaled already
    d_v = share.transpose(-1, -2) @ d_read
    d_q = torch.cat([d_q, d_q.new_zeros(batch, spec.num_heads, 1, spec.key_size)], dim=2)
    d_normed = torch.cat([d_q, d_k, d_v], dim=-1).transpose(1, 2).flatten(2)  # [B, N+1, Q]
    d_qkv_in.copy_(d_normed[:, slots])
    d_biased, d_weight, d_bias = aten.native_layer_norm_backward(
        d_normed[:, :slots].flatten(0, 1), biased, biased.shape[-1:], mean, deviation,
        p.qkv_norm_weight, p.qkv_norm_bias, [True] * 3,
    )  # fmt: skip
    sums.vectors[1] += d_weight
    sums.vectors[2] += d_bias
    sums.vectors[0] += d_biased.sum(0)
    delta.qkv.copy_(d_biased)


def finish(carry: Carry, memory: Tensor, reset: Tensor | None, out: Tensor) -> None:
    """The gradient of the initial memory; none where the first step began afresh."""
    out.copy_(carry.total(memory, reset))
