"""Scores on fresh levels: every game plays one whole episode, so that short ones do not count more.

Shapes: B games, E episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relational_rnn.agents import rollout
from relational_rnn.agents.network import AgentNetwork

EVAL_SEED = 2**40  # evaluation draws from seeds no training seed reaches
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


def _play(env, network, games, greedy, generator) -> Episodes:
    carry = rollout.begin(env, network, games, generator)
    over = torch.zeros_like(carry.first)
    returns = torch.zeros(games, device=env.device)
    lengths = torch.zeros(games, dtype=torch.long, device=env.device)
    t = 0
    while t % CHECK_EVERY or not over.all():
        output, core = network.step(rollout.look(env, carry), carry.core, carry.first)
        actions = output.logits.argmax(-1) if greedy else rollout.sample(output.logits, generator)
        # A game that is over plays on, unrestarted and unseen, until the last one is.
        game, step = env.step(carry.game, actions, generator, auto_reset=False)
        returns = torch.where(over, returns, step.episode_return)
        lengths = torch.where(over, lengths, step.episode_length)
        over = over | step.done
        carry = rollout.Carry(game, core, actions, step.reward, torch.zeros_like(over))
        t += 1
    return Episodes(returns, lengths)
