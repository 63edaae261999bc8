"""What a run computes on, and how exactly."""

from __future__ import annotations

import torch


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f"device={name!r} is not allowed; allowed: auto, cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    if int(index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={name!r} is not here; CUDA devices found: {torch.cuda.device_count()}")
    device = torch.device("cuda", int(index or 0))
    torch.cuda.set_device(device)  # graphs and streams are made on the current device
    return device


def set_float32_precision(precision: str) -> None:
    """TF32 for matrix products and cuDNN unless fp32 is asked for; without effect on a CPU."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
