"""Cross entropy of logits and its gradient in one Triton kernel, the gradient in the logits' own memory.

Plain torch goes over the logits about ten times. Here they are read twice and written once, in the type of
the matrix product that made them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relational_rnn.kernels import on_gpu_of

MULTIPLE = 64  # of columns, so that matrix products of 16-bit logits are aligned


@triton.jit
def _cross_entropy_kernel(
    p_logits, p_targets, p_losses, words, width, ignored,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a row. Columns from `words` to `width` are padding: not read, and their gradient is 0."""
    row = tl.program_id(0).to(tl.int64)
    p_row = p_logits + row * width
    i = tl.arange(0, BLOCK)
    target = tl.load(p_targets + row)
    counts = target != ignored
    # Before the reductions, behind which all threads are: later some may have overwritten it already.
    own = tl.load(p_row + tl.where(counts, target, 0)).to(tl.float32)
    high, total = own, own * 0.0  # the highest so far, and the sum of exp(x - high)
    for start in range(0, words, BLOCK):
        x = tl.load(p_row + start + i, mask=start + i < words, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(high, tl.max(x, axis=0))
        total = total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher), axis=0)
        high = higher
    log_sum = high + tl.log(total)
    tl.store(p_losses + row, tl.where(counts, log_sum - own, 0.0))
    if GRADIENT:
        for start in range(0, width, BLOCK):
            c = start + i
            x = tl.load(p_row + c, mask=c < words, other=float("-inf")).to(tl.float32)
            d = tl.exp(x - log_sum) - tl.where(c == target, 1.0, 0.0)
            d = tl.where(counts, d, 0.0)
            tl.store(p_row + c, d.to(p_logits.dtype.element_ty), mask=c < width)


def cross_entropy_(logits: Tensor, targets: Tensor, words: int, ignored: int, gradient: bool) -> Tensor:
    """Losses [n] in float32 of logits [n, width], of which the first `words` columns count.

    With `gradient` the logits are overwritten by softmax - onehot(target), 0 in rows that are ignored.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    block = min(8192, triton.next_power_of_2(logits.shape[1]))
    if len(logits):
        with on_gpu_of(logits):
            _cross_entropy_kernel[(len(logits),)](
                logits, targets, losses, words, logits.shape[1], ignored, gradient, block, num_warps=8
            )
    return losses
