"""Relational recurrent neural networks: the Relational Memory Core and its baselines, for PyTorch.

The names below are imported when they are first asked for, so that `import relational_rnn` (and with it
`rmc --help`) does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers
    from relational_rnn.cores.conv_lstm import ConvLSTM
    from relational_rnn.cores.deep_lstm import DeepLSTM
    from relational_rnn.cores.dnc import DNC
    from relational_rnn.cores.entnet import EntNet
    from relational_rnn.cores.lstm import LSTM
    from relational_rnn.cores.relational_memory import RelationalMemory

__all__ = ["DNC", "LSTM", "ConvLSTM", "DeepLSTM", "EntNet", "RelationalMemory"]
__version__ = "0.1.0"

_MODULES = {
    "ConvLSTM": "conv_lstm",
    "DNC": "dnc",
    "DeepLSTM": "deep_lstm",
    "EntNet": "entnet",
    "LSTM": "lstm",
    "RelationalMemory": "relational_memory",
}


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    core = getattr(import_module(f"relational_rnn.cores.{_MODULES[name]}"), name)
    globals()[name] = core  # asked for once
    return core


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
