"""rmc doctor: what this machine can do."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from relational_rnn.cli import UsageError

EXTRAS = {
    "lm": ("huggingface-hub", "pyarrow"),
    "track": ("tensorboard", "wandb"),
    "sweep": ("optuna",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "distributed": ("ray",),
    "dev": ("pytest", "hypothesis", "playwright", "ruff"),
}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in ("-h", "--help"):
        raise UsageError(f"rmc doctor takes no arguments, got {arguments[0]!r}")
    if arguments:
        print("usage: rmc doctor\n\nSays what this machine can do: torch, CUDA, Triton, optional extras.")
        return 0
    for name, value in findings():
        print(f"{name:<16}{value}")
    return 0


def findings():
    import torch

    from relational_rnn.kernels.cpp_compiler import why_not

    yield "relational-rnn", _version("relational-rnn")
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "cpu", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"
    yield "torch", torch.__version__
    cuda = torch.cuda.is_available()
    if cuda:
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            yield f"cuda:{i}", f"{p.name}, {p.total_memory / 2**30:.0f} GiB, capability {p.major}.{p.minor}"
    else:
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        yield "cuda", f"none (torch is {built}); training runs on the CPU"
    yield "triton", _version("triton") + ("" if cuda else ", not usable without CUDA")
    fused = cuda and find_spec("triton") is not None
    compiler = why_not(torch.float32)
    backends = ["reference", "torch", f"not cpp ({compiler})" if compiler else "cpp"]
    yield "backends", ", ".join([*backends, "triton" if fused else "not triton (needs CUDA and Triton)"])
    for extra, packages in EXTRAS.items():
        there = ", ".join(f"{package} {_version(package)}" for package in packages)
        yield f"[{extra}]", there


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
