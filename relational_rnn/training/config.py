"""Settings of a training run, and plain dictionaries to and from settings."""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from relational_rnn.cores.base import require

PRECISIONS = ("fp32", "tf32", "bf16")
OPTIMIZERS = ("adam", "rmsprop", "muon")
SCHEDULES = ("constant", "linear", "cosine", "trapezoid", "exponential")
# Trainings have lower seeds, evaluations this one. On a CPU torch reads 32 bits of a seed: 2**40 would be 0.
EVAL_SEED = 2**31
ADDED = {"added": True}  # marks a field that older run folders lack; its default is what they did


@dataclass(frozen=True)
class Training:
    """How a model is trained, whatever the task."""

    steps: int
    """Optimiser updates."""
    batch_size: int
    """Samples in each update."""
    learning_rate: float = 1e-3
    """The optimiser's, at its highest."""
    schedule: Literal["constant", "linear", "cosine", "trapezoid", "exponential"] = "constant"
    """How the learning rate goes to final_learning_rate (training/schedules.py)."""
    final_learning_rate: float = 0.0
    """Where linear, cosine and trapezoid end, and the floor of exponential."""
    adam_beta2: float = 0.999
    """Memory of Adam's squared gradients; shorter (0.98) gets small models off a plateau sooner."""
    optimizer: Literal["adam", "rmsprop", "muon"] = field(default="adam", metadata=ADDED)
    """Adam; RMSProp without momentum as IMPALA has it; or Muon for large matrices and Adam for the rest."""
    muon_ratio: float = field(default=3.0, metadata=ADDED)
    """Muon: the learning rate of large matrices, as a multiple of the others' (training/muon.py)."""
    rmsprop_decay: float = field(default=0.99, metadata=ADDED)
    """Memory of RMSProp's squared gradients."""
    epsilon: float | None = field(default=None, metadata=ADDED)
    """Added to the root of the squared gradients; None is 1e-8 for Adam and 0.01 for RMSProp."""
    weight_decay: float = field(default=0.0, metadata=ADDED)
    """AdamW: matrices shrink by this times the learning rate in every update; Adam only."""
    average_decay: float | None = field(default=None, metadata=ADDED)
    """Evaluate and keep a mean of the weights (training/averaging.py): 1 counts all updates the same, less
    the newest ones most (0.999: about the last 1000); None evaluates the weights themselves."""
    average_after: int = field(default=0, metadata=ADDED)
    """Updates before that mean begins."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises from zero; in fewer steps it does not get to the top."""
    clip_norm: float | None = None
    """Scale gradients down to this norm; None leaves them."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """fp32 everywhere, TF32 products on the GPU, or bf16 autocast with fp32 weights."""
    weights: str = field(default="", metadata=ADDED)
    """A run folder, or a model in the package, whose weights are the first ones here; none: fresh ones."""
    device: str = "auto"
    """auto (CUDA where there is one), cpu, cuda or cuda:N."""
    cuda_graph: bool = True
    """On a GPU: capture a whole update in a CUDA graph and replay it."""
    seed: int = 0
    """Of weights and data; below 2**31, where the seeds of evaluations begin."""
    log_every: int = 100
    """Updates between two lines of metrics.jsonl; a GPU run meets the host only there."""
    eval_every: int = 0
    """Updates between evaluations, a multiple of log_every; 0 evaluates at the end only."""
    checkpoint_every: int = 1000
    """Updates between checkpoints, a multiple of log_every; one is always written at the end."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the newest ones."""
    track: Literal["none", "tensorboard", "wandb"] = "none"
    """Also send metrics there (pip install relational-rnn[track])."""

    def __post_init__(self):
        for name in ("steps", "batch_size", "log_every", "checkpoint_every", "keep_checkpoints"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in (
            "final_learning_rate",
            "warmup_steps",
            "eval_every",
            "weight_decay",
            "average_after",
        ):
            value = getattr(self, name)
            require(0 <= value < math.inf, name, value, "0 or more, less than inf")
        require(0 <= self.seed < EVAL_SEED, "seed", self.seed, f"0 or more, less than {EVAL_SEED}")
        rate = self.learning_rate
        require(0 < rate < math.inf, "learning_rate", rate, "more than 0, less than inf")
        require(0 <= self.adam_beta2 < 1, "adam_beta2", self.adam_beta2, "0 or more, less than 1")
        require(self.optimizer in OPTIMIZERS, "optimizer", self.optimizer, " | ".join(OPTIMIZERS))
        require(self.schedule in SCHEDULES, "schedule", self.schedule, " | ".join(SCHEDULES))
        require(self.muon_ratio > 0, "muon_ratio", self.muon_ratio, "more than 0")
        require(0 <= self.rmsprop_decay < 1, "rmsprop_decay", self.rmsprop_decay, "0 or more, less than 1")
        epsilon = self.epsilon
        require(epsilon is None or epsilon > 0, "epsilon", epsilon, "None or more than 0")
        plain = self.optimizer == "adam" or self.weight_decay == 0
        require(plain, "weight_decay", self.weight_decay, f"0 with optimizer={self.optimizer!r}")
        decay = self.average_decay
        require(decay is None or 0 < decay <= 1, "average_decay", decay, "None or more than 0, at most 1")
        clip = self.clip_norm
        require(clip is None or clip > 0, "clip_norm", clip, "None or more than 0")
        require(self.precision in PRECISIONS, "precision", self.precision, " | ".join(PRECISIONS))
        for name in ("eval_every", "checkpoint_every"):
            every = getattr(self, name)
            require(every % self.log_every == 0, name, every, f"a multiple of log_every={self.log_every}")


def to_dict(config: Any) -> dict:
    """A settings dataclass as JSON-ready values."""
    return dataclasses.asdict(config)


def from_dict(kind: type, values: Any, where: str = "config") -> Any:
    """The dataclass `kind` from what `to_dict` gave; a ValueError names what does not fit."""
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {values!r}; allowed: an object with the fields of {kind.__name__}")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    needed = {f.name for f in dataclasses.fields(kind) if not f.metadata.get("added")}
    found = (("lacks", needed - values.keys()), ("has unknown", values.keys() - names))
    if wrong := [f"{what} {sorted(which)}" for what, which in found if which]:
        raise ValueError(f"{where} {' and '.join(wrong)}")
    return kind(**{name: _value(hints[name], values[name], f"{where}.{name}") for name in values})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where)
    if isinstance(value, list):
        value = _tuples(value)
    if not _fits(hint, value):
        raise ValueError(f"{where} is {value!r}; allowed: {getattr(hint, '__name__', None) or hint}")
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _fits(hint: Any, value: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in args
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if args[-1] is Ellipsis:
            return all(_fits(args[0], item) for item in value)
        return len(args) == len(value) and all(map(_fits, args, value))
    if args:  # a union
        return any(_fits(arg, value) for arg in args)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int and isinstance(value, bool):
        return False
    return isinstance(value, hint)
