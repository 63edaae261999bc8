"""What each row of the memory passes by itself, and back, in Triton kernels: norms, gates, update, ReLU.

Conventions and shapes as in rows_triton.py, which launches these.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gates(
    p_gates, p_gates_in, i_r, i_f, m_r, m_x,
    N: tl.constexpr, F: tl.constexpr, SG: tl.constexpr, SI: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The two gates, [R, FP] each, or [R, 1] where one gate serves the whole slot."""
    if UNIT:
        i_own, i_in = i_r[:, None] * SG + i_f[None], (i_r // N)[:, None] * SI + i_f[None]
        accept = tl.load(p_gates + i_own, mask=m_x, other=0.0).to(tl.float32)
        accept += tl.load(p_gates_in + i_in, mask=m_x, other=0.0).to(tl.float32)
        retain = tl.load(p_gates + i_own + F, mask=m_x, other=0.0).to(tl.float32)
        retain += tl.load(p_gates_in + i_in + F, mask=m_x, other=0.0).to(tl.float32)
        return tl.sigmoid(accept), tl.sigmoid(retain)
    else:
        i_own, i_in = i_r * SG, i_r // N * SI
        accept = tl.load(p_gates + i_own, mask=m_r, other=0.0).to(tl.float32)
        accept += tl.load(p_gates_in + i_in, mask=m_r, other=0.0).to(tl.float32)
        retain = tl.load(p_gates + i_own + 1, mask=m_r, other=0.0).to(tl.float32)
        retain += tl.load(p_gates_in + i_in + 1, mask=m_r, other=0.0).to(tl.float32)
        return tl.sigmoid(accept)[:, None], tl.sigmoid(retain)[:, None]


@triton.jit
def _add_partial(p_sums, i, m, x):
    """Add to this program's own row of partial sums: launches follow each other, so nothing races."""
    tl.store(p_sums + i, tl.load(p_sums + i, mask=m, other=0.0) + x, mask=m)


@triton.jit
def _candidate(p_attended, p_mlp, bias, weight, shift, i_x, m_x, F: tl.constexpr, EPS: tl.constexpr):
    """The MLP's residual and norm: (rows normalised [R, FP], 1/deviation [R, 1], candidate)."""
    rows = tl.load(p_attended + i_x, mask=m_x, other=0.0).to(tl.float32)
    rows += tl.load(p_mlp + i_x, mask=m_x, other=0.0).to(tl.float32)
    rows = tl.where(m_x, rows + bias, 0.0)
    rows = tl.where(m_x, rows - (tl.sum(rows, axis=1) / F)[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(rows * rows, axis=1) / F + EPS)[:, None]
    rows *= rstd
    return rows, rstd, rows * weight + shift


@triton.jit
def begin_kernel(
    p_memory, p_reset, p_start, p_rows, p_hidden, rows,
    N: tl.constexpr, F: tl.constexpr, SF: tl.constexpr, RESET: tl.constexpr, HIDDEN: tl.constexpr,
    R: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    i_r = tl.program_id(0) * R + tl.arange(0, R)
    i_f = tl.arange(0, FP)
    m_x = (i_r < rows)[:, None] & (i_f < F)[None]
    i_m, i_x = i_r[:, None] * F + i_f[None], i_r[:, None] * SF + i_f[None]
    memory = tl.load(p_memory + i_m, mask=m_x, other=0.0).to(tl.float32)
    if RESET:
        fresh = ((i_r % N)[:, None] == i_f[None]).to(tl.float32)
        reset = tl.load(p_reset + (i_r // N)[:, None] + i_f[None] * 0, mask=m_x, other=0) != 0
        memory = tl.where(reset, fresh, memory)
        tl.store(p_start + i_m, memory, mask=m_x)
    tl.store(p_rows + i_x, memory, mask=m_x)
    if HIDDEN:
        tl.store(p_hidden + i_x, _tanh(memory), mask=m_x)


@triton.jit
def update_kernel(
    p_memory, p_attended, p_mlp, p_gates, p_gates_in, p_bias, p_weight, p_shift, p_out, p_rows, p_hidden,
    p_squashed, p_gate_weight, rows,
    N: tl.constexpr, F: tl.constexpr, SF: tl.constexpr, SG: tl.constexpr, SI: tl.constexpr,
    GATED: tl.constexpr,
    UNIT: tl.constexpr,
    FOLLOWED: tl.constexpr, EPS: tl.constexpr, R: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    i_r = tl.program_id(0) * R + tl.arange(0, R)
    i_f = tl.arange(0, FP)
    m_f = i_f < F
    m_x = (i_r < rows)[:, None] & m_f[None]
    i_m, i_x = i_r[:, None] * F + i_f[None], i_r[:, None] * SF + i_f[None]
    bias = tl.load(p_bias + i_f, mask=m_f, other=0.0)[None]
    weight = tl.load(p_weight + i_f, mask=m_f, other=0.0)[None]
    shift = tl.load(p_shift + i_f, mask=m_f, other=0.0)[None]
    _, _, memory = _candidate(p_attended, p_mlp, bias, weight, shift, i_x, m_x, F, EPS)
    if GATED:
        before = tl.load(p_memory + i_m, mask=m_x, other=0.0)
        m_r = i_r < rows
        if not UNIT:  # two gates a slot: their product is two sums along its row
            squashed = tl.load(p_squashed + i_x, mask=m_x, other=0.0).to(tl.float32)
            for part in tl.static_range(2):
                gate_weight = tl.load(p_gate_weight + part * SF + i_f, mask=m_f, other=0.0).to(tl.float32)
                logit = tl.sum(squashed * gate_weight[None], axis=1)
                tl.store(p_gates + i_r * SG + part, logit, mask=m_r)
            tl.debug_barrier()
        accept, retain = _gates(p_gates, p_gates_in, i_r, i_f, m_r, m_x, N, F, SG, SI, UNIT)
        memory = accept * _tanh(memory) + retain * before
    tl.store(p_out + i_m, memory, mask=m_x)
    if FOLLOWED:
        tl.store(p_rows + i_x, memory, mask=m_x)
        if GATED:
            tl.store(p_hidden + i_x, _tanh(memory), mask=m_x)


@triton.jit
def update_backward_kernel(
    p_grad, p_direct, p_qkv_part, p_gate_part, p_after, p_reset, p_memory, p_attended, p_mlp, p_gates,
    p_gates_in,
    p_bias, p_weight, p_shift, p_d_mlp, p_d_gates, p_sums, p_gate_weight, rows, tiles, columns,
    N: tl.constexpr, F: tl.constexpr, SF: tl.constexpr, SG: tl.constexpr, SI: tl.constexpr,
    GATED: tl.constexpr,
    UNIT: tl.constexpr,
    RESET: tl.constexpr, EPS: tl.constexpr, R: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    i_f = tl.arange(0, FP)
    m_f = i_f < F
    bias = tl.load(p_bias + i_f, mask=m_f, other=0.0)[None]
    weight = tl.load(p_weight + i_f, mask=m_f, other=0.0)[None]
    shift = tl.load(p_shift + i_f, mask=m_f, other=0.0)[None]
    if GATED and not UNIT:
        gate_1 = tl.load(p_gate_weight + i_f, mask=m_f, other=0.0).to(tl.float32)[None]
        gate_2 = tl.load(p_gate_weight + SF + i_f, mask=m_f, other=0.0).to(tl.float32)[None]
    sum_weight = tl.zeros([R, FP], tl.float32)
    sum_shift = tl.zeros([R, FP], tl.float32)
    sum_bias = tl.zeros([R, FP], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i_r = tile * R + tl.arange(0, R)
        m_r = i_r < rows
        m_x = m_r[:, None] & m_f[None]
        i_m, i_x = i_r[:, None] * F + i_f[None], i_r[:, None] * SF + i_f[None]
        total = tl.load(p_direct + i_m, mask=m_x, other=0.0)
        total += tl.load(p_qkv_part + i_x, mask=m_x, other=0.0).to(tl.float32)
        if GATED:
            squashed = tl.load(p_after + i_x, mask=m_x, other=0.0).to(tl.float32)
            if UNIT:
                part = tl.load(p_gate_part + i_x, mask=m_x, other=0.0).to(tl.float32)
            else:  # the gradients of the two gates, and here the product with their weights
                part = tl.load(p_gate_part + i_r * SG, mask=m_r, other=0.0).to(tl.float32)[:, None] * gate_1
                part += (
                    tl.load(p_gate_part + i_r * SG + 1, mask=m_r, other=0.0).to(tl.float32)[:, None] * gate_2
                )
            total += part * (1 - squashed * squashed)
        if RESET:
            reset = tl.load(p_reset + (i_r // N)[:, None] + i_f[None] * 0, mask=m_x, other=0) != 0
            total = tl.where(reset, 0.0, total)
        total += tl.load(p_grad + i_m, mask=m_x, other=0.0).to(tl.float32)
        normed, rstd, candidate = _candidate(p_attended, p_mlp, bias, weight, shift, i_x, m_x, F, EPS)
        if GATED:
            before = tl.load(p_memory + i_m, mask=m_x, other=0.0)
            accept, retain = _gates(p_gates, p_gates_in, i_r, i_f, m_r, m_x, N, F, SG, SI, UNIT)
            candidate = _tanh(candidate)
            d_accept = total * candidate * accept * (1 - accept)
            d_retain = total * before * retain * (1 - retain)
            if UNIT:
                i_g = i_r[:, None] * SG + i_f[None]
                tl.store(p_d_gates + i_g, d_accept, mask=m_x)
                tl.store(p_d_gates + i_g + F, d_retain, mask=m_x)
            else:
                tl.store(p_d_gates + i_r * SG, tl.sum(d_accept, axis=1), mask=m_r)
                tl.store(p_d_gates + i_r * SG + 1, tl.sum(d_retain, axis=1), mask=m_r)
            tl.store(p_direct + i_m, total * retain, mask=m_x)
            total = total * accept * (1 - candidate * candidate)
        else:
            tl.store(p_direct + i_m, tl.zeros_like(total), mask=m_x)
        sum_weight += total * normed
        sum_shift += total
        total *= weight
        mean_1 = (tl.sum(total, axis=1) / F)[:, None]
        mean_2 = (tl.sum(total * normed, axis=1) / F)[:, None]
        d_rows = tl.where(m_x, (total - mean_1 - normed * mean_2) * rstd, 0.0)
        tl.store(p_d_mlp + i_x, d_rows, mask=m_x)
        sum_bias += d_rows
    p_sums += tl.program_id(0) * columns
    _add_partial(p_sums, i_f, m_f, tl.sum(sum_weight, axis=0))
    _add_partial(p_sums, F + i_f, m_f, tl.sum(sum_shift, axis=0))
    _add_partial(p_sums, 2 * F + i_f, m_f, tl.sum(sum_bias, axis=0))


@triton.jit
def relu_backward_kernel(
    p_delta, p_active, p_sums, rows, tiles, columns,
    F: tl.constexpr, SF: tl.constexpr, R: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    i_f = tl.arange(0, FP)
    m_f = i_f < F
    total = tl.zeros([R, FP], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i_r = tile * R + tl.arange(0, R)
        i_x, m_x = i_r[:, None] * SF + i_f[None], (i_r < rows)[:, None] & m_f[None]
        active = tl.load(p_active + i_x, mask=m_x, other=0.0) > 0
        delta = tl.where(active, tl.load(p_delta + i_x, mask=m_x, other=0.0).to(tl.float32), 0.0)
        tl.store(p_delta + i_x, delta, mask=m_x)
        total += delta
    _add_partial(p_sums + tl.program_id(0) * columns, i_f, m_f, tl.sum(total, axis=0))


@triton.jit
def norm_kernel(
    p_raw,
    p_normed,
    p_rstd,
    rows,
    Q: tl.constexpr,
    SI: tl.constexpr,
    EPS: tl.constexpr,
    R: tl.constexpr,
    QP: tl.constexpr,
):
    """Rows without their mean, over their deviation; weight and shift are applied where they are read."""
    i_r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    i_q = tl.arange(0, QP)
    m_r = i_r < rows
    m_x = m_r[:, None] & (i_q < Q)[None]
    i_x = i_r[:, None] * SI + i_q[None]
    x = tl.load(p_raw + i_x, mask=m_x, other=0.0).to(tl.float32)
    x = tl.where(m_x, x - (tl.sum(x, axis=1) / Q)[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / Q + EPS)
    tl.store(p_normed + i_x, x * rstd[:, None], mask=m_x)
    tl.store(p_rstd + i_r, rstd, mask=m_r)


@triton.jit
def norm_backward_kernel(
    p_delta, p_normed, p_rstd, p_weight, p_sums, rows, tiles, columns,
    Q: tl.constexpr, SI: tl.constexpr, BIAS: tl.constexpr, R: tl.constexpr, QP: tl.constexpr,
):  # fmt: skip
    """In place: the gradient of the normed, weighted rows becomes that of the raw ones."""
    i_q = tl.arange(0, QP)
    m_q = i_q < Q
    weight = tl.load(p_weight + i_q, mask=m_q, other=0.0)[None]
    sum_weight, sum_shift = tl.zeros([R, QP], tl.float32), tl.zeros([R, QP], tl.float32)
    sum_bias = tl.zeros([R, QP], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i_r = (tile * R + tl.arange(0, R)).to(tl.int64)
        m_r = i_r < rows
        i_x, m_x = i_r[:, None] * SI + i_q[None], m_r[:, None] & m_q[None]
        delta = tl.load(p_delta + i_x, mask=m_x, other=0.0).to(tl.float32)
        normed = tl.load(p_normed + i_x, mask=m_x, other=0.0).to(tl.float32)
        sum_weight += delta * normed
        sum_shift += delta
        delta *= weight
        mean_1 = (tl.sum(delta, axis=1) / Q)[:, None]
        mean_2 = (tl.sum(delta * normed, axis=1) / Q)[:, None]
        rstd = tl.load(p_rstd + i_r, mask=m_r, other=0.0)[:, None]
        delta = tl.where(m_x, (delta - mean_1 - normed * mean_2) * rstd, 0.0)
        tl.store(p_delta + i_x, delta, mask=m_x)
        sum_bias += delta
    p_sums += tl.program_id(0) * columns
    if BIAS:
        _add_partial(p_sums, i_q, m_q, tl.sum(sum_bias, axis=0))
    _add_partial(p_sums, Q + i_q, m_q, tl.sum(sum_weight, axis=0))
    _add_partial(p_sums, 2 * Q + i_q, m_q, tl.sum(sum_shift, axis=0))


@triton.jit
def residual_backward_kernel(
    p_memory, p_read, p_d_attended, p_d_mlp, p_direct, p_weight, p_sums, rows, tiles, columns,
    F: tl.constexpr, SF: tl.constexpr, EPS: tl.constexpr, R: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """The attention's residual and norm: p_d_attended becomes, in place, the gradient of what was read."""
    i_f = tl.arange(0, FP)
    m_f = i_f < F
    weight = tl.load(p_weight + i_f, mask=m_f, other=0.0)[None]
    sum_weight, sum_shift = tl.zeros([R, FP], tl.float32), tl.zeros([R, FP], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        i_r = tile * R + tl.arange(0, R)
        m_x = (i_r < rows)[:, None] & m_f[None]
        i_m, i_x = i_r[:, None] * F + i_f[None], i_r[:, None] * SF + i_f[None]
        x = tl.load(p_memory + i_m, mask=m_x, other=0.0)
        x += tl.load(p_read + i_x, mask=m_x, other=0.0).to(tl.float32)
        delta = tl.load(p_d_attended + i_x, mask=m_x, other=0.0).to(tl.float32)
        delta += tl.load(p_d_mlp + i_x, mask=m_x, other=0.0).to(tl.float32)
        x = tl.where(m_x, x - (tl.sum(x, axis=1) / F)[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(x * x, axis=1) / F + EPS)[:, None]
        x *= rstd
        sum_weight += delta * x
        sum_shift += delta
        delta *= weight
        mean_1 = (tl.sum(delta, axis=1) / F)[:, None]
        mean_2 = (tl.sum(delta * x, axis=1) / F)[:, None]
        delta = tl.where(m_x, (delta - mean_1 - x * mean_2) * rstd, 0.0)
        tl.store(p_d_attended + i_x, delta, mask=m_x)
        tl.store(p_direct + i_m, tl.load(p_direct + i_m, mask=m_x, other=0.0) + delta, mask=m_x)
    p_sums += tl.program_id(0) * columns
    _add_partial(p_sums, i_f, m_f, tl.sum(sum_weight, axis=0))
    _add_partial(p_sums, F + i_f, m_f, tl.sum(sum_shift, axis=0))
