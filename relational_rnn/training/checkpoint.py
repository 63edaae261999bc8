"""One checkpoint is one safetensors file: named tensors, and the rest as JSON in its metadata. No pickle.

A file appears under its name only when it is whole: it is written beside it, flushed to disk and renamed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

TEMPORARY = ".partial"


def save(path: Path, tensors: dict[str, Tensor], meta: dict) -> None:
    # Copies, because safetensors refuses tensors that share memory (tied weights).
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        save_file(copies, temporary, metadata={"meta": json.dumps(meta)})
    except SafetensorError as error:  # of a full disk, say, it has the system's error in its text alone
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(temporary)) from error
    publish(temporary, path)


def load(path: Path) -> tuple[dict[str, Tensor], dict]:
    """Tensors (on the CPU) and metadata; a ValueError if the file is not a whole checkpoint."""
    try:
        with safe_open(path, "pt") as file:
            meta = json.loads((file.metadata() or {}).get("meta", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise ValueError(f"checkpoint {path} is damaged: {error}") from error
    if not isinstance(meta, dict):
        raise ValueError(f"checkpoint {path} was not written by this program: it has no metadata")
    return tensors, meta


def publish(temporary: Path, path: Path) -> None:
    """Make a finished temporary file the file `path`, in one step that survives a power cut."""
    _flush(temporary)
    os.replace(temporary, path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.write_text(text)
    publish(temporary, path)


# ------------------------------------------------------------------ modules and optimisers as named tensors


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": t for name, t in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}/"
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def load_model(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Fill a model; a ValueError names the first tensor that is missing, unknown or of another shape."""
    wanted = model.state_dict()
    for name in wanted.keys() ^ tensors.keys():
        problem = "lacks" if name in wanted else "has the unknown"
        raise ValueError(f"checkpoint {path} {problem} tensor {name!r}; it is not of this model")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{list(tensor.shape)}; allowed: {list(wanted[name].shape)}"
            raise ValueError(f"checkpoint {path}: {name!r} has shape {shapes}")
    model.load_state_dict(tensors)


def evaluated_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a checkpoint's tensors the model's, averaged where the run averages."""
    return without_prefix("model", tensors) | without_prefix("average", tensors)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """What the optimiser remembers of each parameter (Adam: step, exp_avg, exp_avg_sq), by parameter name."""
    return {
        f"{key}/{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        key, _, parameter = name.partition("/")
        target = parameters.get(parameter)
        if target is None or tensor.shape not in ((), target.shape):  # a count of steps has no shape
            raise ValueError(f"the optimiser's {name!r} of {list(tensor.shape)} is not of this model")
        optimizer.state[target][key] = tensor.to(target.device)
