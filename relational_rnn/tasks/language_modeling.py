"""Word-level language modelling (section 4.3, A.4): batches of a token file, perplexity.

A split is one long text. It is cut into B streams of equal length, and every window takes the next T tokens
of all streams, so that a model which carries its state from window to window has read all that came before
(truncated back-propagation through time).

Shapes: T steps of a window, B streams, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relational_rnn.cores.base import require
from relational_rnn.tasks.linear_cross_entropy import IGNORE, linear_cross_entropy
from relational_rnn.tasks.text.vocabulary import EOS_ID

__all__ = ["IGNORE", "DeviceWindows", "Window", "Windows", "linear_cross_entropy", "perplexity"]

# ------------------------------------------------------------------ batches


class Window(NamedTuple):
    """T consecutive tokens of every stream, and those to predict from them. Ids, int64."""

    inputs: Tensor  # [T, B]
    targets: Tensor  # [T, B], IGNORE behind the end of a stream


@dataclass(frozen=True)
class Windows:
    """A token file [n] as windows, in order; `windows[i]` is any of them, so that a run resumes where it was.

    With `every_token`, for evaluation, each of the n tokens is a target exactly once: streams are ceil(n / B)
    long, the last ones end early, and the last window may be shorter. Without, for training, all windows have
    one shape and the fewer than B * (T + 1) tokens that would not fill one are left out.

    The input of the first step is <eos>; that of every other stream is the token before it. A model begins
    window 0 with its initial state and every other one with the state the window before left.
    """

    tokens: np.ndarray
    batch_size: int
    steps: int
    every_token: bool = False
    rank: int = 0
    """Of several processes this one: it gets the streams rank * B / ranks, ... of the joint batch."""
    ranks: int = 1

    def __post_init__(self):
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(self.steps >= 1, "steps", self.steps, "1 or more")
        require(self.ranks >= 1, "ranks", self.ranks, "1 or more")
        require(0 <= self.rank < self.ranks, "rank", self.rank, f"0 to {self.ranks - 1}")
        divides = self.batch_size % self.ranks == 0
        require(divides, "batch_size", self.batch_size, f"a multiple of ranks={self.ranks}")
        least = 1 if self.every_token else self.batch_size * self.steps
        require(len(self.tokens) >= least, "len(tokens)", len(self.tokens), f"{least} or more")

    @property
    def stream_length(self) -> int:
        if self.every_token:
            return -(-len(self.tokens) // self.batch_size)
        return len(self.tokens) // self.batch_size

    def __len__(self) -> int:
        if self.every_token:
            return -(-self.stream_length // self.steps)
        return self.stream_length // self.steps

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index}; allowed: 0 to {len(self) - 1}")
        L, B = self.stream_length, self.batch_size // self.ranks
        time = np.arange(index * self.steps, min((index + 1) * self.steps, L))
        start = L * (self.rank * B + np.arange(B))
        at = start + time[:, None]  # [T, B]: where the targets stand
        real = at < len(self.tokens)
        targets = np.where(real, self._take(at), IGNORE)
        inputs = np.where(real & (at > 0), self._take(at - 1), EOS_ID)
        return Window(torch.from_numpy(inputs), torch.from_numpy(targets))

    def _take(self, at: np.ndarray) -> np.ndarray:
        return self.tokens[at.clip(0, len(self.tokens) - 1)].astype(np.int64)

    def __iter__(self) -> Iterator[Window]:
        return (self[index] for index in range(len(self)))


class DeviceWindows:
    """`Windows` for training, cut on the device: an update captured in a CUDA graph moves on by itself.

    `take` gives the window at hand, `advance` goes on to the next; behind the last one a new epoch begins.
    With `shift`, epochs begin at different tokens, so that windows are not cut at the same places again.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        batch_size: int,
        steps: int,
        *,
        device: torch.device,
        rank: int = 0,
        ranks: int = 1,
        shift: bool = False,
    ):
        windows = Windows(tokens, batch_size, steps, rank=rank, ranks=ranks)  # checks the arguments
        self.streams, self.steps, self.shift = batch_size // ranks, steps, shift
        self.length = windows.stream_length
        least = 2 * steps if shift else steps
        require(self.length >= least, "len(tokens)", len(tokens), f"{least * batch_size} or more")
        first = rank * self.streams * self.length
        last = first + self.streams * self.length
        before = [EOS_ID] if first == 0 else tokens[first - 1 : first]
        flat = np.concatenate([before, tokens[first:last]]).astype(np.int32)
        self.tokens = torch.from_numpy(flat).to(device)  # with the one before the first target
        self.position = torch.zeros((), dtype=torch.long, device=device)  # in a stream, of the first target
        self.epoch = torch.zeros_like(self.position)
        self._time = torch.arange(steps, device=device)
        self._starts = self.length * torch.arange(self.streams, device=device)

    def take(self, part: int = 0, parts: int = 1) -> tuple[Window, Tensor]:
        """The window of a share of the streams, and whether its epoch begins with it."""
        size = self.streams // parts
        starts = self._starts[part * size : (part + 1) * size]
        at = starts + (self.position + self._time)[:, None]  # [T, B]
        window = Window(self.tokens[at].long(), self.tokens[at + 1].long())
        return window, self.position == self._offset()

    def advance(self) -> None:
        self.position += self.steps
        over = self.position + self.steps > self.length
        self.epoch += over
        self.position.copy_(torch.where(over, self._offset(), self.position))

    def _offset(self) -> Tensor:
        """Where the epoch begins: 0 in the first, then in steps of about the golden section of a window."""
        return self.epoch * (round(0.618 * self.steps) if self.shift else 0) % self.steps

    def epochs(self, updates: int) -> float:
        """How often that many windows go through the text, not minding the shift."""
        return updates / (self.length // self.steps)


# ------------------------------------------------------------------ the score


def perplexity(nats: float, tokens: int) -> float:
    """exp of the mean loss: `nats` summed over all tokens of a split. A uniform model scores V."""
    require(tokens >= 1, "tokens", tokens, "1 or more")
    require(not nats < 0, "nats", nats, "0 or more")  # NaN stays NaN: a model that diverged
    mean = nats / tokens
    return math.exp(mean) if not mean > 700 else math.inf
