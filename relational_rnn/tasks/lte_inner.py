"""What stands in brackets, asked for in training a few steps after they close (ours).

The value of a loop of loops is a + k b + m c, and its last digit is hardly learned at once, not even from
the digits themselves (results/LOG.md). Step by step it is: the inner loop's value, then a loop that begins
with it. A linear layer that has to read the inner value from the core, while that reads on, teaches it to
take this way. Answers do not need the layer, in evaluations or later.

Shapes: S input steps, T output steps, B batch, N deepest nest, D digits of a value.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relational_rnn.cores.base import initialize_like_sonnet, require
from relational_rnn.tasks.learning_to_execute import Batch


class InnerValues(nn.Module):
    """Reads the digits of a value from what the core put out `delay` steps after its bracket closed."""

    def __init__(self, features: int, length: int, delay: int):
        super().__init__()
        require(delay >= 0, "inner_delay", delay, "0 or more")
        self.digits, self.delay = length + 1, delay  # D: values are modulo 10^D
        self.read = nn.Linear(features, 10 * self.digits)
        initialize_like_sonnet(self)

    def forward(self, outputs: Tensor, begins: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Outputs of all steps [S + T, B, features], where samples begin [B] -> (loss, digits right).

        The loss is the mean over B (N - 1) D digits; those of brackets that a sample lacks count as 0.
        """
        at = (begins[:, None] + batch.closed + self.delay).clamp(max=len(outputs) - 1)  # [B, N - 1]
        samples = torch.arange(len(begins), device=begins.device)[:, None]
        logits = self.read(outputs[at, samples]).float().unflatten(-1, (self.digits, 10))
        tens = 10 ** torch.arange(self.digits, device=begins.device)
        targets = (batch.inner[..., None] // tens).remainder(10)  # [B, N - 1, D], the last digit first
        there = (batch.closed >= 0)[..., None].expand_as(targets)
        entropy = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        right = (logits.argmax(-1) == targets) & there
        return (entropy * there.flatten()).mean(), right.sum() / there.sum().clamp(min=1)
