"""Any Gymnasium environment with images and numbered actions, as a batch of games for an agent.

Shapes: B games, an observation of C planes of h x w.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from relational_rnn.environments.base import Step, check_actions, check_batch


@dataclass
class GymnasiumState:
    """What is seen, and the counts; the games themselves are in the environment, and cannot be put back."""

    seen: Tensor  # [B, C, h, w] float32
    steps: Tensor  # [B]
    episode_return: Tensor  # [B] float32


class GymnasiumGames:
    """Games of Gymnasium with the interface of BoxWorld and MiniPacman, for AgentProblem and RemoteAgent.

    `make`: a number of games -> the VectorEnv of so many, whose finished games restart in the same step, as
    `vector_of("CartPole-v1")` does. Observations are `[C, h, w]`, or `[h, w, C]` with `channels_last`; bytes
    are divided by 255. A vector of n numbers is n planes of one cell.

    Unlike the games of this package these are not values: a state does not hold the game, so a run that is
    resumed begins new ones (`resumes`), as with actors on Ray, and only the newest state goes on.
    """

    resumes = False

    def __init__(
        self,
        make: Callable[[int], VectorEnv],
        *,
        channels_last: bool = False,
        device: torch.device | str = "cpu",
    ):
        self.make, self.channels_last, self.device = make, channels_last, torch.device(device)
        env = make(1) if callable(make) else make
        if not isinstance(env, VectorEnv):
            raise ValueError(f"make gives {env!r}; allowed: a function that gives a VectorEnv (vector_of)")
        space, actions = env.single_observation_space, env.single_action_space
        env.close()
        if not isinstance(space, spaces.Box) or len(space.shape) not in (1, 3):
            raise ValueError(f"the observation space is {space}; allowed: a Box of 1 or 3 dimensions")
        if not isinstance(actions, spaces.Discrete) or actions.start != 0:
            raise ValueError(f"the action space is {actions}; allowed: Discrete, from 0")
        if env.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            mode = env.metadata.get("autoreset_mode")
            raise ValueError(f"autoreset_mode is {mode}; allowed: AutoresetMode.SAME_STEP")
        self.num_actions = int(actions.n)
        self.scale = 255 if space.dtype == np.uint8 else 1
        self.observation_shape = tuple(self._planes(np.zeros((1, *space.shape), space.dtype)).shape[1:])
        self._env: VectorEnv | None = None

    def reset(self, batch_size: int, generator: torch.Generator) -> GymnasiumState:
        """A new episode in each of B new games."""
        check_batch(batch_size, generator, generator.device)
        if self._env is not None:
            self._env.close()
        self._env = self.make(batch_size)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        seen, _ = self._env.reset(seed=seed)
        zero = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return GymnasiumState(self._planes(seen), zero, zero.float())

    def step(
        self, state: GymnasiumState, actions: Tensor, generator: torch.Generator, *, auto_reset: bool = True
    ) -> tuple[GymnasiumState, Step]:
        """One step of every game. Games that end always restart; `auto_reset` only says whether the counts
        do, for callers that look at a game's first episode alone."""
        if self._env is None:
            raise ValueError("step was called before reset")
        check_actions(actions, state.steps.shape[0], self.num_actions, actions.device)
        seen, rewards, terminated, truncated, _ = self._env.step(actions.cpu().numpy())
        reward = self._tensor(rewards).float()
        ended = self._tensor(terminated), self._tensor(truncated) & ~self._tensor(terminated)
        s = GymnasiumState(self._planes(seen), state.steps + 1, state.episode_return + reward)
        step = Step(reward, *ended, s.episode_return, s.steps, final=None)
        if auto_reset:
            s.steps, s.episode_return = (t.masked_fill(step.done, 0) for t in (s.steps, s.episode_return))
        return s, step

    def observe(self, state: GymnasiumState) -> Tensor:
        return state.seen

    def position(self, state: GymnasiumState) -> Tensor:
        """Not known: the middle of the maps of position tags."""
        return torch.zeros(state.steps.shape[0], 2, dtype=torch.long, device=self.device)

    def _tensor(self, array) -> Tensor:
        return torch.as_tensor(np.asarray(array), device=self.device)

    def _planes(self, seen: np.ndarray) -> Tensor:
        planes = self._tensor(seen).float() / self.scale
        if planes.dim() == 2:
            return planes[:, :, None, None]
        return planes.movedim(-1, 1).contiguous() if self.channels_last else planes


def vector_of(name: str, **options) -> Callable[[int], VectorEnv]:
    """`make` for a registered environment: games one after the other in this process."""
    kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return partial(gymnasium.make_vec, name, vectorization_mode="sync", vector_kwargs=kwargs, **options)
