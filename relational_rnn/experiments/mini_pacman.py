"""Mini Pacman (section 4.2, figure 10): settings and presets.

The paper's scores: with the viewport RMC 677 and LSTM 550, with the full view 1159 and 598. It gives neither
the agent nor the number of steps. `training.batch_size` is the number of games; an update is an unroll of all
of them. `rmc train mini-pacman --preset NAME` runs a preset, and any field can be set from the command line:
`--task.view full`, `--core lstm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from relational_rnn.agents.learner import Agent, Learning
from relational_rnn.agents.network import AgentNetwork
from relational_rnn.cores.base import require
from relational_rnn.environments.mini_pacman import H, MiniPacman, W
from relational_rnn.experiments import box_world
from relational_rnn.experiments.reinforcement import (
    AgentConfig,
    Evaluation,
    Model,
    build_network,
    build_problem,
)

NAME = "mini-pacman"


@dataclass(frozen=True)
class Task:
    """The rules, and what is seen (environments/mini_pacman.py)."""

    mode: Literal["regular", "avoid", "hunt", "ambush", "rush"] = "regular"
    """Rewards and what ends a level."""
    view: Literal["viewport", "full"] = "viewport"
    """5 x 5 cells around Pacman, or all."""
    frame_cap: int = 3000
    """Steps after which an episode is cut off."""
    dynamics: Literal["notebook", "paper"] = "notebook"
    """The rules of the published code, or those described in its paper."""
    max_ghosts: int = 12
    """Most ghosts of a level."""

    def __post_init__(self):
        allowed = "1 or more, less than 2^31: evaluation waits for the end"
        require(1 <= self.frame_cap < 2**31, "frame_cap", self.frame_cap, allowed)


MODEL = Model(channels=(16, 16), kernels=(3, 3), strides=(1, 2), tags="none", units=256)
"""The encoder of Weber et al. (2017), whose game it is: 16 kernels of 3 x 3, 16 of stride 2, 256 units."""


@dataclass(frozen=True)
class Config(AgentConfig):
    task: Task = field(default_factory=Task)
    model: Model = MODEL


def make_env(task: Task, device: torch.device) -> MiniPacman:
    return MiniPacman(
        task.mode,
        view=task.view,
        frame_cap=task.frame_cap,
        dynamics=task.dynamics,
        max_ghosts=task.max_ghosts,
        device=device,
    )


def make_player(config: Config, device: torch.device) -> tuple[MiniPacman, AgentNetwork]:
    """The games and a network for them."""
    env = make_env(config.task, device)
    return env, build_network(env, (H, W), config.core, config.model)


def make_problem(config: Config, device: torch.device) -> Agent:
    return build_problem(make_player, config, device)


# ------------------------------------------------------------------ presets


def paper() -> Config:
    """The agent of appendix A.3 with the encoder of Weber et al.; updates of 32 x 40 steps, 1e9 steps.

    rmc train mini-pacman --preset paper [--task.view full] [--core lstm]
    The paper's scores: 677 with the viewport, 1159 with the full view (LSTM 550 and 598). Ours: not run yet.
    The paper describes neither agent nor training for this game; BoxWorld's are taken.
    """
    return Config(training=box_world.paper().training, learning=Learning(reduction="sum"))


def fast() -> Config:
    """The same game and agent for one modern GPU: 1024 games at once, Muon, bf16; 5e8 steps.

    rmc train mini-pacman --preset fast [--task.view full] [--core lstm]
    Expected score, with an entropy cost of 0.015, drawn actions, one seed, on an H200 with five other runs:
    viewport, 40,000 updates, 553 points in 10 minutes (LSTM 578), full view, 30,000, 679 in 9 (LSTM 631).
    All 100,000 have not been run.
    Guesses: all but the discount, the unroll and the network's sizes, which are BoxWorld's in the paper; that
    an update takes an eighth of the games is what BoxWorld learns sooner with. The reward scale keeps values
    (a hundred steps of up to a point each) near 1: small runs on a CPU (viewport, 128 units, 128 games x 20
    steps, 1e-3, one seed each) had 51 points after 1.3 million steps with it and 16 without; with clipping at
    0.1, 73 then and 441 after 15 million (results/LOG.md).
    """
    training = replace(box_world.fast().training, steps=100_000, learning_rate=4e-4)
    return Config(training=training, learning=Learning(reward_scale=0.1, updates_per_unroll=8))


def smoke() -> Config:
    """Seconds on two CPU cores: that everything runs, not that anything is learned.

    rmc train mini-pacman --preset smoke
    """
    return Config(
        training=box_world.smoke().training,
        task=Task(frame_cap=40),
        model=replace(MODEL, channels=(4, 4), units=16, total_units=64, num_heads=2, conv_channels=4),
        learning=Learning(unroll=6, reward_scale=0.1),
        evaluation=Evaluation(16, 16),
    )


PRESETS = {preset.__name__: preset for preset in (paper, fast, smoke)}
