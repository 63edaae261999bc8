"""Muon (Jordan et al., 2024): a matrix moves by its momentum made orthogonal, all directions equally far.

torch.optim.Muon is the same for one matrix after the other and cannot be captured in a CUDA graph; here
matrices go together, and the learning rate is read from memory. What is no large matrix is left to Adam.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOMENTUM, STEPS = 0.95, 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: singular values come to 0.7 to 1.2, which is near enough
FILLED = 512  # of more rows are not filled up: their products cost more than launches do
SMALLEST = 64  # rows and columns: inputs, classes and gates of fewer have no directions to spare


def large_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Those Muon is for: of at least SMALLEST rows and columns, but no table of embeddings."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    parameters = (p for p in model.parameters() if p.requires_grad and p.dim() == 2)
    return [p for p in parameters if min(p.shape) >= SMALLEST and id(p) not in tables]


def orthogonal(wide: Tensor) -> Tensor:
    """[n, a, b], a <= b, -> nearly U V' of each one's U S V': Newton-Schulz steps in bf16 raise S towards 1.

    Columns of zeros stay zeros, and change nothing else."""
    x = wide.bfloat16()
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def groups_of(matrices: list[Tensor]) -> list[list[int]]:
    """Which of them go together: equally many rows (of the shorter sides), and columns that are at least a
    quarter of the most, so that filling up with zeros costs less than launching many small products. Those
    of many rows only with others of as many columns."""
    groups: list[list[int]] = []
    for i in sorted(range(len(matrices)), key=lambda i: -max(matrices[i].shape)):
        short, long = min(matrices[i].shape), max(matrices[i].shape)
        for group in groups:
            most, within = max(matrices[group[0]].shape), 4 if short <= FILLED else 1
            if min(matrices[group[0]].shape) == short and within * long >= most:
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def filled_up(matrices: list[Tensor]) -> Tensor:
    """Those of a group as one batch in bf16, wide, with columns of zeros behind the shorter ones."""
    short, long = min(matrices[0].shape), max(matrices[0].shape)
    batch = matrices[0].new_zeros(len(matrices), short, long, dtype=torch.bfloat16)
    for place, matrix in zip(batch, matrices, strict=True):
        inside(place, matrix).copy_(matrix)
    return batch


def inside(place: Tensor, matrix: Tensor) -> Tensor:
    """The part of a place [a, b] of a batch that belongs to a matrix, as a view of the matrix's shape."""
    part = place[:, : max(matrix.shape)]
    return part if matrix.shape[0] <= matrix.shape[1] else part.mT


class Muon(torch.optim.Optimizer):
    """Large matrices by Muon, `ratio` times as fast as the rest by the Adam given, at any learning rate.

    A matrix's step is scaled to the size that Adam's would have (0.2 sqrt(larger side), Liu et al., 2025).
    """

    def __init__(self, matrices: list[nn.Parameter], adam: torch.optim.Adam, ratio: float):
        super().__init__(matrices, dict(lr=adam.param_groups[0]["lr"]))
        self.matrices, self.adam, self.ratio = matrices, adam, ratio
        self.param_groups += adam.param_groups
        self.state = adam.state  # one memory, so that a checkpoint has all of it

    @torch.no_grad()
    def step(self, closure=None) -> None:
        moving = [m for m in self.matrices if m.grad is not None]
        for matrix in moving:
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        if moving:
            momentums = [self.state[m]["momentum"] for m in moving]
            gradients = [m.grad for m in moving]
            torch._foreach_lerp_(momentums, gradients, 1 - MOMENTUM)
            ahead = torch._foreach_lerp(gradients, momentums, MOMENTUM)  # as Nesterov
            rate = torch.as_tensor(self.param_groups[0]["lr"], dtype=moving[0].dtype)
            for group in groups_of(moving):
                directions = orthogonal(filled_up([ahead[i] for i in group]))
                for place, i in zip(directions, group, strict=True):
                    scale = self.ratio * 0.2 * max(moving[i].shape) ** 0.5
                    moving[i].addcmul_(inside(place, moving[i]), rate, value=-scale)
        self.adam.step()
