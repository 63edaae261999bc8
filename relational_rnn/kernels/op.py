"""Which implementation runs, and the torch.library operators that autograd, torch.compile and export see.

`choose` picks once per call: nothing (the specification, reference.py, runs), or the row functions with which
the hand-written recurrence (recurrence.py) runs: torch's, or Triton's on a GPU.
"""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.kernels import (
    LOW_PRECISION,
    batched,
    no_autocast,
    on_gpu_of,
    recurrence,
    reference,
    rows_cpp,
    rows_torch,
    transformed,
    why_not_triton,
)
from relational_rnn.kernels.cpp_compiler import why_not as why_not_cpp
from relational_rnn.kernels.folding import Folded, compute_dtype
from relational_rnn.kernels.recurrence import Activations, Parameters
from relational_rnn.kernels.reference import Block, InputRows, Spec, Weights


def choose(
    backend: str,
    memory: Tensor,
    steps: int,
    weights: Weights,
    input_rows: int,
    recompute: bool,
    folded: bool = False,
) -> ModuleType | None:
    """The row functions to run with, or None for the specification. Raises if what was asked for cannot run.

    "auto" takes Triton's on a GPU and C++'s on a CPU, and torch's where those cannot run and they help: on a
    GPU, or to save memory. On a CPU the specification remains for what torch.compile or export traces, which
    stays torch's own operations, and for what is too `_little`, unless weights are `folded` ahead.
    """
    if backend == "reference" or memory.numel() == 0 or steps == 0:
        return None
    general = _why_not_recurrence(weights, input_rows)
    if backend != "auto":
        reason = general or _WHY_NOT[backend](memory, weights)
        if reason is not None:
            raise ValueError(f"backend={backend!r} cannot run here: {reason}; backend='auto' takes what can")
        return _rows(backend)
    if general is not None:
        return None
    if memory.is_cuda:
        return _rows("triton" if _why_not_triton(memory, weights) is None else "torch")
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    plain = traced or (not (folded or recompute) and _little(memory, steps))
    if not plain and _why_not_cpp(memory, weights) is None:
        return _rows("cpp")
    return _rows("torch") if recompute else None


def _little(memory: Tensor, steps: int) -> bool:
    """One step to be differentiated, or so small memories that an operator costs more than it spares."""
    return steps * memory.numel() < 4096 or (steps == 1 and torch.is_grad_enabled())


def _why_not_recurrence(weights: Weights, input_rows: int) -> str | None:
    if len(weights.blocks) > 1:
        return f"num_blocks is {len(weights.blocks)}; allowed: 1"
    if input_rows > 1:
        return f"input_rows is {input_rows}; allowed: 1"
    if transformed():
        return "a torch.func transform such as vmap, or forward-mode differentiation, is active"
    return None


def _why_not_triton(memory: Tensor, weights: Weights) -> str | None:
    if reason := why_not_triton(memory):
        return reason
    rows = memory.shape[0] * memory.shape[1]
    gates = 0 if weights.gate_weight is None else weights.gate_weight.shape[0]
    features = max(weights.blocks[0].qkv_weight.shape[0], gates)  # with narrow keys there are more gates
    if rows * (features + 64) >= 2**31:
        return f"batch x slots x features is {rows * features}; allowed: under 2**31, run the batch in parts"
    return None


def _why_not_cpp(memory: Tensor, weights: Weights) -> str | None:
    if memory.device.type != "cpu":
        return f"the input is on {memory.device}, not on a CPU"
    if torch.compiler.is_compiling():  # cannot look for a compiler; the operator will say it
        return None
    return why_not_cpp(compute_dtype(weights.blocks[0].qkv_weight))


_WHY_NOT = {"torch": lambda memory, weights: None, "cpp": _why_not_cpp, "triton": _why_not_triton}


def scan(
    x: Tensor, memory: Tensor, folded: Folded, spec: Spec, resets: Tensor | None, recompute: bool
) -> Tensor:
    """x [T, B, input_size], memory [B, N, F] -> memories after each step [T, B, N, F]."""
    wanted = memory.dtype
    memory = memory.to(folded.vectors[0].dtype)
    qkv_in, gates_in = folded.of_input(x)
    tensors = [memory, qkv_in, *([] if gates_in is None else [gates_in]), *folded.matrices, *folded.vectors]
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    memories, *_ = _scan(
        memory.contiguous(),
        qkv_in.contiguous(),
        None if gates_in is None else gates_in.contiguous(),
        None if resets is None else resets.contiguous(),
        folded.matrices,
        folded.vectors,
        *_numbers(spec),
        keep and not recompute,
        folded.how,
        folded.ready,
        list(folded.packed),
    )
    return memories.to(wanted)


def _numbers(spec: Spec) -> tuple[int, int, int, float, str]:
    return spec.num_heads, spec.key_size, spec.head_size, spec.scale, spec.gate_style or "none"


def _spec(heads: int, keys: int, values: int, scale: float, gate_style: str) -> Spec:
    return Spec(heads, keys, values, scale, None if gate_style == "none" else gate_style)


def _rows(how: str) -> ModuleType:
    if how == "triton":
        from relational_rnn.kernels import rows_triton  # late: Triton is not needed on a CPU

        return rows_triton
    return {"torch": rows_torch, "cpp": rows_cpp}[how]


@torch.library.custom_op("relational_rnn::scan", mutates_args=())
def _scan(
    memory: Tensor,
    qkv_in: Tensor,
    gates_in: Tensor | None,
    resets: Tensor | None,
    matrices: list[Tensor],
    vectors: list[Tensor],
    heads: int,
    keys: int,
    values: int,
    scale: float,
    gate_style: str,
    keep: bool,
    how: str,
    ready: bool,
    packed: list[Tensor],
) -> list[Tensor]:
    """-> [memories, starts, *activations if keep]; see recurrence.forward."""
    spec, rows = _spec(heads, keys, values, scale, gate_style), _rows(how)
    p = Parameters.of(matrices, vectors, ready, packed)
    with on_gpu_of(memory), torch.autocast(memory.device.type, enabled=False):
        memories, starts, held = recurrence.forward(memory, qkv_in, gates_in, resets, p, spec, rows, keep)
    return [memories, starts, *([] if held is None else held.flat())]


@_scan.register_fake
def _(
    memory,
    qkv_in,
    gates_in,
    resets,
    matrices,
    vectors,
    heads,
    keys,
    values,
    scale,
    gate_style,
    keep,
    how,
    ready,
    packed,
):
    steps = qkv_in.shape[0]
    spec, rows = _spec(heads, keys, values, scale, gate_style), _rows(how)
    p = Parameters.of(matrices, vectors, ready)
    starts = memory.new_empty(steps if resets is not None else 0, *memory.shape)
    held = recurrence.activations(memory, qkv_in, p, spec, rows).flat() if keep else []
    return [memory.new_empty(steps, *memory.shape), starts, *held]


@torch.library.custom_op("relational_rnn::scan_backward", mutates_args=())
def _scan_backward(
    grad: Tensor,
    memory: Tensor,
    qkv_in: Tensor,
    gates_in: Tensor | None,
    resets: Tensor | None,
    matrices: list[Tensor],
    vectors: list[Tensor],
    results: list[Tensor],
    heads: int,
    keys: int,
    values: int,
    scale: float,
    gate_style: str,
    how: str,
    ready: bool,
    wants_memory: bool,
) -> list[Tensor]:
    """-> gradients of [memory (empty unless wanted), qkv_in, vectors (in one tensor), gates_in if any,
    *matrices]."""
    spec, rows = _spec(heads, keys, values, scale, gate_style), _rows(how)
    p = Parameters.of(matrices, vectors, ready)
    memories, starts, *held = results
    held = Activations.unflatten(held) if held else None
    with torch.autocast(memory.device.type, enabled=False):
        d = recurrence.backward(
            grad, memory, memories, starts, qkv_in, gates_in, resets, held, p, spec, rows, wants_memory
        )
    d_memory = memory.new_empty(0) if d.memory is None else d.memory
    return [d_memory, d.qkv_in, d.vectors, *([] if d.gates_in is None else [d.gates_in]), *d.matrices]


@_scan_backward.register_fake
def _(
    grad,
    memory,
    qkv_in,
    gates_in,
    resets,
    matrices,
    vectors,
    results,
    heads,
    keys,
    values,
    scale,
    style,
    how,
    ready,
    wants_memory,
):
    tail = [*([] if gates_in is None else [gates_in])]
    flat = vectors[0].new_empty(sum(v.shape[0] for v in vectors))
    wide = torch.float32 if qkv_in.dtype in LOW_PRECISION else qkv_in.dtype
    products = [torch.empty_like(m, dtype=wide) for m in matrices]
    d_memory = torch.empty_like(memory) if wants_memory else memory.new_empty(0)
    return [d_memory, torch.empty_like(qkv_in), flat, *map(torch.empty_like, tail), *products]


def _setup_context(ctx, inputs, output) -> None:
    memory, qkv_in, gates_in, resets, matrices, vectors, *numbers, _, how, ready, packed = inputs
    ctx.numbers, ctx.how = numbers, (how, ready)
    ctx.counts = len(matrices), len(vectors), len(packed)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(memory, qkv_in, gates_in, resets, *matrices, *vectors, *output)


def _autograd(ctx, grads):
    memory, qkv_in, gates_in, resets, *rest = ctx.saved_tensors
    count, more, packed = ctx.counts
    matrices, vectors, results = rest[:count], rest[count : count + more], rest[count + more :]
    grad = grads[0]
    if grad is None:
        grad = torch.zeros_like(results[0])
    if torch.is_grad_enabled() or batched(grad):
        d_memory, d_qkv_in, d_gates_in, d_matrices, d_vectors = _by_reference(
            ctx, grad, memory, qkv_in, gates_in, resets, matrices, vectors
        )
    else:
        d_memory, d_qkv_in, flat, *d_matrices = _scan_backward(
            grad.contiguous(),
            memory,
            qkv_in,
            gates_in,
            resets,
            matrices,
            vectors,
            results,
            *ctx.numbers,
            *ctx.how,
            ctx.needs_input_grad[0],
        )
        d_memory = d_memory if ctx.needs_input_grad[0] else None
        d_gates_in = None if gates_in is None else d_matrices.pop(0)
        d_matrices = [d.to(m.dtype) for d, m in zip(d_matrices, matrices, strict=True)]
        d_vectors = list(flat.split([v.shape[0] for v in vectors]))
    return d_memory, d_qkv_in, d_gates_in, None, d_matrices, d_vectors, *[None] * 8, [None] * packed


def _by_reference(ctx, grad, memory, qkv_in, gates_in, resets, matrices, vectors):
    """The same gradients through reference.py, so that they can be differentiated again, or be many at once:
    the operator knows neither. None where nobody asks for one."""
    again, tensors = torch.is_grad_enabled(), [memory, qkv_in, gates_in, *matrices, *vectors]
    with torch.enable_grad(), no_autocast(memory.device.type):
        # Views to differentiate by: `qkv_in` is made of the same weights as the recurrence, and what is asked
        # for is each one's own share, not what reaches it through another.
        leaves = [None if t is None else t.view_as(t) for t in tensors]
        memories = _memories(
            ctx, resets, *leaves[:3], leaves[3 : 3 + len(matrices)], leaves[3 + len(matrices) :]
        )
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad(memories, wanted, grad, create_graph=again, allow_unused=True))
    gradients = [None if t is None or not t.requires_grad else next(found) for t in leaves]
    return *gradients[:3], gradients[3 : 3 + len(matrices)], gradients[3 + len(matrices) :]


def _memories(ctx, resets, memory, qkv_in, gates_in, matrices, vectors) -> Tensor:
    """As the operator's, by reference.py."""
    p = Parameters.of([m.to(memory.dtype) for m in matrices], vectors)
    block = Block(p.qkv_weight, *p[3:10])
    weights = Weights((block,), tuple(zip(p.mlp_weights, p.mlp_biases, strict=True)), p.gate_weight)
    raw = qkv_in[..., : p.qkv_bias.shape[0]].to(memory.dtype)
    normed = F.layer_norm(raw, raw.shape[-1:], p.qkv_norm_weight, p.qkv_norm_bias, reference.EPSILON)
    gates = None if gates_in is None else gates_in[..., None, : p.gate_weight.shape[0]]
    rows = memory.new_empty(*raw.shape[:2], 1, memory.shape[-1])  # read only by further blocks
    fresh = torch.eye(*memory.shape[1:], dtype=memory.dtype, device=memory.device)
    inputs = InputRows(rows, normed.unsqueeze(-2), gates)
    return reference.scan(memory, inputs, weights, _spec(*ctx.numbers), resets, fresh)[0]


_scan.register_autograd(_autograd, setup_context=_setup_context)
