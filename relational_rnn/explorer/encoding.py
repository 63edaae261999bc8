"""Tensors as text for the page: compact, and exact enough for the numbers it shows.

Shapes: T steps, L blocks, H heads, N memory slots, R input rows, F slot size.
"""

from __future__ import annotations

import base64

import numpy as np
import torch
from torch import Tensor

from relational_rnn.kernels.reference import Trace

DIGITS = 5  # of numbers written out


def weights(tensor: Tensor) -> dict:
    """Float16 where that loses nothing, as with packaged weights; else 16-bit integers and a scale a row.

    The integers round to 1/65,534 of the row's largest weight, which is closer than float16: of 4,000
    questions to the model of `make demo`, the largest error of a probability was 0.0005, against 0.008.
    """
    values = tensor.detach().float().cpu()
    if torch.equal(values.half().float(), values):
        return {"shape": list(values.shape), "half": _base64(values.half(), "<f2")}
    rows = values.reshape(values.shape[0], -1) if values.dim() > 1 else values[None]
    scale = (rows.abs().amax(1) / 32767).clamp(min=1e-30)
    integers = (rows / scale[:, None]).round().to(torch.int16)
    return {"shape": list(values.shape), "scale": _base64(scale, "<f4"), "data": _base64(integers, "<i2")}


def restored(packed: dict) -> Tensor:
    """What the page makes of `weights`; for checks."""
    if "half" in packed:
        values = np.frombuffer(base64.b64decode(packed["half"]), "<f2").astype(np.float32)
        return torch.from_numpy(values.reshape(packed["shape"]))
    scale = np.frombuffer(base64.b64decode(packed["scale"]), "<f4")
    integers = np.frombuffer(base64.b64decode(packed["data"]), "<i2")
    rows = integers.reshape(len(scale), -1).astype(np.float32) * scale[:, None]
    return torch.from_numpy(rows.reshape(packed["shape"]))


def shares(tensor: Tensor) -> str:
    """Numbers from 0 to 1 in 65,535ths."""
    return _base64((tensor.detach() * 65535).round().clamp(0, 65535), "<u2")


def small_integers(tensor: Tensor) -> str:
    """Integers from 0 to 255."""
    return _base64(tensor, "u1")


def numbers(tensor: Tensor) -> list:
    """Nested lists of rounded numbers; what is not finite, which JSON cannot hold, becomes None."""
    return _rounded(tensor.detach().double().tolist())


def _rounded(value):
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, DIGITS) if np.isfinite(value) else None


def _base64(tensor: Tensor, kind: str) -> str:
    return base64.b64encode(tensor.cpu().numpy().astype(kind).tobytes()).decode()


def trace(traced: Trace, memories: Tensor, before: Tensor) -> dict:
    """One sequence's inside, from its trace `[T, ...]` and its memories after each step `[T, N, F]`.

    `before` `[N, F]` is the memory before the first. Gates are means over a slot's units; the change of a
    slot is the root mean square of new minus old.
    """
    slots = memories.shape[1]
    attention = traced.attention[..., :slots, :]  # [T, L, H, N, N + R]: what the input rows ask is not kept
    change = (memories - torch.cat([before[None], memories[:-1]])).square().mean(-1).sqrt()  # [T, N]
    gates = (None if gate is None else numbers(gate.mean(-1)) for gate in traced[1:])
    steps, blocks, heads, _, keys = attention.shape
    return {
        "steps": steps,
        "blocks": blocks,
        "heads": heads,
        "slots": slots,
        "inputs": keys - slots,
        "attention": shares(attention),
        **dict(zip(("inputGate", "forgetGate"), gates, strict=True)),
        "change": numbers(change),
    }
