"""How hard the samples of learning to execute are, and when they get harder (Zaremba and Sutskever, 2014).

Shapes: B batch.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, get_args

import torch
from torch import Tensor

from relational_rnn.cores.base import require, require_sizes

Strategy = Literal["mix", "naive", "combined", "baseline", "mastery"]


class Curriculum:
    """Draws a length and a nest for every sample.

    mix:       uniformly up to the maximum (the paper's choice).
    baseline:  always the maximum.
    naive:     the level reached.
    combined:  uniformly up to the level reached.
    mastery:   half of the samples at the level reached, half uniformly up to it (ours).

    The last three start at length 1, nest 1 and advance in `update`: the length first, then the nest. Naive
    and combined do so as in Sonnet, by the loss, and in effect after `min_reports`; mastery when enough
    characters are right or its patience ends. The level is a tensor that changes in place, so a CUDA graph
    that captured `draw` follows it, and must not outlive it.

    Args:
        length, nest: the maximum, that of the task.
        strategy: one of the five.
        threshold: naive and combined advance when the loss no longer grows by this fraction from report to
            report.
        min_reports: reports a level of theirs gets at least.
        mastery: share of characters right that makes mastery advance.
        patience: reports after which it advances whatever the share; 0: never. Products of long numbers are
            never mastered, and what is beyond them should get its turn.
    """

    def __init__(
        self,
        length: int,
        nest: int,
        strategy: Strategy = "mix",
        *,
        threshold: float = 0.1,
        min_reports: int = 10,
        mastery: float = 0.95,
        patience: int = 0,
        device=None,
    ):
        require(strategy in get_args(Strategy), "strategy", strategy, ", ".join(get_args(Strategy)))
        require_sizes(length=length, nest=nest)
        require(not math.isnan(threshold), "threshold", threshold, "a number")
        require(min_reports >= 2, "min_reports", min_reports, "2 or more, for there must be a difference")
        require(0 < mastery <= 1, "mastery", mastery, "more than 0, at most 1")
        require(patience >= 0, "patience", patience, "0 or more")
        self.length, self.nest, self.strategy = length, nest, strategy
        self.threshold, self.min_reports = threshold, min_reports
        self.mastery, self.patience = mastery, patience
        self.grows = strategy in ("naive", "combined", "mastery")
        self.uniform = {"mix": 1.0, "combined": 1.0, "mastery": 0.5}.get(strategy, 0.0)  # share of samples
        self.level = torch.tensor((1, 1) if self.grows else (length, nest), device=device)
        self._losses: deque[float] = deque(maxlen=min_reports)
        self._reports = 0  # of this level

    def draw(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(lengths [B], nests [B])."""
        level = self.level.to(generator.device)[:, None].expand(2, batch_size)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=generator.device)

        if self.uniform:
            easier = 1 + (uniform(2, batch_size) * level).long()
            level = (
                easier
                if self.uniform == 1
                else torch.where(uniform(batch_size) < self.uniform, easier, level)
            )
        return level[0], level[1]

    def update(self, loss: float, accuracy: float) -> bool:
        """Report what an interval had; true if the level rose."""
        if not self.grows or self.level.tolist() == [self.length, self.nest]:
            return False
        self._reports += 1
        if self.strategy == "mastery":
            ready = accuracy >= self.mastery or self._reports == self.patience
        else:
            ready = self._stopped_growing(float(loss))
        if ready:
            self._reports = 0
            length, nest = self.level.tolist()
            self.level.copy_(torch.tensor((length + 1, nest) if length < self.length else (length, nest + 1)))
            self._losses.clear()
        return ready

    def _stopped_growing(self, loss: float) -> bool:
        """A falling loss counts as no longer growing, as in Sonnet."""
        self._losses.append(loss)
        if len(self._losses) < self.min_reports:
            return False
        losses = list(self._losses)
        mean = sum(losses) / len(losses)
        growth = (losses[-1] - losses[0]) / (len(losses) - 1)
        return growth < self.threshold * mean or mean == 0  # nothing left to learn

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        losses = torch.tensor(list(self._losses), dtype=torch.float64)
        return {"level": self.level.clone(), "losses": losses, "reports": torch.tensor(self._reports)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        length, nest = state["level"].tolist()
        first, last = (1, 1) if self.grows else (self.length, self.nest), (self.length, self.nest)
        fits = first[0] <= length <= last[0] and first[1] <= nest <= last[1]  # settings may have been edited
        allowed = f"{first} to {last} with length={self.length}, nest={self.nest}, strategy={self.strategy!r}"
        require(fits, "level of the checkpoint", (length, nest), allowed)
        self.level.copy_(state["level"])
        self._losses = deque(state["losses"].tolist(), maxlen=self.min_reports)
        self._reports = int(state.get("reports", 0))  # older checkpoints lack it
