"""Operations practised as often as they are got wrong, instead of all equally often (ours).

Comparisons are soon right and loops are not; drawn equally often, half of a batch of control is then wasted.

Shapes: B batch, T steps, O operations that a character depends on, C choices of a task.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relational_rnn.tasks.learning_to_execute import BY_NAME, LearningToExecute

LEAST = 0.03  # added to the share of wrong characters, so that nothing is forgotten


class Practice:
    """The odds of a task's operations: a tensor that changes in place, so that a CUDA graph follows it."""

    def __init__(self, task: LearningToExecute, device=None):
        self.choices = torch.tensor(task.choices, device=device)
        self.names = [name for name, numbers in BY_NAME.items() if numbers[0] in task.choices]
        self.odds = torch.full((len(task.choices),), 1 / len(task.choices), device=device)  # [C]

    def count(self, operations: Tensor, right: Tensor, asked: Tensor) -> dict[str, Tensor]:
        """Of each operation: how many characters of `asked` [T, B] depend on it, and how many of these are
        `right` [T, B]. `operations` [T, B, O] by number; T is 1 where all characters of a sample depend on
        the same."""
        found = {}
        for name in self.names:
            has = torch.stack([operations == number for number in set(BY_NAME[name])]).any(0).any(-1)
            own = asked & has
            found |= {f"{name}_right": (right & own).sum().float(), f"{name}_asked": own.sum().float()}
        return found

    def update(self, metrics: dict[str, float]) -> dict[str, float]:
        """From an interval's means of `count`, the odds of the next one -> the shares right, to record."""
        shares = {}
        for name in self.names:
            asked = metrics[f"{name}_asked"]
            shares[name] = metrics[f"{name}_right"] / asked if asked else 0.0
        wrong = {name: 1 - share + LEAST for name, share in shares.items()}
        odds = torch.zeros_like(self.odds)
        for name in self.names:
            own = torch.isin(self.choices, torch.tensor(BY_NAME[name], device=self.choices.device))
            odds += own * wrong[name] / own.sum()
        self.odds.copy_(odds / odds.sum())
        return {f"accuracy_{name}": share for name, share in shares.items()}
