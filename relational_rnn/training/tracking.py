"""Metrics to TensorBoard or Weights & Biases as well; metrics.jsonl is written either way."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from relational_rnn.training.run_folder import RunFolder


def check_tracker(kind: str) -> None:
    """Raise a ValueError if what `track` asks for is not installed."""
    if kind != "none" and find_spec(kind) is None:
        raise ValueError(f"track={kind!r} needs a missing package: pip install 'relational-rnn[track]'")


def tracker(kind: str, run: RunFolder) -> Callable[[dict], None]:
    """A function that takes every record of a run."""
    if kind == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(run.path / "tensorboard")

        def to_tensorboard(record: dict) -> None:
            for name, value in record.items():
                writer.add_scalar(name, value, record["step"])
            writer.flush()

        return to_tensorboard
    if kind == "wandb":
        import wandb

        session = wandb.init(project="relational-rnn", name=run.path.name, dir=run.path, config=run.config())
        return lambda record: session.log(record, step=record["step"])
    return lambda record: None
