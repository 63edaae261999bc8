"""Deep LSTM with skip connections, as Sonnet's DeepRNN: the paper's LSTM baseline (appendix, section A.2).

Shapes: T time, B batch, U hidden_size, D num_layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relational_rnn.cores.base import RecurrentCore, require_sizes
from relational_rnn.cores.lstm import LSTM


def lstm_step(layer: LSTM, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """One step of a layer -> (hidden, cell): two matrix products and a fused kernel, no cuDNN set-up."""
    lstm = layer.lstm
    dtype = layer.computed_in(x.device.type)  # on a CPU autocast would leave the state wider than `scan` does
    hidden, cell = (part.to(dtype) for part in state)
    return torch.lstm_cell(
        x, (hidden, cell), lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0
    )


class DeepLSTM(RecurrentCore):
    """A stack of LSTMs: the input reaches every layer and every layer's output reaches the output.

    Layer d > 0 reads [x, h of layer d - 1]; the output is all layers' h, lowest first, `[B, D * U]`.
    The state is a tuple of D pairs (hidden, cell). Layers run one after the other over the whole sequence,
    which is the same computation and lets cuDNN take each of them in one call.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 2,
        forget_bias: float = 1.0,
        *,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        require_sizes(num_layers=num_layers, input_size=input_size, hidden_size=hidden_size)
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.input_shape, self.output_shape = (input_size,), (num_layers * hidden_size,)
        widths = [input_size] + [input_size + hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            LSTM(width, hidden_size, forget_bias, device=device, dtype=dtype) for width in widths
        )

    def initial_state(self, batch_size: int, *, device=None, dtype=None):
        return tuple(layer.initial_state(batch_size, device=device, dtype=dtype) for layer in self.layers)

    def step(self, x: Tensor, state):
        self._check_step(x, state)
        hiddens, states = [], []
        for layer, layer_state in zip(self.layers, state, strict=True):
            layer_input = torch.cat([x, hiddens[-1]], dim=-1) if hiddens else x  # [B, I] or [B, I + U]
            hidden, cell = lstm_step(layer, layer_input, layer_state)
            hiddens.append(hidden)
            states.append((hidden, cell))
        return torch.cat(hiddens, dim=-1), tuple(states)

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if resets is not None and x.is_cuda:
            return super().scan(x, state, resets)  # cuDNN has no resets; cutting there would wait for the GPU
        return self._by_layer(x, lambda d, layer_input: self.layers[d].scan(layer_input, state[d], resets))

    def scan_late(self, x: Tensor, begins: Tensor):
        return self._by_layer(x, lambda d, layer_input: self.layers[d].scan_late(layer_input, begins))

    def _by_layer(self, x: Tensor, run):
        outputs, states = [], []
        for d in range(self.num_layers):
            layer_input = torch.cat([x, outputs[-1]], dim=-1) if outputs else x  # [T, B, I] or [T, B, I + U]
            output, layer_state = run(d, layer_input)
            outputs.append(output)
            states.append(layer_state)
        return torch.cat(outputs, dim=-1), tuple(states)

    def extra_repr(self) -> str:
        return f"input_size={self.input_size}, hidden_size={self.hidden_size}, num_layers={self.num_layers}"
