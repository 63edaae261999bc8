"""Convolutional LSTM, as Sonnet's Conv2DLSTM: a grid of LSTM cells that read their neighbourhood.

Shapes: T time, B batch, Y height, X width, C input channels, O output channels. Channels come last, as in the
original.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relational_rnn.cores.base import (
    RecurrentCore,
    initialize_like_sonnet,
    require,
    require_batch,
    require_numbers,
    select,
)
from relational_rnn.cores.convolution import same_conv2d
from relational_rnn.kernels import lstm as fused


def lstm_gates(gates: Tensor, cell: Tensor, forget_bias: float) -> tuple[Tensor, Tensor]:
    """Sonnet's LSTM equations on the last axis, gates in the order i, j, f, o -> (hidden, cell)."""
    i, j, f, o = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(f + forget_bias) * cell + torch.sigmoid(i) * torch.tanh(j)
    return torch.tanh(cell) * torch.sigmoid(o), cell


class ConvLSTM(RecurrentCore):
    """One layer over x [T, B, Y, X, C]; the state is (hidden, cell), each [B, Y, X, O]; the output is hidden.

    Two convolutions of stride 1 and SAME padding, one of the input and one of the hidden state, each with a
    bias (as in Sonnet), give the four gates. The input's convolution is taken for all steps at once.

    Args:
        input_shape: (height, width, channels) of one step's input.
        output_channels: O.
        kernel_size: an integer or (height, width).
        forget_bias: a constant added to the forget gate, not trained.
        use_bias: whether the two convolutions have a bias.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        output_channels: int,
        kernel_size: int | tuple[int, int],
        forget_bias: float = 1.0,
        *,
        use_bias: bool = True,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        kernel_size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
        allowed = "(height, width, channels), each at least 1"
        require(_sizes(input_shape, 3), "input_shape", input_shape, allowed)
        require(_sizes(kernel_size, 2), "kernel_size", kernel_size, "an integer or a pair, each at least 1")
        require(_sizes((output_channels,), 1), "output_channels", output_channels, "an integer of at least 1")
        input_shape, kernel_size = tuple(input_shape), tuple(kernel_size)
        self.input_shape, self.output_shape = input_shape, (*input_shape[:2], output_channels)
        self.kernel_size, self.output_channels = kernel_size, output_channels
        require_numbers(forget_bias=forget_bias)
        self.forget_bias = float(forget_bias)
        options = dict(bias=use_bias, device=device, dtype=dtype)
        self.input_conv = nn.Conv2d(input_shape[2], 4 * output_channels, kernel_size, **options)
        self.hidden_conv = nn.Conv2d(output_channels, 4 * output_channels, kernel_size, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initialize_like_sonnet(self)

    def initial_state(self, batch_size: int, *, device=None, dtype=None) -> tuple[Tensor, Tensor]:
        require_batch(batch_size)
        weight = self.hidden_conv.weight
        options = dict(device=weight.device if device is None else device, dtype=dtype or weight.dtype)
        zeros = torch.zeros(batch_size, *self.output_shape, **options)
        return zeros, zeros.clone()

    def step(self, x: Tensor, state):
        self._check_step(x, state)
        if not torch.is_grad_enabled() and fused.takes(x[None], self.output_channels, self.layout):
            output, state = self._scan_fused(x[None], state, None)
            return output[0], state
        return self._step(same_conv2d(x, self.input_conv.weight, self.input_conv.bias), state)

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if x.shape[0] == 0 or x.shape[1] == 0:
            return self._nothing(x, state)
        if fused.takes(x, self.output_channels, self.layout):
            return self._scan_fused(x, state, resets)
        from_input = same_conv2d(x.flatten(0, 1), self.input_conv.weight, self.input_conv.bias)
        from_input = from_input.unflatten(0, x.shape[:2])  # [T, B, Y, X, 4O]
        fresh = None if resets is None else self.initial_like(state)
        outputs = []
        for t in range(x.shape[0]):
            if resets is not None:
                state = select(resets[t], fresh, state)
            output, state = self._step(from_input[t], state)
            outputs.append(output)
        return torch.stack(outputs), state

    @property
    def layout(self) -> fused.Layout:
        return fused.Layout(self.output_shape[:2], self.kernel_size, "ijfo", self.forget_bias)

    def _scan_fused(self, x: Tensor, state, resets: Tensor | None):
        weight, bias, width = self.hidden_conv.weight, self.input_conv.bias, self.output_channels
        if bias is not None:
            bias = bias + self.hidden_conv.bias
        from_input = same_conv2d(x.flatten(0, 1), self.input_conv.weight, bias)  # [T B, Y, X, 4O]
        from_input = from_input.reshape(x.shape[0], -1, 4 * width)
        hidden, cell = (part.to(weight.dtype).reshape(-1, width) for part in state)
        matrix = weight.to(from_input.dtype).permute(2, 3, 1, 0).reshape(-1, 4 * width)  # [taps O, 4O]
        output, hidden, cell = fused.scan(from_input, hidden, cell, matrix, resets, self.layout)
        shape = (-1, *self.output_shape)
        return output.view(x.shape[0], *shape), (hidden.view(shape), cell.view(shape))

    def _step(self, from_input: Tensor, state):
        weight, bias = self.hidden_conv.weight, self.hidden_conv.bias
        hidden, cell = (part.to(weight.dtype) for part in state)
        from_hidden = same_conv2d(hidden, weight, bias)  # [B, Y, X, 4O]
        gates = from_input.to(weight.dtype) + from_hidden.to(weight.dtype)  # float32 under autocast too
        hidden, cell = lstm_gates(gates, cell, self.forget_bias)
        return hidden, (hidden, cell)

    def extra_repr(self) -> str:
        return f"input_shape={self.input_shape}, output_channels={self.output_channels}"


def _sizes(values: Any, count: int) -> bool:
    """So many whole numbers of at least 1; True is not one."""
    if not isinstance(values, tuple | list) or len(values) != count:
        return False
    return all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)
