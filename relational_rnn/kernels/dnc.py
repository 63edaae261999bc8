"""A step of a DNC's memory as one kernel, and its backward pass as another (cuda/dnc*).

The memory's equations are in cores/dnc_memory.py, which is the specification: many kernels a step there and
back, of which several read or write the link, the largest part of the state. Here a program takes a sample
and reads everything once. For torch it is one operator (torch.library).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relational_rnn.kernels import nvrtc, refuse_batched

WARPS = 8
MOST_SLOTS = MOST_FEATURES = 128
MOST_READS = WARPS - 1
SHARED_BYTES = 96 * 1024  # two programs of a multiprocessor, on any GPU since 2020


class Kind(NamedTuple):
    N: int  # slots
    W: int  # features of a word
    R: int  # reads
    options, architecture = (), None

    def files(self, name: str) -> tuple[str, ...]:
        return ("dnc.cuh", f"{name}.cu")

    @property
    def defines(self) -> list[str]:
        return [f"-D{name}={value}" for name, value in self._asdict().items()]

    def shared_bytes(self, name: str) -> int:
        """As cuda/dnc* take it."""
        n, w, r = self
        floats = self.raw + 3 * r * n + 11 * n + (1 + r) + r + 3 * r + w + (3 + r) + n * w
        if name == "dnc_forward":
            floats += (1 + WARPS) * r * n
        else:
            floats += r * w + 5 * r * n + 6 * n + 2 * (1 + r) + 2 * WARPS * r + n * w
            floats += WARPS * max((r + 2) * n, (r + 3) * w)
        return 4 * floats

    @property
    def raw(self) -> int:
        """Features of what the controller says: DNC.interface_sizes with one write head."""
        _, w, r = self
        return 3 * w + r + 2 + 3 * r + 1 + r * w + r


def why_not(kind: Kind, write_heads: int, dtype: torch.dtype) -> str | None:
    """Why this kernel cannot be used, or None if it can."""
    if write_heads != 1:
        return f"there are {write_heads} write heads; allowed: 1"
    if dtype != torch.float32:
        return f"the dtype is {dtype}; allowed: float32"
    if kind.N > MOST_SLOTS or kind.W > MOST_FEATURES or kind.R > MOST_READS:
        return (
            f"slots, features and reads are {tuple(kind)}; "
            f"allowed: up to {MOST_SLOTS, MOST_FEATURES, MOST_READS}"
        )
    needed = kind.shared_bytes("dnc_backward")
    return None if needed <= SHARED_BYTES else f"it needs {needed} bytes a sample; allowed: {SHARED_BYTES}"


def usable(kind: Kind, write_heads: int, dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cuda" or why_not(kind, write_heads, dtype) is not None:
        return False
    there = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # older GPUs have less
    return there >= kind.shared_bytes("dnc_backward") and nvrtc.works(device)


def _kind(memory: Tensor, read_weights: Tensor) -> Kind:
    return Kind(memory.shape[1], memory.shape[2], read_weights.shape[1])


class Episodes(NamedTuple):
    """Where one begins, `[B]` uint8: before this step, and before the next one."""

    now: Tensor
    next: Tensor


def _around(raw: Tensor, episodes: Episodes | None, next_reads: Tensor | None) -> list:
    """The kernels' last arguments; what does not count is any tensor."""
    stride = 0 if next_reads is None else next_reads.stride(0)
    return [
        *(episodes or (raw, raw)),
        raw if next_reads is None else next_reads,
        int(episodes is not None),
        stride,
    ]


def forward(
    raw: Tensor,
    state: list[Tensor],
    made: list[Tensor] | None = None,
    episodes: Episodes | None = None,
    next_reads: Tensor | None = None,
    compiled=nvrtc.compiled,
) -> list[Tensor]:
    """raw [B, RAW], state as dnc_memory.Memory, one write head -> [words read [B, R, W], *the next state],
    new ones unless given. `next_reads` [B, R W], of any stride, gets what was read as well, and zeros where
    an episode begins next."""
    kind = _kind(*state[:2])
    batch = raw.shape[0]
    made = made or [raw.new_empty(batch, kind.R, kind.W), *map(torch.empty_like, state)]
    if batch:
        args = [raw, *state, *made, *_around(raw, episodes, next_reads)]
        nvrtc.launch(compiled, "dnc_forward", kind, batch, 32 * WARPS, args)
    return made


def backward(
    raw: Tensor,
    state: list[Tensor],
    read_weights: Tensor,
    grads: list[Tensor],
    found: list[Tensor] | None = None,
    episodes: Episodes | None = None,
    next_reads: Tensor | None = None,
    compiled=nvrtc.compiled,
) -> list[Tensor]:
    """-> gradients of raw, memory, read_weights, link, precedence, usage; what was written where has none.
    `next_reads`: the gradient of what `forward` put there."""
    kind = _kind(*state[:2])
    memory, reads, _, link, precedence, usage = state
    found = found or [torch.empty_like(t) for t in (raw, memory, reads, link, precedence, usage)]
    if raw.shape[0]:
        args = [raw, *state, read_weights, *grads, *found, *_around(raw, episodes, next_reads)]
        nvrtc.launch(compiled, "dnc_backward", kind, raw.shape[0], 32 * WARPS, args)
    return found


def step(raw: Tensor, memory) -> tuple[Tensor, list[Tensor]]:
    """As dnc_memory.access, of what the controller says as it says it."""
    reads, *memory = _step(raw, list(memory))
    return reads, memory


@torch.library.custom_op("relational_rnn::dnc_step", mutates_args=())
def _step(raw: Tensor, state: list[Tensor]) -> list[Tensor]:
    return forward(raw.contiguous(), [s.contiguous() for s in state])


@_step.register_fake
def _(raw, state):
    reads = raw.new_empty(raw.shape[0], state[1].shape[1], state[0].shape[2])
    return [reads, *(s.new_empty(s.shape) for s in state)]


@torch.library.custom_op("relational_rnn::dnc_step_backward", mutates_args=())
def _step_backward(
    raw: Tensor, state: list[Tensor], read_weights: Tensor, grads: list[Tensor]
) -> list[Tensor]:
    return backward(
        raw.contiguous(), [s.contiguous() for s in state], read_weights, [g.contiguous() for g in grads]
    )


@_step_backward.register_fake
def _(raw, state, read_weights, grads):
    memory, reads, _, link, precedence, usage = state
    return [t.new_empty(t.shape) for t in (raw, memory, reads, link, precedence, usage)]


def _setup_context(ctx, inputs, output) -> None:
    raw, state = inputs
    ctx.save_for_backward(raw, *state, output[2])


def _autograd(ctx, grads):
    refuse_batched("the fused DNC", *grads)
    raw, *state, read_weights = ctx.saved_tensors
    d_raw, memory, reads, link, precedence, usage = _step_backward(raw, state, read_weights, grads)
    return d_raw, [memory, reads, None, link, precedence, usage]


_step.register_autograd(_autograd, setup_context=_setup_context)
