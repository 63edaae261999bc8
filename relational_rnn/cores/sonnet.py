"""Weights of the original implementations (Sonnet v1, deepmind/dnc) into these modules.

The originals multiply from the left, [in, out]; torch stores [out, in].
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize, prune

from relational_rnn.cores import sonnet_variables
from relational_rnn.cores.base import RecurrentCore, require
from relational_rnn.cores.conv_lstm import ConvLSTM
from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.cores.sonnet_variables import Variables


@torch.no_grad()
def load_sonnet(core: RecurrentCore, variables: Mapping[str, object], scope: str | None = None) -> None:
    """Fill a core from the original implementation's variables, by name.

    `variables` maps names such as "linear_1/w" or "relational_memory/linear_1/w:0" to arrays. A scope that
    all of them share is dropped. Those of a whole model have several: `scope`, say "relational_memory_1",
    takes what is under it and leaves the others. Raises ValueError, before anything is changed, that names
    every variable that is missing, unused or of the wrong shape.
    """
    names = list(variables) if isinstance(variables, Mapping) else type(variables).__name__
    named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    require(named, "variables", names, "a mapping from names to arrays")
    meta = any(parameter.is_meta for parameter in core.parameters())
    require(not meta, "core's device", "meta", "one that holds numbers; core.to_empty(device=...) makes room")
    computed = prune.is_pruned(core) or any(map(parametrize.is_parametrized, core.modules()))
    allowed = "parameters; load before they are pruned or parametrized"
    require(not computed, "core's weights", "computed from others", allowed)  # nothing would keep a number
    require(scope is None or isinstance(scope, str), "scope", scope, "a name or None")
    given = {re.sub(r":0$", "", name): value for name, value in variables.items()}
    require(len(given) == len(variables), "variables", names, "each once, with or without :0")
    if scope is not None:
        given = _under(scope, given)
    wanted = _wanted(core, given)
    given = _without_scope(given, wanted)
    arrays = {name: _real(name, value) for name, value in given.items()}
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


def _wanted(core: RecurrentCore, names: Mapping[str, object]) -> Variables:
    """What a core takes; deep LSTMs and DNCs answer with the scopes they find among the given names."""
    if isinstance(core, RelationalMemory):
        return sonnet_variables.relational_memory_variables(core)
    if isinstance(core, LSTM):
        return sonnet_variables.lstm_variables(core)
    if isinstance(core, DeepLSTM):
        return sonnet_variables.deep_lstm_variables(core, names)
    if isinstance(core, DNC):
        return sonnet_variables.dnc_variables(core, names)
    if isinstance(core, ConvLSTM):
        return sonnet_variables.conv_lstm_variables(core)
    allowed = "RelationalMemory, LSTM, DeepLSTM, DNC, ConvLSTM"
    raise ValueError(f"no weights of {type(core).__name__} can be loaded; allowed: {allowed}")


def _under(scope: str, variables: dict) -> dict:
    prefix = scope.rstrip("/") + "/"
    found = {name.removeprefix(prefix): value for name, value in variables.items() if name.startswith(prefix)}
    scopes = sorted({name.partition("/")[0] for name in variables})
    require(bool(found), "scope", scope, f"one with variables under it; they begin with {', '.join(scopes)}")
    return found


def _real(name: str, value: object) -> Tensor:
    """As a tensor; an array may be read-only, of any strides and byte order."""
    if not isinstance(value, Tensor):
        array = np.array(value)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{name} has values of type {array.dtype}; allowed: real numbers")
        value = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    if value.is_complex() or value.dtype == torch.bool:
        raise ValueError(f"{name} has dtype {value.dtype}; allowed: real numbers")
    if value.is_meta or value.is_nested or value.layout != torch.strided:
        raise ValueError(f"{name} is sparse, nested or on the meta device; allowed: a tensor of all numbers")
    return value


def _without_scope(variables: dict, wanted: Variables) -> dict:
    """Drop the leading scopes that every variable shares, as far as the names then fit better."""
    names = variables
    while names and not any(name in wanted for name in names):
        heads = {name.partition("/")[0] for name in names}
        if len(heads) != 1 or not all("/" in name for name in names):
            return variables
        names = {name.partition("/")[2]: value for name, value in names.items()}
    return names
