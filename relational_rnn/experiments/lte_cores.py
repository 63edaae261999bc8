"""The cores of table 1 (appendix A.2), each with the sizes that the paper's sweep had.

The paper reports the best of each sweep and not which that was. Defaults are so that every core but the DNC
hands 2048 features to the head, or divides 2048 among its cells; each can be set to any value of its sweep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from relational_rnn.experiments.rmc_settings import RMCSettings
from relational_rnn.training.config import ADDED

CoreName = Literal["rmc", "lstm", "entnet", "dnc"]


@dataclass(frozen=True)
class RMC(RMCSettings):
    """The Relational Memory Core (core rmc). The paper: 1024 or 2048 units, 2 or 4 slots, 2 or 4 heads, one
    pass of attention a step, "scalar memory gating". It does not give the MLP's layers; 2 are Sonnet's.
    """

    mem_slots: int = 4
    num_heads: int = 4
    gate_style: Literal["unit", "memory"] | None = "memory"


@dataclass(frozen=True)
class LSTM:
    """The deep LSTM (core lstm)."""

    units: int = 1024
    """Units of each layer. The paper tried 1024 and 2048."""
    layers: int = 2
    """Layers, with skip connections and their outputs side by side. The paper: 2."""


@dataclass(frozen=True)
class Entities:
    """The bank of memory cells (core entnet)."""

    total_units: int = 2048
    """Divided among the cells, a remainder dropped. The paper tried 1024 and 2048."""
    cells: int = 4
    """The paper tried 2, 4, 6 and 8."""
    style: Literal["lstm", "henaff"] = "lstm"
    """The paper's bank of LSTMs, or the cells of Henaff et al. (docs/baselines.md)."""


@dataclass(frozen=True)
class Computer:
    """The Differentiable Neural Computer (core dnc)."""

    controller: Literal["auto", "lstm", "feedforward"] = "auto"
    """auto is the paper's: an LSTM for programs, feed-forward for memorisation."""
    controller_units: int = 256
    """Units of each controller layer. The paper tried 128, 256 and 512."""
    controller_layers: int = 2
    """Layers of the controller."""
    memory_size: int = 80
    """Words in the memory."""
    word_size: int = 64
    """Features of a word."""
    read_heads: int = 4
    """Words read a step."""
    write_heads: int = 1
    """Words written a step."""
    output_units: int = 256
    """Features for the head. Not in the paper; the head's own width."""
    compile: bool = True
    """On a GPU: fuse the memory's kernels, for half the time of an update; needs Triton."""
    fused: bool = field(default=True, metadata=ADDED)
    """On a GPU: a step of the memory as one kernel (kernels/dnc.py) instead, where it applies."""
