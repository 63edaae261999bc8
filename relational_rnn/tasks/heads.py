"""From a core's outputs to logits: layers of ReLUs, the paper's, or of products."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, get_args

from torch import Tensor, nn

from relational_rnn.cores.base import initialize_like_sonnet, require

Head = Literal["relu", "bilinear"]


class Bilinear(nn.Module):
    """The product of two linear maps of the same input, then a layer norm.

    Digits of a loop are products modulo 10; these learn them in fewer updates than ReLUs."""

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.factors = nn.Linear(inputs, 2 * units)
        self.norm = nn.LayerNorm(units)  # without it sizes are squared from layer to layer

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.factors(x).chunk(2, -1)
        return self.norm(a * b)


def make_head(kind: Head, inputs: int, hidden: tuple[int, ...], classes: int) -> nn.Sequential:
    """Layers of so many units, then a linear one; weights as Sonnet starts them: torch's own are smaller, and
    can stay on a plateau."""
    require(kind in get_args(Head), "head", kind, ", ".join(get_args(Head)))
    widths = (inputs, *hidden)
    if kind == "bilinear":
        layers = [Bilinear(a, b) for a, b in pairwise(widths)]
    else:
        layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    head = nn.Sequential(*layers, nn.Linear(widths[-1], classes))
    initialize_like_sonnet(head)
    return head
