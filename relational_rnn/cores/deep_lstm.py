"""Deep LSTM with skip connections, as Sonnet's DeepRNN: the paper's LSTM baseline (appendix, section A.2).

Shapes: T time, B batch, U hidden_size, D num_layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from relational_rnn.cores.base import RecurrentCore, require_sizes
from relational_rnn.cores.lstm import LSTM, plain_cell
from relational_rnn.kernels import transformed


def lstm_step(layer: LSTM, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """One step of a layer -> (hidden, cell): two matrix products and a fused kernel, no cuDNN set-up."""
    lstm = layer.lstm
    dtype = layer.computed_in(x.device.type)  # on a CPU autocast would leave the state wider than `scan` does
    hidden, cell = (part.to(dtype) for part in state)
    weights = (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0)
    if transformed():
        return plain_cell(x, hidden, cell, weights)
    return torch.lstm_cell(x, (hidden, cell), *weights)


class DeepLSTM(RecurrentCore):
    """A stack of LSTMs: the input reaches every layer and every layer's output reaches the output.

    Layer d > 0 reads [x, h of layer d - 1]; the output is all layers' h, lowest first, `[B, D * U]`.
    The state is a tuple of D pairs (hidden, cell). Layers run one after the other over the whole sequence,
    which is the same computation and lets cuDNN take each of them in one call.

    Args:
        input_size: features of one input.
        hidden_size: U, units of each layer.
        num_layers: D.
        forget_bias: a constant added to the forget gates, not trained.
        skip_connections: False is a plain stack: layer d > 0 reads only the h below it, and the output is
            the last layer's h, `[B, U]`.
        concat_outputs: False keeps the input's way to every layer, but the output is the last layer's h.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 2,
        forget_bias: float = 1.0,
        *,
        skip_connections: bool = True,
        concat_outputs: bool = True,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        require_sizes(num_layers=num_layers, input_size=input_size, hidden_size=hidden_size)
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.skip_connections, self.concat_outputs = skip_connections, skip_connections and concat_outputs
        outputs = num_layers if self.concat_outputs else 1
        self.input_shape, self.output_shape = (input_size,), (outputs * hidden_size,)
        above = hidden_size + (input_size if skip_connections else 0)
        widths = [input_size] + [above] * (num_layers - 1)
        self.layers = nn.ModuleList(
            LSTM(width, hidden_size, forget_bias, device=device, dtype=dtype) for width in widths
        )

    def reset_parameters(self) -> None:
        for layer in self.layers:
            layer.reset_parameters()

    def initial_state(self, batch_size: int, *, device=None, dtype=None):
        return tuple(layer.initial_state(batch_size, device=device, dtype=dtype) for layer in self.layers)

    def step(self, x: Tensor, state):
        self._check_step(x, state)
        x = x.to(self.computed_in(x.device.type))  # autocast's `cat` takes no two 16-bit types
        hiddens, states = [], []
        for layer, layer_state in zip(self.layers, state, strict=True):
            hidden, cell = lstm_step(layer, self._layer_input(x, hiddens), layer_state)
            hiddens.append(hidden)
            states.append((hidden, cell))
        return self._output(hiddens), tuple(states)

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if resets is not None and x.is_cuda:
            return super().scan(x, state, resets)  # cuDNN has no resets; cutting there would wait for the GPU
        return self._by_layer(x, lambda d, layer_input: self.layers[d].scan(layer_input, state[d], resets))

    def scan_late(self, x: Tensor, begins: Tensor):
        return self._by_layer(x, lambda d, layer_input: self.layers[d].scan_late(layer_input, begins))

    def computed_in(self, device_type: str) -> torch.dtype:
        return self.layers[0].computed_in(device_type)

    def _by_layer(self, x: Tensor, run):
        x, outputs, states = x.to(self.computed_in(x.device.type)), [], []
        for d in range(self.num_layers):
            output, layer_state = run(d, self._layer_input(x, outputs))
            outputs.append(output)
            states.append(layer_state)
        return self._output(outputs), tuple(states)

    def _layer_input(self, x: Tensor, below: list[Tensor]) -> Tensor:
        """What the layer above `below`, [..., U] each, reads: [..., I], then [..., I + U] or [..., U]."""
        if not below:
            return x
        return torch.cat([x, below[-1]], dim=-1) if self.skip_connections else below[-1]

    def _output(self, hiddens: list[Tensor]) -> Tensor:
        return torch.cat(hiddens, dim=-1) if self.concat_outputs else hiddens[-1]

    def extra_repr(self) -> str:
        return (
            f"input_size={self.input_size}, hidden_size={self.hidden_size}, num_layers={self.num_layers}, "
            f"skip_connections={self.skip_connections}, concat_outputs={self.concat_outputs}"
        )
