"""The weights of a run: to use, not to go on training."""

from __future__ import annotations

import json

from torch import nn

from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.training import checkpoint
from relational_rnn.training.loop import load_checkpoint
from relational_rnn.training.run_folder import RunFolder, RunFolderError


def load_weights(run: RunFolder, model: nn.Module) -> dict:
    """Put a run's newest weights into a model that is to be used -> their step and seconds."""
    step_and_seconds = newest_weights(run, model)
    free_backends(model)
    return step_and_seconds


def newest_weights(run: RunFolder, model: nn.Module) -> dict:
    """Put a run's newest weights into the model, averaged where the run averages -> their step and seconds.

    They are the last checkpoint's, or those kept at the end of a run whose checkpoints are gone or older: the
    end may be cut off between the two."""
    path, tensors = run.weights_path, None
    if path.is_file():
        try:
            kept, meta = checkpoint.load(path)
            if not isinstance(meta.get("step"), int):
                raise ValueError(f"{path} was not written at the end of a run: it has no step")
            tensors, meta = kept, {"step": meta["step"], "seconds": _last_seconds(run)}
        except ValueError as error:
            if not run.has_checkpoint():
                raise RunFolderError(str(error)) from error
    if tensors is None or (
        run.has_checkpoint() and run.latest_checkpoint() > run.checkpoint_path(meta["step"])
    ):
        path = run.latest_checkpoint()
        tensors, meta = load_checkpoint(path)
        tensors = checkpoint.evaluated_weights(tensors)
    checkpoint.load_model(model, tensors, path)
    return {"step": meta["step"], "seconds": meta["seconds"]}


def free_backends(model: nn.Module) -> None:
    """Its cores take what is here: the kernels a run asked for may not be."""
    for module in model.modules():
        if isinstance(module, RelationalMemory):
            module.backend = "auto"


def _last_seconds(run: RunFolder) -> float:
    """Of the last whole record: damage elsewhere in metrics.jsonl is no reason to refuse the weights."""
    for line in reversed(run.metrics_path.read_text(errors="replace").splitlines()):
        try:
            return float(json.loads(line)["seconds"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0.0
