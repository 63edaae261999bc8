"""Learning rates as a function of the step."""

from __future__ import annotations

import math

from relational_rnn.training.config import Training


def learning_rate(config: Training, step: int) -> float:
    """The rate for update number `step`, counted from 0.

    linear, cosine: from learning_rate after the warm-up to final_learning_rate, which the update after the
        last one would have.
    trapezoid: constant, and linearly to final_learning_rate over the last fifth of the steps. What is learned
        by leaving one plateau after the other needs the full rate for as long as there is a plateau.
    exponential: Sonnet's for N-th farthest, x 0.9 every 10,000 steps, not below final_learning_rate.
    """
    high, low = config.learning_rate, config.final_learning_rate
    if step < config.warmup_steps:
        return high * (step + 1) / (config.warmup_steps + 1)
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    if config.schedule == "linear":
        return high + (low - high) * progress
    if config.schedule == "trapezoid":
        return high + (low - high) * max(0.0, step / config.steps - 0.8) / 0.2
    if config.schedule == "cosine":
        return low + (high - low) * 0.5 * (1 + math.cos(math.pi * progress))
    if config.schedule == "exponential":
        return max(high * 0.9 ** (step / 10_000), low)
    return high
