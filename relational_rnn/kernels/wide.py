"""Groups of four warps that multiply 64 rows together (cuda/wide*): forward, for many rows, on a Hopper GPU.

README.md explains them and says what they gain; sequence.py picks them.

Shapes: F features of a slot, Q = 3 F.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relational_rnn.kernels import nvrtc
from relational_rnn.kernels.recurrence import Parameters, outer
from relational_rnn.kernels.shapes import MANY_ROWS


def fits(size: int, head_size: int, device: torch.device) -> bool:
    """Whether these kernels can take such slots on that device."""
    if size != 256 or head_size not in (32, 64) or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) == (9, 0)


def wanted(rows: int, size: int, head_size: int, device: torch.device) -> bool:
    """Whether they also are faster: not known of fewer rows."""
    return rows > MANY_ROWS // 2 and fits(size, head_size, device)


def products(weight: Tensor, means: Tensor, bias: Tensor) -> Tensor:
    """W'W [F + 8, F + 8] of the centred weights of queries, keys and values, as they are multiplied, with
    their bias as one more column and then zeros: what the sum of squares of W m + b is made of."""
    features, size = weight.shape
    both = weight.new_zeros(features, size + 8, dtype=torch.bfloat16)
    both[:, :size].copy_(weight - means)
    both[:, size].copy_(bias)
    return outer(both, both).float()  # which it is already on a GPU


def pack(p: Parameters, kind, means: Tensor, vectors: Tensor, compiled) -> tuple[Tensor, Tensor]:
    """-> (the products' weights, what the sum of squares is made of). `means` of the weights of queries, keys
    and values, and all vectors, as sequence.py makes them."""
    source, size = p.qkv_weight, kind.F
    count = 4 + kind.LAYERS + (2 if kind.GATES == 2 else 0)  # of [F, F]
    packed = source.new_empty(count, size, size, dtype=torch.bfloat16)
    mlp = [*p.mlp_weights, *[source] * (5 - kind.LAYERS)]
    gate = source if p.gate_weight is None else p.gate_weight
    of_squares = vectors.new_empty(2 * size + 1)
    # the order is the same for all
    kind = kind._replace(ROWS=64, WARPS=8, DEPTH=8, KEEP=False, RESETS=False)
    squares = products(source, means, vectors[: 3 * size])
    args = [source, *mlp, gate, means, squares, packed, of_squares]
    nvrtc.launch(compiled, "wide_pack", kind, packed.numel() // (8 * 256), 256, args)
    return packed, of_squares
