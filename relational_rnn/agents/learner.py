"""Learning: an unroll is acted, V-trace turns it into a loss, and training/loop.py does the rest.

Shapes: T steps of an unroll, B games, A actions.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from relational_rnn.agents import rollout
from relational_rnn.agents.evaluation import scores
from relational_rnn.agents.network import AgentNetwork, Output, fused
from relational_rnn.agents.rollout import Carry, Unroll
from relational_rnn.agents.vtrace import log_probability, losses, vtrace
from relational_rnn.cores.base import require
from relational_rnn.environments import base
from relational_rnn.training.config import ADDED
from relational_rnn.training.loop import Problem


@dataclass(frozen=True)
class Learning:
    """How an agent learns. Defaults: the appendix's where it gives one, else IMPALA's."""

    unroll: int = 40
    """Steps of every game in an update."""
    discount: float = 0.99
    """Gamma."""
    entropy_cost: float = 0.005
    """Weight of the policy's entropy, which is to stay high."""
    baseline_cost: float = 0.5
    """Weight of the value function's loss, half the squared error."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it in the loss; scores are not."""
    clip_rho: float = 1.0
    """Highest importance weight of a step."""
    clip_c: float = 1.0
    """Highest weight with which later steps count for earlier ones."""
    trace_decay: float = 1.0
    """Lambda: the weight of later steps falls by this factor with every step."""
    reduction: Literal["mean", "sum"] = "mean"
    """Losses are averaged over steps and games, or added up as IMPALA does."""

    updates_per_unroll: int = 1
    """Updates made of each unroll, each of its share of the games; V-trace corrects for the later ones."""
    time_outs: Literal["end", "bootstrap"] = field(default="end", metadata=ADDED)
    """An episode whose time is up ends like any other, as in IMPALA, or is worth what its last step was."""
    compile: bool = field(default=True, metadata=ADDED)
    """Where games run on a GPU: fuse their kernels, and those around the core, with torch.compile; up to a
    minute at the start."""

    def __post_init__(self):
        for name in ("unroll", "updates_per_unroll"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("discount", "trace_decay"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        for name in ("entropy_cost", "baseline_cost"):
            value = getattr(self, name)
            require(0 <= value < math.inf, name, value, "0 or more, less than inf")
        for name in ("reward_scale", "clip_rho", "clip_c"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        require(self.reward_scale < math.inf, "reward_scale", self.reward_scale, "less than inf")
        require(self.reduction in ("mean", "sum"), "reduction", self.reduction, "mean or sum")
        known = self.time_outs in ("end", "bootstrap")
        require(known, "time_outs", self.time_outs, "end or bootstrap")


def agent_loss(network: AgentNetwork, unroll: Unroll, learning: Learning) -> tuple[Tensor, dict[str, Tensor]]:
    """The V-trace actor-critic loss of an unroll, acted by this network or an older one."""
    output, _ = network(unroll.inputs, unroll.start, unroll.first)  # [T + 1, B, ...]
    return loss_of_output(output, unroll, learning)


def loss_of_output(output: Output, unroll: Unroll, learning: Learning) -> tuple[Tensor, dict[str, Tensor]]:
    """The same, from what the network says of every step."""
    logits, values = output.logits[:-1], output.value[:-1]
    log_ratios = log_probability(logits, unroll.actions) - log_probability(unroll.logits, unroll.actions)
    discounts = (~unroll.done).float() * learning.discount
    rewards = unroll.rewards * learning.reward_scale
    if learning.time_outs == "bootstrap":
        # The frame after a time-out is not kept; the value one step before it stands in for its value.
        rewards = rewards + unroll.truncated * learning.discount * values.detach()
    targets = vtrace(
        log_ratios.detach(),
        discounts,
        rewards,
        values.detach(),
        output.value[-1].detach(),
        clip_rho=learning.clip_rho,
        clip_c=learning.clip_c,
        trace_decay=learning.trace_decay,
    )
    terms = losses(logits, unroll.actions, values, targets)
    step_loss = terms.policy + learning.baseline_cost * terms.value - learning.entropy_cost * terms.entropy
    loss = step_loss.mean() if learning.reduction == "mean" else step_loss.sum()
    ratios = log_ratios.detach().exp()
    metrics = {
        "policy_loss": terms.policy.mean(),
        "value_loss": terms.value.mean(),
        "entropy": terms.entropy.mean(),
        "ratio": ratios.mean(),  # 1 for the policy that acted; far from it, V-trace has much to correct
        "reward": unroll.rewards.mean(),
    }
    return loss, {name: value.detach() for name, value in metrics.items()}


def episode_sums(unroll: Unroll, solved_at: float | None) -> dict[str, Tensor]:
    """Of the episodes that ended: how many, and what they add up to. Divided only once they are many."""
    done = unroll.done.float()
    sums = {
        "episodes": done.sum(),
        "return_sum": (unroll.episode_returns * done).sum(),
        "length_sum": (unroll.episode_lengths * done).sum(),
    }
    if solved_at is not None:
        sums["solved_sum"] = ((unroll.episode_returns >= solved_at) & unroll.done).float().sum()
    return sums


class Agent(Problem):
    """What every way of acting shares: the loss, what is recorded, and the evaluation.

    `solved_at`: an episode whose return is at least this is solved (None: the game has no such thing).
    `eval_env`: the games of the evaluation.
    """

    def __init__(
        self,
        network: AgentNetwork,
        learning: Learning,
        *,
        eval_env,
        eval_episodes: int = 1000,
        eval_games: int = 1024,
        solved_at: float | None = None,
    ):
        self.model, self.learning, self.solved_at = network, learning, solved_at
        self.eval_env, self.eval_episodes, self.eval_games = eval_env, eval_episodes, eval_games
        self.frames = torch.zeros((), dtype=torch.long, device=eval_env.device)  # steps of all games together

    def loss_of(self, unroll: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        loss, sums = loss_of_output, episode_sums
        if self.model.fuses:
            loss, sums = fused(loss), fused(sums)
        output, _ = self.model(unroll.inputs, unroll.start, unroll.first)
        found, metrics = loss(output, unroll, self.learning)
        return found, metrics | sums(unroll, self.solved_at)

    def after_interval(self, metrics: dict[str, float]) -> dict[str, int | float]:
        record: dict[str, int | float] = {"frames": int(self.frames)}
        if metrics["episodes"] > 0:
            for name in ("return", "length", "solved"):
                if f"{name}_sum" in metrics:
                    record[f"episode_{name}"] = metrics[f"{name}_sum"] / metrics["episodes"]
        return record

    def evaluate(self) -> dict[str, float]:
        return scores(self.eval_env, self.model, self.eval_episodes, self.eval_games, self.solved_at)

    def state(self) -> dict[str, Tensor]:
        return {"frames": self.frames}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.frames.copy_(state["frames"])


class AgentProblem(Agent):
    """B games played and learned from: each update acts an unroll with the newest weights and learns from it.
    With `learning.updates_per_unroll` U > 1 every U-th update acts, and each learns from B / U of the games:
    many games at once are cheap to act, and need not mean few updates.

    The games, the core's states and the random generator live on the device at fixed addresses, and belong
    to the checkpoint, so that on a GPU an update is one CUDA graph and a resumed run goes on as if it had
    never stopped. They begin when they are first needed, which is never if an agent is only evaluated.
    `stagger`: the first episodes begin with their step counters anywhere below this, as if they had been
    going on, so that games with a time limit do not all end in the same step (0: they do).
    """

    def __init__(
        self,
        env,
        network: AgentNetwork,
        learning: Learning,
        *,
        games: int,
        seed: int = 0,
        stagger: int = 0,
        eval_env=None,
        **options,
    ):
        # A copy: Gymnasium's games are not values, and an evaluation begins new ones in their place.
        super().__init__(network, learning, eval_env=eval_env or copy.copy(env), **options)
        network.fuses = learning.compile and base.worth_compiling(env)
        self.env = base.compiled(env) if network.fuses else env
        self.games, self.seed, self.stagger = games, seed, stagger
        self.generators = {"games": torch.Generator(env.device).manual_seed(seed)}
        self.shares = shares = learning.updates_per_unroll
        allowed = f"a multiple of updates_per_unroll = {shares} (the games are training.batch_size)"
        require(games % shares == 0, "games", games, allowed)
        self.frames_per_update = games * learning.unroll / shares
        if shares > 1:
            self.prepare_every = shares
            self.part = torch.zeros_like(self.frames)  # the share of the next update

    @cached_property
    def carry(self) -> Carry:
        """Where the games stand."""
        generator = self.generators["games"]
        carry = rollout.begin(self.env, self.model, self.games, generator)
        if self.stagger:
            carry.game.steps.random_(self.stagger, generator=generator)
        return carry

    @cached_property
    def stored(self) -> Unroll:
        """Memory for an unroll; what is acted here is thrown away, and nobody's random numbers are used.

        The evaluation's games act: steps of the others would be lost where games are not values."""
        throwaway = torch.Generator(self.env.device).manual_seed(self.seed)
        begun = rollout.begin(self.eval_env, self.model, self.games, throwaway)
        return rollout.act(self.eval_env, self.model, begun, self.learning.unroll, throwaway)[0]

    def act(self) -> Unroll:
        """Play on for an unroll."""
        unroll, after = rollout.act(
            self.env, self.model, self.carry, self.learning.unroll, self.generators["games"]
        )
        rollout.copy_(self.carry, after)
        self.frames += unroll.actions.numel()
        # Weights that autocast has cast without gradients must not be taken for those of the loss.
        torch.clear_autocast_cache()
        return unroll

    def prepare(self) -> None:
        kept, acted = rollout.named_tensors(self.stored), rollout.named_tensors(self.act())
        for name, target in kept.items():
            target.copy_(acted[name])

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        if self.shares == 1:
            return self.loss_of(self.act())
        unroll = rollout.share(self.stored, self.part, self.shares)
        self.part.add_(1).remainder_(self.shares)
        return self.loss_of(unroll)

    def state(self) -> dict[str, Tensor]:
        state = super().state() | rollout.named_tensors(self.carry)
        if self.shares > 1:
            state["part"] = self.part
            if self.part:  # otherwise the next update acts anew
                stored = rollout.named_tensors(self.stored)
                state |= {f"stored.{name}": tensor for name, tensor in stored.items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        if getattr(self.env, "resumes", True):  # Gymnasium's are not in the checkpoint: new ones begin
            rollout.load_(self.carry, state)
        if self.shares > 1:
            self.part.copy_(state["part"])
            if self.part:
                start = "stored."
                stored = {n.removeprefix(start): t for n, t in state.items() if n.startswith(start)}
                rollout.load_(self.stored, stored)
