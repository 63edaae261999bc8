"""Muon (Jordan et al., 2024): a matrix moves by its momentum made orthogonal, all directions equally far.

torch.optim.Muon is the same for one matrix after the other and cannot be captured in a CUDA graph; here
matrices of one shape go together, and the learning rate is read from memory. What is no large matrix is
left to Adam.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

MOMENTUM, STEPS = 0.95, 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values come to 0.7 to 1.2, which is near enough
SMALLEST = 64  # rows and columns: inputs, classes and gates of fewer have no directions to spare


def large_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Those Muon is for: of at least SMALLEST rows and columns, but no table of embeddings."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    parameters = (p for p in model.parameters() if p.requires_grad and p.dim() == 2)
    return [p for p in parameters if min(p.shape) >= SMALLEST and id(p) not in tables]


def orthogonal(matrices: Tensor) -> Tensor:
    """[n, a, b] -> nearly U V' of each one's U S V': Newton-Schulz steps in bf16 raise S towards 1."""
    wide = matrices.bfloat16() if matrices.shape[1] <= matrices.shape[2] else matrices.bfloat16().mT
    x = wide / wide.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if matrices.shape[1] <= matrices.shape[2] else x.mT


class Muon(torch.optim.Optimizer):
    """Large matrices by Muon, `ratio` times as fast as the rest by the Adam given, at any learning rate.

    A matrix's step is scaled to the size that Adam's would have (0.2 sqrt(larger side), Liu et al., 2025).
    """

    def __init__(self, matrices: list[nn.Parameter], adam: torch.optim.Adam, ratio: float):
        super().__init__(matrices, dict(lr=adam.param_groups[0]["lr"]))
        self.adam, self.ratio = adam, ratio
        self.param_groups += adam.param_groups
        self.state = adam.state  # one memory, so that a checkpoint has all of it
        self.by_shape = defaultdict(list)
        for matrix in matrices:
            self.by_shape[tuple(matrix.shape)].append(matrix)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for shape, matrices in self.by_shape.items():
            moving = [m for m in matrices if m.grad is not None]
            if not moving:
                continue
            for matrix in moving:
                if "momentum" not in self.state[matrix]:
                    self.state[matrix]["momentum"] = torch.zeros_like(matrix)
            momentums = [self.state[m]["momentum"] for m in moving]
            gradients = [m.grad for m in moving]
            torch._foreach_lerp_(momentums, gradients, 1 - MOMENTUM)
            ahead = torch._foreach_lerp(gradients, momentums, MOMENTUM)  # as Nesterov
            rate = self.param_groups[0]["lr"] * (self.ratio * 0.2 * max(shape) ** 0.5)
            updates = orthogonal(torch.stack(ahead)).to(moving[0].dtype) * rate
            torch._foreach_sub_(moving, list(updates.unbind()))
        self.adam.step()
