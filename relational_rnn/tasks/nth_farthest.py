"""N-th farthest (section 4.1, A.1): which vector is the n-th farthest from vector m?

A sequence shows V vectors, one a step, each with a label (a permutation of 0..V-1, so the label is not the
time step) and with the question, which is the same at every step: the one-hot of n and the one-hot of the
label m of the reference vector. The answer is a label.

What n = k means (k counts from 0, the one-hot's index):
  "farthest" (the paper): k = 0 asks for the farthest vector, k = V-1 for m itself, at distance 0.
  "nearest" (Sonnet's example code): k = 0 asks for m itself, k = V-1 for the farthest.
Step features: "paper" order (x; label; n; m), "sonnet" order [x, label, m, n].

Stages of a curriculum show only v of the V vectors and d of the D dimensions. The shapes stay those of the
full task: absent dimensions are zeros, and absent vectors are all-zero steps before the first vector. The
labels of a stage are 0..v-1 and n is one of 0..v-1, so k = v-1 is the reference itself in "farthest".

Shapes: B batch, V vectors (= time steps), D dimensions, I input size = D + 3V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from relational_rnn.cores.base import require

Convention = Literal["farthest", "nearest"]
FeatureOrder = Literal["paper", "sonnet"]


@dataclass(frozen=True)
class NthFarthest:
    """The task at one size; `batch` draws samples on the generator's device, no loop and no host sync."""

    vectors: int = 8
    dims: int = 16
    convention: Convention = "farthest"
    order: FeatureOrder = "paper"

    def __post_init__(self):
        require(self.vectors >= 2, "vectors", self.vectors, "2 or more")
        require(self.dims >= 1, "dims", self.dims, "1 or more")
        for name, kind in (("convention", Convention), ("order", FeatureOrder)):
            allowed = get_args(kind)
            require(getattr(self, name) in allowed, name, getattr(self, name), " | ".join(allowed))

    @property
    def input_size(self) -> int:
        return self.dims + 3 * self.vectors

    @property
    def classes(self) -> int:
        return self.vectors

    def batch(
        self, batch_size: int, *, generator: torch.Generator, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw samples: inputs `[V, B, I]` (time first, as cores take them) and answers `[B]`.

        `active`, an integer tensor (v, d) on the generator's device, shows v vectors in d dimensions. Being a
        tensor it can change between replays of a CUDA graph that captured this call.
        """
        device, V, D = generator.device, self.vectors, self.dims
        v, d = (V, D) if active is None else active.unbind()
        ids = torch.arange(V, device=device)
        present = ids >= V - v  # [V] by time step: the absent ones come first
        x = torch.rand(batch_size, V, D, generator=generator, device=device) * 2 - 1  # [B, V, D]
        if active is not None:
            shown = torch.arange(D, device=device) < d
            x = torch.where(present[:, None] & shown, x, 0.0)

        # A random order of the labels 0..v-1 over the last v steps: labels from v on sort to the front.
        keys = torch.rand(batch_size, V, generator=generator, device=device)
        labels = torch.where(ids < v, keys, -1.0).argsort(-1)  # [B, V]
        draws = torch.rand(2, batch_size, generator=generator, device=device)
        n, reference = (draws * v).long()  # [B] each, in 0..v-1; the reference is a label
        at_reference = labels == reference[:, None]  # [B, V], true once a row
        vector_m = (x * at_reference[..., None]).sum(1)  # [B, D]

        target = labels.gather(1, nth_position(x, vector_m, n, present, self.convention)[:, None]).squeeze(1)

        label = (labels[..., None] == ids) & present[:, None]  # one-hot [B, V, V]
        question = [
            (k[:, None, None] == ids) & present[:, None] for k in (n, reference)
        ]  # the same at each step
        if self.order == "sonnet":
            question.reverse()
        features = [x, label.to(x.dtype), *(q.to(x.dtype) for q in question)]
        return torch.cat(features, -1).transpose(0, 1), target


def nth_position(x: Tensor, vector_m: Tensor, n: Tensor, present: Tensor, convention: Convention) -> Tensor:
    """The time step `[B]` of the n-th (from 0) farthest or nearest vector of x `[B, V, D]` from `[B, D]`."""
    farthest = convention == "farthest"
    squared = (x - vector_m[:, None]).square().sum(-1)  # [B, V]; same order as the distances
    squared = torch.where(present, squared, -1.0 if farthest else float("inf"))  # absent ones rank last
    return squared.argsort(-1, descending=farthest).gather(1, n[:, None]).squeeze(1)
