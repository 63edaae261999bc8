"""The Relational Memory Core: a memory of slots that attend to each other and to the input at every step.

Section 3 of the paper, in the formulation of Sonnet v1, the authors' own (docs/model.md lists where the two
differ). This file holds parameters, checks and layouts; the mathematics is in kernels/reference.py.

Shapes: T time, B batch, N memory slots, R input rows per step, F slot size = H heads x V head size,
K key size, G gate size.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from relational_rnn.cores.base import (
    RecurrentCore,
    initialize_like_sonnet,
    require,
    require_batch,
    require_numbers,
    require_sizes,
)
from relational_rnn.kernels import op, reference
from relational_rnn.kernels.folding import Folded, fold
from relational_rnn.kernels.reference import Block, InputRows, Spec, Trace, Weights

GATE_STYLES = ("unit", "memory", None)
BACKENDS = ("auto", "reference", "torch", "cpp", "triton")


class RelationalMemory(RecurrentCore):
    """A drop-in recurrent layer whose state is a matrix of `mem_slots` rows.

    The state is the memory `[B, N, F]`; the output is the memory after the step, flattened to `[B, N * F]`.
    The number of slots changes no parameter.

    Args:
        input_size: features of one input (of one input row, with `input_rows`).
        mem_slots: N, rows of the memory.
        head_size: V, features of one attention head; a slot has `head_size * num_heads` of them.
        num_heads: H.
        num_blocks: attention blocks per step. Each has its own projections and norms; the MLP is shared.
        forget_bias, input_bias: constants added to the gates, not trained.
        gate_style: "unit" (a gate for every feature), "memory" (one for every slot) or None.
        attention_mlp_layers: layers of the MLP after the attention; ReLU between them.
        key_size: K, features of a query and of a key in each head; `head_size` by default.
        input_rows: None for one input vector per step, x [T, B, input_size]; an integer R for a matrix of
            R rows per step, x [T, B, R, input_size], each row attended to by itself.
        output_gate: the paper's equations 7-8, which Sonnet dropped: the output is sigmoid(o) * tanh(memory),
            the gates read it instead of tanh(memory), and the state is (memory, output as [B, N, F]).
        legacy_scale: scale the attention logits by (2K + V)**-0.5, as Sonnet did until November 2018 and so
            probably in the paper, instead of K**-0.5.
        backend: "auto" takes the fastest that applies; "reference" is the specification, "torch" the
        recurrence
            with its backward pass written by hand, "triton" that with fused GPU kernels, or an error that
            says why not.
        recompute: keep only the memories for the backward pass and recompute the rest there: less memory,
            more time.
    """

    def __init__(
        self,
        input_size: int,
        mem_slots: int,
        head_size: int,
        num_heads: int = 1,
        num_blocks: int = 1,
        forget_bias: float = 1.0,
        input_bias: float = 0.0,
        gate_style: str | None = "unit",
        attention_mlp_layers: int = 2,
        key_size: int | None = None,
        *,
        input_rows: int | None = None,
        output_gate: bool = False,
        legacy_scale: bool = False,
        batch_first: bool = False,
        backend: str = "auto",
        recompute: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(batch_first=batch_first)
        sizes = dict(
            input_size=input_size,
            mem_slots=mem_slots,
            head_size=head_size,
            num_heads=num_heads,
            num_blocks=num_blocks,
            attention_mlp_layers=attention_mlp_layers,
            key_size=head_size if key_size is None else key_size,
            input_rows=1 if input_rows is None else input_rows,
        )
        require_sizes(**sizes)
        require_numbers(forget_bias=forget_bias, input_bias=input_bias)
        require(gate_style in GATE_STYLES, "gate_style", gate_style, "'unit', 'memory' or None")
        require(backend in BACKENDS, "backend", backend, "'auto', 'reference', 'torch', 'cpp' or 'triton'")
        require(
            not (output_gate and gate_style is None),
            "output_gate",
            output_gate,
            "True only with a gate_style",
        )

        self.mem_slots = mem_slots
        self.slot_size = head_size * num_heads
        self.forget_bias, self.input_bias = float(forget_bias), float(input_bias)
        self.input_rows, self.output_gate = input_rows, output_gate
        self.backend, self.recompute = backend, recompute
        keys = sizes["key_size"]
        features = num_heads * (2 * keys + head_size)
        scale = (2 * keys + head_size if legacy_scale else keys) ** -0.5
        self.spec = Spec(num_heads, keys, head_size, scale, gate_style)
        self.input_shape = (input_size,) if input_rows is None else (input_rows, input_size)
        self.output_shape = (mem_slots * self.slot_size,)

        options = dict(device=device, dtype=dtype)
        slot = self.slot_size
        self.input_projection = nn.Linear(input_size, slot, **options)
        self.blocks = nn.ModuleList(_AttentionBlock(slot, features, **options) for _ in range(num_blocks))
        self.mlp = nn.ModuleList(nn.Linear(slot, slot, **options) for _ in range(attention_mlp_layers))
        self.gate_from_input = self.gate_from_memory = None
        if gate_style is not None:
            gates = (3 if output_gate else 2) * (slot if gate_style == "unit" else 1)
            self.gate_from_input = nn.Linear(sizes["input_rows"] * slot, gates, **options)
            self.gate_from_memory = nn.Linear(slot, gates, **options)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights as Sonnet starts them; norms that do nothing yet."""
        initialize_like_sonnet(self)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    def initial_state(self, batch_size: int, *, device=None, dtype=None):
        """Rows of the identity matrix, padded with zeros or cut to F columns, so that slots differ."""
        require_batch(batch_size)
        weight = self.input_projection.weight
        options = dict(device=weight.device if device is None else device, dtype=dtype or weight.dtype)
        memory = torch.eye(self.mem_slots, self.slot_size, **options).expand(batch_size, -1, -1).contiguous()
        return (memory, memory.tanh()) if self.output_gate else memory

    def step(self, x: Tensor, state, folded: Folded | None = None):
        """As every core's step; `folded` spares what depends on the weights alone (see `fold`)."""
        self._check_step(x, state)
        if self.output_gate:
            state = (part.to(self.input_projection.weight.dtype) for part in state)
            memory, gates, _ = reference.step(*state, self.project_inputs(x), self.weights(), self.spec)
            hidden = gates[2] * memory.tanh()
            return hidden.flatten(1), (memory, hidden)
        memories, _ = self._scan(x.unsqueeze(0), state, None, folded=folded)
        return memories[0].flatten(1), memories[0]

    def kernels(self) -> ModuleType | None:
        """The row functions that calls run with, None for the reference; a ValueError if the backend asked
        for cannot run where the parameters are."""
        if self.output_gate:
            return None
        return self._choose(self.backend, self.initial_state(1), 1, self.weights(), folded=True)

    def _choose(self, backend: str, memory: Tensor, steps: int, weights: Weights, folded: bool):
        rows = self.input_rows or 1
        return op.choose(backend, memory, steps, weights, rows, self.recompute, folded)

    def fold(self) -> Folded | None:
        """The weights multiplied out and cast, to take many steps with: `step(x, state, folded)`.

        They do not follow the parameters, and have no gradients: fold again after an update. None where there
        is nothing to gain.
        """
        rows = self.kernels()
        if rows is None:
            return None
        with torch.no_grad():
            return self._fold(self.weights(), rows).copied(self.mem_slots, self.spec)

    def _fold(self, weights: Weights, rows, inputs: int | None = None) -> Folded:
        bias = None if self.gate_from_memory is None else self._gate_bias()
        linears = self.input_projection, self.blocks[0].qkv, self.gate_from_input
        return fold(*linears, bias, weights, rows, inputs)

    def scan(self, x: Tensor, state, resets: Tensor | None):
        if self.output_gate:  # a loop over `step`; the gates' second state is not worth a kernel of its own
            return super().scan(x, state, resets)
        if x.shape[0] == 0:
            return self._nothing(x, state)
        memories, _ = self._scan(x, state, resets)
        return memories.flatten(2), memories[-1].clone()  # else what is written to one changes the other

    def forward(
        self,
        x,
        state=None,
        *,
        resets: Tensor | None = None,
        need_weights: bool = False,
        attention_bias: Tensor | None = None,
    ):
        """As every core's forward; with `need_weights` a third value, a `Trace` of attention and gates.

        `attention_bias` is added to the attention logits: shaped as `Trace.attention`, or 1 where all are to
        get the same; -inf cuts a query row (slot or input) off from a key row. Both run the reference,
        whatever the backend.
        """
        if not need_weights and attention_bias is None:
            return super().forward(x, state, resets=resets)
        asked = "need_weights=True" if need_weights else "attention_bias"
        if isinstance(x, PackedSequence) or self.output_gate:
            raise ValueError(f"{asked} is not allowed with a PackedSequence or an output gate")
        x, state, resets, restore = self._to_time_major(x, state, resets)
        require(x.shape[0] > 0, "length of the input", 0, f"at least 1 with {asked}")
        bias = None if attention_bias is None else self._checked_bias(attention_bias, restore, x)
        memories, trace = self._scan(x, state, resets, need_weights, bias=bias)
        output, state = restore(memories.flatten(2)), restore.state(memories[-1].clone())
        if not need_weights:
            return output, state
        return output, state, Trace(*(None if part is None else restore(part) for part in trace))

    def _checked_bias(self, bias: Tensor, restore, x: Tensor) -> Tensor:
        """-> time-major and expanded, [T, B, blocks, H, N+R, N+R]."""
        rows = self.mem_slots + (self.input_rows or 1)
        wanted = [*x.shape[:2], len(self.blocks), self.spec.num_heads, rows, rows]
        if not isinstance(bias, Tensor) or not bias.is_floating_point():
            kind = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
            raise ValueError(f"attention_bias must be a tensor of a floating point dtype, got {kind}")
        time = wanted[:2] if restore.batched else wanted[:1]
        allowed = [*(reversed(time) if restore.batch_first else time), *wanted[2:]]
        if bias.dim() != len(allowed) or any(
            size not in (1, full) for size, full in zip(bias.shape, allowed, strict=True)
        ):
            raise ValueError(f"attention_bias has shape {list(bias.shape)}; allowed: {allowed} or 1 for any")
        given = bias if restore.batched else bias.unsqueeze(1)
        given = given.transpose(0, 1) if restore.batched and restore.batch_first else given
        if bias.device != x.device:
            raise ValueError(f"attention_bias is on {bias.device}, the input on {x.device}")
        given = given.to(self.input_projection.weight.dtype)  # in which a number may be -inf
        if bool((given == float("-inf")).all(-1).any()) or not bool((given < float("inf")).all()):
            raise ValueError("attention_bias must leave every query row a key row, and have no inf or NaN")
        return given.expand(wanted)

    def _scan(self, x, state, resets, need_weights=False, folded=None, bias=None):
        """Time-major x -> (memories [T, B, N, F], trace)."""
        weights, state = self.weights(), state.to(self.input_projection.weight.dtype)
        backend = "reference" if need_weights or bias is not None else self.backend
        rows = self._choose(backend, state, x.shape[0], weights, folded is not None)
        if rows is None:
            fresh = None if resets is None else self.initial_like(state)
            inputs = self._inputs_step_by_step(x) if self.backend == "reference" else self.project_inputs(x)
            return reference.scan(state, inputs, weights, self.spec, resets, fresh, need_weights, bias)
        x = x if self.input_rows is None else x.squeeze(-2)
        folded = folded or self._fold(weights, rows, x.shape[0] * x.shape[1])
        folded.check(self.input_size, len(self.mlp), self.spec)
        return op.scan(x, state, folded, self.spec, resets, self.recompute), None

    def _inputs_step_by_step(self, x: Tensor) -> InputRows:
        """As project_inputs, but so that `forward` is a loop over `step` to the last bit."""
        if x.shape[0] == 0:
            return self.project_inputs(x)
        steps = zip(*(self.project_inputs(now) for now in x), strict=True)
        return InputRows(*(None if part[0] is None else torch.stack(part) for part in steps))

    def project_inputs(self, x: Tensor) -> InputRows:
        """What the inputs [..., input_size] (or [..., R, input_size]) contribute, for all steps at once."""
        rows = self.input_projection(x if self.input_rows is not None else x.unsqueeze(-2))  # [..., R, F]
        qkv = reference.project_qkv(rows, self.blocks[0].weights())
        if self.spec.gate_style is None:
            return InputRows(rows, qkv, None)
        gates = self.gate_from_input(rows.flatten(-2)) + self._gate_bias()
        return InputRows(rows, qkv, gates.unsqueeze(-2))

    def _gate_bias(self) -> Tensor:
        bias = self.gate_from_memory.bias
        size = self.slot_size if self.spec.gate_style == "unit" else 1
        constants = (self.input_bias, self.forget_bias, 0.0)[: bias.shape[0] // size]
        return torch.cat(
            [part + constant for part, constant in zip(bias.split(size), constants, strict=True)]
        )

    def weights(self) -> Weights:
        """The parameters of the recurrence as the kernels take them."""
        return Weights(
            tuple(block.weights() for block in self.blocks),
            tuple((layer.weight, layer.bias) for layer in self.mlp),
            None if self.gate_from_memory is None else self.gate_from_memory.weight,
        )

    def extra_repr(self) -> str:
        return (
            f"input_size={self.input_size}, mem_slots={self.mem_slots}, head_size={self.spec.head_size}, "
            f"num_heads={self.spec.num_heads}, key_size={self.spec.key_size}, "
            f"gate_style={self.spec.gate_style!r}, forget_bias={self.forget_bias}, "
            f"input_bias={self.input_bias}, backend={self.backend!r}"
        )


class _AttentionBlock(nn.Module):
    """The parameters of one block."""

    def __init__(self, slot_size: int, features: int, *, device=None, dtype=None):
        super().__init__()
        options = dict(device=device, dtype=dtype)
        self.qkv = nn.Linear(slot_size, features, **options)
        self.qkv_norm = nn.LayerNorm(features, reference.EPSILON, **options)
        self.attention_norm = nn.LayerNorm(slot_size, reference.EPSILON, **options)
        self.mlp_norm = nn.LayerNorm(slot_size, reference.EPSILON, **options)

    def weights(self) -> Block:
        parts = (self.qkv, self.qkv_norm, self.attention_norm, self.mlp_norm)
        return Block(*(parameter for part in parts for parameter in (part.weight, part.bias)))
