"""The games for Gymnasium: importing this module registers them.

    import gymnasium
    import relational_rnn.environments.gym

    env = gymnasium.make("relational_rnn/BoxWorld-v0", view="full", render_mode="rgb_array")
    envs = gymnasium.make_vec("relational_rnn/MiniPacman-v0", num_envs=4096, mode="regular")

`make_vec` gives one batch of games, not copies of the single environment. Its autoreset mode is same-step:
the observation after the last step of an episode is the first of the next one, and `infos["final_obs"]` and
`infos["final_info"]["episode"]` (return `r`, length `l`) hold what the old one ended with. For training on a
GPU use BoxWorld and MiniPacman themselves: here every step goes through NumPy on the host.

Shapes: B games (`num_envs`).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from relational_rnn.environments.base import Step, whole
from relational_rnn.environments.box_world import BoxWorld
from relational_rnn.environments.mini_pacman import MiniPacman

RENDER_MODES = ["rgb_array"]
FRAMES_PER_SECOND = 8


class GameEnv(gymnasium.Env):
    """One game. Restarts are the caller's, as Gymnasium has it."""

    metadata = {"render_modes": RENDER_MODES, "render_fps": FRAMES_PER_SECOND}  # noqa: RUF012

    def __init__(self, game: MiniPacman | BoxWorld, render_mode: str | None = None):
        _check_render_mode(render_mode)
        self.game, self.render_mode = game, render_mode
        self.observation_space = _observation_space(game)
        self.action_space = spaces.Discrete(game.num_actions)
        self._generator = self._state = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None or self._generator is None:
            self._generator = _generator(self.game, int(self.np_random.integers(2**62)))
        self._state = self.game.reset(1, self._generator)
        return self._observation(), {}

    def step(self, action):
        if self._state is None:
            raise ValueError("step was called before reset")
        actions = _actions([action], self.game)
        self._state, step = self.game.step(self._state, actions, self._generator, auto_reset=False)
        outcome = float(step.reward), bool(step.terminated), bool(step.truncated)
        return self._observation(), *outcome, {}

    def render(self) -> np.ndarray | None:
        if self.render_mode != "rgb_array":
            return None
        if self._state is None:
            raise ValueError("render was called before reset")
        return self.game.render(self._state)

    def _observation(self) -> np.ndarray:
        return self.game.observe(self._state)[0].cpu().numpy()


class GameVectorEnv(VectorEnv):
    """B games as one batch; finished games restart in the same step."""

    metadata = {  # noqa: RUF012
        "render_modes": RENDER_MODES,
        "render_fps": FRAMES_PER_SECOND,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, game: MiniPacman | BoxWorld, num_envs: int, render_mode: str | None = None):
        _check_render_mode(render_mode)
        num_envs = whole("num_envs", num_envs)
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; at least one game is needed")
        self.game, self.num_envs, self.render_mode = game, num_envs, render_mode
        self.single_observation_space = _observation_space(game)
        self.single_action_space = spaces.Discrete(game.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generator = self._state = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if options and "reset_mask" in options:
            raise ValueError("options has 'reset_mask'; these games restart by themselves, in the same step")
        if seed is not None or self._generator is None:
            self._generator = _generator(self.game, int(self.np_random.integers(2**62)))
        self._state = self.game.reset(self.num_envs, self._generator)
        return self._observation(self._state), {}

    def step(self, actions):
        if self._state is None:
            raise ValueError("step was called before reset")
        actions = _actions(actions, self.game)
        self._state, step = self.game.step(self._state, actions, self._generator)
        outcome = (x.cpu().numpy() for x in (step.reward.double(), step.terminated, step.truncated))
        return self._observation(self._state), *outcome, self._infos(step)

    def render(self) -> tuple[np.ndarray, ...] | None:
        if self.render_mode != "rgb_array":
            return None
        if self._state is None:
            raise ValueError("render was called before reset")
        return tuple(self.game.render(self._state, i) for i in range(self.num_envs))

    def _observation(self, state) -> np.ndarray:
        return self.game.observe(state).cpu().numpy()

    def _infos(self, step: Step) -> dict[str, Any]:
        done = step.done.cpu().numpy()  # [B]
        if not done.any():
            return {}
        final = np.full(self.num_envs, None, dtype=object)
        observations = self._observation(step.final)
        for i in np.flatnonzero(done):
            final[i] = observations[i]
        zero_elsewhere = lambda x: np.where(done, x.cpu().numpy(), 0)  # noqa: E731
        episode = {
            "r": zero_elsewhere(step.episode_return),
            "l": zero_elsewhere(step.episode_length),
            "_r": done,
            "_l": done,
        }
        info = {"episode": episode, "_episode": done}
        return {"final_obs": final, "_final_obs": done, "final_info": info, "_final_info": done}


class MiniPacmanEnv(GameEnv):
    def __init__(self, render_mode: str | None = None, **options):
        super().__init__(MiniPacman(**options), render_mode)


class BoxWorldEnv(GameEnv):
    def __init__(self, render_mode: str | None = None, **options):
        super().__init__(BoxWorld(**options), render_mode)


class MiniPacmanVectorEnv(GameVectorEnv):
    def __init__(self, num_envs: int, render_mode: str | None = None, **options):
        super().__init__(MiniPacman(**options), num_envs, render_mode)


class BoxWorldVectorEnv(GameVectorEnv):
    def __init__(self, num_envs: int, render_mode: str | None = None, **options):
        super().__init__(BoxWorld(**options), num_envs, render_mode)


def _observation_space(game: MiniPacman | BoxWorld) -> spaces.Box:
    return spaces.Box(0.0, 1.0, game.observation_shape, np.float32)


def _actions(given: Any, game: MiniPacman | BoxWorld) -> Tensor:
    """Whole numbers only: 1.7 is a mistake, not action 1."""
    actions = np.asarray(given)
    if actions.dtype.kind not in "iu":
        raise ValueError(f"actions are {given!r}; allowed: whole numbers, 0..{game.num_actions - 1}")
    return torch.as_tensor(actions.astype(np.int64), device=game.device)


def _generator(game: MiniPacman | BoxWorld, seed: int) -> torch.Generator:
    return torch.Generator(device=game.device).manual_seed(seed)


def _check_render_mode(render_mode: str | None) -> None:
    if render_mode not in (None, *RENDER_MODES):
        raise ValueError(f"render_mode is {render_mode!r}; allowed: None, {', '.join(RENDER_MODES)}")


# Classes, not functions: gymnasium.make reads their metadata, and itself adds what rgb_array allows.
for _id, _single, _vector in (
    ("relational_rnn/MiniPacman-v0", MiniPacmanEnv, MiniPacmanVectorEnv),
    ("relational_rnn/BoxWorld-v0", BoxWorldEnv, BoxWorldVectorEnv),
):
    if _id not in gymnasium.registry:
        gymnasium.register(
            _id,
            entry_point=f"{__name__}:{_single.__name__}",
            vector_entry_point=f"{__name__}:{_vector.__name__}",
        )
