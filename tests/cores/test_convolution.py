"""Convolutions with SAME padding: where the padding goes, and that both ways are the same."""

import pytest
import torch
from torch import nn

from relational_rnn.cores.convolution import by_convolution, by_patches, same_conv2d, same_padding


def test_same_padding():
    """As TensorFlow: the odd one goes right and below."""
    assert same_padding((5, 5), (2, 2), 1) == [0, 1, 0, 1]
    assert same_padding((5, 5), (3, 3), 2) == [1, 1, 1, 1]
    assert same_padding((4, 5), (3, 3), 2) == [1, 1, 0, 1]
    assert same_padding((2, 1), (1, 4), 1) == [1, 2, 0, 0]


def test_by_hand():
    """The sum of every cell, its right neighbour, the one below and the one right below."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, :, :, None]
    ones, bias = torch.ones(1, 1, 2, 2), torch.tensor([0.5])
    assert same_conv2d(x, ones, bias)[0, :, :, 0].tolist() == [[10.5, 6.5], [7.5, 4.5]]


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [((5, 5), 2, 1), ((5, 4), 3, 2), ((1, 2), 3, 1), ((2, 1), (1, 4), 1)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_patches_are_convolutions(size, kernel, stride, bias):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 7, kernel, stride, bias=bias).double()
    x = torch.randn(4, *size, 3, dtype=torch.float64)
    expected = by_convolution(x, layer.weight, layer.bias, stride)
    assert expected.shape == (4, -(-size[0] // stride), -(-size[1] // stride), 7)
    torch.testing.assert_close(by_patches(x, layer.weight, layer.bias, stride), expected)
