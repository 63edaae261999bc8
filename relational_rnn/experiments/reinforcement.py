"""What both games' experiments share: the settings of an agent, and the agent from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from relational_rnn.agents.learner import Agent, AgentProblem, Learning
from relational_rnn.agents.network import AgentNetwork, Encoder, core_inputs
from relational_rnn.agents.remote import Remote, RemoteAgent, actor_count
from relational_rnn.cores.base import RecurrentCore, require
from relational_rnn.cores.conv_lstm import ConvLSTM
from relational_rnn.cores.lstm import LSTM
from relational_rnn.experiments.rmc_settings import RMCSettings, build_rmc
from relational_rnn.training.config import ADDED, Training

Core = Literal["rmc", "lstm", "conv-lstm"]


@dataclass(frozen=True)
class Model(RMCSettings):
    """Sizes. The defaults are the appendix's for BoxWorld. An LSTM has total_units hidden units."""

    total_units: int = 1024
    mem_slots: int = 4
    num_heads: int = 4
    gate_style: Literal["unit", "memory"] | None = "memory"
    channels: tuple[int, ...] = (12, 24)
    """Kernels of each convolution."""
    kernels: tuple[int, ...] = (2, 2)
    """Their sizes."""
    strides: tuple[int, ...] = (1, 1)
    """Their strides."""
    tags: Literal["view", "room", "none"] = "view"
    """Position tags after the convolutions: over what is seen, over the whole room, or none."""
    background: float = field(default=0.0, metadata=ADDED)
    """The convolutions read (image - background) * contrast."""
    contrast: float = field(default=1.0, metadata=ADDED)
    """See background."""
    units: int = 0
    """ReLU units between convolutions and core; 0: none (never for the ConvLSTM)."""
    cells_as_rows: bool = False
    """The RMC attends to every cell of the encoder's grid by itself, not to one vector of them all."""
    conv_channels: int = 64
    """Output channels of the ConvLSTM, whose kernels are 2 x 2."""
    forget_bias: float = 1.0
    """Constant added to the forget gates."""
    head_units: int = 0
    """ReLU units between core and policy and value; 0: none."""

    def __post_init__(self):
        for name in ("total_units", "mem_slots", "num_heads", "num_blocks", "conv_channels"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("units", "head_units"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")


@dataclass(frozen=True)
class Evaluation:
    """Scores on levels training never sees, once with the best and once with drawn actions."""

    episodes: int = 1000
    """Episodes behind each score."""
    games: int = 1024
    """Games played at once."""

    def __post_init__(self):
        for name in ("episodes", "games"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")


@dataclass(frozen=True)
class AgentConfig:
    """A game adds its `task`."""

    training: Training
    core: Core = "rmc"
    """The recurrent core."""
    model: Model = field(default_factory=Model)
    learning: Learning = field(default_factory=Learning)
    evaluation: Evaluation = field(default_factory=Evaluation)
    actors: str = field(default="local", metadata=ADDED)
    """Who plays: local (the learner's own device), or ray:N, N processes (agents/remote.py)."""
    remote: Remote = field(default_factory=Remote, metadata=ADDED)

    def __post_init__(self):
        actor_count(self.actors)  # checks it
        cells = self.model.cells_as_rows
        allowed = f"False, with core {self.core}"
        require(not cells or self.core == "rmc", "model.cells_as_rows", cells, allowed)


def build_core(core: Core, model: Model, shapes: dict[int, tuple[int, ...]]) -> RecurrentCore:
    """`shapes`: what `core_inputs` says a core may read."""
    if core == "conv-lstm":
        return ConvLSTM(shapes[3], model.conv_channels, 2, model.forget_bias)
    if core == "lstm":
        return LSTM(shapes[1][0], model.total_units, model.forget_bias)
    rows, size = shapes[2] if model.cells_as_rows else (None, shapes[1][0])
    return build_rmc(model, size, forget_bias=model.forget_bias, input_rows=rows)


def build_network(env, room_shape: tuple[int, int], core: Core, model: Model) -> AgentNetwork:
    encoder = Encoder(
        env.observation_shape,
        room_shape,
        model.channels,
        model.kernels,
        model.strides,
        model.tags,
        model.background,
        model.contrast,
    )
    units = 0 if core == "conv-lstm" or model.cells_as_rows else model.units
    recurrent = build_core(core, model, core_inputs(encoder, env.num_actions, units))
    return AgentNetwork(encoder, recurrent, env.num_actions, units=units, head_units=model.head_units)


def build_problem(
    make_player: Callable,
    config: AgentConfig,
    device: torch.device,
    *,
    kind: type[AgentProblem] = AgentProblem,
    **options,
) -> Agent:
    """From a Config of either game and its `make_player(config, device)`; `options` go to the problem."""
    seed, training = config.training.seed, config.training
    torch.manual_seed(seed)  # initial weights, made on the CPU so that they are the same on any device
    env, network = make_player(config, device)
    network = network.to(device)
    options |= dict(games=training.batch_size, seed=seed)
    options |= dict(eval_episodes=config.evaluation.episodes, eval_games=config.evaluation.games)
    actors = actor_count(config.actors)
    if not actors:
        return kind(env, network, config.learning, **options)
    options = dict(eval_env=env) | options | dict(actors=actors, remote=config.remote)
    return RemoteAgent(partial(make_player, config), network, config.learning, **options)
