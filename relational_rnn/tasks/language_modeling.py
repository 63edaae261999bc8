"""Word-level language modelling (section 4.4, A.4): batches of a token file, the loss, perplexity.

A split is one long text. It is cut into B streams of equal length, and every window takes the next T tokens
of all streams, so that a model which carries its state from window to window has read all that came before
(truncated back-propagation through time).

Shapes: T steps of a window, B streams, V vocabulary, D features before the softmax, N = T * B tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.cores.base import require
from relational_rnn.tasks.text.vocabulary import EOS_ID

IGNORE = -100  # target of a step that is not to be predicted; what torch's losses leave out by default
LOGITS_AT_ONCE = 1 << 27  # of the chunked loss: 512 MiB in float32; fewer cost more passes over the weight

Reduction = Literal["mean", "sum", "none"]


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


# ------------------------------------------------------------------ the loss


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
    implementation: Literal["auto", "torch", "chunked", "plain"] = "auto",
) -> Tensor:
    """Cross entropy in nats of softmax(hidden W' + b), never holding the logits of all tokens at once.

    hidden [..., D], weight [V, D], bias [V], targets [...] with IGNORE where there is nothing to predict.
    The mean is over the targets that are not IGNORE; "none" gives a value per target, 0 where ignored.

    "auto" is torch's own (torch >= 2.13), or else "chunked", ours. Both go through the tokens a few at a
    time, find the gradients of a mean or sum on the way forward, and cannot be differentiated twice. In
    16-bit types "auto" is ours too: torch's rounds its result to that type, and a perplexity needs more.
    "plain" holds all logits and is what the others are tested against.
    """
    require(reduction in ("mean", "sum", "none"), "reduction", reduction, "mean, sum, none")
    choices = ("auto", "torch", "chunked", "plain")
    require(implementation in choices, "implementation", implementation, ", ".join(choices))
    D = weight.shape[-1]
    require(hidden.shape[-1] == D, "hidden shape", list(hidden.shape), f"[..., {D}], as weight has")
    shape = hidden.shape[:-1]
    require(targets.shape == shape, "targets shape", list(targets.shape), f"{list(shape)}")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):  # what autocast does to a linear layer
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)

    hidden, flat = hidden.reshape(-1, D), targets.reshape(-1)
    torchs = getattr(F, "linear_cross_entropy", None)
    if implementation == "auto":
        narrow = hidden.dtype in (torch.bfloat16, torch.float16)
        implementation = "chunked" if torchs is None or narrow else "torch"
    if implementation == "torch":
        if torchs is None:
            raise ValueError(f"implementation='torch' needs torch >= 2.13; this is {torch.__version__}")
        options = torch.nn.LinearCrossEntropyOptions()
        loss = torchs(hidden, weight, flat, linear_bias=bias, reduction=reduction, options=options)
    elif implementation == "plain":
        with torch.autocast(device, enabled=False):
            logits = F.linear(hidden, weight, bias)
        loss = F.cross_entropy(logits.to(_wide(logits.dtype)), flat, reduction=reduction)
    elif reduction == "none":
        loss = _Chunked.apply(hidden, weight, flat, bias)
    else:
        differentiate = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (hidden, weight, bias)
        )
        loss = _ChunkedSum.apply(hidden, weight, flat, bias, differentiate)
        if reduction == "mean":
            loss = loss / (flat != IGNORE).sum()
    return loss.reshape(shape) if reduction == "none" else loss


class _Chunked(torch.autograd.Function):
    """[N] losses. Backward makes every chunk's logits a second time."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, bias):
        ctx.save_for_backward(hidden, weight, targets, bias)
        parts = _chunks(len(hidden), len(weight))
        return torch.cat([_losses(_logits(hidden[p], weight, bias), targets[p]) for p in parts])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        hidden, weight, targets, bias = ctx.saved_tensors
        gradients = _Gradients(hidden, weight, bias)
        for part in _chunks(len(hidden), len(weight)):
            gradients.add(part, _logits(hidden[part], weight, bias), targets[part], gradient[part])
        return gradients.scaled(1)


class _ChunkedSum(torch.autograd.Function):
    """The sum of the losses, and its gradients while the logits are there: a matrix product less."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, bias, differentiate):
        total = hidden.new_zeros((), dtype=_wide(hidden.dtype))
        ctx.gradients = _Gradients(hidden, weight, bias) if differentiate else None
        for part in _chunks(len(hidden), len(weight)):
            logits = _logits(hidden[part], weight, bias)
            total += _losses(logits, targets[part]).sum()
            if differentiate:
                ctx.gradients.add(part, logits, targets[part], total.new_ones(()))
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return *ctx.gradients.scaled(gradient), None


class _Gradients:
    """Sums over chunks. A loss with gradient g has d logits = g (softmax(logits) - onehot(target))."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None):
        # What is summed over chunks is kept wide: many small bfloat16 terms would not add up.
        wide = _wide(hidden.dtype)
        self.hidden, self.weight = hidden, weight
        self.d_hidden = torch.empty_like(hidden)
        self.d_weight = torch.zeros_like(weight, dtype=wide)
        self.d_bias = None if bias is None else torch.zeros_like(bias, dtype=wide)

    def add(self, part: slice, logits: Tensor, targets: Tensor, gradient: Tensor) -> None:
        counts = (targets != IGNORE)[:, None]  # [n, 1]
        d_logits = logits.softmax(1)  # [n, V]
        d_logits.scatter_add_(1, targets[:, None].where(counts, 0), -torch.ones_like(d_logits[:, :1]))
        d_logits *= gradient.reshape(-1, 1) * counts
        if self.d_bias is not None:
            self.d_bias += d_logits.sum(0)
        d_logits = d_logits.to(self.hidden.dtype)
        self.d_hidden[part] = d_logits @ self.weight
        self.d_weight += d_logits.t() @ self.hidden[part]

    def scaled(self, factor: Tensor | int) -> tuple[Tensor, Tensor, None, Tensor | None]:
        """In the order of the functions' arguments; new tensors, so that backward may run again."""
        d_hidden, d_weight = self.d_hidden * factor, (self.d_weight * factor).to(self.weight.dtype)
        d_bias = None if self.d_bias is None else (self.d_bias * factor).to(self.weight.dtype)
        return d_hidden, d_weight, None, d_bias


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in the inputs' own type, the softmax in float32 at least."""
    logits = F.linear(hidden, weight, bias)
    return logits.to(_wide(logits.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _chunks(tokens: int, words: int) -> list[slice]:
    size = max(1, LOGITS_AT_ONCE // words)
    return [slice(start, start + size) for start in range(0, tokens, size)]


# ------------------------------------------------------------------ the score


def perplexity(nats: float, tokens: int) -> float:
    """exp of the mean loss: `nats` summed over all tokens of a split. A uniform model scores V."""
    require(tokens >= 1, "tokens", tokens, "1 or more")
    require(not nats < 0, "nats", nats, "0 or more")  # NaN stays NaN: a model that diverged
    mean = nats / tokens
    return math.exp(mean) if not mean > 700 else math.inf
