"""Programs with digits missing, to practise on (ours).

The last digit of a + k b follows from three digits together: whoever knows two of them knows nothing. So
nothing tells a model to remember any one of them, and it does not begin (results/LOG.md). Where a's last
digit is zero and k is one, it is b's; where only one of the two is so, two digits decide. Each thing that has
to be remembered pays by itself, and sums of two and three of them, with fewer carries, come before the whole.
A product by 10000 begins with the last two digits of the other number. Every program is still one of the
task, though few of the task's are so thin.

Shapes: B batch, Q literals, L their digits, N levels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def thin(literals: Tensor, counts: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of that share of samples every digit [B, Q, L] becomes zero, or one where it is a literal's first, and
    every count [B, N] of a loop one, each with a chance that is the sample's own and uniform in 0 to 1."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=literals.device)

    stays = uniform(len(literals), 1) / share  # the chance of a digit; 1 or more: this sample is not thinned
    keep = uniform(*literals.shape) < stays[..., None]
    least = torch.zeros_like(literals[0])
    least[:, 0] = 1
    return torch.where(keep, literals, least), torch.where(uniform(*counts.shape) < stays, counts, 1)
