"""Groups of four warps that multiply 64 rows together (cuda/wide*): for many rows, on a Hopper GPU.

It was compiled for one and has run in tests/kernels/simt, not yet on a GPU, so it waits for
`RELATIONAL_RNN_WIDE=1`; README.md says what is expected of it. sequence.py picks it.

Shapes: F features of a slot, Q = 3 F.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from relational_rnn.kernels import nvrtc
from relational_rnn.kernels.recurrence import Parameters, outer

ENABLED = os.environ.get("RELATIONAL_RNN_WIDE") == "1"  # once, so that both passes agree


def wanted(size: int, head_size: int, device: torch.device) -> bool:
    """Whether these kernels can take such slots on that device, and shall."""
    if not ENABLED or size != 256 or head_size not in (32, 64):
        return False
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def products(weight: Tensor, means: Tensor, bias: Tensor) -> Tensor:
    """W'W [F + 8, F + 8] of the centred weights of queries, keys and values, as they are multiplied, with
    their bias as one more column and then zeros: what the sum of squares of W m + b is made of."""
    features, size = weight.shape
    both = weight.new_zeros(features, size + 8, dtype=torch.bfloat16)
    both[:, :size].copy_(weight - means)
    both[:, size].copy_(bias)
    return outer(both, both).float()  # which it is already on a GPU


def pack(
    p: Parameters, kind, means: Tensor, vectors: Tensor, back: Tensor | None, compiled
) -> tuple[Tensor, Tensor]:
    """-> (the forward products' weights, what the sum of squares is made of); writes those of the way back.
    `means` of the weights of queries, keys and values, and all vectors, as sequence.py makes them."""
    source, size = p.qkv_weight, kind.F
    count = 4 + kind.LAYERS + (2 if kind.GATES == 2 else 0)  # of [F, F]
    packed = source.new_empty(count, size, size, dtype=torch.bfloat16)
    mlp = [*p.mlp_weights, *[source] * (5 - kind.LAYERS)]
    gate = source if p.gate_weight is None else p.gate_weight
    of_squares = vectors.new_empty(2 * size + 1)
    kind = kind._replace(ROWS=64, WARPS=8, DEPTH=8, RESETS=False)  # the order is the same for all
    blocks = (packed.numel() + (0 if back is None else back.numel())) // (8 * 256)
    squares = products(source, means, vectors[: 3 * size])
    args = [source, *mlp, gate, means, squares, packed, packed if back is None else back, of_squares]
    nvrtc.launch(compiled, "wide_pack", kind, blocks, 256, args)
    return packed, of_squares
