"""The Relational Memory Core's settings, which every experiment has, and the core from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relational_rnn.cores.base import require
from relational_rnn.cores.relational_memory import RelationalMemory


@dataclass(frozen=True)
class RMCSettings:
    """Sizes are total units, as the paper counts. An experiment's own class has its own defaults."""

    total_units: int = 2048
    """Elements of the memory matrix, slots x slot size."""
    mem_slots: int = 8
    """Rows of the memory."""
    num_heads: int = 8
    """Attention heads; the head size is total_units / mem_slots / num_heads."""
    num_blocks: int = 1
    """Attention blocks a step."""
    gate_style: Literal["unit", "memory"] | None = "unit"
    """A gate for every unit, one for every slot, or none."""
    attention_mlp_layers: int = 2
    """Layers of the MLP after the attention."""
    backend: Literal["auto", "reference", "torch", "cpp", "triton"] = "auto"
    """Implementation of the RMC: the fastest that applies, the specification, or the one named."""


def build_rmc(settings: RMCSettings, input_size: int, **options) -> RelationalMemory:
    """`options` go to the core."""
    for name in ("total_units", "mem_slots", "num_heads"):
        require(getattr(settings, name) >= 1, name, getattr(settings, name), "1 or more")
    heads = settings.mem_slots * settings.num_heads
    head_size, rest = divmod(settings.total_units, heads)
    require(rest == 0, "total_units", settings.total_units, f"a multiple of mem_slots x num_heads = {heads}")
    return RelationalMemory(
        input_size,
        settings.mem_slots,
        head_size,
        settings.num_heads,
        num_blocks=settings.num_blocks,
        gate_style=settings.gate_style,
        attention_mlp_layers=settings.attention_mlp_layers,
        backend=settings.backend,
        **options,
    )
