"""Models of N-th farthest for the page, which computes them itself: sizes and weights."""

from __future__ import annotations

from torch import nn

from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.explorer import encoding
from relational_rnn.tasks.heads import Bilinear
from relational_rnn.tasks.nth_farthest import NthFarthest


def export_model(name: str, task: NthFarthest, model: nn.Module, accuracy: float | None = None) -> dict:
    """A `Classifier` of experiments/nth_farthest.py around a RelationalMemory.

    `accuracy`: on fresh samples, where it is known.
    """
    core = model.core
    if not isinstance(core, RelationalMemory):
        raise ValueError(
            f"the core is {type(core).__name__}; allowed: RelationalMemory, which has slots to show"
        )
    if core.input_rows is not None or core.output_gate:
        raise ValueError("the page computes a core with one input row and without output gate only")
    layers = [layer for layer in model.head if not isinstance(layer, nn.ReLU)]
    linears = [layer.factors if isinstance(layer, Bilinear) else layer for layer in layers]
    norms = [layer.norm for layer in layers if isinstance(layer, Bilinear)]
    return {
        "name": name,
        "accuracy": accuracy,
        "task": {
            "vectors": task.vectors,
            "dims": task.dims,
            "convention": task.convention,
            "order": task.order,
        },
        "slots": core.mem_slots,
        "heads": core.spec.num_heads,
        "headSize": core.spec.head_size,
        "keySize": core.spec.key_size,
        "scale": core.spec.scale,
        "gateStyle": core.spec.gate_style,
        "forgetBias": core.forget_bias,
        "inputBias": core.input_bias,
        "blocks": len(core.blocks),
        "mlpLayers": len(core.mlp),
        "headLayers": len(linears),
        "headOfProducts": bool(norms),
        "weights": {
            **{f"core.{name}": encoding.weights(p) for name, p in core.named_parameters()},
            **{f"head.{i}.weight": encoding.weights(layer.weight) for i, layer in enumerate(linears)},
            **{f"head.{i}.bias": encoding.weights(layer.bias) for i, layer in enumerate(linears)},
            **{f"head.norm.{i}.weight": encoding.weights(norm.weight) for i, norm in enumerate(norms)},
            **{f"head.norm.{i}.bias": encoding.weights(norm.bias) for i, norm in enumerate(norms)},
        },
    }
