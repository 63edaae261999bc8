"""The sweep of appendix A.1: memories x heads x gates, 2048 units in all whatever the number of memories.

rmc sweep nth-farthest --preset fast
The paper: 8 or 16 memories are better than 1; with 1 memory, 8 or 16 heads are better than 1. Ours: not run.
"""

from __future__ import annotations

import torch

from relational_rnn.experiments.nth_farthest import Config, build_core

AXES = {"memories": "model.mem-slots", "heads": "model.num-heads", "gates": "model.gate-style"}
PAPER = {"memories": ("1", "8", "16"), "heads": ("1", "8", "16"), "gates": ("unit", "memory")}


def check(config: Config) -> None:
    """A ValueError if there is no such model; nothing is allocated."""
    with torch.device("meta"):
        build_core(config, torch.device("cpu"))
