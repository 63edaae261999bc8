"""All steps of a DNC whose controller is an LSTM of one or two layers: seven launches a step, there and back.

cores/dnc.py is the specification. Step by step autograd takes some eighty: a product for every weight's
gradient in every step, and an addition for each. Here these are one product each after the loop, and what is
linear in the input is made for all steps before it.

A step's operands lie side by side, so that what a layer reads of the step is one row of a matrix product:

    [hidden 1 before | words read before]                                  layer 1
                     [words read before | hidden 1 | hidden 2 before]      layer 2

Shapes: T time, B batch, D layers of U units, P = R W words read, RAW as in dnc.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from relational_rnn.kernels import dnc, on_gpu_of, refuse_batched

BLOCK = 1024  # hidden states of a program
NO_LIMIT = 3e38  # of cells


class Layer(NamedTuple):
    """An LSTM's weights; what it reads are [input, words read, the hidden state below if there is one]."""

    from_input: Tensor  # [4U, I + P (+ U)]
    from_hidden: Tensor  # [4U, U]
    bias: Tensor  # [4U]


class Sizes(NamedTuple):
    inputs: int  # I
    units: int  # U
    words: int  # P

    def operands(self, layers: int) -> int:
        return self.words + self.units * (1 if layers == 1 else 3)

    def read_by(self, layer: int) -> slice:
        """Columns of the operands."""
        return slice(0, self.units + self.words) if layer == 0 else slice(self.units, None)

    def own(self, layer: int) -> slice:
        """The layer's hidden state among those of all layers."""
        return slice(layer * self.units, (layer + 1) * self.units)

    def before(self, layer: int) -> slice:
        """The layer's own hidden state before the step."""
        return slice(0, self.units) if layer == 0 else slice(2 * self.units + self.words, None)

    @property
    def below(self) -> slice:
        """The hidden state of layer 1, for layer 2."""
        return slice(self.units + self.words, 2 * self.units + self.words)

    @property
    def read(self) -> slice:
        return slice(self.units, self.units + self.words)


def scan(
    x: Tensor,
    state: list[Tensor],
    cells: list[tuple[Tensor, Tensor]],
    layers: list[Layer],
    interface: tuple[Tensor, Tensor],
    resets: Tensor | None,
    limit: float | None,
):
    """x [T, B, I]; state: words read and dnc_memory.Memory, one write head; cells: (hidden, cell) of each
    layer; interface: its weight and bias; resets [T, B] begin anew, from zeros; limit: of cells.

    -> ([hidden states, words read] [T, B, D U + P], state, cells), all in float32
    """
    parts = [*state, *(part for pair in cells for part in pair)]
    weights = [*(part for layer in layers for part in layer), *interface]
    with on_gpu_of(x):
        features, *parts = Sequence.apply(x, resets, limit, len(layers), *parts, *weights)
    state, pairs = parts[: len(state)], parts[len(state) :]
    return features, state, [tuple(pairs[2 * d : 2 * d + 2]) for d in range(len(layers))]


def _matrix(layer: Layer, d: int, sizes: Sizes) -> Tensor:
    """What multiplies a layer's operands, [columns of them, 4U]."""
    inner = layer.from_input[:, sizes.inputs :]
    parts = (layer.from_hidden, inner) if d == 0 else (inner, layer.from_hidden)
    return torch.cat(parts, 1).t().contiguous()


class Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, resets, limit, depth, *tensors):
        from relational_rnn.kernels.dnc_triton import cell_kernel  # late: a CPU needs no Triton

        (reads, *memory), cells, layers, interface = _parts(tensors, depth)
        steps, batch = x.shape[:2]
        units = layers[0].from_hidden.shape[1]
        sizes = Sizes(x.shape[2], units, reads[0].numel())
        resets = None if resets is None else resets.to(torch.uint8).contiguous()
        limit = NO_LIMIT if limit is None else limit
        matrices = [_matrix(layer, d, sizes) for d, layer in enumerate(layers)]
        inputs = [
            torch.nn.functional.linear(x, layer.from_input[:, : sizes.inputs], layer.bias) for layer in layers
        ]

        rows = x.new_empty(steps, batch, sizes.operands(depth))
        gates = [x.new_empty(steps, batch, 4 * units) for _ in layers]
        kept = [x.new_empty(steps + 1, batch, units) for _ in layers]  # cells, as the steps begin with them
        hidden = x.new_empty(steps, batch, depth * units)
        raws = x.new_empty(steps, batch, interface[0].shape[0])
        made = x.new_empty(steps, *reads.shape)
        states = [t.new_empty(steps + 1, *t.shape) for t in memory]
        for target, t in zip(states, memory, strict=True):
            target[0] = t
        rows[0, :, sizes.read] = _begun(reads.flatten(1), resets)
        for d, (h, c) in enumerate(cells):
            rows[0, :, sizes.before(d)] = _begun(h, resets)
            kept[d][0] = _begun(c, resets)
        programs = (-(-batch * units // BLOCK),)
        for t in range(steps):
            last = t + 1 == steps
            after = rows[t if last else t + 1]  # of the last step nobody reads on
            following = None if last or resets is None else resets[t + 1]
            for d in range(depth):
                above = rows[t][:, sizes.below] if d + 1 < depth else None
                cell_kernel[programs](
                    inputs[d][t], rows[t][:, sizes.read_by(d)] @ matrices[d], kept[d][t], following,
                    gates[d][t], kept[d][t + 1], hidden[t][:, sizes.own(d)], above, after[:, sizes.before(d)],
                    batch * units, limit, hidden.stride(1), rows.stride(1), WIDTH=units,
                    ABOVE=above is not None, LAST=last, RESETS=following is not None, BLOCK=BLOCK,
                )  # fmt: skip
            torch.addmm(interface[1], hidden[t], interface[0].t(), out=raws[t])
            dnc.forward(
                raws[t],
                [s[t] for s in states],
                [made[t], *(s[t + 1] for s in states)],
                _episodes(resets, t),
                None if last else after[:, sizes.read],
            )
        ctx.save_for_backward(
            x, resets, rows, hidden, raws, *gates, *kept, *states, *tensors[-(3 * depth + 2) :]
        )
        ctx.limit, ctx.depth, ctx.sizes = limit, depth, sizes
        last_hidden = [hidden[-1][:, sizes.own(d)].clone() for d in range(depth)]
        pairs = (part for h, k in zip(last_hidden, kept, strict=True) for part in (h, k[-1].clone()))
        features = torch.cat((hidden, made.flatten(2)), -1)
        return features, made[-1].clone(), *(s[-1].clone() for s in states), *pairs

    @staticmethod
    @once_differentiable
    def backward(ctx, d_features, d_last_reads, *d_parts):
        from relational_rnn.kernels.dnc_triton import cell_backward_kernel

        refuse_batched("the fused DNC", d_features, d_last_reads, *d_parts)
        depth, limit, sizes = ctx.depth, ctx.limit, ctx.sizes
        x, resets, rows, hidden, raws, *rest = ctx.saved_tensors
        gates, kept, states = rest[:depth], rest[depth : 2 * depth], rest[2 * depth : 2 * depth + 6]
        layers, interface = _weights(rest[2 * depth + 6 :], depth)
        matrices = [_matrix(layer, d, sizes) for d, layer in enumerate(layers)]
        if depth == 2:  # its products fill all columns; those of hidden 1 before with zeros
            matrices[1] = torch.nn.functional.pad(matrices[1], (0, 0, sizes.units, 0))
        steps, batch, units = x.shape[0], x.shape[1], sizes.units
        d_hidden, d_reads = d_features.split((depth * units, sizes.words), -1)
        d_hidden = d_hidden.contiguous()
        # a copy always: of one step of one sample `contiguous` would leave the caller's own
        d_reads = d_reads.clone(memory_format=torch.contiguous_format).view(steps, *d_last_reads.shape)
        d_reads[-1] += d_last_reads
        d_state = [d.clone(memory_format=torch.contiguous_format) for d in d_parts[:6]]
        spare = [torch.empty_like(d) for d in d_state]
        nothing = torch.zeros_like(d_state[2])
        d_next = [d.contiguous() for d in d_parts[6::2]]  # of the last hidden states, then columns of d_rows
        d_cells = [d.clone(memory_format=torch.contiguous_format) for d in d_parts[7::2]]
        d_gates, d_raws = [torch.empty_like(g) for g in gates], torch.empty_like(raws)
        d_rows, spare_rows = (torch.empty_like(rows[0]) for _ in range(2))
        programs = (-(-batch * units // BLOCK),)
        for t in reversed(range(steps)):
            last = t + 1 == steps
            following = None if last or resets is None else resets[t + 1]
            memory, read_weights, written, link, precedence, usage = d_state
            found = [d_raws[t], *(spare[i] for i in (0, 1, 3, 4, 5))]
            dnc.backward(
                raws[t],
                [s[t] for s in states],
                states[1][t + 1],
                [d_reads[t], memory, read_weights, written, link, precedence, usage],
                found,
                _episodes(resets, t),
                None if last else d_rows[:, sizes.read],
            )
            spare, d_state = d_state, [*spare[:2], nothing, *spare[3:]]
            d_said = torch.addmm(d_hidden[t], d_raws[t], interface[0])
            for d in reversed(range(depth)):
                above = spare_rows[:, sizes.below] if d + 1 < depth else None
                cell_backward_kernel[programs](
                    gates[d][t], kept[d][t], following, d_said[:, sizes.own(d)], above, d_next[d], d_cells[d],
                    d_gates[d][t], batch * units, limit, d_said.stride(0), rows.stride(1),
                    d_next[d].stride(0), WIDTH=units, ABOVE=above is not None,
                    RESETS=following is not None, BLOCK=BLOCK,
                )  # fmt: skip
                if d == depth - 1:
                    torch.mm(d_gates[d][t], matrices[d].t(), out=spare_rows)
                else:
                    spare_rows[:, sizes.read_by(d)].addmm_(d_gates[d][t], matrices[d].t())
            d_rows, spare_rows = spare_rows, d_rows
            d_next = [d_rows[:, sizes.before(d)] for d in range(depth)]
        return _gradients(ctx, x, resets, rows, hidden, layers, d_state, d_rows, d_cells, d_gates, d_raws)


def _gradients(ctx, x, resets, rows, hidden, layers, d_state, d_rows, d_cells, d_gates, d_raws):
    """Of the input, the first state and the weights, in the order of the arguments."""
    sizes, depth = ctx.sizes, ctx.depth
    memory, read_weights, _, link, precedence, usage = d_state
    words = _begun(d_rows[:, sizes.read], resets).reshape(len(d_rows), read_weights.shape[1], -1)
    found: list[Tensor | None] = [words, memory, read_weights, None, link, precedence, usage]
    for d in range(depth):
        found += [_begun(d_rows[:, sizes.before(d)], resets), _begun(d_cells[d], resets)]
    d_x = None
    if ctx.needs_input_grad[0]:
        d_x = sum(g @ layer.from_input[:, : sizes.inputs] for g, layer in zip(d_gates, layers, strict=True))
    for d, g in enumerate(d_gates):
        g = g.flatten(0, 1)
        inner = g.t() @ rows[..., sizes.read_by(d)].flatten(0, 1)  # as _matrix has them
        if d == 0:
            from_hidden, from_rest = inner[:, : sizes.units], inner[:, sizes.units :]
        else:
            from_rest, from_hidden = inner[:, : -sizes.units], inner[:, -sizes.units :]
        found += [torch.cat((g.t() @ x.flatten(0, 1), from_rest), 1), from_hidden, g.sum(0)]
    d_raws = d_raws.flatten(0, 1)
    found += [d_raws.t() @ hidden.flatten(0, 1), d_raws.sum(0)]
    return d_x, None, None, None, *found


def _parts(tensors, depth: int):
    """-> [words read, *memory], (hidden, cell) of each layer, layers, interface"""
    state, pairs = list(tensors[:7]), tensors[7 : 7 + 2 * depth]
    cells = [(pairs[2 * d], pairs[2 * d + 1]) for d in range(depth)]
    return [t.contiguous() for t in state], cells, *_weights(tensors[7 + 2 * depth :], depth)


def _weights(tensors, depth: int) -> tuple[list[Layer], tuple[Tensor, Tensor]]:
    return [Layer(*tensors[3 * d : 3 * d + 3]) for d in range(depth)], tuple(tensors[3 * depth :])


def _episodes(resets: Tensor | None, t: int) -> dnc.Episodes | None:
    return None if resets is None else dnc.Episodes(resets[t], resets[min(t + 1, len(resets) - 1)])


def _begun(state: Tensor, resets: Tensor | None) -> Tensor:
    """What is left of a state, or of its gradient, when the first step's resets are done."""
    return state if resets is None else state.masked_fill(resets[0].bool()[:, None], 0)
