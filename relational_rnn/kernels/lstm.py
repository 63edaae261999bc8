"""The recurrence of an LSTM, or of a grid of them, with resets: two launches a step, there and back.

cuDNN knows no resets, and step by step autograd takes dozens of small kernels and a product for every
weight's gradient. Here a step is a matrix product and one Triton kernel, a step back the same, and the
weight's gradient one product over all steps. cores/lstm.py and cores/conv_lstm.py are the specification.

A convolution is a matrix product too: a row holds, one after the other, the hidden states a cell's gates
read (`taps`), and whoever makes a hidden state writes it to every row that reads it. Outside the grid they
stay zero. A plain LSTM is a grid of one cell with one tap. Cells are float32 whatever is multiplied.

Shapes: T time, B batch, Y x X cells of a grid, R = B Y X rows, O hidden size, K taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from relational_rnn.kernels import on_gpu_of, refuse_batched, transformed, why_not_triton

BLOCK = 1024  # hidden states of a program


@dataclass(frozen=True)
class Layout:
    """Y x X cells that read KY x KX of their neighbours; the order of the gates."""

    grid: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    order: str = "ifjo"  # torch's; Sonnet's is ijfo
    forget_bias: float = 0.0  # a constant added to the forget gates

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def constants(self, width: int) -> dict[str, int]:
        (height, across), (ky, kx) = self.grid, self.kernel
        before = {"TOP": (ky - 1) // 2, "LEFT": (kx - 1) // 2}  # the rest of an even kernel is behind
        names = {"i": "ACCEPT", "j": "NEW", "f": "RETAIN", "o": "SHOW"}
        gates = {names[gate]: place * width for place, gate in enumerate(self.order)}
        return dict(WIDTH=width, HEIGHT=height, ACROSS=across, KY=ky, KX=kx, BLOCK=BLOCK) | before | gates


PLAIN = Layout()


def takes(x: Tensor, width: int, layout: Layout = PLAIN) -> bool:
    """Whether these kernels can take all steps of x [T, B, ...] with `width` hidden units a cell."""
    if torch.compiler.is_compiling() or transformed() or why_not_triton(x) is not None:
        return False
    largest = x.shape[1] * layout.grid[0] * layout.grid[1] * width * max(4, layout.taps)
    return largest < 2**31


def scan(
    from_input: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    resets: Tensor | None,
    layout: Layout = PLAIN,
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps. from_input [T, R, 4O] is what the inputs add to the gates, weight [K O, 4O] multiplies the
    hidden states, in the same dtype; hidden and cell [R, O]; resets [T, B] begin anew, from zeros.

    -> (hidden states [T, R, O] in `hidden`'s dtype, the last of them, the last cells [R, O] in `cell`'s)
    """
    with on_gpu_of(from_input):
        output, last = Recurrence.apply(from_input, hidden, cell, weight, resets, layout)
    return output, output[-1].clone(), last  # else what is written to one changes the other


class Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, from_input, hidden, cell, weight, resets, layout):
        from relational_rnn.kernels.lstm_triton import forward_kernel  # late: a CPU needs no Triton

        steps, rows, width = len(from_input), *hidden.shape
        programs = (-(-rows * width // BLOCK),)
        gates = torch.empty_like(from_input, memory_format=torch.contiguous_format)
        from_input, weight = from_input.contiguous(), weight.contiguous()
        read = from_input.new_zeros(steps, rows, layout.taps * width)  # zeros: what lies outside the grid
        cells = torch.empty(steps + 1, rows, width, dtype=torch.float32, device=hidden.device)
        output = torch.empty(steps, rows, width, dtype=hidden.dtype, device=hidden.device)
        resets = None if resets is None else resets.to(torch.uint8)  # [T, B]
        _spread(_begun(hidden, resets, layout), read[0], layout)
        cells[0] = _begun(cell.float(), resets, layout)
        for t in range(steps):
            product = read[t] @ weight
            last = t + 1 == steps
            forward_kernel[programs](
                from_input[t], product, cells[t], None if last or resets is None else resets[t + 1],
                gates[t], output[t], cells[t + 1], None if last else read[t + 1],
                rows * width, layout.forget_bias,
                RESETS=resets is not None and not last, LAST=last, **layout.constants(width),
            )  # fmt: skip
        ctx.save_for_backward(gates, read, cells, weight, resets)
        ctx.layout, ctx.dtypes = layout, (hidden.dtype, cell.dtype)
        return output, cells[steps].to(cell.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_output, d_cell):
        from relational_rnn.kernels.lstm_triton import backward_kernel

        refuse_batched("the fused LSTM", d_output, d_cell)
        gates, read, cells, weight, resets = ctx.saved_tensors
        layout, (hidden_dtype, cell_dtype) = ctx.layout, ctx.dtypes
        steps, rows, width = d_output.shape
        programs = (-(-rows * width // BLOCK),)
        d_gates = torch.empty_like(gates)
        d_output, d_cell = d_output.contiguous(), d_cell.float().clone(memory_format=torch.contiguous_format)
        d_read, transposed = None, weight.t()
        for t in reversed(range(steps)):
            last = t + 1 == steps
            backward_kernel[programs](
                d_output[t], gates[t], cells[t], None if last or resets is None else resets[t + 1], d_read,
                d_cell, d_gates[t], rows * width,
                RESETS=resets is not None and not last, LAST=last, **layout.constants(width),
            )  # fmt: skip
            d_read = d_gates[t] @ transposed
        d_hidden = _begun(_gather(d_read, layout), resets, layout).to(hidden_dtype)
        d_weight = read.flatten(0, 1).t() @ d_gates.flatten(0, 1)
        return d_gates, d_hidden, _begun(d_cell, resets, layout).to(cell_dtype), d_weight, None, None


def _begun(state: Tensor, resets: Tensor | None, layout: Layout) -> Tensor:
    """What is left of the state [R, O], or of its gradient, when the first step's resets are done."""
    if resets is None:
        return state
    mask = resets[0].bool()[:, None].expand(-1, layout.grid[0] * layout.grid[1]).reshape(-1, 1)
    return state.masked_fill(mask, 0)


def _windows(read: Tensor, hidden: Tensor, layout: Layout):
    """The parts of both, [B, y, x, O], that hold the same hidden states, for every tap."""
    (height, across), (ky, kx) = layout.grid, layout.kernel
    read = read.view(-1, height, across, layout.taps, hidden.shape[-1])
    hidden = hidden.view(-1, height, across, hidden.shape[-1])
    for tap in range(layout.taps):
        # what row [y, x] reads is hidden[y + down, x + right]
        down, right = tap // kx - (ky - 1) // 2, tap % kx - (kx - 1) // 2
        ys, xs = slice(max(0, -down), height - max(0, down)), slice(max(0, -right), across - max(0, right))
        moved = (slice(ys.start + down, ys.stop + down), slice(xs.start + right, xs.stop + right))
        if ys.start < ys.stop and xs.start < xs.stop:
            yield read[:, ys, xs, tap], hidden[:, *moved]


def _spread(hidden: Tensor, read: Tensor, layout: Layout) -> None:
    """To every row that reads it."""
    for place, part in _windows(read, hidden.contiguous(), layout):
        place.copy_(part)


def _gather(d_read: Tensor, layout: Layout) -> Tensor:
    """The gradient of what was spread."""
    total = d_read.new_zeros(d_read.shape[0], d_read.shape[1] // layout.taps, dtype=torch.float32)
    for part, place in _windows(d_read, total, layout):
        place += part
    return total
