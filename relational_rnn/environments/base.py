"""What both games share: a batch of games is a dataclass of tensors, and a step returns one of these.

Shapes: B games.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Step:
    """The outcome of one step of every game.

    With automatic restarts, a game that ended is already at the first frame of its next episode in the
    returned state. Nothing of the old one is lost: `episode_return` and `episode_length` are those of the
    episode this step belongs to, and `final` is the state before the restart (it shares memory with the new
    state where nothing changed, so keeping it costs nothing; `env.observe(step.final)` draws it).
    """

    reward: Tensor  # [B] float32
    terminated: Tensor  # [B] bool: the rules ended the episode
    truncated: Tensor  # [B] bool: the step cap ended it (never together with terminated)
    episode_return: Tensor  # [B] float32
    episode_length: Tensor  # [B] int64
    final: Any  # the game's state, before restarts

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated  # [B]


def tensors(state) -> list[Tensor]:
    """All tensors of a state, nested dataclasses included, in the order of the fields."""
    found = []
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        found.extend([value] if isinstance(value, Tensor) else tensors(value))
    return found


def copy_(target, source):
    """Write `source` into the memory of `target`: what a CUDA graph needs, whose addresses are fixed."""
    for into, value in zip(tensors(target), tensors(source), strict=True):
        into.copy_(value)
    return target


def clone(state):
    """A copy of a state that shares no memory with it."""
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return type(state)(**{k: v.clone() if isinstance(v, Tensor) else clone(v) for k, v in fields.items()})


def where(mask: Tensor, chosen: Tensor, otherwise: Tensor) -> Tensor:
    """torch.where with a mask [B] over tensors [B, ...]."""
    if otherwise.dtype == torch.uint8 and otherwise.dim() > 1:
        # On the CPU torch.where is 10 times slower on bytes; differences wrap around, so this is exact.
        return otherwise + (chosen - otherwise) * mask.to(torch.uint8)[:, None]
    return torch.where(mask.view(-1, *[1] * (otherwise.dim() - 1)), chosen, otherwise)


def pick(uniform: Tensor, count: Tensor | int) -> Tensor:
    """Uniform numbers in [0, 1) -> uniform integers in 0..count-1 (0 where count is 0)."""
    # u * count may round up to count in float32, so the top is clamped.
    drawn = (uniform * count).long()
    if isinstance(count, int):
        return drawn.clamp_(0, count - 1)
    return torch.minimum(drawn, count - 1).clamp_(min=0)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """table[index] for an integer index of any shape; several times faster than indexing on the CPU."""
    return table.index_select(0, index.reshape(-1)).view(*index.shape, *table.shape[1:])


def worth_compiling(env) -> bool:
    """Games that are tensors, on a GPU, where there is Triton to fuse their kernels."""
    on_gpu = env.device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return on_gpu and hasattr(env, "step_given")


def compiled(env):
    """The same games with their steps, levels and pictures fused by torch.compile: on a GPU a step is many
    small kernels, and they are most of its time. Some seconds at the first step (Triton on a GPU, g++ on a
    CPU)."""
    if not hasattr(env, "step_given"):
        raise ValueError(f"{type(env).__name__} cannot be compiled; allowed: games that are tensors")
    fused = copy.copy(env)
    for name in ("step_given", "restock_given", "observe", "position"):
        if hasattr(env, name):
            setattr(fused, name, torch.compile(getattr(env, name), dynamic=False))
    return fused


def whole(name: str, given) -> int:
    """A whole number of any kind, NumPy's too."""
    try:
        return operator.index(given)
    except TypeError:
        raise ValueError(f"{name} is {given!r}; allowed: whole numbers") from None


def whole_numbers(name: str, given) -> tuple[int, ...]:
    try:
        return tuple(operator.index(number) for number in given)
    except TypeError:
        raise ValueError(f"{name} is {given!r}; allowed: a sequence of whole numbers") from None


def check_actions(actions: Tensor, batch_size: int, num_actions: int, device: torch.device) -> None:
    """Reject actions of the wrong shape, type, device or (on the CPU) value.

    Reading values on a GPU would stall it, so there a bad action meets the device-side assertion of the
    table lookup instead.
    """
    if not isinstance(actions, Tensor):
        raise ValueError(f"actions are a {type(actions).__name__}; allowed: a tensor, one number per game")
    if actions.shape != (batch_size,):
        raise ValueError(f"actions have shape {tuple(actions.shape)}; one per game: ({batch_size},)")
    if actions.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"actions have dtype {actions.dtype}; allowed: torch.int64, torch.int32")
    if actions.device.type != device.type:
        raise ValueError(f"actions are on {actions.device}, the games on {device}")
    if device.type == "cpu" and batch_size:
        low, high = actions.aminmax()
        if low < 0 or high >= num_actions:
            bad = low if low < 0 else high
            raise ValueError(f"action {int(bad)} is not allowed; actions are 0..{num_actions - 1}")


def check_batch(batch_size: int, generator: torch.Generator, device: torch.device) -> None:
    if whole("batch_size", batch_size) < 1:
        raise ValueError(f"batch_size is {batch_size}; at least one game is needed")
    check_generator(generator, device)


def check_generator(generator: torch.Generator, device: torch.device) -> None:
    """Reject none at all too: torch would draw from its global one, and a seed would not repeat the games."""
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"generator is {generator!r}; allowed: a torch.Generator, of which chance comes")
    if generator.device.type != device.type:
        raise ValueError(f"the generator is on {generator.device}, the games on {device}")
