"""A game of three steps, as tensors: a cue is shown once, then nothing, then it must be named.

Without memory the best mean return is 0; with it, 1. Every third step ends an episode, so resets matter too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from relational_rnn.environments.base import Step


@dataclass
class RecallState:
    cue: Tensor  # [B] 0 or 1
    steps: Tensor  # [B] 0..2
    episode_return: Tensor  # [B]


class Recall:
    num_actions = 2
    observation_shape = (2, 2, 2)

    def __init__(self, device="cpu"):
        self.device = torch.device(device)

    def _cue(self, games, generator):
        return torch.randint(2, (games,), generator=generator, device=self.device)

    def reset(self, batch_size, generator):
        zero = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return RecallState(self._cue(batch_size, generator), zero, zero.float())

    def step(self, state, actions, generator, *, auto_reset=True):
        last = state.steps == 2
        reward = torch.where(last, (actions == state.cue).float() * 2 - 1, 0.0)
        s = RecallState(state.cue, state.steps + 1, state.episode_return + reward)
        step = Step(reward, last, last & False, s.episode_return, s.steps, final=s)
        if auto_reset:
            s = RecallState(
                torch.where(last, self._cue(len(last), generator), s.cue),
                s.steps.masked_fill(last, 0),
                s.episode_return.masked_fill(last, 0),
            )
        return s, step

    def observe(self, state):
        shown = torch.nn.functional.one_hot(state.cue, 2) * (state.steps == 0)[:, None]  # [B, 2]
        return shown.float()[:, :, None, None].expand(-1, 2, 2, 2)

    def position(self, state):
        return torch.zeros(len(state.cue), 2, dtype=torch.long, device=self.device)
