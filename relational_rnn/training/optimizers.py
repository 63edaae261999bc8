"""The optimiser that the settings ask for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from relational_rnn.training.config import Training
from relational_rnn.training.muon import Muon, large_matrices


def make_optimizer(model: nn.Module, config: Training, device: torch.device) -> torch.optim.Optimizer:
    on_gpu = device.type == "cuda"
    # In a graph the learning rate must be read from memory, not baked in.
    rate = torch.tensor(config.learning_rate, device=device) if on_gpu else config.learning_rate
    options = dict(lr=rate, capturable=on_gpu)
    if config.optimizer == "rmsprop":
        options |= dict(alpha=config.rmsprop_decay, eps=config.epsilon or 0.01, foreach=True)
        return torch.optim.RMSprop(model.parameters(), **options)
    options |= dict(betas=(0.9, config.adam_beta2), eps=config.epsilon or 1e-8, fused=True)
    if config.optimizer == "muon":
        matrices = large_matrices(model)
        known = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in known]
        adam = torch.optim.Adam([dict(params=others)], **options)
        return Muon(matrices, adam, config.muon_ratio) if matrices else adam
    if config.weight_decay == 0:
        return torch.optim.Adam(model.parameters(), **options)
    matrices = dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=config.weight_decay)
    vectors = dict(params=[p for p in model.parameters() if p.dim() <= 1], weight_decay=0.0)
    return torch.optim.AdamW([matrices, vectors], **options)


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Its name in the settings; of Muon without a large matrix that is "adam"."""
    kinds = {Muon: "muon", torch.optim.RMSprop: "rmsprop"}
    return next((name for kind, name in kinds.items() if isinstance(optimizer, kind)), "adam")


def kind_with_memory_of(keys: Iterable[str]) -> str | None:
    """Which one remembers such values of its parameters (`exp_avg`, ...); None: no update was made yet."""
    keys = set(keys)
    if not keys:
        return None
    return "muon" if "momentum" in keys else "rmsprop" if "square_avg" in keys else "adam"
