"""The row functions of recurrence.py in torch: what a step does besides its matrix products.

Runs anywhere and in any precision; it is the CPU's fast path and what the Triton kernels are compared with.
Shapes as in recurrence.py; M is the memory a step begins with, delta a gradient of what `now` holds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.ops import aten

from relational_rnn.kernels.reference import EPSILON, split_heads

CENTRED = False  # whether weights must be centred: the norm here takes their mean off


class Aside:
    """Where a GPU computes beside its main stream."""

    def product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.mm(a, b, out=out)

    def join(self) -> None:
        """Wait for it."""


def padded(size: int, dtype: torch.dtype) -> int:
    return size


def sequence(slots: int, layers: int, qkv_in: Tensor, spec) -> None:
    """What can do all steps at once."""
    return None


def gate_products(spec) -> bool:
    """Whether the gates' products with their weights are left to the recurrence."""
    return True


def extra(steps: int, shape: tuple[int, int, int], p, spec) -> list[Tensor]:
    """What was read, its sum with M and that sum's norm; the product with its bias, normed queries, keys and
    values with the input's last, and their norm; the shares of attention."""
    batch, slots, size = shape
    features, heads = p.qkv_bias.shape[0], spec.num_heads
    sizes = [(batch, slots, size)] * 2 + [(batch, slots, 1)] * 2
    sizes += [(batch * slots, features), (batch, slots + 1, features)] + [(batch * slots, 1)] * 2
    return [p.qkv_bias.new_empty(steps, *each) for each in (*sizes, (batch, heads, slots, slots + 1))]


class Inputs:
    """The input row's queries, keys and values, normalised for all steps at once."""

    def __init__(self, raw: Tensor, p):
        self.raw = raw.to(p.qkv_bias.dtype)
        self.normed, self.mean, self.deviation = _norm(self.raw, p.qkv_norm_weight, p.qkv_norm_bias)
        self.gradient = None  # [T, B, Q], filled step by step by attend_backward

    def backward(self, p, sums: Sums) -> Tensor:
        d_raw, d_weight, d_bias = aten.native_layer_norm_backward(
            self.gradient.to(self.raw.dtype), self.raw, self.raw.shape[-1:], self.mean, self.deviation,
            p.qkv_norm_weight, p.qkv_norm_bias, [True] * 3,
        )  # fmt: skip
        sums.qkv_norm_weight += d_weight
        sums.qkv_norm_bias += d_bias
        return d_raw.to(self.gradient.dtype)


class Sums:
    """Column sums over all rows and steps: gradients of biases and norms."""

    def __init__(self, p, spec):
        self.all = [torch.zeros_like(v) for v in p.vectors]
        (
            self.qkv_bias, self.qkv_norm_weight, self.qkv_norm_bias, self.attention_norm_weight,
            self.attention_norm_bias, self.mlp_norm_weight, self.mlp_norm_bias, *self.mlp_biases,
        ) = self.all  # fmt: skip

    def flat(self) -> Tensor:
        return torch.cat(self.all)


class Carry:
    """The gradient of the memory a step begins with, in the three parts a backward step leaves."""

    def __init__(self, memory: Tensor, p, spec):
        rows, width = memory.shape[0] * memory.shape[1], p.qkv_weight.shape[1]
        self.direct = torch.zeros_like(memory)  # through the gate and the residual
        self.through_qkv = p.qkv_weight.new_zeros(rows, width)
        self.through_gates = None if p.gate_weight is None else p.qkv_weight.new_zeros(rows, width)

    def total(self, hidden: Tensor | None, reset: Tensor | None) -> Tensor:
        """All parts, `hidden` being tanh of that memory; zero where it was thrown away for a new episode."""
        shape, size = self.direct.shape, self.direct.shape[-1]
        total = self.direct + self.through_qkv[:, :size].reshape(shape)
        if self.through_gates is not None:
            slope = 1 - hidden[:, :size].to(total.dtype).reshape(shape) ** 2
            total += self.through_gates[:, :size].reshape(shape) * slope
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
    return torch.addmm(bias, x, weight.t(), out=out).relu_()


def relu_backward(delta: Tensor, activated: Tensor, layer: int, sums: Sums) -> Tensor:
    delta.masked_fill_(activated == 0, 0)
    sums.mlp_biases[layer] += delta.sum(0, dtype=sums.mlp_biases[layer].dtype)
    return delta


def _norm(x: Tensor, weight: Tensor, bias: Tensor):
    return aten.native_layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


def attend(memory: Tensor, now, inputs: Inputs, t: int, p, spec) -> None:
    batch, slots, _ = memory.shape
    read, rows, row_mean, row_deviation, biased, keyed, mean, deviation, share = now.extra
    torch.add(now.qkv, p.qkv_bias, out=biased)
    normed, mean[:], deviation[:] = _norm(biased, p.qkv_norm_weight, p.qkv_norm_bias)
    keyed[:, :slots] = normed.view(batch, slots, -1)
    keyed[:, slots] = inputs.normed[t]
    q, k, v = split_heads(keyed, spec)  # the input is the last key
    torch.softmax((q[..., :slots, :] * spec.scale) @ k.transpose(-1, -2), dim=-1, out=share)
    read.view(batch, slots, spec.num_heads, -1).transpose(1, 2).copy_(share @ v)
    torch.add(memory, read, out=rows)
    attended, row_mean[:], row_deviation[:] = _norm(rows, p.attention_norm_weight, p.attention_norm_bias)
    now.attended.copy_(attended.flatten(0, 1))


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


def update_backward(grad, carry, after, reset, memory, now, gates_in, p, spec, delta, sums: Sums) -> None:
    """From the gradient of the step's result to those of the gates (delta.gates), of the last MLP layer
    (delta.mlp[-1]) and, through the retain gate, of M (carry.direct)."""
    total = carry.total(after, reset) + grad
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
        torch.mul(total, retain, out=carry.direct)
        total = total * accept * (1 - candidate**2)
    d_rows, d_weight, d_bias = aten.native_layer_norm_backward(
        total, rows, rows.shape[-1:], mean, deviation, p.mlp_norm_weight, p.mlp_norm_bias, [True] * 3
    )
    sums.mlp_norm_weight += d_weight
    sums.mlp_norm_bias += d_bias
    sums.mlp_biases[-1] += d_rows.sum((0, 1))
    delta.mlp[-1].copy_(d_rows.flatten(0, 1))


def _residual_backward(carry, memory, now, p, spec, delta, sums: Sums) -> None:
    """From the gradients of the attended rows, through the MLP (delta.attended) and around it
    (delta.mlp[-1]), to that of what was read, in place of the first, and of M (carry.direct)."""
    _, rows, mean, deviation, *_ = now.extra
    total = (delta.attended.to(memory.dtype) + delta.mlp[-1]).view_as(memory)
    d_rows, d_weight, d_bias = aten.native_layer_norm_backward(
        total,
        rows,
        rows.shape[-1:],
        mean,
        deviation,
        p.attention_norm_weight,
        p.attention_norm_bias,
        [True] * 3,
    )
    sums.attention_norm_weight += d_weight
    sums.attention_norm_bias += d_bias
    carry.direct += d_rows
    delta.attended.copy_(d_rows.flatten(0, 1))


def attention_backward(carry, memory, now, inputs: Inputs, t: int, p, spec, delta, sums: Sums) -> None:
    """From the gradients of the attended rows to those of the product (delta.qkv), of the input's keys and
    values, and of M (carry.direct)."""
    _residual_backward(carry, memory, now, p, spec, delta, sums)
    batch, slots, _ = memory.shape
    *_, biased, keyed, mean, deviation, share = now.extra
    q, k, v = split_heads(keyed, spec)
    d_read = (
        delta.attended.to(memory.dtype).view(batch, slots, spec.num_heads, -1).transpose(1, 2)
    )  # [B, H, N, V]
    d_logits = aten._softmax_backward_data(d_read @ v.transpose(-1, -2), share, -1, share.dtype) * spec.scale
    d_keyed = torch.empty_like(keyed)  # [B, N+1, Q]
    d_q, d_k, d_v = split_heads(d_keyed, spec)
    d_q[:, :, :slots] = d_logits @ k
    d_q[:, :, slots] = 0  # nobody reads what the input would have attended to
    d_k.copy_(d_logits.transpose(-1, -2) @ q[:, :, :slots])
    d_v.copy_(share.transpose(-1, -2) @ d_read)
    inputs.gradient[t].copy_(d_keyed[:, slots])
    d_biased, d_weight, d_bias = aten.native_layer_norm_backward(
        d_keyed[:, :slots].flatten(0, 1), biased, biased.shape[-1:], mean, deviation,
        p.qkv_norm_weight, p.qkv_norm_bias, [True] * 3,
    )  # fmt: skip
    sums.qkv_norm_weight += d_weight
    sums.qkv_norm_bias += d_bias
    sums.qkv_bias += d_biased.sum(0)
    delta.qkv.copy_(d_biased)


def finish(carry: Carry, hidden: Tensor | None, reset: Tensor | None, p, spec, out: Tensor) -> None:
    """The gradient of the initial memory; none where the first step began afresh."""
    out.copy_(carry.total(hidden, reset))
