"""Acting: B games, T steps, on the device the games live on.

Shapes: T steps of an unroll, B games, A actions. Fixed shapes, no reading back to the host, every random
number from one explicit generator: `act` can be captured in a CUDA graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relational_rnn.agents.network import NO_ACTION, AgentNetwork, Inputs
from relational_rnn.cores.base import State, map_state, zip_states
from relational_rnn.environments import base

RESTOCK_EVERY = 8  # BoxWorld: steps for which levels are made at once


@dataclass
class Carry:
    """Where the games stand between two unrolls. `first` is true where an episode has just begun."""

    game: Any  # the games' state
    core: State  # the core's state, batch first
    last_action: Tensor  # [B] int64
    last_reward: Tensor  # [B] float32
    first: Tensor  # [B] bool


@dataclass
class Unroll:
    """T steps of B games, and the observation after them, from which the value is bootstrapped."""

    inputs: Inputs  # [T + 1, B, ...]
    first: Tensor  # [T + 1, B] bool: the episode begins here, so the core's state is reset before this step
    start: State  # the core's state before step 0, as it was when acting
    actions: Tensor  # [T, B] int64
    logits: Tensor  # [T, B, A] float32, of the policy that acted
    rewards: Tensor  # [T, B] float32
    done: Tensor  # [T, B] bool: this step ended the episode
    truncated: Tensor  # [T, B] bool: it did because time was up
    episode_returns: Tensor  # [T, B] float32, of the episode so far; of the whole episode where `done`
    episode_lengths: Tensor  # [T, B] int64, likewise


def begin(env, network: AgentNetwork, games: int, generator: torch.Generator) -> Carry:
    """New episodes in B games."""
    game = env.reset(games, generator)
    return Carry(
        game=game,
        core=network.initial_state(games),
        last_action=torch.full((games,), NO_ACTION, device=env.device),
        last_reward=torch.zeros(games, device=env.device),
        first=torch.ones(games, dtype=torch.bool, device=env.device),
    )


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """An action of the policy: the first of A exponential clocks with rates exp(logits). [B, A] -> [B]."""
    clocks = torch.empty(logits.shape, device=logits.device).exponential_(generator=generator)
    return (logits - clocks.log()).argmax(-1)


def look(env, carry: Carry) -> Inputs:
    """What the agent knows now."""
    position = env.position(carry.game)
    return Inputs(env.observe(carry.game), position, carry.last_action, carry.last_reward)


@torch.no_grad()
def act(
    env, network: AgentNetwork, carry: Carry, steps: int, generator: torch.Generator
) -> tuple[Unroll, Carry]:
    """Play `steps` steps with the network's policy; games that end begin again. `carry` is left as it is."""
    start = map_state(torch.clone, carry.core)
    ready = network.ready(carry.core)
    seen, first, played = [], [], []
    for t in range(steps):
        inputs = look(env, carry)
        output, core = network.step(inputs, carry.core, carry.first, ready)
        actions = sample(output.logits, generator)
        game, step = advance(env, carry.game, actions, generator, t, steps)
        done = step.done
        seen.append(inputs)
        first.append(carry.first)
        outcome = (step.reward, done, step.truncated, step.episode_return, step.episode_length)
        played.append((actions, output.logits, *outcome))
        carry = Carry(
            game=game,
            core=core,
            # Nothing of an episode reaches the next one.
            last_action=actions.masked_fill(done, NO_ACTION),
            last_reward=step.reward.masked_fill(done, 0),
            first=done,
        )
    seen.append(look(env, carry))
    first.append(carry.first)
    inputs = Inputs(*map(torch.stack, zip(*seen, strict=True)))
    unroll = Unroll(inputs, torch.stack(first), start, *map(torch.stack, zip(*played, strict=True)))
    return unroll, carry


def advance(env, game, actions: Tensor, generator: torch.Generator, t: int, steps: int):
    """One step of the games. Levels of BoxWorld are made for several steps at once, which is cheaper."""
    if not hasattr(env, "restock"):
        return env.step(game, actions, generator)
    if t % RESTOCK_EVERY == 0:
        game = env.restock(game, generator, min(RESTOCK_EVERY, steps - t))
    return env.step(game, actions, generator, restock=False)


# ------------------------------------------------------------------ a carry in fixed memory


def copy_(target: Carry, source: Carry) -> None:
    """Write a carry into the memory of another: a CUDA graph begins and ends at the same addresses."""
    base.copy_(target.game, source.game)
    zip_states(lambda into, value: into.copy_(value), target.core, source.core)
    for name in ("last_action", "last_reward", "first"):
        getattr(target, name).copy_(getattr(source, name))


def named_tensors(carry: Carry | Unroll) -> dict[str, Tensor]:
    """All tensors of a carry or an unroll by name, for checkpoints; the memory is shared."""
    found: dict[str, Tensor] = {}

    def collect(prefix: str, value) -> None:
        if isinstance(value, Tensor):
            found[prefix] = value
        elif isinstance(value, tuple):
            for i, part in enumerate(value):
                collect(f"{prefix}.{i}", part)
        else:
            for field in dataclasses.fields(value):
                collect(f"{prefix}.{field.name}", getattr(value, field.name))

    for field in dataclasses.fields(carry):
        collect(field.name, getattr(carry, field.name))
    return found


def load_(carry: Carry | Unroll, tensors: dict[str, Tensor]) -> None:
    """Take back what `named_tensors` gave."""
    for name, target in named_tensors(carry).items():
        if name not in tensors:
            raise ValueError(f"the checkpoint lacks {name!r} of the games; it is not of this agent")
        if tensors[name].shape != target.shape:
            shapes = f"{list(tensors[name].shape)}; allowed: {list(target.shape)}"
            raise ValueError(f"the checkpoint's {name!r} has shape {shapes}")
        target.copy_(tensors[name])


# ------------------------------------------------------------------ unrolls in parts


def map_unrolls(function: Callable, first: Unroll, *others: Unroll) -> Unroll:
    """An unroll of `function(dim, *tensors)` of the tensors that stand at the same place in unrolls; `dim`
    is the one that counts games."""

    def apply(name: str):
        dim = 0 if name == "start" else 1
        parts = [getattr(unroll, name) for unroll in (first, *others)]
        if name == "inputs":
            return Inputs(*(function(dim, *tensors) for tensors in zip(*parts, strict=True)))
        return zip_states(lambda *tensors: function(dim, *tensors), *parts)

    return Unroll(**{field.name: apply(field.name) for field in dataclasses.fields(Unroll)})


def share(unroll: Unroll, part: Tensor, parts: int) -> Unroll:
    """The games of one of `parts` equal parts of an unroll; `part` `[]` is read on the device."""

    def cut(dim: int, tensor: Tensor) -> Tensor:
        return tensor.unflatten(dim, (parts, -1)).index_select(dim, part.view(1)).squeeze(dim)

    return map_unrolls(cut, unroll)


def join(unrolls: Sequence[Unroll]) -> Unroll:
    """The games of several unrolls in one."""
    return map_unrolls(lambda dim, *tensors: torch.cat(tensors, dim), *unrolls)
