"""Programs with digits missing, to practise on (ours).

The last digit of a + k b follows from three digits together: whoever knows two of them knows nothing. So
nothing tells a model to remember any one of them, and it does not begin (results/LOG.md). Where a's last
digit is zero and k is one, it is b's; where only one of the two is so, two digits decide. Each thing that has
to be remembered pays by itself, and sums of two and three of them, with fewer carries, come before the whole.
Every program is still one of the task, though few of the task's are so thin.

Shapes: B batch, Q literals, L their digits, N levels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def thin(literals: Tensor, counts: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of that share of samples every digit [B, Q, L], but a literal's first, becomes zero and every count
    [B, N] of a loop one, each with a chance that is the sample's own and uniform in 0 to 1."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=literals.device)

    stays = uniform(len(literals), 1) / share  # the chance of a digit; 1 or more: this sample is not thinned
    keep = uniform(*literals.shape) < stays[..., None]
    keep[..., 0] = True
    return literals * keep, torch.where(uniform(*counts.shape) < stays, counts, 1)
