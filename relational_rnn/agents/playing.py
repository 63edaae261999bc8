"""A trained network as a player, one step at a time: for films (environments/terminal.py) and for looking on.

Shapes: B games.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relational_rnn.agents import rollout
from relational_rnn.agents.network import NO_ACTION, AgentNetwork, Inputs


class NetworkPlayer:
    """A `Policy` of environments/terminal.py that keeps the core's state between its steps.

    `greedy`: the best action of every step; otherwise one drawn from the policy.
    """

    def __init__(self, network: AgentNetwork, *, greedy: bool = True, seed: int = 0):
        self.network, self.greedy = network, greedy
        device = next(network.parameters()).device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.state = None

    @torch.no_grad()
    def __call__(
        self, observation: Tensor, position: Tensor, action: Tensor, reward: Tensor, first: Tensor
    ) -> Tensor:
        if self.state is None:
            self.state = self.network.initial_state(observation.shape[0])
        inputs = Inputs(
            observation, position, action.masked_fill(first, NO_ACTION), reward.masked_fill(first, 0)
        )
        output, self.state = self.network.step(inputs, self.state, first)
        if self.greedy:
            return output.logits.argmax(-1)
        return rollout.sample(output.logits, self.generator)
