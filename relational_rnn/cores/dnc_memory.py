"""The memory of a Differentiable Neural Computer: one read-write step as pure functions.

Graves et al. (2016), in the formulation of deepmind/dnc. Equation names are those of its Methods section.
Nothing here waits for the GPU, so a step can be captured in a CUDA graph: torch's backward of `prod` and
`cumprod` counts zeros on the host, hence `product` and the logarithms of `allocation`.

Shapes: B batch, N memory_size, W word_size, R read heads, H write heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-6


class Interface(NamedTuple):
    """What the controller tells the memory in one step, after its non-linearities."""

    write_vectors: Tensor  # [B, H, W]
    erase_vectors: Tensor  # [B, H, W], in (0, 1)
    free_gate: Tensor  # [B, R], in (0, 1)
    allocation_gate: Tensor  # [B, H], in (0, 1)
    write_gate: Tensor  # [B, H], in (0, 1)
    read_mode: Tensor  # [B, R, 1 + 2H], sums to 1: backward by write head, forward by write head, content
    write_keys: Tensor  # [B, H, W]
    write_strengths: Tensor  # [B, H], positive
    read_keys: Tensor  # [B, R, W]
    read_strengths: Tensor  # [B, R], positive


class Memory(NamedTuple):
    """The memory's part of the state; all zeros before the first step."""

    memory: Tensor  # [B, N, W]
    read_weights: Tensor  # [B, R, N]
    write_weights: Tensor  # [B, H, N]
    link: Tensor  # [B, H, N, N]
    precedence: Tensor  # [B, H, N]
    usage: Tensor  # [B, N]


def access(interface: Interface, previous: Memory) -> tuple[Tensor, Memory]:
    """Write, then read: -> (read words [B, R, W], the next memory)."""
    usage = next_usage(
        previous.usage, previous.write_weights.detach(), interface.free_gate, previous.read_weights
    )
    content = content_weights(previous.memory, interface.write_keys, interface.write_strengths)
    write_weights = next_write_weights(usage, content, interface.allocation_gate, interface.write_gate)
    memory = erase_and_write(previous.memory, write_weights, interface.erase_vectors, interface.write_vectors)
    link, precedence = next_link(previous.link, previous.precedence, write_weights)
    content = content_weights(memory, interface.read_keys, interface.read_strengths)
    read_weights = next_read_weights(content, link, previous.read_weights, interface.read_mode)
    reads = read_weights @ memory  # [B, R, W]
    return reads, Memory(memory, read_weights, write_weights, link, precedence, usage)


def product(x: Tensor, dim: int) -> Tensor:
    """torch.prod over a short axis (heads), without the host's count of zeros in its backward."""
    first, *others = x.unbind(dim)
    for other in others:
        first = first * other
    return first


def content_weights(memory: Tensor, keys: Tensor, strengths: Tensor) -> Tensor:
    """C(M, k, β): softmax over slots of β times the cosine of key [B, heads, W] and word -> [B, heads, N].

    The epsilons under the roots keep the gradient finite where a word or a key is zero.
    """
    word_norms = ((memory * memory).sum(-1) + EPSILON).sqrt()  # [B, N]
    key_norms = ((keys * keys).sum(-1) + EPSILON).sqrt()  # [B, heads]
    norms = key_norms.unsqueeze(-1) * word_norms.unsqueeze(1)  # [B, heads, N]
    cosine = (keys @ memory.transpose(1, 2)) / (norms + EPSILON)
    return F.softmax(cosine * strengths.unsqueeze(-1), dim=-1)


def next_usage(usage: Tensor, write_weights: Tensor, free_gate: Tensor, read_weights: Tensor) -> Tensor:
    """u_t = (u + (1 - u) w) ψ: written slots come into use; ψ frees what was read and is let go."""
    written = 1 - product(1 - write_weights, dim=1)  # [B, N]
    retained = product(1 - free_gate.unsqueeze(-1) * read_weights, dim=1)  # [B, N]
    return (usage + (1 - usage) * written) * retained


def allocation(usage: Tensor) -> Tensor:
    """a_i = (1 - u_i) Π u_j over the slots j freer than i; of equally free ones the lower index comes first.

    The original sorts by usage and takes a running product. Who comes before whom is also a matrix of
    comparisons, no larger than the link matrix, and the product a sum of logarithms: two kernels, nothing to
    sort or to put back in place. The original compares 1 - u and multiplies 1 - (1 - u); in float32 their
    rounding decides which tiny usages count as equal, now and in later steps, so it is done here, too.
    usage [B, N] -> [B, N].
    """
    free = 1 - (EPSILON + (1 - EPSILON) * usage.clamp(min=0))  # rounding may leave a usage below 0
    used = (1 - free).clamp(min=EPSILON / 2)  # which short dtypes round to 0
    mine, other = free.unsqueeze(-1), free.unsqueeze(-2)  # [B, N, 1], [B, 1, N]
    slots = usage.shape[-1]
    lower_index = torch.ones(slots, slots, dtype=torch.bool, device=usage.device).tril(-1)
    before = (other > mine) | ((other == mine) & lower_index)  # [B, N, N]: slot j is freer than slot i
    log_product = torch.where(before, used.log().unsqueeze(-2), 0).sum(-1)  # [B, N]
    return free * log_product.exp()


def next_write_weights(usage: Tensor, content: Tensor, allocation_gate: Tensor, write_gate: Tensor) -> Tensor:
    """w_i = g^w_i (g^a_i a_i + (1 - g^a_i) c_i); each head sees as used what the heads before it allocate."""
    weights = []
    for head in range(content.shape[1]):
        alloc, write = allocation_gate[:, head, None], write_gate[:, head, None]  # [B, 1]
        free = allocation(usage)  # [B, N]
        weights.append(write * (alloc * free + (1 - alloc) * content[:, head]))
        if head + 1 < content.shape[1]:
            usage = usage + (1 - usage) * alloc * write * free
    return torch.stack(weights, dim=1)  # [B, H, N]


def erase_and_write(memory: Tensor, write_weights: Tensor, erase: Tensor, words: Tensor) -> Tensor:
    """M_t = M Π (1 - w_i e_i^T) + Σ w_i v_i^T, over the write heads i."""
    keep = product(1 - write_weights.unsqueeze(-1) * erase.unsqueeze(-2), dim=1)  # [B, N, W]
    return torch.baddbmm(memory * keep, write_weights.transpose(1, 2), words)


def next_link(link: Tensor, precedence: Tensor, write_weights: Tensor) -> tuple[Tensor, Tensor]:
    """L_ij = (1 - w_i - w_j) L_ij + w_i p_j off the diagonal, then p = (1 - Σ w) p + w; for each head."""
    to, since = write_weights.unsqueeze(-1), write_weights.unsqueeze(-2)  # w_i on rows, w_j on columns
    off_diagonal = 1 - torch.eye(link.shape[-1], dtype=link.dtype, device=link.device)
    link = torch.addcmul(to * precedence.unsqueeze(-2), 1 - to - since, link) * off_diagonal
    precedence = (1 - write_weights.sum(-1, keepdim=True)) * precedence + write_weights
    return link, precedence


def next_read_weights(content: Tensor, link: Tensor, read_weights: Tensor, mode: Tensor) -> Tensor:
    """r = π_1 b + π_2 f + π_3 c: what was written before (b = L^T r) or after (f = L r) the last read; c."""
    previous = read_weights.unsqueeze(1)  # [B, 1, R, N]
    backward = previous @ link  # [B, H, R, N]
    forward = previous @ link.transpose(-1, -2)  # [B, H, R, N]
    choices = torch.cat([backward, forward, content.unsqueeze(1)], dim=1)  # [B, 2H + 1, R, N]
    return (mode.transpose(1, 2).unsqueeze(-1) * choices).sum(1)  # [B, R, N]
