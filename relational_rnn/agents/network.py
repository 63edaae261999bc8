"""The agent's network: what is seen -> convolutions -> any recurrent core -> policy and value.

Shapes: T steps, B games, A actions; an image `[..., C, h, w]` becomes a grid of Y x X cells with D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relational_rnn.cores.base import RecurrentCore, State, initialize_like_sonnet, require, select
from relational_rnn.cores.convolution import same_conv2d

NO_ACTION = -1  # the last action at the first step of an episode


class Inputs(NamedTuple):
    """What the agent knows at a step, or at T of them; leading dimensions `[B]` or `[T, B]`."""

    image: Tensor  # [..., C, h, w]
    position: Tensor  # [..., 2] row and column in the room
    last_action: Tensor  # [...] int64, NO_ACTION at the first step of an episode
    last_reward: Tensor  # [...] float32, 0 there


class Output(NamedTuple):
    logits: Tensor  # [..., A] float32
    value: Tensor  # [...] float32


class Ready(NamedTuple):
    """What many steps with the same weights share."""

    fresh: State  # the core's initial state of B games
    folded: Any  # the core's weights multiplied out and cast (RelationalMemory, LSTM), or None


@cache
def fused(function: Callable) -> Callable:
    """The same with its small kernels fused by torch.compile, some seconds at the first call of a shape."""
    return torch.compile(function, dynamic=False)


class Encoder(nn.Module):
    """Convolutions with ReLU and SAME padding, then two position tags: [..., C, h, w] -> [..., Y, X, D].

    The appendix's: 12 and 24 kernels of 2 x 2, stride 1. Its 5 x 5 ConvLSTM means that a window of 5 x 5
    cells stays one, so the padding is SAME (bottom and right get the odd one, as in TensorFlow).

    `tags="view"`: evenly spaced between -1 and 1 over the grid, the appendix's words. `tags="room"`: the same
    over the whole room, so that an agent with a viewport is told where it is. `tags="none"`: none.

    The convolutions read (image - background) * contrast. BoxWorld's background is 0.8 and its colours differ
    by a third from each other: read as they are, it takes many times as many updates to find one again.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        room_shape: tuple[int, int],
        channels: Sequence[int] = (12, 24),
        kernels: Sequence[int] = (2, 2),
        strides: Sequence[int] = (1, 1),
        tags: Literal["view", "room", "none"] = "view",
        background: float = 0.0,
        contrast: float = 1.0,
    ):
        super().__init__()
        layers = (tuple(channels), tuple(kernels), tuple(strides))
        require(
            len(channels) >= 1 and len(set(map(len, layers))) == 1,
            "channels, kernels, strides",
            layers,
            "one of each for every layer",
        )
        for name, sizes in zip(("channels", "kernels", "strides"), layers, strict=True):
            require(min(sizes) >= 1, name, sizes, "each at least 1")
        require(tags in ("view", "room", "none"), "tags", tags, "view, room or none")
        require(0 < contrast < math.inf, "contrast", contrast, "more than 0, less than inf")
        require(math.isfinite(background), "background", background, "a finite number")
        self.background, self.contrast = background, contrast
        self.tags = tags
        depth, *view = image_shape
        widths = pairwise((depth, *channels))
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, kernel, stride)
            for (a, b), kernel, stride in zip(widths, kernels, strides, strict=True)
        )
        grid = view
        for stride in strides:
            grid = [math.ceil(size / stride) for size in grid]
        self.image_shape = tuple(image_shape)
        self.output_shape = (*grid, channels[-1] + (0 if tags == "none" else 2))
        # Tag = offset + scale * position; the scale is 0 for tags that do not move with the agent.
        offsets, scales = [], []
        for cells, seen, room in zip(grid, image_shape[1:], room_shape, strict=True):
            offset = torch.linspace(-1, 1, cells) if cells > 1 else torch.zeros(1)
            moving = tags == "room" and seen < room
            per_cell = 2 / max(room - 1, 1)
            offsets.append(offset * per_cell * (seen - 1) / 2 - 1 if moving else offset)
            scales.append(per_cell if moving else 0.0)
        rows, columns = torch.meshgrid(*offsets, indexing="ij")
        self.register_buffer("offset", torch.stack((rows, columns), -1), persistent=False)  # [Y, X, 2]
        self.register_buffer("scale", torch.tensor(scales), persistent=False)  # [2]

    def forward(self, image: Tensor, position: Tensor) -> Tensor:
        lead = image.shape[:-3]
        x = image.reshape(-1, *self.image_shape)
        if (self.background, self.contrast) != (0, 1):
            x = (x - self.background) * self.contrast
        x = x.permute(0, 2, 3, 1)
        for layer in self.layers:
            x = F.relu(same_conv2d(x, layer.weight, layer.bias, layer.stride[0]))
        x = x.unflatten(0, lead)  # [..., Y, X, D]
        if self.tags == "none":
            return x
        tags = self.offset + (position * self.scale)[..., None, None, :]  # [..., Y, X, 2]
        return torch.cat((x, tags.to(x.dtype)), -1)


class AgentNetwork(nn.Module):
    """Encoder, core and heads. The core's input shape decides how the grid reaches it:

    | core.input_shape | for                               | the core reads                            |
    |------------------|-----------------------------------|-------------------------------------------|
    | (features,)      | RMC, LSTM, DNC, ...               | all cells in one vector (or `units` ReLUs) |
    | (Y * X, features)| RelationalMemory(input_rows=Y * X)| every cell as a row of its own            |
    | (Y, X, features) | ConvLSTM                          | the grid                                  |

    The last action (one-hot) and the last reward r, as r / (1 + |r|), are appended: to the vector, or to
    every cell.

    `fuses`: whether what is around the core, which has kernels of its own, is compiled (`fused`).
    """

    fuses = False

    def __init__(
        self,
        encoder: Encoder,
        core: RecurrentCore,
        num_actions: int,
        *,
        units: int = 0,
        head_units: int = 0,
    ):
        super().__init__()
        self.encoder, self.core, self.num_actions = encoder, core, num_actions
        expected = core_inputs(encoder, num_actions, units)
        kind = len(core.input_shape)
        require(
            core.input_shape == expected.get(kind), "the core's input_shape", core.input_shape, str(expected)
        )
        grid = encoder.output_shape
        self.dense = nn.Linear(math.prod(grid), units) if units and kind == 1 else None
        width = core.output_size
        self.trunk = nn.Linear(width, head_units) if head_units else None
        self.policy = nn.Linear(head_units or width, num_actions)
        self.value = nn.Linear(head_units or width, 1)
        for part in (encoder, self.dense, self.trunk, self.policy, self.value):
            if part is not None:  # torch's own would shrink what is seen by each layer: results/LOG.md
                initialize_like_sonnet(part)
        with torch.no_grad():  # nearly uniform at first, so that everything is tried
            self.policy.weight.mul_(0.01)

    def initial_state(self, batch_size: int) -> State:
        return self.core.initial_state(batch_size)

    def features(self, inputs: Inputs) -> Tensor:
        """What the core reads, `[..., *core.input_shape]`."""
        cells = self.encoder(inputs.image, inputs.position)  # [..., Y, X, D]
        action = torch.arange(self.num_actions, device=cells.device) == inputs.last_action[..., None]
        reward = inputs.last_reward / (1 + inputs.last_reward.abs())
        extra = torch.cat((action.to(cells.dtype), reward[..., None].to(cells.dtype)), -1)  # [..., A + 1]
        kind = len(self.core.input_shape)
        if kind == 1:
            flat = cells.flatten(-3)
            return torch.cat((flat if self.dense is None else F.relu(self.dense(flat)), extra), -1)
        cells = torch.cat(
            (cells, extra[..., None, None, :].expand(*cells.shape[:-1], -1).to(cells.dtype)), -1
        )
        return cells if kind == 3 else cells.flatten(-3, -2)

    def heads(self, output: Tensor) -> Output:
        """Policy and value of the core's outputs `[..., *core.output_shape]`.

        In float32 under autocast too: bf16 keeps three digits of a logit, and ratios would show it.
        """
        with torch.autocast(output.device.type, enabled=False):
            return self._part(AgentNetwork._heads, output.float())

    def _heads(self, output: Tensor) -> Output:
        output = output.flatten(-len(self.core.output_shape))
        if self.trunk is not None:
            output = F.relu(self.trunk(output))
        # One product, and one back, with as many columns of zeros as a GPU wants them to be aligned.
        missing = -(self.num_actions + 1) % 8 if output.is_cuda else 0
        weight = F.pad(torch.cat((self.policy.weight, self.value.weight)), (0, 0, 0, missing))
        bias = F.pad(torch.cat((self.policy.bias, self.value.bias)), (0, missing))
        both = F.linear(output, weight, bias)
        return Output(both[..., : self.num_actions], both[..., self.num_actions])

    def ready(self, state: State) -> Ready:
        """To take many steps with, from this state: what does not change until the weights do."""
        return Ready(self.core.initial_like(state), self.core.fold() if hasattr(self.core, "fold") else None)

    def step(
        self, inputs: Inputs, state: State, first: Tensor, ready: Ready | None = None
    ) -> tuple[Output, State]:
        """One step of B games; where `first` `[B]` is true an episode begins and the state with it."""
        ready = ready or self.ready(state)
        state = select(first, ready.fresh, state)
        features = self._part(AgentNetwork.features, inputs)
        if ready.folded is None:
            output, state = self.core.step(features, state)
        else:
            output, state = self.core.step(features, state, ready.folded)
        return self.heads(output), state

    def forward(self, inputs: Inputs, state: State, first: Tensor) -> tuple[Output, State]:
        """T steps at once: inputs `[T, B, ...]`, `first` `[T, B]`; the same numbers as T calls of `step`."""
        output, state = self.core(self._part(AgentNetwork.features, inputs), state, resets=first)
        return self.heads(output), state

    def _part(self, part: Callable, read):
        """Fused, or as it is; under the autocast of the caller, which a compiled backward pass shares."""
        return (fused(part) if self.fuses else part)(self, read)


def core_inputs(encoder: Encoder, num_actions: int, units: int = 0) -> dict[int, tuple[int, ...]]:
    """The input shapes a core may have, by their length."""
    *grid, depth = encoder.output_shape
    deep = depth + num_actions + 1
    flat = (units or math.prod(encoder.output_shape)) + num_actions + 1
    return {1: (flat,), 2: (math.prod(grid), deep), 3: (*grid, deep)}
