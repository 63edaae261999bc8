"""Dynamic evaluation (Krause et al., 2018): a model that goes on learning from the text it is tested on.

Every window is scored before it is learned from, so no word is predicted with knowledge of itself. The score
is not comparable with that of a fixed model, and is always reported by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from relational_rnn.cores.base import map_state, require
from relational_rnn.tasks.language_evaluation import Score
from relational_rnn.tasks.language_model import LanguageModel
from relational_rnn.tasks.language_modeling import Windows


@dataclass(frozen=True)
class Dynamic:
    """An update is learning_rate x gradient / its usual size in training, after a pull back to the start.

    That size is the root mean square of a weight's gradient, and of all weights' added to it: rare words have
    hardly any gradient in training.
    """

    learning_rate: float = 1e-3
    """Times the gradient over its usual size."""
    decay: float = 1e-2
    """Of the way back to the trained weights, after every window; more where gradients are usually large."""
    steps: int = 20
    """Words of a window."""
    statistics: int = 100
    """Windows of training text from which the usual size of each gradient is found."""

    def __post_init__(self):
        require(self.learning_rate >= 0, "learning_rate", self.learning_rate, "0 or more")
        require(0 <= self.decay <= 1, "decay", self.decay, "0 to 1")
        for name in ("steps", "statistics"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")


def dynamic_score(
    model: LanguageModel,
    tokens: np.ndarray,
    training_tokens: np.ndarray,
    settings: Dynamic,
    *,
    device: torch.device,
) -> Score:
    """One unroll over all tokens, learning. The model has its old weights again when this returns."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    trained = [p.detach().clone() for p in parameters]
    model.eval()
    model.core.train()  # cuDNN has no backward pass otherwise; cores drop nothing out by themselves

    def gradients(windows: Windows, count: int | None = None):
        """For each window: its nats, its number of tokens and the gradient of its mean."""
        state = model.initial_state(windows.batch_size)
        for number in range(len(windows) if count is None else min(count, len(windows))):
            inputs, targets = (part.to(device) for part in windows[number])
            with torch.enable_grad():
                losses = model(inputs, targets, state)
                found = torch.autograd.grad(losses.nats, parameters, allow_unused=True)
            state = map_state(torch.Tensor.detach, losses.state)
            found = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
            yield losses.nats.detach().double() * inputs.numel(), found

    with torch.no_grad():
        usual = [torch.zeros_like(p) for p in parameters]  # mean squares, then their roots
        steps = min(settings.steps, len(training_tokens))
        windows = Windows(training_tokens, min(32, len(training_tokens) // steps), steps)
        count = min(settings.statistics, len(windows))
        for _, found in gradients(windows, count):
            for total, gradient in zip(usual, found, strict=True):
                total.addcmul_(gradient, gradient, value=1 / count)
        usual = [total.sqrt_() for total in usual]
        mean = sum(root.sum() for root in usual) / sum(root.numel() for root in usual)
        pull = [(settings.decay * root / mean).clamp(max=1) for root in usual]

        nats = torch.zeros((), dtype=torch.float64, device=device)
        try:
            windows = Windows(tokens, 1, settings.steps, every_token=True)
            for more, found in gradients(windows):
                nats += more
                for p, start, g, root, way in zip(parameters, trained, found, usual, pull, strict=True):
                    p.add_(way * (start - p))
                    p.sub_(settings.learning_rate * g / (root + mean))
                torch.clear_autocast_cache()  # or bf16 would go on with its copies of the old weights
        finally:
            for p, start in zip(parameters, trained, strict=True):
                p.copy_(start)
            model.eval()
    return Score(nats.item(), len(tokens))
