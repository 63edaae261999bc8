"""Scores on fresh levels: every game plays one whole episode, so that short ones do not count more.

Shapes: B games, E episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relational_rnn.agents import rollout
from relational_rnn.agents.network import AgentNetwork
from relational_rnn.kernels.graphs import Repeated
from relational_rnn.training.config import EVAL_SEED

CHECK_EVERY = 16  # steps between two looks whether every game is over, each of which waits for the device


class Episodes(NamedTuple):
    returns: Tensor  # [E] float32
    lengths: Tensor  # [E] int64


@torch.no_grad()
def play_episodes(
    env,
    network: AgentNetwork,
    episodes: int,
    *,
    games: int = 1024,
    greedy: bool = False,
    seed: int = EVAL_SEED,
) -> Episodes:
    """E episodes on fresh levels, B at a time; the best action of every step, or one drawn from the policy.

    Episodes must end: the environment needs a cap on its steps.
    """
    generator = torch.Generator(env.device).manual_seed(seed)
    parts = []
    for begun in range(0, episodes, games):
        parts.append(_play(env, network, min(games, episodes - begun), greedy, generator))
    return Episodes(*map(torch.cat, zip(*parts, strict=True)))


def scores(
    env, network: AgentNetwork, episodes: int, games: int, solved_at: float | None
) -> dict[str, float]:
    """Fresh levels, always the same ones: the policy's best action, and actions drawn from it."""
    found = {}
    for name, greedy in (("greedy", True), ("sampled", False)):
        played = play_episodes(env, network, episodes, games=games, greedy=greedy)
        found[f"{name}_return"] = played.returns.double().mean().item()
        found[f"{name}_length"] = played.lengths.double().mean().item()
        if solved_at is not None:
            found[f"{name}_solved"] = (played.returns >= solved_at).double().mean().item()
    return found


def _play(env, network, games, greedy, generator) -> Episodes:
    carry = rollout.begin(env, network, games, generator)
    over = torch.zeros_like(carry.first)
    played = Episodes(torch.zeros(games, device=env.device), torch.zeros_like(carry.last_action))

    def play_on() -> None:
        """A few steps of every game, from and back into the same memory."""
        now, ready = carry, network.ready(carry.core)
        for _ in range(CHECK_EVERY):
            output, core = network.step(rollout.look(env, now), now.core, now.first, ready)
            actions = output.logits.argmax(-1) if greedy else rollout.sample(output.logits, generator)
            # A game that is over plays on, unrestarted and unseen, until the last one is.
            game, step = env.step(now.game, actions, generator, auto_reset=False)
            for total, value in zip(played, (step.episode_return, step.episode_length), strict=True):
                total.copy_(torch.where(over, total, value))
            over.logical_or_(step.done)
            now = rollout.Carry(game, core, actions, step.reward, torch.zeros_like(over))
        rollout.copy_(carry, now)

    # A step of a game is some hundred small kernels: eager calls would wait for the host nearly all the time.
    repeated = Repeated(env.device, [generator])
    while not over.all():
        repeated(play_on)
    return played
