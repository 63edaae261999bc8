"""The loss of a language model: cross entropy over a large vocabulary, the logits of a few tokens at a time.

Shapes: N tokens, n tokens of a chunk, V vocabulary, W >= V columns of padded logits, D features.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.cores.base import require

IGNORE = -100  # target of a step that is not to be predicted; what torch's losses leave out by default
LOGITS_AT_ONCE = 1 << 27  # 512 MiB in float32; fewer cost more passes over the weight
NARROW_LOGITS_AT_ONCE = 1 << 29  # where they stay in 16 bits: 1 GiB

Reduction = Literal["mean", "sum", "none"]
Implementation = Literal["auto", "torch", "triton", "chunked", "plain"]


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    reduction: Reduction = "mean",
    implementation: Implementation = "auto",
) -> Tensor:
    """Cross entropy in nats of softmax(hidden W' + b), never holding the logits of all tokens at once.

    hidden [..., D], weight [V, D], bias [V], targets [...] with IGNORE where there is nothing to predict.
    The mean is over the targets that are not IGNORE; "none" gives a value per target, 0 where ignored.

    "auto" is, on a GPU, "triton": ours with a fused kernel. Elsewhere it is torch's own (torch >= 2.13), or
    else "chunked", ours in plain torch. All go through the tokens a few at a time, find the gradients of a
    mean or sum on the way forward, and cannot be differentiated twice. In 16-bit types "auto" is never
    torch's, which rounds its result to that type; a perplexity needs more. "plain" holds all logits and is
    what the others are tested against.
    """
    require(reduction in ("mean", "sum", "none"), "reduction", reduction, "mean, sum, none")
    choices = ("auto", "torch", "triton", "chunked", "plain")
    require(implementation in choices, "implementation", implementation, ", ".join(choices))
    D = weight.shape[-1]
    require(hidden.shape[-1] == D, "hidden shape", list(hidden.shape), f"[..., {D}], as weight has")
    shape = hidden.shape[:-1]
    require(targets.shape == shape, "targets shape", list(targets.shape), f"{list(shape)}")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):  # what autocast does to a linear layer
        hidden, weight, bias = (_autocast(tensor, device) for tensor in (hidden, weight, bias))

    hidden, flat = hidden.reshape(-1, D), targets.reshape(-1)
    if implementation == "auto":
        implementation = _automatic(hidden)
    if implementation == "torch":
        loss = _torchs(hidden, weight, flat, bias, reduction)
    elif implementation == "plain":
        with torch.autocast(device, enabled=False):
            logits = F.linear(hidden, weight, bias)
        loss = F.cross_entropy(logits.to(_wide(logits.dtype)), flat, reduction=reduction)
    else:
        fused = implementation == "triton"
        if fused and (reason := _why_not_triton(hidden)):
            raise ValueError(f"implementation='triton' is not allowed here: {reason}")
        differentiate = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (hidden, weight, bias)
        )
        if reduction == "none":
            loss = _Chunked.apply(hidden, weight, flat, bias, fused)
        else:
            loss = _ChunkedSum.apply(hidden, weight, flat, bias, fused, differentiate)
        if reduction == "mean":
            loss = loss / (flat != IGNORE).sum()
    return loss.reshape(shape) if reduction == "none" else loss


def _automatic(hidden: Tensor) -> str:
    if hidden.is_cuda and _why_not_triton(hidden) is None:
        return "triton"
    narrow = hidden.dtype in (torch.bfloat16, torch.float16)
    return "chunked" if narrow or not hasattr(F, "linear_cross_entropy") else "torch"


def _why_not_triton(hidden: Tensor) -> str | None:
    if not (hidden.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"):  # the interpreter is for tests
        return f"the input is on {hidden.device}, not on a CUDA GPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return "the dtype is float64" if hidden.dtype == torch.float64 else None


def _torchs(hidden, weight, targets, bias, reduction: Reduction) -> Tensor:
    torchs = getattr(F, "linear_cross_entropy", None)
    if torchs is None:
        raise ValueError(f"implementation='torch' needs torch >= 2.13; this is {torch.__version__}")
    options = torch.nn.LinearCrossEntropyOptions()
    return torchs(hidden, weight, targets, linear_bias=bias, reduction=reduction, options=options)


# ------------------------------------------------------------------ chunk by chunk


class _Chunked(torch.autograd.Function):
    """[N] losses. Backward makes every chunk's logits a second time."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, bias, fused):
        ctx.save_for_backward(hidden, weight, targets, bias)
        ctx.fused = fused
        softmax = _Softmax(hidden, weight, bias, fused)
        losses = hidden.new_empty(len(hidden), dtype=_wide(hidden.dtype))
        for part in softmax.chunks():
            losses[part] = softmax.losses(part, targets[part])[0]
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        hidden, weight, targets, bias = ctx.saved_tensors
        softmax = _Softmax(hidden, weight, bias, ctx.fused)
        for part in softmax.chunks():
            _, d_logits = softmax.losses(part, targets[part], differentiate=True)
            softmax.add_gradients(part, d_logits * gradient[part, None].to(d_logits.dtype))
        return *softmax.gradients(1), None


class _ChunkedSum(torch.autograd.Function):
    """The sum of the losses, and its gradients while the logits are there: a matrix product less."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, bias, fused, differentiate):
        total = hidden.new_zeros((), dtype=_wide(hidden.dtype))
        ctx.softmax = softmax = _Softmax(hidden, weight, bias, fused)
        for part in softmax.chunks():
            losses, d_logits = softmax.losses(part, targets[part], differentiate)
            total += losses.sum()
            if differentiate:
                softmax.add_gradients(part, d_logits)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return *ctx.softmax.gradients(gradient), None, None


class _Softmax:
    """A linear layer and its cross entropy, a chunk of tokens at a time; gradients add up.

    `fused`: logits stay in the type of the weights, and Triton turns them into their gradient in place. Then
    they have some columns more, so that matrix products are aligned.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, fused: bool):
        self.words, self.fused, self.hidden = len(weight), fused, hidden
        if fused:
            from relational_rnn.kernels import cross_entropy_triton  # late: a CPU needs no Triton

            self.kernel = cross_entropy_triton
            more = -self.words % self.kernel.MULTIPLE
            if more:
                weight = F.pad(weight, (0, 0, 0, more))
                bias = None if bias is None else F.pad(bias, (0, more))
        self.weight, self.bias = weight, bias
        self.d_hidden = self.d_weight = self.d_bias = None

    def chunks(self) -> list[slice]:
        """Of equal size but for the last."""
        tokens = len(self.hidden)
        narrow = self.fused and self.hidden.element_size() == 2
        entries = NARROW_LOGITS_AT_ONCE if narrow else LOGITS_AT_ONCE
        parts = -(-tokens // max(1, entries // len(self.weight)))
        size = -(-tokens // max(1, parts))
        return [slice(start, start + size) for start in range(0, tokens, max(1, size))]

    def losses(self, part: slice, targets: Tensor, differentiate: bool = False) -> tuple[Tensor, Tensor]:
        """[n] in float32 at least, and [n, W]: d loss / d logits = softmax(logits) - onehot(target)."""
        logits = F.linear(self.hidden[part], self.weight, self.bias)
        if self.fused:
            losses = self.kernel.cross_entropy_(logits, targets, self.words, IGNORE, differentiate)
            return losses, logits
        logits = logits.to(_wide(logits.dtype))
        losses = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE)
        if not differentiate:
            return losses, logits
        counts = (targets != IGNORE)[:, None]  # [n, 1]
        d_logits = logits.softmax(1)
        d_logits.scatter_add_(1, targets[:, None].where(counts, 0), -torch.ones_like(d_logits[:, :1]))
        return losses, d_logits * counts

    def add_gradients(self, part: slice, d_logits: Tensor) -> None:
        if self.d_hidden is None:
            self.d_hidden = torch.empty_like(self.hidden)
        # What is summed over chunks is kept wide: many small bfloat16 terms would not add up.
        if self.bias is not None:
            d_bias = d_logits.sum(0, dtype=_wide(d_logits.dtype))
            self.d_bias = d_bias if self.d_bias is None else self.d_bias.add_(d_bias)
        d_logits = d_logits.to(self.hidden.dtype)
        self.d_hidden[part] = d_logits @ self.weight
        d_weight = _outer(d_logits, self.hidden[part])
        self.d_weight = d_weight if self.d_weight is None else self.d_weight.add_(d_weight)

    def gradients(self, factor: Tensor | int) -> tuple[Tensor, Tensor, None, Tensor | None]:
        """Of hidden, weight, targets and bias; new tensors, so that backward may run again."""
        if self.d_hidden is None:  # no tokens at all
            self.add_gradients(slice(0, 0), self.weight.new_zeros(0, len(self.weight)))
        d_weight = (self.d_weight[: self.words] * factor).to(self.weight.dtype)
        d_bias = None if self.bias is None else (self.d_bias[: self.words] * factor).to(self.bias.dtype)
        return self.d_hidden * factor, d_weight, None, d_bias


def _outer(d: Tensor, x: Tensor) -> Tensor:
    """d' x, in float32 at least."""
    if d.is_cuda and d.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(d.t(), x, out_dtype=torch.float32)
    return (d.t() @ x).to(_wide(d.dtype))


def _autocast(tensor: Tensor | None, device: str) -> Tensor | None:
    """What autocast makes of an argument of a linear layer: it leaves float64 alone."""
    if tensor is None or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
