"""What is left of a controller's LSTM when its products are made, and back, as Triton kernels.

The cell of lstm_triton.py, with rows of any stride, a limit for cells, and hidden states that go to several
places. A program takes BLOCK hidden states of any rows; gates in torch's order i, f, g, o.
"""

from __future__ import annotations

import triton
import triton.language as tl

from relational_rnn.kernels.lstm_triton import cell_back, cell_of
from relational_rnn.kernels.norms_triton import _tanh


@triton.jit
def cell_kernel(
    p_from, p_product, p_cell, p_resets, p_gates, p_next_cell, p_hidden, p_above, p_next,
    count, limit, hidden_stride, stride,
    WIDTH: tl.constexpr, ABOVE: tl.constexpr, LAST: tl.constexpr, RESETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """p_hidden, p_above (the layer above) and p_next (the next step) get the hidden state."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    row, feature = i // WIDTH, i % WIDTH
    at = row * (4 * WIDTH) + feature
    before = tl.load(p_cell + i, mask=m, other=0.0)
    cell, show = cell_of(p_from, p_product, p_gates, at, before, 0.0, m, 0, 2 * WIDTH, WIDTH, 3 * WIDTH)
    hidden = show * _tanh(cell)
    cell = tl.minimum(tl.maximum(cell, -limit), limit)
    tl.store(p_hidden + row * hidden_stride + feature, hidden, mask=m)
    if ABOVE:
        tl.store(p_above + row * stride + feature, hidden, mask=m)
    if RESETS:
        begins = tl.load(p_resets + row, mask=m, other=0) != 0
        cell = tl.where(begins, 0.0, cell)
        hidden = tl.where(begins, 0.0, hidden)
    tl.store(p_next_cell + i, cell, mask=m)
    if not LAST:
        tl.store(p_next + row * stride + feature, hidden, mask=m)


@triton.jit
def cell_backward_kernel(
    p_gates, p_cell, p_resets, p_d_hidden, p_d_above, p_d_next, p_d_cell, p_d_gates,
    count, limit, hidden_stride, stride, next_stride,
    WIDTH: tl.constexpr, ABOVE: tl.constexpr, RESETS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the hidden state from its three places; p_d_cell holds the gradient of the cell after the
    step, and then that of the cell before it."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    row, feature = i // WIDTH, i % WIDTH
    at = row * (4 * WIDTH) + feature
    before = tl.load(p_cell + i, mask=m, other=0.0)
    d_cell = tl.load(p_d_cell + i, mask=m, other=0.0)
    d_next = tl.load(p_d_next + row * next_stride + feature, mask=m, other=0.0)
    if RESETS:
        begins = tl.load(p_resets + row, mask=m, other=0) != 0
        d_cell = tl.where(begins, 0.0, d_cell)
        d_next = tl.where(begins, 0.0, d_next)
    d_hidden = d_next + tl.load(p_d_hidden + row * hidden_stride + feature, mask=m, other=0.0)
    if ABOVE:
        d_hidden += tl.load(p_d_above + row * stride + feature, mask=m, other=0.0)
    d_cell = cell_back(
        p_gates, p_d_gates, at, before, d_cell, d_hidden, limit, m, 0, 2 * WIDTH, WIDTH, 3 * WIDTH
    )
    tl.store(p_d_cell + i, d_cell, mask=m)
