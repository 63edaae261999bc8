"""How hard the samples of learning to execute are, and when they get harder (Zaremba and Sutskever, 2014).

Shapes: B batch.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, get_args

import torch
from torch import Tensor

from relational_rnn.cores.base import require

Strategy = Literal["mix", "naive", "combined", "baseline"]


class Curriculum:
    """Draws a length and a nest for every sample.

    mix:       uniformly up to the maximum (the paper's choice).
    baseline:  always the maximum.
    naive:     the level reached; it starts at length 1, nest 1.
    combined:  uniformly up to the level reached.

    The last two advance in `update`, as in Sonnet: the length first, then the nest. The level is a tensor
    that changes in place, so a CUDA graph that captured `draw` follows it, and must not outlive it.

    Args:
        length, nest: the maximum, that of the task.
        strategy: one of the four.
        threshold: `update` advances when the loss no longer grows by this fraction from report to report.
        min_reports: reports a level gets at least.
    """

    def __init__(
        self,
        length: int,
        nest: int,
        strategy: Strategy = "mix",
        *,
        threshold: float = 0.1,
        min_reports: int = 10,
        device=None,
    ):
        require(strategy in get_args(Strategy), "strategy", strategy, ", ".join(get_args(Strategy)))
        require(length >= 1, "length", length, "1 or more")
        require(nest >= 1, "nest", nest, "1 or more")
        require(min_reports >= 2, "min_reports", min_reports, "2 or more, for there must be a difference")
        self.length, self.nest, self.strategy = length, nest, strategy
        self.threshold, self.min_reports = threshold, min_reports
        self.grows = strategy in ("naive", "combined")
        self.uniform = strategy in ("mix", "combined")
        self.level = torch.tensor((1, 1) if self.grows else (length, nest), device=device)
        self._losses: deque[float] = deque(maxlen=min_reports)

    def draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(lengths [B], nests [B])."""
        level = self.level.to(generator.device)[:, None].expand(2, batch_size)
        if self.uniform:
            level = (
                1 + (torch.rand(2, batch_size, generator=generator, device=generator.device) * level).long()
            )
        return level[0], level[1]

    def update(self, loss: float) -> bool:
        """Report a loss; true if the level rose. A falling loss counts as no longer growing, as in Sonnet."""
        if not self.grows:
            return False
        self._losses.append(float(loss))
        if len(self._losses) < self.min_reports:
            return False
        losses = list(self._losses)
        growth = (losses[-1] - losses[0]) / (len(losses) - 1) / (sum(losses) / len(losses))
        length, nest = self.level.tolist()
        if growth >= self.threshold or (length, nest) == (self.length, self.nest):
            return False
        level = (length + 1, nest) if length < self.length else (length, nest + 1)
        self.level.copy_(torch.tensor(level))
        self._losses.clear()
        return True

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {"level": self.level.clone(), "losses": torch.tensor(list(self._losses), dtype=torch.float64)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.level.copy_(state["level"])
        self._losses = deque(state["losses"].tolist(), maxlen=self.min_reports)
