"""The LSTM of Sonnet v1 as a core, computed by torch's nn.LSTM (cuDNN on a GPU).

Shapes: T time, B batch, U hidden_size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from relational_rnn.cores.base import RecurrentCore, require_sizes, select

SHUT = 1e4  # a gate's input that makes it 0 exactly, in every type


class LSTM(RecurrentCore):
    """One layer; the state is (hidden, cell), each [B, U]; the output is the hidden state.

    As in Sonnet the forget gate's bias gets a constant `forget_bias`, and weights and bias both start from a
    normal distribution of standard deviation 1/sqrt(input_size + hidden_size), cut at two deviations.
    Both live in an `nn.LSTM`, whose second bias is not trained: it holds the constant.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float = 1.0,
        *,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        require_sizes(input_size=input_size, hidden_size=hidden_size)
        self.hidden_size = hidden_size
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
        weight = self.lstm.weight_hh_l0
        device = weight.device if device is None else device
        zeros = torch.zeros(batch_size, self.hidden_size, device=device, dtype=dtype or weight.dtype)
        return zeros, zeros.clone()

    def step(self, x: Tensor, state):
        self._check_step(x, state)
        output, state = self._run(x.unsqueeze(0), state)
        return output[0], state

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if x.shape[0] == 0 or x.shape[1] == 0:
            return x.new_empty(x.shape[0], x.shape[1], self.hidden_size), state
        if resets is None:
            return self._run(x, state)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            return super().scan(x, state, resets)  # where to cut is not known while a graph is captured
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

    def scan_late(self, x: Tensor, begins: Tensor):
        """Without a reset, which cuDNN does not know: with its input gates shut a state of zeros stays as it
        is. What shuts them is one more feature of the input, whose weight is a constant."""
        if x.shape[0] == 0 or x.shape[1] == 0:
            return super().scan_late(x, begins)
        absent = torch.arange(x.shape[0], device=x.device).unsqueeze(-1) < begins
        x = torch.cat([x, absent.unsqueeze(-1).to(x.dtype)], dim=-1)
        return self._run(x, self.initial_state(x.shape[1], device=x.device), may_be_absent=True)

    def _run(self, x, state, may_be_absent: bool = False):
        """What self.lstm does, with its weights as they are now: where torch.func.functional_call has put
        others in their place, self.lstm would move the parameters in memory. And under autocast in the type
        that autocast has, where cuDNN would take float16."""
        lstm, kind = self.lstm, x.device.type
        weights = [lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0]
        dtype = weights[0].dtype
        if may_be_absent:
            shuts = torch.zeros_like(weights[0][:, :1])
            shuts[: self.hidden_size] = -SHUT  # torch's order: i, f, g, o
            weights[0] = torch.cat([weights[0], shuts], dim=1)
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        if dtype != weights[0].dtype or not all(weight.is_leaf for weight in weights):
            flat = torch.cat([weight.flatten() for weight in weights]).to(dtype)  # in one piece, for cuDNN
            parts = flat.split([weight.numel() for weight in weights])
            weights = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        hidden, cell = (part.to(dtype).unsqueeze(0).contiguous() for part in state)
        with torch.autocast(kind, enabled=False):
            output, hidden, cell = torch.lstm(
                x.to(dtype), (hidden, cell), weights, True, 1, 0.0, self.training, False, False
            )
        return output, (hidden[0], cell[0])

    def extra_repr(self) -> str:
        return f"input_size={self.input_size}, hidden_size={self.hidden_size}, forget_bias={self.forget_bias}"
