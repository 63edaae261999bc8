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
from relational_rnn.kernels.recurrence import Parameters

ARCHITECTURE = "90a"  # its instructions are no other GPU's
FILES = {
    "wide_forward": ("tiles.cuh", "attention.cuh", "wide.cuh", "wide_forward.cu"),
    "wide_backward": ("tiles.cuh", "attention.cuh", "wide.cuh", "wide_backward.cu"),
    "wide_pack": ("tiles.cuh", "wide_pack.cu"),
}
SLAB, TILE = 24 * 1024, 32 * 1024  # bytes: of weights that come at a time; of a group's rows
MULTIPROCESSORS, SHARED_BYTES = 132, 227 * 1024


ENABLED = os.environ.get("RELATIONAL_RNN_WIDE") == "1"  # once, so that both passes agree


def wanted(size: int, head_size: int, device: torch.device) -> bool:
    """Whether these kernels can take such slots on that device, and shall."""
    if not ENABLED or size != 256 or head_size not in (32, 64):
        return False
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def shape(kind, rows: int):
    """`kind`, a sequence.Shape, for so many rows: two groups a program where all multiprocessors have one."""
    groups = 1 if rows <= 64 * MULTIPROCESSORS else 2
    depth = (SHARED_BYTES - 256 - groups * TILE) // SLAB
    return kind._replace(
        ROWS=64 * groups, WARPS=4 * groups + 4, CLUSTER=1, TOGETHER=1, DEPTH=depth, WIDE=True
    )


def sums(kind) -> int:
    """Warps of a program that multiply: each has its own column sums."""
    return kind.ROWS // 16


def shared_bytes(kind, name: str) -> int:
    return 1024 if name == "wide_pack" else 256 + kind.ROWS // 64 * TILE + kind.DEPTH * SLAB


def squares(p: Parameters, bias: Tensor) -> tuple[Tensor, Tensor]:
    """-> (W'W without its diagonal [F, F], and 2 W'b, that diagonal and b'b, one after the other), with W as
    it is multiplied and b, `bias`, both centred: what the sum of squares of W m + b is made of."""
    weight = p.qkv_weight.float()
    weight = (weight - weight.mean(0)).bfloat16()  # [Q, F]
    products, exact = weight.t() @ weight, weight.float()
    parts = (2 * (bias @ exact), exact.square().sum(0), bias.square().sum()[None])
    return products.fill_diagonal_(0), torch.cat(parts)


def pack(
    p: Parameters, kind, means: Tensor, vectors: Tensor, back: Tensor | None, compiled
) -> tuple[Tensor, Tensor]:
    """-> (the forward products' weights, what `squares` says); writes those of the way back. `means` of the
    weights of queries, keys and values, and all vectors, as sequence.py makes them."""
    source, size = p.qkv_weight, kind.F
    count = 4 + kind.LAYERS + (2 if kind.GATES == 2 else 0)  # of [F, F]
    packed = source.new_empty(count, size, size, dtype=torch.bfloat16)
    mlp = [*p.mlp_weights, *[source] * (5 - kind.LAYERS)]
    gate = source if p.gate_weight is None else p.gate_weight
    products, of_squares = squares(p, vectors[: 3 * size])
    kind = kind._replace(ROWS=64, WARPS=8, DEPTH=8, RESETS=False)  # the order is the same for all
    blocks = (packed.numel() + (0 if back is None else back.numel())) // (8 * 256)
    args = [source, *mlp, gate, means, products, packed, packed if back is None else back]
    nvrtc.launch(compiled, "wide_pack", kind, blocks, 256, args)
    return packed, of_squares
