"""CUDA C++ of ours (cuda/), compiled when it is first wanted, and launched.

The compiler is NVRTC, which comes with torch; neither nvcc nor a C++ compiler is needed. torch's own door to
it is private: where it is missing, what these kernels do is done without them.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Protocol

import torch

SOURCES = Path(__file__).parent / "cuda"


class Kind(Protocol):
    """What a kernel is compiled for."""

    defines: list[str]
    options: tuple[str, ...]  # of the compiler

    def files(self, name: str) -> tuple[str, ...]: ...

    def shared_bytes(self, name: str) -> int: ...


@functools.cache
def works(device: torch.device) -> bool:
    """Whether this torch can compile for this GPU."""
    if device.type != "cuda" or not hasattr(torch.cuda, "_compile_kernel"):
        return False
    try:
        with torch.cuda.device(device):
            torch.cuda._compile_kernel('extern "C" __global__ void nothing() {}', "nothing")
    except (RuntimeError, OSError) as error:
        warnings.warn(f"no compiler here, so steps are launched one by one: {error}", stacklevel=2)
        return False
    return True


@functools.cache
def _compiled(name: str, kind: Kind, device: int):
    source = "".join((SOURCES / file).read_text() for file in kind.files(name))
    kernel = torch.cuda._compile_kernel(source, name, nvcc_options=[*kind.defines, *kind.options])
    kernel.set_shared_memory_config(kind.shared_bytes(name))
    return kernel


def compiled(name: str, kind: Kind):
    """For the current GPU."""
    return _compiled(name, kind, torch.cuda.current_device())


def launch(compiled, name: str, kind: Kind, programs: int, threads: int, args: list) -> None:
    """`compiled`: the function above, or one that stands in for it in tests."""
    with torch.cuda.device_of(args[0]):
        kernel = compiled(name, kind)
        kernel(grid=(programs, 1, 1), block=(threads, 1, 1), shared_mem=kind.shared_bytes(name), args=args)
