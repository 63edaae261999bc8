"""The row functions of recurrence.py on a CPU, in C++: every function one pass over its rows (cpp/rows.cpp).

The same functions, under the same names, as rows_torch.py, which says what each does. Operands are float32 or
bfloat16, arithmetic is float32. Shapes as in recurrence.py.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from relational_rnn.kernels.cpp_compiler import library, why_not
from relational_rnn.kernels.reference import Spec
from relational_rnn.kernels.rows_torch import (  # noqa: F401  as there
    CENTRED,
    Aside,
    Carry,
    Inputs,
    finish,
    gate_products,
    linear_relu,
    padded,
    sequence,
)

STYLES = {None: 0, "unit": 1, "memory": 2}
PARALLEL = 1 << 13  # numbers in a step's rows from which on all threads take them


class _Sizes(ctypes.Structure):
    """As in rows.cpp."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("batch", "slots", "heads", "keys", "values")),
        *((name, ctypes.c_int) for name in ("threads", "columns", "style")),
        ("scale", ctypes.c_float),
    ]


@functools.lru_cache(64)
def _sizes(batch: int, slots: int, spec: Spec, threads: int, columns: int) -> _Sizes:
    heads, keys, values, scale, style = spec
    threads = threads if batch * slots * heads * values >= PARALLEL else 1
    return _Sizes(batch, slots, heads, keys, values, threads, columns, STYLES[style], scale)


def _call(name: str, now: Tensor, memory: Tensor, spec: Spec, *tensors, sums=None, column=0) -> None:
    """`now`: an operand, for the dtype; `memory`: anything of its shape. What adds to `sums`, from `column`
    on, has them as its last argument."""
    compiled = library(now.dtype)
    if compiled is None:  # under torch.compile nobody has asked before
        reason = why_not(now.dtype)
        raise ValueError(f"backend='cpp' cannot run here: {reason}; backend='auto' takes what can")
    function = getattr(compiled, name)
    threads, columns = (torch.get_num_threads(), 0) if sums is None else sums.partial.shape
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    if sums is not None:
        pointers.append(sums.partial.data_ptr() + column * sums.partial.element_size())
    if function.argtypes is None:
        function.argtypes, function.restype = [ctypes.c_void_p] * (1 + len(pointers)), None
    function(ctypes.byref(_sizes(*memory.shape[:2], spec, threads, columns)), *pointers)


def _whole_rows(size: int) -> Spec:
    """For what knows nothing of heads."""
    return Spec(1, 1, size, 1.0, None)


def extra(steps: int, shape: tuple[int, int, int], p, spec) -> list[Tensor]:
    """1/deviation of a row's three norms, the shares of attention, and what the norm behind it made."""
    batch, slots, size = shape
    rows = batch * slots
    sizes = [(3, rows), (batch, spec.num_heads, slots, slots + 1), (rows, size)]
    return [p.qkv_bias.new_empty(steps, *each) for each in sizes]


class Sums:
    """Column sums of each thread, added up at the end: with as many threads the same bits every time.

    Columns are in the order of Parameters.vectors, but for the last MLP bias, which follows the MLP norm.
    """

    def __init__(self, p, spec):
        features, size = p.qkv_bias.shape[0], p.mlp_norm_bias.shape[0]
        self.update = 3 * features + 2 * size  # the column where these begin
        self.relu = [self.update + (3 + layer) * size for layer in range(len(p.mlp_biases))]
        self.size, columns = size, self.relu[-1]
        self.partial = p.qkv_bias.new_zeros(torch.get_num_threads(), columns)
        self.qkv_norm_weight, self.qkv_norm_bias = self.partial[0, features : 3 * features].chunk(2)

    def flat(self) -> Tensor:
        total, end = self.partial.sum(0), self.relu[0]
        return torch.cat([total[: end - self.size], total[end:], total[end - self.size : end]])


def begin(memory: Tensor, reset: Tensor | None, now, out: Tensor | None = None) -> None:
    spec = _whole_rows(memory.shape[-1])
    _call("begin", now.rows, memory, spec, memory, reset, out, now.rows, now.hidden)


def relu_backward(delta: Tensor, activated: Tensor, layer: int, sums: Sums) -> Tensor:
    rows, spec = delta.unsqueeze(1), _whole_rows(delta.shape[-1])
    _call("relu_backward", delta, rows, spec, delta, activated, sums=sums, column=sums.relu[layer])
    return delta


def attend(memory: Tensor, now, inputs: Inputs, t: int, p, spec) -> None:
    inverse, shares, normed = now.extra
    _call(
        "attend", now.qkv, memory, spec,
        memory, now.qkv, inputs.normed[t], now.attended, inverse[0], shares, normed,
        inverse[1], p.qkv_bias, p.qkv_norm_weight, p.qkv_norm_bias, p.attention_norm_weight,
        p.attention_norm_bias,
    )  # fmt: skip


def update(memory: Tensor, now, gates_in: Tensor | None, p, spec, following, out: Tensor) -> None:
    rows, hidden = (None, None) if following is None else (following.rows, following.hidden)
    _call(
        "update", now.qkv, memory, spec,
        memory, now.attended, now.mlp[-1], now.gates, gates_in, p.mlp_biases[-1],
        p.mlp_norm_weight, p.mlp_norm_bias, now.extra[0][2], out, rows, hidden,
    )  # fmt: skip


def update_backward(grad, carry, after, reset, memory, now, gates_in, p, spec, delta, sums: Sums) -> None:
    _call(
        "update_backward", now.qkv, memory, spec,
        grad, carry.direct, carry.through_qkv, carry.through_gates, after,
        reset, memory, now.mlp[-1], now.gates, gates_in, now.extra[0][2], p.mlp_norm_weight, p.mlp_norm_bias,
        delta.mlp[-1], delta.gates, sums=sums, column=sums.update,
    )  # fmt: skip


def attention_backward(carry, memory, now, inputs: Inputs, t: int, p, spec, delta, sums: Sums) -> None:
    inverse, shares, normed = now.extra
    _call(
        "attention_backward", now.qkv, memory, spec,
        delta.attended, delta.mlp[-1], carry.direct, now.qkv,
        inputs.normed[t], inverse[0], shares, normed, inverse[1], p.qkv_norm_weight, p.qkv_norm_bias,
        p.attention_norm_weight, delta.qkv, inputs.gradient[t], sums=sums,
    )  # fmt: skip
