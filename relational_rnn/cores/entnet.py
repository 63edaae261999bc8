"""Entity networks: a bank of memory cells, each tied to a key, that read the same input.

The paper's baseline is "a bank of LSTMs resembling Recurrent Entity Networks" whose cells' states "are summed
to produce an output"; it says no more. `style="lstm"` is that bank, `style="henaff"` the network it resembles
(Henaff et al., 2017, equations 2-5). docs/baselines.md compares them.

Shapes: T time, B batch, J cells, F cell_size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relational_rnn.cores.base import RecurrentCore, require, require_batch, require_sizes, select
from relational_rnn.cores.deep_lstm import lstm_step
from relational_rnn.cores.lstm import LSTM
from relational_rnn.kernels import no_autocast

STYLES = ("lstm", "henaff")


def unit_norm(x: Tensor) -> Tensor:
    """x / |x| over the last axis; a zero vector stays zero, with a zero gradient rather than NaN."""
    square = (x * x).sum(dim=-1, keepdim=True)
    return x * torch.where(square > 0, square, 1).rsqrt() * (square > 0)


def henaff_update(s: Tensor, hidden: Tensor, keys: Tensor, candidate: Tensor) -> Tensor:
    """Equations 2, 4 and 5: g_j = sigmoid(s.h_j + s.w_j); h_j <- (h_j + g_j c_j) / |h_j + g_j c_j|.

    s [B, F], hidden and candidate [B, J, F], keys [J, F] -> hidden [B, J, F].
    """
    gate = torch.sigmoid(((hidden + keys) * s.unsqueeze(1)).sum(dim=-1, keepdim=True))  # [B, J, 1]
    return unit_norm(hidden + gate * candidate)


class EntNet(RecurrentCore):
    """A bank of J cells of size F; the output is the sum (or the concatenation) of their states.

    style="lstm": every cell is an LSTM that reads [x, its key]. The weights are shared; the keys, trained,
    keep cells that start from the same zero state apart. All cells of all batch items run as one LSTM with a
    batch of B * J. The state is (hidden, cell), each [B, J, F].

    style="henaff": s = W_in x + b is the encoded input, c_j = PReLU(U h_j + V w_j + W s), followed by
    `henaff_update`. U, V and W are shared; a cell starts at its key; the PReLU starts as the identity. The
    state is the tensor of cells [B, J, F].

    Args:
        input_size: features of one input.
        num_cells: J.
        cell_size: F; the paper divides a total of 1024 or 2048 among 2, 4, 6 or 8 cells.
        style: "lstm" or "henaff".
        output: "sum" (the paper), giving F features, or "concat", giving J * F.
        forget_bias: of style "lstm", a constant added to the forget gate, not trained.
    """

    def __init__(
        self,
        input_size: int,
        num_cells: int,
        cell_size: int,
        style: str = "lstm",
        output: str = "sum",
        forget_bias: float = 1.0,
        *,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        require_sizes(input_size=input_size, num_cells=num_cells, cell_size=cell_size)
        require(style in STYLES, "style", style, " or ".join(map(repr, STYLES)))
        require(output in ("sum", "concat"), "output", output, "'sum' or 'concat'")
        self.num_cells, self.cell_size, self.style, self.output = num_cells, cell_size, style, output
        self.input_shape = (input_size,)
        self.output_shape = (cell_size if output == "sum" else num_cells * cell_size,)
        options = dict(device=device, dtype=dtype)
        self.keys = nn.Parameter(torch.empty(num_cells, cell_size, **options))  # w_j
        if style == "lstm":
            self.lstm = LSTM(input_size + cell_size, cell_size, forget_bias, **options)
        else:
            self.encoder = nn.Linear(input_size, cell_size, **options)
            self.from_hidden = nn.Linear(cell_size, cell_size, bias=False, **options)  # U
            self.from_key = nn.Linear(cell_size, cell_size, bias=False, **options)  # V
            self.from_input = nn.Linear(cell_size, cell_size, bias=False, **options)  # W
            self.slope = nn.Parameter(torch.empty(1, **options))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As Sonnet's linear layers: normal, deviation 1/sqrt(fan in), cut at two deviations; biases zero."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and not name.startswith("lstm."):
                std = 1 / math.sqrt(parameter.shape[1])
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
        if self.style == "lstm":
            self.lstm.reset_parameters()
        else:
            self.encoder.bias.zero_()
            self.slope.fill_(1.0)  # Henaff et al.: the non-linearity starts as the identity

    def initial_state(self, batch_size: int, *, device=None, dtype=None):
        require_batch(batch_size)
        options = dict(device=self.keys.device if device is None else device, dtype=dtype or self.keys.dtype)
        if self.style == "henaff":
            # a copy: whoever writes to a state must not write to the keys
            return self.keys.to(**options).expand(batch_size, -1, -1).clone()
        zeros = torch.zeros(batch_size, self.num_cells, self.cell_size, **options)
        return zeros, zeros.clone()

    def step(self, x: Tensor, state):
        self._check_step(x, state)
        if self.style == "henaff":
            s = self.encoder(x)
            shared = self.from_input(s).unsqueeze(1) + self.from_key(self.keys)
            hidden = self._henaff_step(s, shared, state.to(self.keys.dtype))
            return self._summary(hidden), hidden
        flat = tuple(part.flatten(0, 1) for part in state)  # [B * J, F]
        hidden, cell = lstm_step(self.lstm, self._with_keys(x.unsqueeze(0))[0], flat)
        hidden, cell = (part.unflatten(0, (-1, self.num_cells)) for part in (hidden, cell))
        return self._summary(hidden), (hidden, cell)

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if x.shape[0] == 0 or x.shape[1] == 0:
            return self._nothing(x, state)
        if self.style == "henaff":
            return self._henaff_scan(x, state, resets)
        state = tuple(part.flatten(0, 1) for part in state)  # [B * J, F]
        if resets is None:
            x, weight = self._with_numbers(x)
            return self._cells_apart(*self.lstm._run(x, state, weight))
        resets = resets.repeat_interleave(self.num_cells, dim=1)
        return self._cells_apart(*self.lstm.scan(self._with_keys(x), state, resets))

    def scan_late(self, x: Tensor, begins: Tensor):
        if self.style == "henaff" or x.shape[0] == 0 or x.shape[1] == 0:
            return super().scan_late(x, begins)
        begins = begins.repeat_interleave(self.num_cells)
        x, weight = self._with_numbers(x)
        return self._cells_apart(*self.lstm.scan_late(x, begins, weight))

    def computed_in(self, device_type: str) -> torch.dtype:
        return self._dtype if self.style == "henaff" else self.lstm.computed_in(device_type)

    def _cells_apart(self, output: Tensor, state):
        output = self._summary(output.unflatten(1, (-1, self.num_cells)))
        return output, tuple(part.unflatten(0, (-1, self.num_cells)) for part in state)

    def _with_keys(self, x: Tensor) -> Tensor:
        """[x, key of the cell] for each cell: x [T, B, I] -> [T, B * J, I + F]."""
        x = x.to(self.computed_in(x.device.type))
        shape = (*x.shape[:2], self.num_cells)
        both = [x.unsqueeze(2).expand(*shape, -1), self.keys.to(x.dtype).expand(*shape, -1)]
        return torch.cat(both, dim=-1).flatten(1, 2)

    def _with_numbers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same function of less: a key's product with its weight is the same at every step, so it can be
        the weight of the cell's number. -> [x, which of the J cells] [T, B * J, I + J], and its weight."""
        x, shape = x.to(self.computed_in(x.device.type)), (*x.shape[:2], self.num_cells)
        numbers = torch.eye(self.num_cells, dtype=x.dtype, device=x.device)
        both = torch.cat([x.unsqueeze(2).expand(*shape, -1), numbers.expand(*shape, -1)], dim=-1)
        with no_autocast(x.device.type):
            of_input, of_key = self.lstm.lstm.weight_ih_l0.split([self.input_size, self.cell_size], dim=1)
            weight = torch.cat([of_input, of_key @ self.keys.T], dim=1)
        return both.flatten(1, 2), weight

    def _henaff_scan(self, x: Tensor, hidden: Tensor, resets: Tensor | None):
        hidden = hidden.to(self.keys.dtype)
        fresh = None if resets is None else self.initial_like(hidden)
        s = self.encoder(x)  # [T, B, F]
        shared = self.from_input(s).unsqueeze(2) + self.from_key(self.keys)  # [T, B, J, F]
        outputs = []
        for t in range(x.shape[0]):
            if resets is not None:
                hidden = select(resets[t], fresh, hidden)
            hidden = self._henaff_step(s[t], shared[t], hidden)
            outputs.append(self._summary(hidden))
        return torch.stack(outputs), hidden

    def _henaff_step(self, s: Tensor, shared: Tensor, hidden: Tensor) -> Tensor:
        candidate = F.prelu(self.from_hidden(hidden) + shared, self.slope)  # [B, J, F]
        return henaff_update(s, hidden, self.keys, candidate)

    def _summary(self, hidden: Tensor) -> Tensor:
        return hidden.sum(dim=-2) if self.output == "sum" else hidden.flatten(-2)

    def extra_repr(self) -> str:
        sizes = f"input_size={self.input_size}, num_cells={self.num_cells}, cell_size={self.cell_size}"
        return f"{sizes}, style={self.style!r}, output={self.output!r}"
