"""Differentiable Neural Computer, as deepmind/dnc: a controller that writes to and reads from a memory.

This file holds the controller, the parameters and the sequence; the memory's equations are in dnc_memory.py.

Shapes: T time, B batch, N memory_size, W word_size, R num_reads, H num_writes, U hidden_size.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relational_rnn.cores.base import (
    RecurrentCore,
    map_state,
    require,
    require_batch,
    require_sizes,
    select,
)
from relational_rnn.cores.deep_lstm import DeepLSTM, lstm_step
from relational_rnn.cores.dnc_memory import Interface, Memory, access
from relational_rnn.cores.lstm import LSTM
from relational_rnn.kernels import dnc as kernels
from relational_rnn.kernels import dnc_sequence as sequence
from relational_rnn.kernels import no_autocast, transformed, why_not_triton

CONTROLLERS = ("lstm", "feedforward")


class DNC(RecurrentCore):
    """A controller with an external memory of N words.

    The controller reads [x, the words read in the step before]; what it tells the memory is a linear
    function of its output h; the core's output is a linear function of [h, the words read now].
    The state is the flat tuple (reads [B, R, W], memory [B, N, W], read_weights [B, R, N],
    write_weights [B, H, N], link [B, H, N, N], precedence [B, H, N], usage [B, N], controller), where the
    controller's part is (hidden, cell), a tuple of such pairs if it has several layers, or () if it is
    feed-forward.

    All is computed in the parameters' dtype, under autocast too: weights that sum to one and logarithms of
    usages do not survive rounding to 8 bits. No step waits for the GPU: forward and backward of a whole
    sequence can be captured in a CUDA graph.

    Args:
        input_size, output_size: features of one input and of one output.
        memory_size: N, words in the memory.
        word_size: W.
        num_reads, num_writes: R and H, heads.
        controller: "lstm" (a DeepLSTM where `num_layers` > 1) or "feedforward" (an MLP with a ReLU after
            every layer; deepmind/dnc has none, the paper used one for memorisation).
        hidden_size: U, units of each controller layer.
        num_layers: layers of the controller.
        clip_value: limit of the controller's output and state and of the output; None for none.
        compile: fuse the memory's kernels with torch.compile: half the time of a training step on a GPU, for
            half a minute at the first call (needs a C++ compiler, and Triton on a GPU).
        fused: on a GPU, a step of the memory as one kernel of our own (kernels/dnc.py), where it applies:
            float32, one write head, up to 128 slots; `compile` is for where it does not. With one or two
            layers of LSTM a sequence is of our own altogether (kernels/dnc_sequence.py).
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        memory_size: int = 16,
        word_size: int = 16,
        num_reads: int = 1,
        num_writes: int = 1,
        controller: str = "lstm",
        hidden_size: int = 64,
        num_layers: int = 1,
        clip_value: float | None = 20.0,
        *,
        compile: bool = False,
        fused: bool = False,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        require_sizes(
            input_size=input_size,
            output_size=output_size,
            memory_size=memory_size,
            word_size=word_size,
            num_reads=num_reads,
            num_writes=num_writes,
            hidden_size=hidden_size,
            num_layers=num_layers,
        )
        require(controller in CONTROLLERS, "controller", controller, " or ".join(map(repr, CONTROLLERS)))
        limit = isinstance(clip_value, int | float) and not isinstance(clip_value, bool) and clip_value > 0
        require(clip_value is None or limit, "clip_value", clip_value, "a positive number or None")
        self.memory_size, self.word_size = memory_size, word_size
        self.num_reads, self.num_writes, self.clip_value = num_reads, num_writes, clip_value
        self.input_shape, self.output_shape = (input_size,), (output_size,)
        self.compile, self.fused = compile, fused

        options = dict(device=device, dtype=dtype)
        read_features = num_reads * word_size
        seen = input_size + read_features
        if controller == "feedforward":
            widths = [seen] + [hidden_size] * (num_layers - 1)
            self.controller = nn.ModuleList(nn.Linear(width, hidden_size, **options) for width in widths)
            features = hidden_size
        elif num_layers == 1:
            self.controller, features = LSTM(seen, hidden_size, **options), hidden_size
        else:
            self.controller = DeepLSTM(seen, hidden_size, num_layers, **options)
            features = self.controller.output_size
        # The original's ten linear layers side by side: one matrix product, same function, same start.
        self.interface = nn.Linear(features, sum(self.interface_sizes.values()), **options)
        self.output = nn.Linear(features + read_features, output_size, **options)
        self.reset_parameters()

    @property
    def interface_sizes(self) -> dict[str, int]:
        """Features of each part of the interface, in the order of `Interface` and of its weight's rows."""
        words, reads, writes = self.word_size, self.num_reads, self.num_writes
        return dict(
            write_vectors=writes * words,
            erase_vectors=writes * words,
            free_gate=reads,
            allocation_gate=writes,
            write_gate=writes,
            read_mode=reads * (1 + 2 * writes),
            write_keys=writes * words,
            write_strengths=writes,
            read_keys=reads * words,
            read_strengths=reads,
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sonnet's: weights from a normal of deviation 1/sqrt(fan in) cut at two deviations, biases zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                std = 1 / math.sqrt(module.in_features)
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                module.bias.zero_()
            elif isinstance(module, LSTM):
                module.reset_parameters()

    def initial_state(self, batch_size: int, *, device=None, dtype=None):
        require_batch(batch_size)
        weight = self.interface.weight
        options = dict(device=weight.device if device is None else device, dtype=dtype or weight.dtype)
        slots, words, reads, writes = self.memory_size, self.word_size, self.num_reads, self.num_writes
        shapes = [(reads, words), (slots, words), (reads, slots), (writes, slots), (writes, slots, slots)]
        shapes += [(writes, slots), (slots,)]
        controller = ()
        if not isinstance(self.controller, nn.ModuleList):
            controller = self.controller.initial_state(batch_size, **options)
        return (*(torch.zeros(batch_size, *shape, **options) for shape in shapes), controller)

    def _check_autocast(self, dtype: torch.dtype, device_type: str) -> None:
        """Which it does not follow."""

    def step(self, x: Tensor, state):
        self._check_step(x, state)
        with no_autocast(x.device.type):
            features, state = self._step(x, state, self._access(x.device))
            return self._clip(self.output(features)), state

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if x.shape[0] == 0:
            return self._nothing(x, state)
        if self._one_sequence(x):
            return self._scan_fused(x, state, resets)
        fresh = None if resets is None else self.initial_like(state)
        features, access = [], self._access(x.device)
        with no_autocast(x.device.type):
            for t in range(x.shape[0]):
                if resets is not None:
                    state = select(resets[t], fresh, state)
                feature, state = self._step(x[t], state, access)
                features.append(feature)
            return self._clip(self.output(torch.stack(features))), state  # one product for all steps

    def _one_kernel(self, device: torch.device) -> bool:
        kind = kernels.Kind(self.memory_size, self.word_size, self.num_reads)
        return self.fused and kernels.usable(kind, self.num_writes, self.interface.weight.dtype, device)

    def _one_sequence(self, x: Tensor) -> bool:
        """Whether the controller's steps can be of our own too: LSTMs, and a limit that is none for them."""
        deep = isinstance(self.controller, DeepLSTM) and self.controller.num_layers == 2
        fits = deep or isinstance(self.controller, LSTM)
        fits = fits and (self.clip_value is None or self.clip_value >= 1) and x.shape[1] > 0
        taken = not torch.compiler.is_compiling() and not transformed() and why_not_triton(x) is None
        return fits and taken and self._one_kernel(x.device)

    def _scan_fused(self, x: Tensor, state, resets: Tensor | None):
        dtype = self.interface.weight.dtype
        reads, *memory, controller = map_state(lambda s: s.to(dtype), state)
        deep = isinstance(self.controller, DeepLSTM)
        layers = [
            sequence.Layer(part.weight_ih_l0, part.weight_hh_l0, part.bias_ih_l0 + part.bias_hh_l0)
            for part in (layer.lstm for layer in (self.controller.layers if deep else [self.controller]))
        ]
        interface = self.interface.weight, self.interface.bias
        with no_autocast(x.device.type):
            features, (reads, *memory), cells = sequence.scan(
                x.to(dtype),
                [reads, *memory],
                list(controller) if deep else [controller],
                layers,
                interface,
                resets,
                self.clip_value,
            )
            return self._clip(self.output(features)), (reads, *memory, tuple(cells) if deep else cells[0])

    def _access(self, device: torch.device):
        """The function for a step of the memory, of (raw, Memory)."""
        if self._one_kernel(device):
            return kernels.step
        of_parts = _compiled_access() if self.compile else access
        return lambda raw, memory: of_parts(self._interface_of(raw), Memory(*memory))

    def _step(self, x: Tensor, state, access):
        """x [B, I] -> ([h, words read] [B, features + R * W], next state)."""
        dtype = self.interface.weight.dtype
        reads, *memory, controller = map_state(lambda s: s.to(dtype), state)
        hidden, controller = self._control(torch.cat([x.to(dtype), reads.flatten(1)], dim=-1), controller)
        hidden, controller = self._clipped(hidden, controller)
        reads, memory = access(self.interface(hidden), memory)
        return torch.cat([hidden, reads.flatten(1)], dim=-1), (reads, *memory, controller)

    def _control(self, x: Tensor, state):
        if isinstance(self.controller, LSTM):
            hidden, cell = lstm_step(self.controller, x, state)
            return hidden, (hidden, cell)
        if isinstance(self.controller, DeepLSTM):
            return self.controller.step(x, state)
        for layer in self.controller:
            x = torch.relu(layer(x))
        return x, state

    def _interface_of(self, raw: Tensor) -> Interface:
        raw = Interface(*raw.split(list(self.interface_sizes.values()), dim=-1))
        by_head = (-1, self.word_size)
        return Interface(
            write_vectors=raw.write_vectors.unflatten(-1, by_head),
            erase_vectors=torch.sigmoid(raw.erase_vectors).unflatten(-1, by_head),
            free_gate=torch.sigmoid(raw.free_gate),
            allocation_gate=torch.sigmoid(raw.allocation_gate),
            write_gate=torch.sigmoid(raw.write_gate),
            read_mode=torch.softmax(raw.read_mode.unflatten(-1, (self.num_reads, -1)), dim=-1),
            write_keys=raw.write_keys.unflatten(-1, by_head),
            write_strengths=F.softplus(raw.write_strengths),  # Graves et al.: 1 + softplus
            read_keys=raw.read_keys.unflatten(-1, by_head),
            read_strengths=F.softplus(raw.read_strengths),
        )

    def _clipped(self, hidden: Tensor, state):
        """The controller's output and state within the limit. An LSTM's output is within 1 as it is; clipping
        that would only cost kernels, several for each on the way back."""
        if self.clip_value is None:
            return hidden, state
        if isinstance(self.controller, nn.ModuleList) or self.clip_value < 1:
            return self._clip(hidden), map_state(self._clip, state)
        if isinstance(self.controller, LSTM):
            return hidden, (state[0], self._clip(state[1]))
        return hidden, tuple((h, self._clip(cell)) for h, cell in state)

    def _clip(self, x: Tensor) -> Tensor:
        return x if self.clip_value is None else x.clamp(-self.clip_value, self.clip_value)

    def extra_repr(self) -> str:
        return (
            f"input_size={self.input_size}, output_size={self.output_size}, memory_size={self.memory_size}, "
            f"word_size={self.word_size}, num_reads={self.num_reads}, num_writes={self.num_writes}"
        )


@functools.cache
def _compiled_access():
    return torch.compile(access)
