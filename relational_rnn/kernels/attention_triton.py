"""The attention of a step and its backward pass as Triton kernels: norm of qkv, attention, residual and norm.

Conventions and shapes as in rows_triton.py, which launches these. The forward kernel replaces the qkv
product by its normalised rows (mean taken off, over the deviation, before weight and shift), which is all
that the backward pass wants of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(p, i, m):
    return tl.load(p + i, mask=m, other=0.0).to(tl.float32)


@triton.jit
def _sum2(x):
    """Sum the last two axes, keeping them."""
    return tl.sum(tl.sum(x, axis=3), axis=2)[:, :, None, None]


@triton.jit
def _scaled_query(q, p_weight, p_shift, r_k, m_q, scale, K: tl.constexpr):
    """The query such that its product with a normalised key is the logit, but for what all keys share."""
    q = q.to(tl.float32) * _load(p_weight, r_k, m_q) + _load(p_shift, r_k, m_q)
    return q * _load(p_weight, K + r_k, m_q) * scale


@triton.jit
def attend_kernel(
    p_memory, p_qkv, p_in, p_out, p_read, p_total, p_rstd, p_bias, p_weight, p_shift, p_norm_weight,
    p_norm_shift,
    batch, scale,
    N: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SQ: tl.constexpr, SF: tl.constexpr,
    SI: tl.constexpr, EPS: tl.constexpr, S: tl.constexpr, NP: tl.constexpr, HP: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    D: tl.constexpr = 2 * K + V
    F: tl.constexpr = H * V
    Q: tl.constexpr = H * D
    i_b = (tl.program_id(0) * S + tl.arange(0, S))[:, None, None, None]
    i_n = tl.arange(0, NP)[None, :, None, None]
    i_h = tl.arange(0, HP)[None, None, :, None]
    i_1k, i_1v = tl.arange(0, KP)[None, None, None, :], tl.arange(0, VP)[None, None, None, :]
    m_row = (i_b < batch) & (i_n < N)
    m_q, m_x = m_row & (i_h < H) & (i_1k < K), m_row & (i_h < H) & (i_1v < V)
    row = i_b * N + i_n
    i_k, i_v, i_f = i_h * D + i_1k, i_h * D + i_1v, i_h * V + i_1v
    r_k, r_v, r_f = i_k + row * 0, i_v + row * 0, i_f + row * 0  # repeated for every row
    # the norm of queries, keys and values; the weights are centred, so there is no mean to take off
    q = _load(p_qkv, row * SQ + i_k, m_q) + _load(p_bias, r_k, m_q)
    k = _load(p_qkv, row * SQ + K + i_k, m_q) + _load(p_bias, K + r_k, m_q)
    v = _load(p_qkv, row * SQ + 2 * K + i_v, m_x) + _load(p_bias, 2 * K + r_v, m_x)
    rstd = tl.rsqrt((_sum2(q * q) + _sum2(k * k) + _sum2(v * v)) / Q + EPS)
    kind = p_qkv.dtype.element_ty
    q = (q * rstd).to(kind)
    tl.store(p_qkv + row * SQ + i_k, q, mask=m_q)
    tl.store(p_qkv + row * SQ + K + i_k, k * rstd, mask=m_q)
    tl.store(p_qkv + row * SQ + 2 * K + i_v, v * rstd, mask=m_x)
    tl.store(p_rstd + row, rstd, mask=m_row)
    q = _scaled_query(q, p_weight, p_shift, r_k, m_q, scale, K)
    tl.debug_barrier()
    # attention: the input's key and value first, then every slot's, read anew for all slots at once
    other = i_b * SI + i_n * 0
    read = _load(p_in, other + 2 * K + i_v, m_x)
    peak = tl.sum(q * _load(p_in, other + K + i_k, m_q), axis=3)  # [S, NP, HP]
    total = tl.full([S, NP, HP], 1.0, tl.float32)
    for i_first in range(0, N, STRIDE):  # STRIDE slots at a time, unrolled
        for i_next in tl.static_range(STRIDE):
            j = i_first + i_next
            other = (i_b * N + j + i_n * 0) * SQ
            logit = tl.sum(q * _load(p_qkv, other + K + i_k, m_q), axis=3)
            v = _load(p_qkv, other + 2 * K + i_v, m_x)
            higher = tl.maximum(peak, logit)
            old, new = tl.exp(peak - higher), tl.exp(logit - higher)
            total = total * old + new
            read = read * old[:, :, :, None] + new[:, :, :, None] * v
            peak = higher
    read = read / total[:, :, :, None] * _load(p_weight, 2 * K + r_v, m_x) + _load(p_shift, 2 * K + r_v, m_x)
    read = read.to(kind)
    tl.store(p_read + row * SF + i_f, read, mask=m_x)
    total = (peak + tl.log(total))[:, :, :, None]
    tl.store(p_total + row * H + i_h, total, mask=m_row & (i_h < H))
    # residual and norm
    rows = tl.where(m_x, _load(p_memory, row * F + i_f, m_x) + read.to(tl.float32), 0.0)
    rows = tl.where(m_x, rows - _sum2(rows) / F, 0.0)
    rows *= tl.rsqrt(_sum2(rows * rows) / F + EPS)
    rows = rows * _load(p_norm_weight, r_f, m_x) + _load(p_norm_shift, r_f, m_x)
    tl.store(p_out + row * SF + i_f, rows, mask=m_x)


@triton.jit
def attention_backward_kernel(
    p_qkv, p_in, p_read, p_total, p_d_read, p_d_qkv, p_d_in, p_weight, p_shift, scale,
    N: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SQ: tl.constexpr, SF: tl.constexpr,
    SI: tl.constexpr, NP: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """One head of one sample, in one warp: from the gradient of what was read to those of q, k and v."""
    D: tl.constexpr = 2 * K + V
    sample, head = tl.program_id(0), tl.program_id(1)
    i_n = tl.arange(0, NP)[:, None]
    i_1k, i_1v = tl.arange(0, KP)[None], tl.arange(0, VP)[None]
    i_k, i_v = head * D + i_1k + i_n * 0, head * D + i_1v + i_n * 0  # repeated for every slot
    m_q, m_x = (i_n < N) & (i_1k < K), (i_n < N) & (i_1v < V)
    row = sample * N + i_n
    own_q = _load(p_qkv, row * SQ + i_k, m_q) * _load(p_weight, i_k, m_q) + _load(p_shift, i_k, m_q)
    own_q *= scale
    # A key's shift moves all logits of a query alike, and a value's all that it reads: neither has a part in
    # the gradients of the logits. Their weights move to what a key and a value are multiplied with.
    q = own_q * _load(p_weight, K + i_k, m_q)
    i_x = row * SF + head * V + i_1v
    d_read = _load(p_d_read, i_x, m_x)
    d_value = d_read * _load(p_weight, 2 * K + i_v, m_x)
    inner = tl.sum(d_read * (_load(p_read, i_x, m_x) - _load(p_shift, 2 * K + i_v, m_x)), axis=1)  # [NP]
    softsum = tl.load(
        p_total + (sample * N + tl.arange(0, NP)) * H + head, mask=tl.arange(0, NP) < N, other=0.0
    )
    c_k, c_v = tl.arange(0, KP), tl.arange(0, VP)
    # the input's key and value first, then every slot's
    k, v = _load(p_in, sample * SI + K + i_k, m_q), _load(p_in, sample * SI + 2 * K + i_v, m_x)
    share = tl.exp(tl.sum(q * k, axis=1) - softsum)
    d_logit = share * (tl.sum(d_value * v, axis=1) - inner)
    d_q = d_logit[:, None] * k
    p_d_in += sample * SI + head * D
    tl.store(p_d_in + c_k, tl.zeros([KP], tl.float32), mask=c_k < K)
    tl.store(p_d_in + K + c_k, tl.sum(tl.where(m_q, d_logit[:, None] * own_q, 0.0), axis=0), mask=c_k < K)
    tl.store(p_d_in + 2 * K + c_v, tl.sum(tl.where(m_x, share[:, None] * d_read, 0.0), axis=0), mask=c_v < V)
    for i_first in range(0, N, STRIDE):
        for i_next in tl.static_range(STRIDE):
            j = i_first + i_next
            base = (sample * N + j) * SQ
            k, v = _load(p_qkv, base + K + i_k, m_q), _load(p_qkv, base + 2 * K + i_v, m_x)
            share = tl.exp(tl.sum(q * k, axis=1) - softsum)
            d_logit = share * (tl.sum(d_value * v, axis=1) - inner)
            d_q += d_logit[:, None] * k
            d_k = tl.sum(tl.where(m_q, d_logit[:, None] * own_q, 0.0), axis=0)
            d_v = tl.sum(tl.where(m_x, share[:, None] * d_read, 0.0), axis=0)
            tl.store(p_d_qkv + base + head * D + K + c_k, d_k, mask=c_k < K)
            tl.store(p_d_qkv + base + head * D + 2 * K + c_v, d_v, mask=c_v < V)
    tl.store(p_d_qkv + row * SQ + i_k, d_q * _load(p_weight, K + i_k, m_q) * scale, mask=m_q)
