"""V-trace (Espeholt et al. 2018, section 4.1): targets and losses for unrolls an older policy has acted.

Shapes: T steps of an unroll, B games, A actions. `discounts` are gamma, and 0 where an episode ended: nothing
of what comes after it may flow back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Targets(NamedTuple):
    values: Tensor  # [T, B] v_s, what the value function should say
    advantages: Tensor  # [T, B] of the policy gradient, importance weights included


@torch.no_grad()
def vtrace(
    log_ratios: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    trace_decay: float = 1.0,
) -> Targets:
    """Targets of an unroll. All inputs `[T, B]`, except `bootstrap` `[B]`, the value after the last step.

    `log_ratios` = log pi(a|x) - log mu(a|x), pi the policy that learns and mu the one that acted. With
    rho = min(clip_rho, pi/mu) and c = trace_decay * min(clip_c, pi/mu):

        delta_t = rho_t (r_t + g_t V_{t+1} - V_t)
        v_t     = V_t + delta_t + g_t c_t (v_{t+1} - V_{t+1})
        A_t     = rho_t (r_t + g_t v_{t+1} - V_t)

    On policy (ratios 1, no clipping below 1, no decay) v_t is the discounted return up to the bootstrap.
    """
    shape = values.shape
    for name, given in (("log_ratios", log_ratios), ("discounts", discounts), ("rewards", rewards)):
        if given.shape != shape:
            raise ValueError(f"{name} has shape {list(given.shape)}; allowed: that of values, {list(shape)}")
    if bootstrap.shape != shape[1:]:
        raise ValueError(f"bootstrap has shape {list(bootstrap.shape)}; allowed: {list(shape[1:])}")
    ratios = log_ratios.exp()
    rho, c = ratios.clamp(max=clip_rho), trace_decay * ratios.clamp(max=clip_c)
    next_values = torch.cat((values[1:], bootstrap[None]))  # [T, B]
    deltas = rho * (rewards + discounts * next_values - values)
    carried = discounts * c
    corrections = []  # v - V, from the last step to the first
    correction = torch.zeros_like(bootstrap)
    for t in reversed(range(shape[0])):
        correction = torch.addcmul(deltas[t], carried[t], correction)
        corrections.append(correction)
    targets = values + torch.stack(corrections[::-1])
    next_targets = torch.cat((targets[1:], bootstrap[None]))
    return Targets(targets, rho * (rewards + discounts * next_targets - values))


def log_probability(logits: Tensor, actions: Tensor) -> Tensor:
    """Of the actions taken: logits `[..., A]`, actions `[...]` -> `[...]`."""
    return F.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """Of the policy in nats: `[..., A]` -> `[...]`. An action masked out with -inf adds nothing."""
    log_probabilities = F.log_softmax(logits, -1)
    # p log p goes to 0 with p; 0 * -inf is NaN. The mask comes first, so that no gradient is 0 * inf.
    finite = log_probabilities.masked_fill(logits == -torch.inf, 0.0)
    return -(log_probabilities.exp() * finite).sum(-1)


class Losses(NamedTuple):
    policy: Tensor  # [T, B] -A log pi(a): its gradient is minus the policy gradient
    value: Tensor  # [T, B] (v - V)^2 / 2
    entropy: Tensor  # [T, B]


def losses(logits: Tensor, actions: Tensor, values: Tensor, targets: Targets) -> Losses:
    """The three terms at every step; gradients flow through logits and values only."""
    policy = -targets.advantages * log_probability(logits, actions)
    return Losses(policy, (targets.values - values).square() / 2, entropy(logits))
