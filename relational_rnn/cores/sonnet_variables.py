"""Variables of Sonnet v1's cores and of deepmind/dnc -> parameters of these modules, for sonnet.py.

Each function gives {the original's variable name without its module's scope: (assign a tensor of the
original's layout, the original's shape)}. The originals multiply from the left, [in, out]; torch stores
[out, in]. Who builds an original chooses some of its scopes; a function that takes `names`, those at hand,
answers with them where it recognises them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from relational_rnn.cores.base import require
from relational_rnn.cores.conv_lstm import ConvLSTM
from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory

Variables = dict[str, tuple[Callable[[Tensor], None], tuple[int, ...]]]


def relational_memory_variables(core: RelationalMemory) -> Variables:
    """ "linear/w", "layer_norm_1/gamma", "mlp/linear_0/b", ..., numbered as Sonnet's first step makes."""
    require(not core.output_gate, "output_gate", True, "False: Sonnet's RelationalMemory has no output gate")
    linears = [core.input_projection, *(block.qkv for block in core.blocks)]
    if core.gate_from_input is not None:
        linears += [core.gate_from_input, core.gate_from_memory]
    norms = [n for block in core.blocks for n in (block.qkv_norm, block.attention_norm, block.mlp_norm)]
    named = [(f"linear_{i}" if i else "linear", linear) for i, linear in enumerate(linears)]
    named += [(f"mlp/linear_{i}", linear) for i, linear in enumerate(core.mlp)]
    variables: Variables = {}
    for name, linear in named:
        variables |= _linear(name, linear.weight, linear.bias)
    for i, norm in enumerate(norms):
        name = f"layer_norm_{i}" if i else "layer_norm"
        variables[f"{name}/gamma"] = (_assigner(norm.weight), tuple(norm.weight.shape))
        variables[f"{name}/beta"] = (_assigner(norm.bias), tuple(norm.bias.shape))
    return variables


def lstm_variables(core: LSTM) -> Variables:
    """ "w_gates" and "b_gates"."""
    return _lstm(core, "")


def deep_lstm_variables(core: DeepLSTM, names: Iterable[str] = ()) -> Variables:
    """ "lstm_0/w_gates", "lstm_0/b_gates", "lstm_1/w_gates", ..., or what `names` calls the layers."""
    return _lstm_layers(core.layers, list(names), default=[f"lstm_{i}/" for i in range(core.num_layers)])


def dnc_variables(core: DNC, names: Iterable[str] = ()) -> Variables:
    """ "lstm/w_gates", "memory_access/write_vectors/w", "output_linear/b", ..., or the scopes of `names`."""
    names = list(names)
    lstm = not isinstance(core.controller, nn.ModuleList)
    require(lstm, "controller", "feedforward", "'lstm': deepmind/dnc has no other")
    layers = core.controller.layers if isinstance(core.controller, DeepLSTM) else [core.controller]
    variables: Variables = {}
    start, interface = 0, core.interface
    for part, size in core.interface_sizes.items():
        rows = slice(start, start + size)
        variables |= _linear(f"memory_access/{part}", interface.weight[rows], interface.bias[rows])
        start += size
    variables |= _linear("output_linear", core.output.weight, core.output.bias)
    known = {wanted: name for name in names for wanted in variables if f"/{name}".endswith(f"/{wanted}")}
    variables = {known.get(wanted, wanted): entry for wanted, entry in variables.items()}
    default = [f"lstm_{i}/" if i else "lstm/" for i in range(len(layers))]
    return _lstm_layers(layers, names, default) | variables


def conv_lstm_variables(core: ConvLSTM) -> Variables:
    """ "conv/w" of the input and "conv_1/w" of the hidden state, [height, width, in, 4 * out]; "conv/b", ...

    The gates are in the original's order, i, j, f, o, so only the axes move.
    """
    variables: Variables = {}
    for name, conv in (("conv", core.input_conv), ("conv_1", core.hidden_conv)):
        out, into, height, width = conv.weight.shape
        assign = _assigner(conv.weight, lambda w: w.permute(3, 2, 0, 1))
        variables[f"{name}/w"] = (assign, (height, width, into, out))
        if conv.bias is not None:
            variables[f"{name}/b"] = (_assigner(conv.bias), (out,))
    return variables


def _lstm_layers(layers: Iterable[LSTM], names: list[str], default: list[str]) -> Variables:
    scopes = {name.removesuffix("w_gates") for name in names if name.endswith("w_gates")}
    scopes = sorted(scopes, key=_natural) if len(scopes) == len(default) else default
    variables: Variables = {}
    for layer, scope in zip(layers, scopes, strict=True):
        variables |= _lstm(layer, scope)
    return variables


def _lstm(core: LSTM, scope: str) -> Variables:
    """One matrix for [x, h], gates in the order i, j, f, o; torch has two, in the order i, f, j, o."""
    lstm, inputs, units = core.lstm, core.input_size, core.hidden_size

    def reorder(gates: Tensor) -> Tensor:
        i, j, f, o = gates.chunk(4, dim=-1)
        return torch.cat([i, f, j, o], dim=-1).t() if gates.dim() == 2 else torch.cat([i, f, j, o])

    @torch.no_grad()
    def assign(weight: Tensor) -> None:
        weight = reorder(weight)  # [4U, I + U]
        lstm.weight_ih_l0.copy_(weight[:, :inputs])
        lstm.weight_hh_l0.copy_(weight[:, inputs:])

    return {
        f"{scope}w_gates": (assign, (inputs + units, 4 * units)),
        f"{scope}b_gates": (_assigner(lstm.bias_ih_l0, reorder), (4 * units,)),
    }


def _linear(name: str, weight: Tensor, bias: Tensor) -> Variables:
    return {
        f"{name}/w": (_assigner(weight, torch.t), (weight.shape[1], weight.shape[0])),
        f"{name}/b": (_assigner(bias), tuple(bias.shape)),
    }


def _assigner(parameter: Tensor, transform: Callable[[Tensor], Tensor] = lambda value: value):
    target = parameter.detach()  # shares the parameter's storage, also where it is a slice of one

    def assign(value: Tensor) -> None:
        target.copy_(transform(value))

    return assign


def _natural(name: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
