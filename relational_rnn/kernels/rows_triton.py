"""The row functions of recurrence.py as fused Triton kernels: every function one launch.

The same functions, under the same names, as rows_torch.py, which says what each does; README.md derives the
backward ones and says why they are shaped as they are. Arithmetic is float32 whatever the operands are.

Two kinds of tiles. Where rows of the memory do not meet (gates, MLP norm, ReLU), a tile is some whole rows.
Where they do (attention), it is S whole samples as [S, NP, HP, KP]: sample, slot, head, feature. What one
slot needs of another is written to memory, a barrier passed, and read back through pointers that repeat for
every slot: that keeps every tile in one register layout, where exchanging registers would cost barriers in
the inner loop.

Shapes: N slots, H heads, K key size, V head size, F = H V, D = 2K + V, Q = H D; with a P behind it rounded up
to a power of two, as tiles must be; SQ, SF, SG, SI the widths of buffers. Names: p_ pointers, i_ indices,
m_ masks.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
import triton
from torch import Tensor

from relational_rnn.kernels import rows_torch
from relational_rnn.kernels import sequence as whole
from relational_rnn.kernels.attention_triton import attend_kernel, attention_backward_kernel
from relational_rnn.kernels.norms_triton import (
    begin_kernel,
    norm_backward_kernel,
    norm_kernel,
    relu_backward_kernel,
    residual_backward_kernel,
    update_backward_kernel,
    update_kernel,
)
from relational_rnn.kernels.rows_torch import EPSILON

CENTRED = True
TILE, WIDE_TILE = 1024, 2048  # elements of a tile of rows; of rows of 1024 features and more
SAMPLE_TILE = 1024  # elements of a tile of samples, where one sample is not more
UNROLLED = 4096  # elements of a tile up to which loops over slots are unrolled; more compile for minutes
MULTIPROCESSORS, PROGRAMS = 132, 528  # of an H200; at most, of a kernel that sums columns


def padded(size: int, dtype: torch.dtype) -> int:
    """Widths that fast matrix products want: whole 16 bytes, and no ragged last tile where it is large."""
    if dtype == torch.float32 or size % 8 == 0:
        return size
    unit = 64 if size >= 512 else 8
    return triton.cdiv(size, unit) * unit


def sequence(slots: int, layers: int, qkv_in: Tensor, spec) -> ModuleType | None:
    """The kernels that do all steps at once, where they can."""
    reason = whole.why_not(slots, spec, layers, qkv_in.dtype)
    return whole if reason is None and qkv_in.is_cuda and whole.usable(qkv_in.device) else None


def extra(steps: int, shape: tuple[int, int, int], p, spec) -> list[Tensor]:
    """1/deviation of the qkv norm, what was read, and the logarithm of the softmax's sum."""
    rows, width, device = shape[0] * shape[1], p.qkv_weight.shape[1], p.qkv_weight.device
    rstd = torch.empty(steps, rows, dtype=torch.float32, device=device)
    read = p.qkv_weight.new_empty(steps, rows, width)
    total = torch.empty(steps, rows, spec.num_heads, dtype=torch.float32, device=device)
    return [rstd, read, total]


def gate_products(spec) -> bool:
    """Two gates a slot are no matrix product worth a launch: the update's kernels multiply them."""
    return spec.gate_style == "unit"


class Carry(rows_torch.Carry):
    """For two gates a slot, `through_gates` are their gradients, not yet multiplied by their weights."""

    def __init__(self, memory: Tensor, p, spec):
        super().__init__(memory, p, spec)
        if spec.gate_style == "memory":
            self.through_gates = p.qkv_weight.new_zeros(
                memory.shape[0] * memory.shape[1], p.gate_weight.shape[0]
            )


def finish(carry: Carry, hidden: Tensor | None, reset: Tensor | None, p, spec, out: Tensor) -> None:
    if spec.gate_style == "memory":
        carry.through_gates = carry.through_gates @ p.gate_weight
    rows_torch.finish(carry, hidden, reset, p, spec, out)


class Aside:
    """A second stream for what is not wanted soon; inside a CUDA graph it becomes a branch of its own."""

    def __init__(self):
        self.stream = _second_stream(torch.cuda.current_device()) if torch.cuda.is_available() else None
        self.busy = False

    def product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """torch.mm beside the main stream."""
        if self.stream is None:
            torch.mm(a, b, out=out)
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch.mm(a, b, out=out)
        self.busy = True

    def join(self) -> None:
        """Wait for it."""
        if self.busy:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.busy = False


@functools.cache
def _second_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Inputs:
    """The input row's queries, keys and values, normalised for all steps at once."""

    def __init__(self, raw: Tensor, p, kept: tuple[Tensor, Tensor] | None = None, computed: bool = False):
        """`kept`: where the norm goes, or, if `computed`, is."""
        if kept is None:
            kept = torch.empty_like(raw), p.qkv_bias.new_empty(raw.shape[0] * raw.shape[1])
        (self.normed, self.rstd), self.gradient = kept, None
        if computed:
            return
        tiles, sizes = self._sizes(p)
        norm_kernel[(tiles,)](raw, self.normed, self.rstd, self.rstd.shape[0], EPS=EPSILON, **sizes)

    def _sizes(self, p) -> tuple[int, dict]:
        tiles, sizes = _tiles(self.rstd.shape[0], p.qkv_bias.shape[0])
        return tiles, dict(Q=p.qkv_bias.shape[0], SI=self.normed.shape[-1], QP=sizes.pop("FP")) | sizes

    def backward(self, p, sums: Sums) -> Tensor:
        tiles, sizes = self._sizes(p)
        norm_backward_kernel[(_programs(tiles, sizes["QP"]),)](
            self.gradient, self.normed, self.rstd, p.qkv_norm_weight, sums.partial, self.rstd.shape[0], tiles,
            sums.columns, BIAS=False, **sizes,
        )  # fmt: skip
        return self.gradient


class Sums:
    """Column sums as partial sums of each program, added up at the end: no atomics, the same bits each time.

    Columns are in the order of Parameters.vectors, but for the last MLP bias, which follows the MLP norm.
    """

    def __init__(self, p, spec):
        features, size = p.qkv_bias.shape[0], p.mlp_norm_bias.shape[0]
        self.layers, self.size = len(p.mlp_weights), size
        self.columns = 3 * features + (5 + self.layers - 1) * size
        self.partial = torch.zeros(PROGRAMS, self.columns, dtype=torch.float32, device=p.qkv_weight.device)
        self.residual = self.partial[:, 3 * features :]  # after qkv's bias, norm weight and norm shift
        self.update = self.partial[:, 3 * features + 2 * size :]
        self.relu = [self.update[:, (3 + i) * size :] for i in range(self.layers - 1)]

    def flat(self) -> Tensor:
        total = self.partial.sum(0)
        end = self.columns - (self.layers - 1) * self.size
        last = total[end - self.size : end]
        return torch.cat([total[: end - self.size], total[end:], last])


def _programs(tiles: int, width: int) -> int:
    """How many share tiles of such a width, so that all have equally many, or one more than others. No more
    than run at once: each ends with adding to sums that are as long as a row, which costs what rows do."""
    at_once = min(PROGRAMS, MULTIPROCESSORS * max(1, 4096 // width))
    return triton.cdiv(tiles, triton.cdiv(tiles, at_once))


def _tiles(rows: int, size: int) -> tuple[int, dict]:
    """(number of tiles, sizes of one) for tiles of whole rows, a warp to a row where rows are short."""
    width = triton.next_power_of_2(size)
    per_tile = max(1, (TILE if width < 1024 else WIDE_TILE) // width)
    return triton.cdiv(rows, per_tile), dict(R=per_tile, FP=width, num_warps=min(16, max(4, width // 512)))


def _samples(memory: Tensor, inputs: Inputs, p, spec) -> tuple[int, dict]:
    """(number of tiles, sizes of one) for tiles of whole samples."""
    batch, slots, _ = memory.shape
    power = triton.next_power_of_2
    padded_sizes = dict(
        NP=power(slots), HP=power(spec.num_heads), KP=power(spec.key_size), VP=power(spec.head_size)
    )
    elements = padded_sizes["NP"] * padded_sizes["HP"] * max(padded_sizes["KP"], padded_sizes["VP"])
    samples = max(1, min(power(batch), SAMPLE_TILE // elements))
    sizes = dict(N=slots, H=spec.num_heads, K=spec.key_size, V=spec.head_size, EPS=EPSILON, S=samples)
    sizes |= dict(STRIDE=_stride(slots, elements))
    widths = dict(SQ=p.qkv_weight.shape[0], SF=p.qkv_weight.shape[1], SI=inputs.normed.shape[-1])
    warps = max(1, min(8, samples * elements // 256))  # a row to a warp, 16 bytes to a thread
    return triton.cdiv(batch, samples), sizes | widths | padded_sizes | dict(num_warps=warps)


def _stride(slots: int, elements: int) -> int:
    """Slots that one round of a loop over them takes, of a tile of so many elements."""
    return slots if elements <= UNROLLED else 1


def _row_sizes(memory: Tensor, gates_in: Tensor | None, p, spec) -> tuple[int, int, dict]:
    batch, slots, size = memory.shape
    tiles, sizes = _tiles(batch * slots, size)
    gated = spec.gate_style is not None
    widths = (p.gate_weight.shape[0], gates_in.shape[-1]) if gated else (0, 0)
    sizes |= dict(N=slots, F=size, SF=p.qkv_weight.shape[1], SG=widths[0], SI=widths[1])
    return batch * slots, tiles, sizes | dict(GATED=gated, UNIT=spec.gate_style == "unit", EPS=EPSILON)


def begin(memory: Tensor, reset: Tensor | None, now, out: Tensor | None = None) -> None:
    batch, slots, size = memory.shape
    tiles, sizes = _tiles(batch * slots, size)
    begin_kernel[(tiles,)](
        memory, reset, out, now.rows, now.hidden, batch * slots, N=slots, F=size, SF=now.rows.shape[1],
        RESET=reset is not None, HIDDEN=now.hidden is not None, **sizes,
    )  # fmt: skip


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    if x.is_cuda and x.dtype != torch.float32:  # cuBLAS adds the bias and cuts at zero as it writes
        return torch._addmm_activation(bias, x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out).relu_()


def relu_backward(delta: Tensor, activated: Tensor, layer: int, sums: Sums) -> Tensor:
    tiles, sizes = _tiles(delta.shape[0], sums.size)
    relu_backward_kernel[(_programs(tiles, sizes["FP"]),)](
        delta, activated, sums.relu[layer], delta.shape[0], tiles, sums.columns,
        F=sums.size, SF=delta.shape[1], **sizes,
    )  # fmt: skip
    return delta


def attend(memory: Tensor, now, inputs: Inputs, t: int, p, spec) -> None:
    tiles, sizes = _samples(memory, inputs, p, spec)
    rstd, read, total = now.extra
    attend_kernel[(tiles,)](
        memory, now.qkv, inputs.normed[t], now.attended, read, total, rstd, p.qkv_bias, p.qkv_norm_weight,
        p.qkv_norm_bias, p.attention_norm_weight, p.attention_norm_bias, memory.shape[0], spec.scale, **sizes,
    )  # fmt: skip


def update(memory: Tensor, now, gates_in: Tensor | None, p, spec, following, out: Tensor) -> None:
    rows, tiles, sizes = _row_sizes(memory, gates_in, p, spec)
    next_rows, hidden = (None, None) if following is None else (following.rows, following.hidden)
    update_kernel[(tiles,)](
        memory, now.attended, now.mlp[-1], now.gates, gates_in, p.mlp_biases[-1], p.mlp_norm_weight,
        p.mlp_norm_bias, out, next_rows, hidden, now.hidden, p.gate_weight, rows,
        FOLLOWED=following is not None, **sizes,
    )  # fmt: skip


def update_backward(grad, carry, after, reset, memory, now, gates_in, p, spec, delta, sums: Sums) -> None:
    rows, tiles, sizes = _row_sizes(memory, gates_in, p, spec)
    update_backward_kernel[(_programs(tiles, sizes["FP"]),)](
        grad, carry.direct, carry.through_qkv, carry.through_gates, after, reset, memory, now.attended,
        now.mlp[-1], now.gates, gates_in, p.mlp_biases[-1], p.mlp_norm_weight, p.mlp_norm_bias,
        delta.mlp[-1], delta.gates, sums.update, p.gate_weight, rows, tiles, sums.columns,
        RESET=reset is not None, **sizes,
    )  # fmt: skip


def attention_backward(carry, memory, now, inputs: Inputs, t: int, p, spec, delta, sums: Sums) -> None:
    batch, slots, size = memory.shape
    rows, (features, width), power = batch * slots, p.qkv_weight.shape, triton.next_power_of_2
    rstd, read, total = now.extra
    tiles, sizes = _tiles(rows, size)
    residual_backward_kernel[(_programs(tiles, sizes["FP"]),)](
        memory, read, delta.attended, delta.mlp[-1], carry.direct, p.attention_norm_weight, sums.residual,
        rows, tiles, sums.columns, F=size, SF=width, EPS=EPSILON, **sizes,
    )  # fmt: skip
    sizes = dict(
        N=slots, K=spec.key_size, V=spec.head_size, SQ=features, SF=width, SI=inputs.normed.shape[-1]
    )
    sizes |= dict(KP=power(spec.key_size), VP=power(spec.head_size))
    tile = power(slots) * power(max(spec.key_size, spec.head_size))
    attention_backward_kernel[(batch, spec.num_heads)](
        now.qkv, inputs.normed[t], read, total, delta.attended, delta.qkv, inputs.gradient[t],
        p.qkv_norm_weight, p.qkv_norm_bias, spec.scale, H=spec.num_heads, NP=power(slots),
        STRIDE=_stride(slots, tile), num_warps=max(1, min(8, tile // 512)), **sizes,
    )  # fmt: skip
    tiles, sizes = _tiles(rows, p.qkv_bias.shape[0])
    norm_backward_kernel[(_programs(tiles, sizes["FP"]),)](
        delta.qkv, now.qkv, rstd, p.qkv_norm_weight, sums.partial, rows, tiles, sums.columns,
        Q=p.qkv_bias.shape[0], SI=features, BIAS=True, QP=sizes.pop("FP"), **sizes,
    )  # fmt: skip
