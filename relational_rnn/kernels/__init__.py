"""What is asked before a fused kernel is taken; importing this needs no Triton."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor
from torch.autograd import forward_ad

LOW_PRECISION = (torch.bfloat16, torch.float16)


def why_not_triton(x: Tensor) -> str | None:
    """Why Triton kernels cannot take this tensor, or None if they can."""
    if not (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"):  # the interpreter is for tests
        return f"the input is on {x.device}, not on a CUDA GPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if x.dtype == torch.float64:
        return "the dtype is float64; allowed: float32, bfloat16, float16"
    return None


def autocasts(kind: str) -> bool:
    """Whether autocast is on for such devices; of the meta device torch cannot be asked."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def no_autocast(kind: str) -> torch.autocast:
    """Without autocast on such devices."""
    return torch.autocast("cpu" if kind == "meta" else kind, enabled=False)


def on_gpu_of(x: Tensor) -> torch.cuda.device:
    """Triton launches on the current GPU, wherever the tensors are. (Backwards, autograd makes theirs the
    current one.) torch.compile can trace this; `torch.cuda.device_of` it cannot."""
    return torch.cuda.device(x.device if x.is_cuda else -1)


def transformed() -> bool:
    """Whether a torch.func transform such as vmap or forward-mode differentiation is active: hand-written
    backward passes know none, and without gradients an operator drops tangents without a word."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def batched(*gradients: Tensor) -> bool:
    """Whether a backward pass is to give the gradients of many losses at once: under vmap, or torch's older
    one, which `is_grads_batched` and vectorised Jacobians take and which no operator can have a rule for."""
    return transformed() or any(map(torch._C._functorch.is_legacy_batchedtensor, gradients))


def refuse_batched(kernels: str, *gradients: Tensor) -> None:
    """For backward passes that have no other way; one that began under torch.func never gets to them."""
    if batched(*gradients):
        raise ValueError(
            f"many gradients at once (is_grads_batched, vmap) through {kernels}; allowed: one at a time, or "
            "torch.func.vjp around the whole call, which takes the specification"
        )
