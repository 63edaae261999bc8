"""Which implementation runs, and the torch.library operators that autograd, torch.compile and export see.

`scan` picks once: the specification (reference.py) where nothing faster applies, else the hand-written
recurrence (recurrence.py) with its row functions in torch, or in Triton on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relational_rnn.kernels import recurrence, reference, rows_torch
from relational_rnn.kernels.recurrence import Activations, Parameters
from relational_rnn.kernels.reference import Block, InputRows, Spec, Weights

LOW_PRECISION = (torch.bfloat16, torch.float16)


def why_not_fused(memory: Tensor, inputs: InputRows, weights: Weights) -> str | None:
    """Why the Triton kernels cannot run this, or None."""
    if not (memory.is_cuda or _interpreted()):
        return f"the input is on {memory.device}, not on a CUDA GPU"
    try:
        import triton  # noqa: F401  (comes with torch for CUDA)
    except ImportError:
        return "Triton is not installed"
    if memory.dtype == torch.float64:
        return "the dtype is float64; allowed: float32, bfloat16, float16"
    return _why_not_recurrence(inputs, weights)


def _why_not_recurrence(inputs: InputRows, weights: Weights) -> str | None:
    if len(weights.blocks) > 1:
        return f"num_blocks is {len(weights.blocks)}; allowed: 1"
    if inputs.rows.shape[-2] > 1:
        return f"input_rows is {inputs.rows.shape[-2]}; allowed: 1"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform such as vmap is active"
    return None


def _interpreted() -> bool:
    """Triton's interpreter runs the kernels on the CPU, for tests."""
    import os

    return os.environ.get("TRITON_INTERPRET") == "1"


def scan(
    memory: Tensor,
    inputs: InputRows,
    weights: Weights,
    spec: Spec,
    resets: Tensor | None = None,
    *,
    backend: str = "auto",
    recompute: bool = False,
) -> Tensor:
    """memory [B, N, F] -> memories after each step [T, B, N, F]; see reference.scan."""
    empty = memory.shape[0] == 0 or inputs.rows.shape[0] == 0
    reason = why_not_fused(memory, inputs, weights)
    if backend == "triton" and reason is not None:
        raise ValueError(f"backend='triton' cannot run here: {reason}; backend='auto' takes what can")
    if empty or _why_not_recurrence(inputs, weights) is not None:
        fresh = (
            None if resets is None else torch.eye(*memory.shape[1:], dtype=memory.dtype, device=memory.device)
        )
        return reference.scan(memory, inputs, weights, spec, resets, fresh)[0]

    fused = reason is None and (backend == "triton" or memory.is_cuda)
    wanted = memory.dtype
    compute = _compute_dtype(weights.blocks[0].qkv_weight)
    memory = memory.float() if wanted in LOW_PRECISION else memory
    parameters = _parameters(weights, compute, memory.dtype)
    tensors = [memory, inputs.qkv, *([] if inputs.gates is None else [inputs.gates]), *parameters]
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    qkv_in, gates_in = inputs.qkv.squeeze(-2), None if inputs.gates is None else inputs.gates.squeeze(-2)
    memories, *_ = _scan(
        memory.contiguous(),
        qkv_in.to(compute).contiguous(),
        None if gates_in is None else gates_in.to(compute).contiguous(),
        None if resets is None else resets.contiguous(),
        parameters,
        *_numbers(spec),
        keep and not recompute,
        fused,
    )
    return memories.to(wanted)


def _compute_dtype(weight: Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _parameters(weights: Weights, compute: torch.dtype, keep: torch.dtype) -> list[Tensor]:
    """Matrices in the dtype they are multiplied in, vectors in the memory's."""
    block = weights.blocks[0]
    gate = None if weights.gate_weight is None else weights.gate_weight.to(compute)
    mlp = [w.to(compute) for w, _ in weights.mlp], [b.to(keep) for _, b in weights.mlp]
    vectors = [v.to(keep) for v in block[1:]]
    return Parameters(block.qkv_weight.to(compute), *vectors, *mlp, gate).flat()


def _numbers(spec: Spec) -> tuple[int, int, int, float, str]:
    return spec.num_heads, spec.key_size, spec.head_size, spec.scale, spec.gate_style or "none"


def _spec(heads: int, keys: int, values: int, scale: float, gate_style: str) -> Spec:
    return Spec(heads, keys, values, scale, None if gate_style == "none" else gate_style)


def _rows(fused: bool):
    if not fused:
        return rows_torch
    from relational_rnn.kernels import rows_triton  # late: importing Triton is not needed on a CPU

    return rows_triton


@torch.library.custom_op("relational_rnn::scan", mutates_args=())
def _scan(
    memory: Tensor,
    qkv_in: Tensor,
    gates_in: Tensor | None,
    resets: Tensor | None,
    parameters: list[Tensor],
    heads: int,
    keys: int,
    values: int,
    scale: float,
    gate_style: str,
    keep: bool,
    fused: bool,
) -> list[Tensor]:
    """-> [memories, starts, *activations if keep]; see recurrence.forward."""
    spec = _spec(heads, keys, values, scale, gate_style)
    p = Parameters.unflatten(parameters, gates_in is not None)
    with torch.autocast(memory.device.type, enabled=False):
        memories, starts, held = recurrence.forward(
            memory, qkv_in, gates_in, resets, p, spec, _rows(fused), keep
        )
    return [memories, starts, *([] if held is None else held.flat())]


@_scan.register_fake
def _(memory, qkv_in, gates_in, resets, parameters, heads, keys, values, scale, gate_style, keep, fused):
    steps = qkv_in.shape[0]
    p = Parameters.unflatten(parameters, gates_in is not None)
    starts = memory.new_empty(steps if resets is not None else 0, *memory.shape)
    held = Activations.empty(steps, memory.shape[0] * memory.shape[1], p).flat() if keep else []
    return [memory.new_empty(steps, *memory.shape), starts, *held]


@torch.library.custom_op("relational_rnn::scan_backward", mutates_args=())
def _scan_backward(
    grad: Tensor,
    memory: Tensor,
    qkv_in: Tensor,
    gates_in: Tensor | None,
    resets: Tensor | None,
    parameters: list[Tensor],
    results: list[Tensor],
    heads: int,
    keys: int,
    values: int,
    scale: float,
    gate_style: str,
    fused: bool,
) -> list[Tensor]:
    """-> gradients of [memory, qkv_in, gates_in if any, *parameters]; see recurrence.backward."""
    spec = _spec(heads, keys, values, scale, gate_style)
    p = Parameters.unflatten(parameters, gates_in is not None)
    memories, starts, *held = results
    held = Activations.unflatten(held) if held else None
    with torch.autocast(memory.device.type, enabled=False):
        d = recurrence.backward(
            grad, memory, memories, starts, qkv_in, gates_in, resets, held, p, spec, _rows(fused)
        )
    flat = [g.to(t.dtype) for g, t in zip(d.parameters.flat(), parameters, strict=True)]
    return [d.memory, d.qkv_in, *([] if d.gates_in is None else [d.gates_in]), *flat]


@_scan_backward.register_fake
def _(
    grad, memory, qkv_in, gates_in, resets, parameters, results, heads, keys, values, scale, gate_style, fused
):
    tensors = [memory, qkv_in, *([] if gates_in is None else [gates_in]), *parameters]
    return [torch.empty_like(t) for t in tensors]


def _setup_context(ctx, inputs, output) -> None:
    memory, qkv_in, gates_in, resets, parameters, *numbers, _, fused = inputs
    ctx.numbers, ctx.fused, ctx.count = numbers, fused, len(parameters)
    ctx.save_for_backward(memory, qkv_in, gates_in, resets, *parameters, *output)


def _autograd(ctx, grads):
    memory, qkv_in, gates_in, resets, *rest = ctx.saved_tensors
    parameters, results = rest[: ctx.count], rest[ctx.count :]
    if torch.is_grad_enabled():  # gradients of gradients: differentiate the specification instead
        flat = _differentiable(ctx, grads[0], memory, qkv_in, gates_in, resets, parameters)
    else:
        flat = _scan_backward(
            grads[0].contiguous(),
            memory,
            qkv_in,
            gates_in,
            resets,
            parameters,
            results,
            *ctx.numbers,
            ctx.fused,
        )
    d_memory, d_qkv_in, *flat = flat
    d_gates_in = None if gates_in is None else flat.pop(0)
    return d_memory, d_qkv_in, d_gates_in, None, list(flat), *[None] * 7


def _differentiable(ctx, grad, memory, qkv_in, gates_in, resets, parameters) -> list[Tensor]:
    spec = _spec(*ctx.numbers)
    p = Parameters.unflatten(parameters, gates_in is not None)
    tensors = [memory, qkv_in, *([] if gates_in is None else [gates_in]), *parameters]
    leaves = [t if t.requires_grad else t.detach().requires_grad_() for t in tensors]
    memory, qkv_in = leaves[:2]
    gates = leaves[2].unsqueeze(-2) if gates_in is not None else None
    p = Parameters.unflatten(leaves[3 if gates is not None else 2 :], gates is not None)
    weights = Weights((Block(*p[:8]),), tuple(zip(p.mlp_weights, p.mlp_biases, strict=True)), p.gate_weight)
    rows = qkv_in.new_empty(*qkv_in.shape[:2], 1, memory.shape[-1])  # read only by further blocks
    fresh = torch.eye(*memory.shape[1:], dtype=memory.dtype, device=memory.device)
    inputs = InputRows(rows, qkv_in.unsqueeze(-2), gates)
    memories, _ = reference.scan(memory, inputs, weights, spec, resets, fresh)
    return list(torch.autograd.grad(memories, leaves, grad, create_graph=True))


_scan.register_autograd(_autograd, setup_context=_setup_context)


def can_act(state, inputs, weights, spec, backend) -> bool:
    return False
