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
        for name, least in (("vectors", 2), ("dims", 1)):
            size = getattr(self, name)
            whole = isinstance(size, int) and not isinstance(size, bool)
            require(whole and size >= least, name, size, f"{least} or more, a whole number")
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
        require(batch_size >= 0, "batch_size", batch_size, "0 or more")
        device, B, V, D = generator.device, batch_size, self.vectors, self.dims
        ids = torch.arange(V, device=device)
        # Two of U(-1, 1) from each random 64-bit integer: on a CPU the random numbers are most of the work.
        bits = torch.empty(B, V, (D + 1) // 2, dtype=torch.long, device=device)
        x = (
            bits.random_(-(2**63), None, generator=generator).view(torch.int32)[..., :D] * 2.0**-31
        )  # [B, V, D]
        keys = torch.empty(B, V, dtype=torch.long, device=device).random_(generator=generator)  # 0 or more
        draws = torch.rand(2, B, generator=generator, device=device)
        v, present = V, None
        if active is not None:
            v, d = active.unbind()
            present = ids >= V - v  # [V] by time step: the absent ones come first
            x = x * (present[:, None] & (torch.arange(D, device=device) < d))
            keys = keys.masked_fill(ids >= v, -1)  # labels from v on sort to the absent steps

        labels = keys.argsort(-1)  # [B, V], a random order
        n, step = (draws * v).long()  # [B] each, in 0..v-1
        step_of_m = step + (V - v)  # [B]; any of the steps shown
        m = labels.gather(1, step_of_m[:, None]).squeeze(1)  # [B]
        vector_m = x[torch.arange(B, device=device), step_of_m][:, None]  # [B, 1, D]
        answer = nth_position(x, vector_m, n, present, self.convention)

        question = (m, n) if self.order == "sonnet" else (n, m)
        hot = torch.stack([labels, *(k[:, None].expand(-1, V) for k in question)], -1)  # [B, V, 3]
        hot = hot + (D + V * torch.arange(3, device=device))  # where each one-hot has its one
        features = torch.zeros(B, V, self.input_size, device=device)
        features[..., :D] = x
        if present is None:
            features.scatter_(2, hot, 1.0)
        else:
            features.scatter_(2, hot, present.float()[:, None].expand(B, V, 3))
        features = features.transpose(0, 1)  # [V, B, I]
        return features, labels.gather(1, answer[:, None]).squeeze(1)


def nth_position(
    x: Tensor, vector_m: Tensor, n: Tensor, present: Tensor | None, convention: Convention
) -> Tensor:
    """The time step `[B]` of the n-th (from 0) farthest or nearest vector of x `[B, V, D]` from `[B, 1, D]`.

    `present` `[V]`: only these steps hold a vector; None means all.
    """
    farthest = convention == "farthest"
    distances = torch.cdist(x, vector_m, compute_mode="donot_use_mm_for_euclid_dist").squeeze(2)  # [B, V]
    if present is not None:  # absent ones rank last
        distances = distances.masked_fill(~present, -1.0 if farthest else float("inf"))
    # Floats of 0 or more sort like their bits (and -1.0 comes first); integers sort faster on a CPU.
    bits = torch.int64 if distances.dtype == torch.float64 else torch.int32
    order = distances.view(bits).argsort(-1, descending=farthest)
    return order.gather(1, n[:, None]).squeeze(1)
