"""Convolutions with TensorFlow's SAME padding, over grids whose channels come last.

Shapes: N grids of Y x X cells, C channels, O output channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_CELLS = 64  # of a grid up to which a convolution is a matrix product on a GPU


def same_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int = 1) -> Tensor:
    """x [N, Y, X, C], torch's weight [O, C, KY, KX] -> [N, ceil(Y / stride), ceil(X / stride), O]."""
    # Grids of some cells are not worth a convolution on a GPU: cuDNN takes longer to lay them out.
    small = x.is_cuda and x.shape[1] * x.shape[2] <= MOST_CELLS
    return (by_patches if small else by_convolution)(x, weight, bias, stride)


def by_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Torch takes the permuted view of a tensor without a copy (channels_last)."""
    sides = same_padding(x.shape[1:3], weight.shape[-2:], stride)
    x, left, right, top, bottom = x.permute(0, 3, 1, 2), *sides
    if (left, top) == (right, bottom):
        y = F.conv2d(x, weight, bias, stride, padding=(top, left))
    else:
        y = F.conv2d(F.pad(x, sides), weight, bias, stride)
    return y.permute(0, 2, 3, 1)


def by_patches(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """The same as one matrix product: a row holds the KY x KX cells that an output reads."""
    height, width = weight.shape[-2:]
    x = F.pad(x, (0, 0, *same_padding(x.shape[1:3], (height, width), stride)))
    down, right = x.shape[1] - height + 1, x.shape[2] - width + 1
    offsets = product(range(height), range(width))
    cells = [x[:, i : i + down : stride, j : j + right : stride] for i, j in offsets]
    return F.linear(torch.cat(cells, -1), weight.permute(0, 2, 3, 1).flatten(1), bias)


def same_padding(sizes: Sequence[int], kernel: Sequence[int], stride: int) -> list[int]:
    """[left, right, top, bottom]; an odd one goes right and below."""
    sides = []
    for size, reach in zip(reversed(sizes), reversed(kernel), strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
        sides += [total // 2, total - total // 2]
    return sides
