"""Weights of the original implementations (Sonnet v1, deepmind/dnc) into these modules.

The originals multiply from the left, [in, out]; torch stores [out, in].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from relational_rnn.cores.base import RecurrentCore
from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory

# the original's variable name, without its module's scope -> (assign a tensor of the original's shape, shape)
Variables = dict[str, tuple[Callable[[Tensor], None], tuple[int, ...]]]


@torch.no_grad()
def load_sonnet(core: RecurrentCore, variables: Mapping[str, object]) -> None:
    """Fill a core from the original implementation's variables, by name.

    `variables` maps names such as "linear_1/w" or "relational_memory/linear_1/w:0" to arrays. A scope that
    all of them share is dropped. Raises ValueError, before anything is changed, that names every variable
    that is
    missing, unused or of the wrong shape.
    """
    if isinstance(core, RelationalMemory):
        wanted = _relational_memory(core)
    elif isinstance(core, LSTM):
        wanted = _lstm(core)
    else:
        raise ValueError(
            f"no weights of {type(core).__name__} can be loaded; allowed: RelationalMemory, LSTM"
        )

    given = _without_scope({re.sub(r":0$", "", name): value for name, value in variables.items()}, wanted)
    arrays = {name: torch.as_tensor(value) for name, value in given.items()}
    problems = [f"missing {name}" for name in wanted if name not in arrays]
    problems += [f"unused {name}" for name in arrays if name not in wanted]
    problems += [
        f"{name} has shape {list(arrays[name].shape)}, not {list(shape)}"
        for name, (_, shape) in wanted.items()
        if name in arrays and tuple(arrays[name].shape) != tuple(shape)
    ]
    if problems:
        raise ValueError(f"variables do not fit this {type(core).__name__}: {'; '.join(problems)}")
    for name, (assign, _) in wanted.items():
        assign(arrays[name])


def _without_scope(variables: dict, wanted: Variables) -> dict:
    """Drop the leading scopes that every variable shares, as far as the names then fit better."""
    names = variables
    while names and not any(name in wanted for name in names):
        heads = {name.partition("/")[0] for name in names}
        if len(heads) != 1 or not all("/" in name for name in names):
            return variables
        names = {name.partition("/")[2]: value for name, value in names.items()}
    return names


def _linear(linear, name: str) -> Variables:
    weight, bias = linear.weight, linear.bias
    return {
        f"{name}/w": (lambda w: weight.copy_(w.t()), (weight.shape[1], weight.shape[0])),
        f"{name}/b": (bias.copy_, tuple(bias.shape)),
    }


def _norm(norm, name: str) -> Variables:
    return {
        f"{name}/gamma": (norm.weight.copy_, tuple(norm.weight.shape)),
        f"{name}/beta": (norm.bias.copy_, tuple(norm.bias.shape)),
    }


def _relational_memory(core: RelationalMemory) -> Variables:
    """Sonnet numbers its linear layers and norms in the order in which the first step makes them."""
    if core.output_gate:
        raise ValueError("output_gate=True is not allowed here: Sonnet's RelationalMemory has no output gate")
    linears = [core.input_projection, *(block.qkv for block in core.blocks)]
    if core.gate_from_input is not None:
        linears += [core.gate_from_input, core.gate_from_memory]
    norms = [n for block in core.blocks for n in (block.qkv_norm, block.attention_norm, block.mlp_norm)]
    variables: Variables = {}
    for i, linear in enumerate(linears):
        variables |= _linear(linear, f"linear_{i}" if i else "linear")
    for i, norm in enumerate(norms):
        variables |= _norm(norm, f"layer_norm_{i}" if i else "layer_norm")
    for i, linear in enumerate(core.mlp):
        variables |= _linear(linear, f"mlp/linear_{i}")
    return variables


def _lstm(core: LSTM) -> Variables:
    """One matrix for [x, h], gates in the order i, j, f, o; torch has two, in the order i, f, j, o."""
    lstm, inputs, hidden = core.lstm, core.input_size, core.hidden_size

    def reorder(gates: Tensor) -> Tensor:
        i, j, f, o = gates.chunk(4, dim=-1)
        return torch.cat([i, f, j, o], dim=-1)

    def assign_weight(w: Tensor) -> None:
        w = reorder(w).t()
        lstm.weight_ih_l0.copy_(w[:, :inputs])
        lstm.weight_hh_l0.copy_(w[:, inputs:])

    return {
        "w_gates": (assign_weight, (inputs + hidden, 4 * hidden)),
        "b_gates": (lambda b: lstm.bias_ih_l0.copy_(reorder(b)), (4 * hidden,)),
    }
