"""Relational recurrent neural networks: the Relational Memory Core and its baselines, for PyTorch."""

from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory

__all__ = ["LSTM", "RelationalMemory"]
__version__ = "0.1.0"
