"""An average of the weights over updates: what is evaluated and kept, beside the weights that are trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from relational_rnn.training.config import Training


class WeightAverage:
    """The mean of the weights after each update since `average_after`, the newest counting most.

    With decay d an update counts d times as much as the one after it; with d = 1 all count the same. The
    share of the newest is held in memory that a CUDA graph reads, as the learning rate is.
    """

    def __init__(self, model: nn.Module, config: Training, device: torch.device):
        self.decay, self.after = config.average_decay, config.average_after
        self.names, parameters = zip(*model.named_parameters(), strict=True)
        self.parameters = [p.detach() for p in parameters]  # the same memory
        self.averages = [p.clone() for p in self.parameters]
        self.share = torch.ones((), device=device)

    def set_share(self, step: int) -> None:
        """Before update number `step`, counted from 0."""
        averaged = max(0, step - self.after)
        self.share.fill_(max(1 - self.decay, 1 / (averaged + 1)))

    def update(self) -> None:
        change = torch._foreach_sub(self.parameters, self.averages)
        torch._foreach_mul_(change, self.share)
        torch._foreach_add_(self.averages, change)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Meanwhile the model has the averages, in the memory of its weights: graphs and views stay valid."""
        trained = [p.clone() for p in self.parameters]
        torch._foreach_copy_(self.parameters, self.averages)
        try:
            yield
        finally:
            torch._foreach_copy_(self.parameters, trained)

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.averages, strict=True))

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, average in self.tensors().items():
            average.copy_(tensors[name])
