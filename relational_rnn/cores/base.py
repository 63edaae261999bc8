"""The contract every recurrent core keeps, and what all of them share.

Shapes: T time, B batch, I the shape of one input (usually `(input_size,)`), O output_size.
"""

from __future__ import annotations

import math
import numbers
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from relational_rnn.kernels import LOW_PRECISION, autocasts

AUTOCAST = (torch.float32, *LOW_PRECISION)

State: TypeAlias = "Tensor | tuple[State, ...]"


class RecurrentCore(nn.Module):
    """A recurrent network that maps an input sequence and a state to outputs and the next state.

    A subclass sets `input_shape` and `output_shape` (shapes of one step's input and output, without batch),
    and defines `initial_state`, `step` and, where something faster than a loop over `step` exists, `scan`.

    `forward` accepts what `nn.LSTM` accepts: `[T, B, ...]` (or `[B, T, ...]` with `batch_first`), one
    unbatched sequence `[T, ...]`, or a PackedSequence. States are batch first, always; an unbatched call
    takes and returns them without the batch dimension. `resets[t, b]` true puts b back into its initial
    state before step t (an episode begins there).
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    def __init__(self, *, batch_first: bool = False):
        super().__init__()
        self.batch_first = batch_first
        self._shapes = None

    @property
    def input_size(self) -> int:
        return self.input_shape[-1]

    @property
    def output_size(self) -> int:
        return torch.Size(self.output_shape).numel()

    def initial_state(self, batch_size: int, *, device=None, dtype=None) -> State:
        """The state before the first step, batch first, on the parameters' device and dtype by default."""
        raise NotImplementedError

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x `[B, *I]` -> (output `[B, *O]`, next state).

        The two may share memory, as nn.LSTMCell's do (a copy would slow acting down); `forward`'s do not."""
        raise NotImplementedError

    def scan(self, x: Tensor, state: State, resets: Tensor | None) -> tuple[Tensor, State]:
        """All steps of a checked, batched, time-major x `[T, B, *I]`; T and B may be zero."""
        outputs = []
        fresh = None if resets is None else self.initial_like(state)
        for t in range(x.shape[0]):
            if resets is not None:
                state = select(resets[t], fresh, state)
            output, state = self.step(x[t], state)
            outputs.append(output)
        return (torch.stack(outputs), state) if outputs else self._nothing(x, state)

    def _nothing(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """What an x without steps or without sequences gives: outputs as nn.LSTM's, with gradients, which are
        zero, and a copy of the state, in the parameters' dtype: no step, so nothing to round it."""
        touched = sum(part.sum() for part in (x, *self.parameters()) if part.requires_grad)
        dtype = self.computed_in(x.device.type)
        output = x.new_empty(*x.shape[:2], *self.output_shape, dtype=dtype) + 0 * touched
        return output, map_state(lambda part: part.to(self._dtype, copy=True), state)

    def computed_in(self, device_type: str) -> torch.dtype:
        """The dtype of outputs: the parameters', unless a core leaves that to autocast."""
        return self._dtype

    @property
    def _dtype(self) -> torch.dtype:
        """The parameters'; a replica of nn.DataParallel has none of its own."""
        return first_tensor(self.initial_state(0, device="meta")).dtype

    def scan_late(self, x: Tensor, begins: Tensor) -> tuple[Tensor, State]:
        """All steps of x `[T, B, *I]`, of which sample b begins with step `begins[b]`, in its initial state.

        What it is given before that does not matter, and outputs before that mean nothing.
        """
        here = torch.arange(x.shape[0], device=x.device).unsqueeze(-1) == begins
        return self.scan(x, self._checked_state(None, x.shape[1], x), here)

    def forward(
        self, x: Tensor | PackedSequence, state: State | None = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, State]:
        """Run a sequence: returns every step's output, laid out as x is, and the last state."""
        if isinstance(x, PackedSequence):
            return self._forward_packed(x, state, resets)
        x, state, resets, restore = self._to_time_major(x, state, resets)
        output, state = self.scan(x, state, resets)
        return restore(output), restore.state(state)

    def initial_like(self, state: State) -> State:
        """The initial state for the batch, device and dtype of a given one."""
        first = first_tensor(state)
        return self.initial_state(first.shape[0], device=first.device, dtype=first.dtype)

    # ------------------------------------------------------------------ layouts

    def _to_time_major(self, x, state, resets):
        if not _dense(x):
            raise ValueError(f"input must be a tensor or PackedSequence, got {_kind(x)}")
        features = len(self.input_shape)
        batched = x.dim() == features + 2
        if x.dim() not in (features + 1, features + 2) or tuple(x.shape[-features:]) != self.input_shape:
            axes = "[B, T, " if self.batch_first else "[T, B, "
            wanted = ", ".join(map(str, self.input_shape)) + "]"
            raise ValueError(
                f"input has shape {list(x.shape)}; allowed: {axes}{wanted} or unbatched [T, {wanted}"
            )
        self._check_input(x)
        restore = _Layout(batched=batched, batch_first=self.batch_first)
        if not batched:
            x = x.unsqueeze(1)
            if state is not None:
                _check_state(state, self._state_shapes(), [], x.device)
                state = map_state(lambda s: s.unsqueeze(0), state)
        elif self.batch_first:
            x = x.transpose(0, 1)
        state = self._checked_state(state, x.shape[1], x)
        if resets is not None:
            resets = self._checked_resets(resets, restore, x)
        return x, state, resets, restore

    def _check_input(self, x: Tensor) -> None:
        parameter = next(self.parameters(), None)  # a replica of nn.DataParallel has none of its own
        if parameter is None:
            return
        if x.device != parameter.device:
            raise ValueError(f"input is on {x.device}; allowed: {parameter.device}, as the parameters are")
        self._check_autocast(parameter.dtype, x.device.type)
        if x.dtype == parameter.dtype:
            return
        if not autocasts(x.device.type):
            raise ValueError(f"input has dtype {x.dtype}; allowed: {parameter.dtype}, that of the parameters")
        if not {x.dtype, parameter.dtype} <= set(AUTOCAST):  # all that autocast casts
            raise ValueError(
                f"input has dtype {x.dtype}; allowed: {parameter.dtype}, that of the parameters, or under "
                f"autocast any two of {', '.join(map(str, AUTOCAST))}"
            )

    def _check_autocast(self, dtype: torch.dtype, device_type: str) -> None:
        """Torch's own layers fail with one 16-bit type under autocast to the other, or not, by the device."""
        if dtype not in LOW_PRECISION or not autocasts(device_type):
            return
        autocast = torch.get_autocast_dtype(device_type)
        if autocast in LOW_PRECISION and autocast != dtype:
            raise ValueError(
                f"the parameters have dtype {dtype}; allowed under autocast to {autocast}: torch.float32, "
                f"torch.float64 or {autocast}"
            )

    def _checked_state(self, state, batch_size, x):
        if state is None:
            return self.initial_state(batch_size, device=x.device)
        _check_state(state, self._state_shapes(), [batch_size], x.device)
        return state

    def _check_step(self, x: Tensor, state: State) -> None:
        """What `forward` checks, for one step: torch's own LSTM reads past the end of a state too small."""
        if not _dense(x):
            raise ValueError(f"input of a step must be a tensor, got {_kind(x)}")
        if tuple(x.shape[1:]) != self.input_shape:
            wanted = ", ".join(map(str, self.input_shape))
            raise ValueError(f"input of a step has shape {list(x.shape)}; allowed: [B, {wanted}]")
        self._check_input(x)
        _check_state(state, self._state_shapes(), [x.shape[0]], x.device)

    def _state_shapes(self):
        """In the structure of a state, of each tensor its shape without the batch, as a list."""
        compiling = torch.compiler.is_compiling()
        if not compiling and self._shapes is not None:
            return self._shapes
        shapes = map_state(lambda part: list(part.shape[1:]), self.initial_state(1, device="meta"))
        if not compiling:  # which would see them change from None, and compile again at the second call
            self._shapes = shapes
        return shapes

    def _checked_resets(self, resets, restore, x):
        if not _dense(resets) or resets.dtype != torch.bool:
            kind = resets.dtype if _dense(resets) else _kind(resets)
            raise ValueError(
                f"resets must be a torch.bool tensor (NaN has no place in it), got {kind}; try `resets != 0`"
            )
        if not restore.batched:
            wanted, given = [x.shape[0]], resets.unsqueeze(-1)
        elif restore.batch_first:
            wanted, given = [x.shape[1], x.shape[0]], resets.t() if resets.dim() == 2 else resets
        else:
            wanted, given = list(x.shape[:2]), resets
        if list(resets.shape) != wanted:
            raise ValueError(f"resets has shape {list(resets.shape)}; allowed: {wanted}, one for each input")
        if resets.device != x.device:
            raise ValueError(f"resets is on {resets.device}, the input on {x.device}; they must be together")
        return given

    def _forward_packed(self, packed: PackedSequence, state, resets):
        """Sequences of several lengths, longest first: scan each stretch of steps with equal batch size."""
        if resets is not None:
            raise ValueError("resets cannot be combined with a PackedSequence; pad the batch instead")
        data, sizes = packed.data, packed.batch_sizes.tolist()
        if tuple(data.shape[1:]) != self.input_shape:
            wanted = ", ".join(map(str, self.input_shape))
            raise ValueError(
                f"packed input has shape {list(data.shape)}; allowed: [sum of lengths, {wanted}]"
            )
        self._check_input(data)
        state = self._checked_state(state, sizes[0], data)
        if packed.sorted_indices is not None:
            state = map_state(lambda s: s.index_select(0, packed.sorted_indices), state)
        outputs, finished, start, t = [], [], 0, 0
        while t < len(sizes):
            batch, begin = sizes[t], t
            while t < len(sizes) and sizes[t] == batch:
                t += 1
            if first_tensor(state).shape[0] != batch:  # some sequences ended before `begin`
                finished.append(map_state(lambda s, b=batch: s[b:], state))
                state = map_state(lambda s, b=batch: s[:b], state)
            stretch = data[start : start + (t - begin) * batch].reshape(t - begin, batch, *self.input_shape)
            output, state = self.scan(stretch, state, None)
            outputs.append(output.flatten(0, 1))
            start += (t - begin) * batch
        parts = [state, *reversed(finished)]  # longest first, the order of the packed batch
        state = zip_states(lambda *s: torch.cat(s), *parts)
        if packed.unsorted_indices is not None:
            state = map_state(lambda s: s.index_select(0, packed.unsorted_indices), state)
        output = PackedSequence(
            torch.cat(outputs), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
        )
        return output, state


class _Layout:
    """Undoes what `_to_time_major` did."""

    def __init__(self, *, batched: bool, batch_first: bool):
        self.batched, self.batch_first = batched, batch_first

    def __call__(self, output: Tensor) -> Tensor:
        if not self.batched:
            return output.squeeze(1)
        return output.transpose(0, 1) if self.batch_first else output

    def state(self, state: State) -> State:
        return state if self.batched else map_state(lambda s: s.squeeze(0), state)


def map_state(function, state: State) -> State:
    """Apply a function to every tensor of a state."""
    if isinstance(state, tuple):
        return tuple(map_state(function, part) for part in state)
    return function(state)


def zip_states(function, first: State, *others: State) -> State:
    """Apply a function to the tensors that stand at the same place in several states."""
    if isinstance(first, tuple):
        return tuple(zip_states(function, *parts) for parts in zip(first, *others, strict=True))
    return function(first, *others)


def first_tensor(state: State) -> Tensor:
    while isinstance(state, tuple):
        state = state[0]
    return state


def select(mask: Tensor, chosen: State, otherwise: State) -> State:
    """State by state, batch item by batch item: `chosen` where the mask `[B]` is true, else `otherwise`."""

    def pick(a, b):
        return torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)

    return zip_states(pick, chosen, otherwise)


def _dense(x) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided and not x.is_nested


def _kind(x) -> str:
    return "one that is sparse or nested" if isinstance(x, Tensor) else type(x).__name__


def _check_state(state, shapes, batch, device, name="state"):
    if isinstance(shapes, tuple):
        if not isinstance(state, tuple) or len(state) != len(shapes):
            kind = f"tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise ValueError(f"{name} must be a tuple of {len(shapes)}, got {kind}")
        for i, (part, part_shapes) in enumerate(zip(state, shapes, strict=True)):
            _check_state(part, part_shapes, batch, device, f"{name}[{i}]")
        return
    wanted = [*batch, *shapes]
    if not _dense(state):
        raise ValueError(f"{name} must be a tensor of shape {wanted}, got {_kind(state)}")
    if list(state.shape) != wanted:
        raise ValueError(f"{name} has shape {list(state.shape)}; allowed: {wanted}")
    if state.device != device:
        raise ValueError(f"{name} is on {state.device}, the input on {device}; they must be together")
    if not state.is_floating_point():
        raise ValueError(f"{name} has dtype {state.dtype}; allowed: a floating point dtype")


@torch.no_grad()
def initialize_like_sonnet(module: nn.Module) -> None:
    """Its linear layers and convolutions: normal of deviation 1/sqrt(fan in) cut at two, biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            std = 1 / math.sqrt(math.prod(layer.weight.shape[1:]))
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def require(condition: bool, name: str, value, allowed: str) -> None:
    """Raise a one-line ValueError that names the argument, its value and what is allowed."""
    if not condition:
        raise ValueError(f"{name}={value!r} is not allowed; allowed: {allowed}")


def require_sizes(**sizes) -> None:
    """Each a whole number of at least 1; True is not one."""
    for name, value in sizes.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value >= 1, name, value, "an integer of at least 1")


def require_numbers(**values) -> None:
    """Each a real number; infinity is one, NaN and True are not."""
    for name, value in values.items():
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        require(real and not math.isnan(value), name, value, "a number, not NaN")


def require_batch(batch_size) -> None:
    """Of `initial_state`; what tracers take for an integer is one."""
    whole = not isinstance(batch_size, bool | float | str | None)
    require(whole and batch_size >= 0, "batch_size", batch_size, "an integer of at least 0")
