"""What is left of an LSTM's step when its products are made, and back, as Triton kernels.

A program takes BLOCK hidden states of any rows. lstm.py launches these and says what rows and taps are; names
as in rows_triton.py. WIDTH is the hidden size, HEIGHT x ACROSS the grid; ACCEPT, NEW, RETAIN and SHOW are
where the gates i, j, f and o begin in a row of 4 WIDTH. The controller of a DNC has the same cell
(dnc_triton.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from relational_rnn.kernels.norms_triton import _tanh


@triton.jit
def _gate(p_from, p_product, i, m):
    from_input = tl.load(p_from + i, mask=m, other=0.0).to(tl.float32)
    return from_input + tl.load(p_product + i, mask=m, other=0.0).to(tl.float32)


@triton.jit
def cell_of(
    p_from, p_product, p_gates, at, before, forget_bias, m,
    ACCEPT: tl.constexpr, NEW: tl.constexpr, RETAIN: tl.constexpr, SHOW: tl.constexpr,
):  # fmt: skip
    """-> the cell after a step, and the gate before its output; gates are kept for the way back."""
    accept = tl.sigmoid(_gate(p_from, p_product, at + ACCEPT, m))
    new = _tanh(_gate(p_from, p_product, at + NEW, m))
    retain = tl.sigmoid(_gate(p_from, p_product, at + RETAIN, m) + forget_bias)
    show = tl.sigmoid(_gate(p_from, p_product, at + SHOW, m))
    tl.store(p_gates + at + ACCEPT, accept, mask=m)
    tl.store(p_gates + at + NEW, new, mask=m)
    tl.store(p_gates + at + RETAIN, retain, mask=m)
    tl.store(p_gates + at + SHOW, show, mask=m)
    return retain * before + accept * new, show


@triton.jit
def cell_back(
    p_gates, p_d_gates, at, before, d_cell, d_hidden, limit, m,
    ACCEPT: tl.constexpr, NEW: tl.constexpr, RETAIN: tl.constexpr, SHOW: tl.constexpr,
):  # fmt: skip
    """-> the gradient of the cell before a step. d_cell is that of the one after it, cut off at +-limit."""
    accept = tl.load(p_gates + at + ACCEPT, mask=m, other=0.0).to(tl.float32)
    new = tl.load(p_gates + at + NEW, mask=m, other=0.0).to(tl.float32)
    retain = tl.load(p_gates + at + RETAIN, mask=m, other=0.0).to(tl.float32)
    show = tl.load(p_gates + at + SHOW, mask=m, other=0.0).to(tl.float32)
    cell = retain * before + accept * new
    shown = _tanh(cell)
    d_cell = tl.where(tl.abs(cell) <= limit, d_cell, 0.0) + d_hidden * show * (1 - shown * shown)
    tl.store(p_d_gates + at + ACCEPT, d_cell * new * accept * (1 - accept), mask=m)
    tl.store(p_d_gates + at + NEW, d_cell * accept * (1 - new * new), mask=m)
    tl.store(p_d_gates + at + RETAIN, d_cell * before * retain * (1 - retain), mask=m)
    tl.store(p_d_gates + at + SHOW, d_hidden * shown * show * (1 - show), mask=m)
    return d_cell * retain


@triton.jit
def forward_kernel(
    p_from, p_product, p_cell, p_resets, p_gates, p_output, p_next_cell, p_next_read, count, forget_bias,
    WIDTH: tl.constexpr, HEIGHT: tl.constexpr, ACROSS: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr,
    ACCEPT: tl.constexpr, NEW: tl.constexpr, RETAIN: tl.constexpr, SHOW: tl.constexpr,
    RESETS: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    row, feature = i // WIDTH, i % WIDTH
    at = row * (4 * WIDTH) + feature
    before = tl.load(p_cell + i, mask=m, other=0.0)
    cell, show = cell_of(p_from, p_product, p_gates, at, before, forget_bias, m, ACCEPT, NEW, RETAIN, SHOW)
    hidden = show * _tanh(cell)
    tl.store(p_output + i, hidden, mask=m)
    if RESETS:
        begins = tl.load(p_resets + row // (HEIGHT * ACROSS), mask=m, other=0) != 0
        cell = tl.where(begins, 0.0, cell)
        hidden = tl.where(begins, 0.0, hidden)
    tl.store(p_next_cell + i, cell, mask=m)
    if not LAST:
        y, x = row // ACROSS % HEIGHT, row % ACROSS
        for ky in tl.static_range(KY):
            for kx in tl.static_range(KX):
                down, right = TOP - ky, LEFT - kx
                inside = (y + down >= 0) & (y + down < HEIGHT) & (x + right >= 0) & (x + right < ACROSS)
                place = (row + down * ACROSS + right) * (KY * KX * WIDTH) + (ky * KX + kx) * WIDTH + feature
                tl.store(p_next_read + place, hidden, mask=m & inside)


@triton.jit
def backward_kernel(
    p_d_output, p_gates, p_cell, p_resets, p_d_read, p_d_cell, p_d_gates, count,
    WIDTH: tl.constexpr, HEIGHT: tl.constexpr, ACROSS: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    TOP: tl.constexpr, LEFT: tl.constexpr,
    ACCEPT: tl.constexpr, NEW: tl.constexpr, RETAIN: tl.constexpr, SHOW: tl.constexpr,
    RESETS: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p_d_cell holds the gradient of the cell after the step, and then that of the cell before it."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    row, feature = i // WIDTH, i % WIDTH
    at = row * (4 * WIDTH) + feature
    d_cell = tl.load(p_d_cell + i, mask=m, other=0.0)
    d_hidden = tl.zeros([BLOCK], dtype=tl.float32)
    if not LAST:
        y, x = row // ACROSS % HEIGHT, row % ACROSS
        for ky in tl.static_range(KY):
            for kx in tl.static_range(KX):
                down, right = TOP - ky, LEFT - kx
                inside = (y + down >= 0) & (y + down < HEIGHT) & (x + right >= 0) & (x + right < ACROSS)
                place = (row + down * ACROSS + right) * (KY * KX * WIDTH) + (ky * KX + kx) * WIDTH + feature
                d_hidden += tl.load(p_d_read + place, mask=m & inside, other=0.0).to(tl.float32)
    if RESETS:
        begins = tl.load(p_resets + row // (HEIGHT * ACROSS), mask=m, other=0) != 0
        d_cell = tl.where(begins, 0.0, d_cell)
        d_hidden = tl.where(begins, 0.0, d_hidden)
    d_hidden += tl.load(p_d_output + i, mask=m, other=0.0).to(tl.float32)
    before = tl.load(p_cell + i, mask=m, other=0.0)
    nowhere = float("inf")
    d_cell = cell_back(
        p_gates, p_d_gates, at, before, d_cell, d_hidden, nowhere, m, ACCEPT, NEW, RETAIN, SHOW
    )
    tl.store(p_d_cell + i, d_cell, mask=m)
