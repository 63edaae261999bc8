"""Recorded episodes of an agent: the whole level, what it sees, what it expects and what its memory reads.

Shapes: B games, T steps, A actions, C cells.
"""

from __future__ import annotations

import torch

from relational_rnn.agents import rollout
from relational_rnn.agents.network import AgentNetwork
from relational_rnn.cores.base import select
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.environments.box_world import BoxWorld, palette
from relational_rnn.environments.mini_pacman import MiniPacman
from relational_rnn.environments.mini_pacman_maze import H, W
from relational_rnn.explorer import encoding
from relational_rnn.kernels.reference import Trace
from relational_rnn.training.config import EVAL_SEED

SEED = EVAL_SEED + 1  # levels that neither training nor evaluation draws
ACTIONS = {BoxWorld: ("up", "down", "left", "right"), MiniPacman: ("stay", "right", "up", "left", "down")}


def room_shape(env) -> tuple[int, int]:
    return (env.side, env.side) if isinstance(env, BoxWorld) else (H, W)


@torch.no_grad()
def export_episodes(
    name: str, env, network: AgentNetwork, *, episodes: int = 3, max_steps: int = 250, seed: int = SEED
) -> dict:
    """Play with actions drawn from the policy, and keep every step; longer episodes are cut, and say so."""
    generator = torch.Generator(env.device).manual_seed(seed)
    carry = rollout.begin(env, network, episodes, generator)
    frames, over = [[] for _ in range(episodes)], [False] * episodes
    for _ in range(max_steps):
        inputs = rollout.look(env, carry)
        before = select(carry.first, network.core.initial_like(carry.core), carry.core)
        output, core, traced = _step(network, inputs, before)
        actions = rollout.sample(output.logits, generator)
        seen, game = carry.game, carry.game
        game, step = env.step(carry.game, actions, generator, auto_reset=False)
        for b in range(episodes):
            if not over[b]:
                frame = _frame(env, seen, b) | {
                    "value": output.value[b],
                    "policy": output.logits[b].softmax(-1),
                    "action": actions[b],
                    "reward": step.reward[b],
                }
                if traced is not None:
                    frame |= {"trace": [None if t is None else t[0, b] for t in traced]}
                    frame |= {"before": before[b], "after": core[b]}
                frames[b].append(frame)
                over[b] = bool(step.done[b])
        if all(over):
            break
        carry = rollout.Carry(game, core, actions, step.reward, torch.zeros_like(carry.first))
    rows, columns = room_shape(env)
    return {
        "name": name,
        "game": "box-world" if isinstance(env, BoxWorld) else "mini-pacman",
        "view": env.view,
        "rows": rows,
        "columns": columns,
        "actions": list(ACTIONS[type(env)]),
        "palette": encoding.numbers(palette()) if isinstance(env, BoxWorld) else None,
        "episodes": [_episode(kept, ended) for kept, ended in zip(frames, over, strict=True)],
    }


def _step(network: AgentNetwork, inputs, state):
    """One step -> (policy and value, next state, trace of a RelationalMemory or None)."""
    features = network.features(inputs)
    if isinstance(network.core, RelationalMemory):
        output, state, traced = network.core(features[None], state, need_weights=True)
        return network.heads(output[0]), state, traced
    output, state = network.core.step(features, state)
    return network.heads(output), state, None


def _frame(env, game, b: int) -> dict:
    """What is to be drawn of game b before its step."""
    if isinstance(env, BoxWorld):
        state = {"held": game.held[b]}
    else:
        state = {"power": game.power[b], "level": game.level[b]}
    return {"cells": env.cells(game)[b], "position": env.position(game)[b], **state}


def _episode(frames: list[dict], ended: bool) -> dict:
    def column(key):
        return torch.stack([frame[key] for frame in frames])

    episode = {
        "steps": len(frames),
        "ended": ended,
        "return": round(sum(float(frame["reward"]) for frame in frames), encoding.DIGITS),
        "cells": encoding.small_integers(column("cells")),
        "positions": column("position").tolist(),
        "actions": column("action").tolist(),
        "rewards": encoding.numbers(column("reward")),
        "values": encoding.numbers(column("value")),
        "policy": encoding.numbers(column("policy")),
    }
    for key in ("held", "power", "level"):
        if key in frames[0]:
            episode[key] = column(key).tolist()
    if "trace" in frames[0]:
        parts = zip(*(frame["trace"] for frame in frames), strict=True)
        traced = Trace(*(None if part[0] is None else torch.stack(part) for part in parts))
        episode["trace"] = encoding.trace(traced, column("after"), frames[0]["before"])
    return episode
