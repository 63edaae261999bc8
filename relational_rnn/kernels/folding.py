"""What a call computes of the weights and of the input before its first step: products that need no memory.

Shapes as in recurrence.py.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.kernels import LOW_PRECISION, autocasts, no_autocast
from relational_rnn.kernels.recurrence import Parameters
from relational_rnn.kernels.reference import Spec, Weights


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The dtype matrices are multiplied in: autocast's where it is on, but float64, as in torch."""
    kind = weight.device.type
    casts = autocasts(kind) and weight.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if casts else weight.dtype


class Folded(NamedTuple):
    """What a call computes from the weights alone: the input's multiplied out, cast and widened.

    The recurrence's own are as the parameters are, and the operator casts them, so that their gradients are
    never rounded; in a copy for acting, which wants none, they are `ready`.
    """

    how: str  # the row functions it was made for: torch, cpp or triton
    input_size: int
    projection: tuple[Tensor, Tensor] | None  # of the input, where it is not multiplied into the next two
    qkv: tuple[Tensor, Tensor]  # weight and bias of the input's queries, keys and values
    gates: tuple[Tensor, Tensor] | None  # of the input's share of the gates
    matrices: list[Tensor]  # as Parameters.matrices
    vectors: list[Tensor]  # as Parameters.vectors
    ready: bool = False
    packed: tuple[Tensor, ...] = ()  # as Parameters.packed
    spec: Spec | None = None  # of the core, in a copy: its shapes do not tell how heads are cut

    @property
    def rows(self) -> ModuleType:
        return import_module(f"relational_rnn.kernels.rows_{self.how}")

    def check(self, inputs: int, layers: int, spec: Spec) -> None:
        """That it is of such a core: kernels read where these numbers say, whatever lies there."""
        heads, keys, values, _, style = spec
        features, size = heads * (2 * keys + values), heads * values
        gates = {None: [], "memory": [(2, size)], "unit": [(2 * size, size)]}[style]
        matrices = [(features, size), *[(size, size)] * layers, *gates]
        wanted = [*spec, inputs, layers, *matrices, *[(features,)] * 3, *[(size,)] * (4 + layers)]
        tensors = (*self.matrices, *self.vectors)
        found = [*(self.spec or spec), self.input_size, len(self.vectors) - 7, *(t.shape for t in tensors)]
        if found == wanted:
            return
        mlp = [f"mlp.{i}" for i in range(layers)]
        gated = ["gate_from_memory.weight"] * len(gates)
        norms = [
            f"{norm}.{of}" for norm in ("qkv_norm", "attention_norm", "mlp_norm") for of in ("weight", "bias")
        ]
        names = [
            *Spec._fields,
            "input_size",
            "attention_mlp_layers",
            "qkv.weight",
            *(f"{m}.weight" for m in mlp),
        ]
        names += [*gated, "qkv.bias", *norms, *(f"{m}.bias" for m in mlp)]
        whose = "the folded weights, which are of another core, have" if self.ready else "the core has"
        for name, there, allowed in zip(names, found, wanted, strict=False):
            if there != allowed:
                there = tuple(there) if isinstance(there, torch.Size) else there
                raise ValueError(f"{whose} {name}={there!r}; allowed: {allowed!r}")

    def of_input(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [T, B, input_size] -> the input's queries, keys and values [T, B, Q], and its share of gates."""
        kind, first = self.qkv[0].dtype, self.projection or self.qkv
        with no_autocast(x.device.type):
            x = x.to(kind).contiguous()  # or torch would add a bias in a kernel of its own
            if missing := first[0].shape[1] - x.shape[-1]:
                x = F.pad(x, (0, missing))
            if self.projection is not None:
                x = F.linear(x, *self.projection)
            return F.linear(x, *self.qkv), None if self.gates is None else F.linear(x, *self.gates)

    def copied(self, slots: int, spec: Spec) -> Folded:
        """With no tensor that is still a parameter's own, and nothing left to do with them."""
        p = Parameters.of(self.matrices, self.vectors).prepared(self.qkv[0].dtype, self.rows)
        matrices, vectors = ([t.clone() for t in group] for group in (p.matrices, p.vectors))
        sequence = self.rows.sequence(slots, len(p.mlp_weights), self.qkv[0], spec)
        own = self.how, self.input_size
        copy = Parameters.of(matrices, vectors, ready=True)
        packed = () if sequence is None else sequence.prepacked(copy, spec, slots)
        linears = (self.projection, self.qkv, self.gates)
        linears = [None if pair is None else (pair[0].clone(), pair[1].clone()) for pair in linears]
        return Folded(*own, *linears, matrices, vectors, ready=True, packed=packed, spec=spec)


def fold(
    projection,
    qkv,
    gate,
    gate_bias: Tensor | None,
    weights: Weights,
    rows: ModuleType,
    inputs: int | None = None,
) -> Folded:
    """The input's products are linear in the projected input, which is linear in x: where x is the narrower,
    multiplying the weights once spares multiplying every projected row. `inputs`: how many rows x has, None
    for any number; on a CPU few are not worth it, while a GPU is spared a launch."""
    kind = compute_dtype(qkv.weight)
    few = inputs is not None and not qkv.weight.is_cuda and inputs < 2 * projection.in_features
    narrow = projection.in_features <= projection.out_features and not few

    def product(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        if narrow:
            weight, bias = weight @ projection.weight, weight @ projection.bias + bias
        wider = rows.padded(weight.shape[0], kind) - weight.shape[0]
        if wider:
            weight, bias = F.pad(weight, (0, 0, 0, wider)), F.pad(bias, (0, wider))
        return (for_input(weight) if narrow else weight.to(kind)), bias.to(kind)

    def for_input(weight: Tensor) -> Tensor:
        """With columns of zeros for those that `of_input` adds to x: on rows that are not aligned a product
        takes two or three times as long."""
        missing = rows.padded(weight.shape[1], kind) - weight.shape[1]
        return (F.pad(weight, (0, missing)) if missing else weight).to(kind)

    block = weights.blocks[0]
    gate_weight = [] if weights.gate_weight is None else [weights.gate_weight]
    state_dtype = torch.float32 if qkv.weight.dtype in LOW_PRECISION else qkv.weight.dtype
    with no_autocast(qkv.weight.device.type):
        return Folded(
            rows.__name__.rpartition("_")[2],
            projection.in_features,
            None if narrow else (for_input(projection.weight), projection.bias.to(kind)),
            product(qkv.weight, qkv.bias),
            None if gate is None else product(gate.weight, gate.bias + gate_bias),
            [m.contiguous() for m in (block.qkv_weight, *(w for w, _ in weights.mlp), *gate_weight)],
            [v.to(state_dtype).contiguous() for v in (*block[1:], *(b for _, b in weights.mlp))],
        )
