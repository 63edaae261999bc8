"""The LSTM of Sonnet v1 as a core, computed by torch's nn.LSTM (cuDNN on a GPU).

Shapes: T time, B batch, U hidden_size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relational_rnn.cores.base import (
    RecurrentCore,
    require_batch,
    require_numbers,
    require_sizes,
    select,
)
from relational_rnn.kernels import autocasts, no_autocast, transformed
from relational_rnn.kernels import lstm as fused

SHUT = 1e4  # a gate's input that makes it 0 exactly, in every type
ALIGNED = 8  # features: a GPU multiplies rows that do not begin at whole 16 bytes at half the speed


def _missing(x: Tensor, more: int = 0) -> int:
    """Features of zeros to add to those of x and so many more."""
    return -(x.shape[-1] + more) % ALIGNED if x.is_cuda else 0


def plain_cell(x: Tensor, hidden: Tensor, cell: Tensor, weights) -> tuple[Tensor, Tensor]:
    """torch.lstm_cell -> (hidden, cell), by operators that torch.func's transforms know; that one is not."""
    from_input, from_hidden, *biases = weights
    gates = F.linear(x, from_input, biases[0]) + F.linear(hidden, from_hidden, biases[1])
    i, f, j, o = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(j)
    return torch.sigmoid(o) * torch.tanh(cell), cell


class Folded(NamedTuple):
    """Weights as the fused recurrence multiplies them."""

    from_input: Tensor  # [4U, input_size and zeros]
    bias: Tensor  # [4U]
    from_hidden: Tensor  # [U, 4U]


class LSTM(RecurrentCore):
    """One layer; the state is (hidden, cell), each [B, U]; the output is the hidden state.

    As in Sonnet the forget gate's bias gets a constant `forget_bias`, and weights and bias both start from a
    normal distribution of standard deviation 1/sqrt(input_size + hidden_size), cut at two deviations.
    Both live in an `nn.LSTM`, whose second bias is not trained: it holds the constant.

    `exact_cells`: on a GPU under 16-bit autocast cuDNN rounds the cell at every step; with this sequences
    take the kernels that are for resets (kernels/lstm.py), which keep it in float32.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float = 1.0,
        *,
        exact_cells: bool = False,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        require_sizes(input_size=input_size, hidden_size=hidden_size)
        require_numbers(forget_bias=forget_bias)
        self.hidden_size, self.exact_cells = hidden_size, exact_cells
        self.forget_bias = float(forget_bias)
        self.input_shape, self.output_shape = (input_size,), (hidden_size,)
        self.lstm = nn.LSTM(input_size, hidden_size, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        std = 1 / math.sqrt(self.input_size + self.hidden_size)
        for parameter in (self.lstm.weight_ih_l0, self.lstm.weight_hh_l0, self.lstm.bias_ih_l0):
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
        constant = self.lstm.bias_hh_l0
        constant.zero_()
        constant[self.hidden_size : 2 * self.hidden_size] = self.forget_bias  # torch's order: i, f, g, o
        constant.requires_grad_(False)

    def initial_state(self, batch_size: int, *, device=None, dtype=None) -> tuple[Tensor, Tensor]:
        require_batch(batch_size)
        weight = self.lstm.weight_hh_l0
        device = weight.device if device is None else device
        zeros = torch.zeros(batch_size, self.hidden_size, device=device, dtype=dtype or weight.dtype)
        return zeros, zeros.clone()

    def fold(self) -> Folded | None:
        """The weights as the fused recurrence takes them, for many steps: `step(x, state, folded)`.

        They do not follow the parameters, and have no gradients: fold again after an update. None where there
        is nothing to gain.
        """
        if not fused.takes(self.lstm.weight_hh_l0, self.hidden_size):
            return None
        with torch.no_grad():
            return Folded(*(part.clone() for part in self._fold()))

    def _fold(self) -> Folded:
        lstm = self.lstm
        dtype, missing = self.computed_in(lstm.weight_ih_l0.device.type), _missing(lstm.weight_ih_l0)
        from_input = F.pad(lstm.weight_ih_l0, (0, missing)) if missing else lstm.weight_ih_l0
        bias, from_hidden = lstm.bias_ih_l0 + lstm.bias_hh_l0, lstm.weight_hh_l0.to(dtype).t().contiguous()
        return Folded(from_input.to(dtype), bias.to(dtype), from_hidden)

    def step(self, x: Tensor, state, folded: Folded | None = None):
        self._check_step(x, state)
        if folded is None:
            output, state = self._run(x.unsqueeze(0), state)
        else:
            output, state = self._scan_fused(x.unsqueeze(0), state, None, folded)
        return output[0], state

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if x.shape[0] == 0 or x.shape[1] == 0:
            return self._nothing(x, state)
        would_round = self.exact_cells and self.computed_in(x.device.type).itemsize == 2
        if (resets is not None or would_round) and fused.takes(x, self.hidden_size):
            return self._scan_fused(x, state, resets, self._fold())
        if resets is None:
            return self._run(x, state)
        if _unknown(resets):
            return super().scan(x, state, resets)
        fresh = self.initial_like(state)
        cuts = resets.any(dim=1).nonzero().flatten().tolist()
        outputs = []
        for begin, end in zip([0, *cuts], [*cuts, x.shape[0]], strict=True):
            if begin in cuts:
                state = select(resets[begin], fresh, state)
            if end > begin:
                output, state = self._run(x[begin:end], state)
                outputs.append(output)
        return torch.cat(outputs), state

    def _scan_fused(self, x: Tensor, state, resets: Tensor | None, folded: Folded):
        hidden, cell = state
        dtype = folded.bias.dtype
        with no_autocast(x.device.type):
            x = F.pad(x, (0, folded.from_input.shape[1] - x.shape[-1])).to(dtype)
            inputs = F.linear(x, folded.from_input, folded.bias)
            output, hidden, cell = fused.scan(inputs, hidden.to(dtype), cell, folded.from_hidden, resets)
        return output, (hidden, cell)

    def scan_late(self, x: Tensor, begins: Tensor, input_weight: Tensor | None = None):
        """Without a reset, which cuDNN does not know: with its input gates shut a state of zeros stays as it
        is. What shuts them is one more feature of the input, whose weight is a constant."""
        if x.shape[0] == 0 or x.shape[1] == 0:
            return super().scan_late(x, begins)
        weight = self.lstm.weight_ih_l0 if input_weight is None else input_weight
        shuts = torch.zeros_like(weight[:, :1])
        shuts[: self.hidden_size] = -SHUT  # torch's order: i, f, g, o
        absent = torch.arange(x.shape[0], device=x.device).unsqueeze(-1) < begins
        x = x.to(self.computed_in(x.device.type))  # as `cat` wants it under autocast
        x = x.masked_fill(absent.unsqueeze(-1), 0)  # NaN or a large number would open them again
        # with zeros behind it, in one copy, for what _run would add
        absent = F.pad(absent.unsqueeze(-1).to(x.dtype), (0, _missing(x, 1)))
        weight = torch.cat([weight, F.pad(shuts, (0, absent.shape[-1] - 1))], dim=1)
        state = self.initial_state(x.shape[1], device=x.device)
        return self._run(torch.cat([x, absent], dim=-1), state, weight)

    def computed_in(self, device_type: str) -> torch.dtype:
        """Its parameters' dtype, or autocast's, which leaves float64 alone as torch does."""
        dtype = self.lstm.weight_hh_l0.dtype
        if autocasts(device_type) and dtype != torch.float64:
            return torch.get_autocast_dtype(device_type)
        return dtype

    def _run(self, x: Tensor, state, input_weight: Tensor | None = None):
        """What self.lstm does, with its weights as they are now: where torch.func.functional_call has put
        others in their place, self.lstm would move the parameters in memory. And under autocast in the type
        that autocast has, where cuDNN would take float16. `input_weight`: in place of the layer's own."""
        lstm, kind = self.lstm, x.device.type
        weights = [lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0]
        dtype = self.computed_in(kind)
        if input_weight is not None:
            weights[0] = input_weight
        if missing := _missing(x):
            x, weights[0] = F.pad(x, (0, missing)), F.pad(weights[0], (0, missing))
        if dtype != weights[0].dtype or not all(weight.is_leaf for weight in weights):
            flat = torch.cat([weight.flatten() for weight in weights]).to(dtype)  # in one piece, for cuDNN
            parts = flat.split([weight.numel() for weight in weights])
            weights = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        hidden, cell = (part.to(dtype).unsqueeze(0).contiguous() for part in state)
        if transformed():
            return self._step_by_step(x.to(dtype), hidden[0], cell[0], weights)
        with no_autocast(kind):
            output, hidden, cell = torch.lstm(
                x.to(dtype), (hidden, cell), weights, True, 1, 0.0, self.training, False, False
            )
        return output, (hidden[0], cell[0])

    @staticmethod
    def _step_by_step(x: Tensor, hidden: Tensor, cell: Tensor, weights):
        outputs = []
        with no_autocast(x.device.type):
            for now in x:
                hidden, cell = plain_cell(now, hidden, cell, weights)
                outputs.append(hidden)
        return torch.stack(outputs), (hidden, cell)

    def extra_repr(self) -> str:
        return f"input_size={self.input_size}, hidden_size={self.hidden_size}, forget_bias={self.forget_bias}"


def _unknown(resets: Tensor) -> bool:
    """Whether their values cannot be read, so that nobody knows where to cut."""
    capturing = resets.is_cuda and torch.cuda.is_current_stream_capturing()
    return capturing or resets.is_meta or transformed() or torch.compiler.is_exporting()
