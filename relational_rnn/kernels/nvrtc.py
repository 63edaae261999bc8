"""CUDA C++ of ours (cuda/), compiled when it is first wanted, and launched.

The compiler is NVRTC, which comes with torch; neither nvcc nor a C++ compiler is needed. torch's own door to
it is private: where it is missing, what these kernels do is done without them.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path
from typing import Protocol

import torch

SOURCES = Path(__file__).parent / "cuda"


class Kind(Protocol):
    """What a kernel is compiled for."""

    defines: list[str]
    options: tuple[str, ...]  # of the compiler
    architecture: str | None  # to compile for; None: the GPU's own

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


class _Launch(ctypes.Structure):
    """CUlaunchConfig of the driver's API."""

    _fields_ = [
        *((f"{of}_{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number_of_attributes", ctypes.c_uint),
    ]


@functools.cache
def clusters_at_once(programs: int, shared_bytes: int, device: torch.device) -> int:
    """How many clusters of so many programs, each with a multiprocessor to itself, this GPU runs at a time; 0
    where it does not say. Fewer than it has multiprocessors for, and not the same on every GPU of a kind: a
    cluster cannot span two of its groups of multiprocessors, some of which have fewer than others."""
    source = f'extern "C" __global__ void __cluster_dims__({programs}, 1, 1) nothing() {{}}'
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(source, "nothing")
        kernel.set_shared_memory_config(shared_bytes)
        found, launch = ctypes.c_int(), _Launch(64 * programs, 1, 1, 256, 1, 1, shared_bytes, None, None, 0)
        try:
            query = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
        except (OSError, AttributeError):  # another system, or an old driver
            return 0
        failed = query(ctypes.byref(found), kernel.func, ctypes.byref(launch))
    return 0 if failed else min(found.value, _allowed_clusters())


def _allowed_clusters() -> int:
    """RELATIONAL_RNN_CLUSTERS: for several processes that share a GPU at the same time, each one's part."""
    given = os.environ.get("RELATIONAL_RNN_CLUSTERS", "999")
    if not given.isdecimal():
        raise ValueError(
            f"RELATIONAL_RNN_CLUSTERS={given!r} is not allowed; allowed: a whole number, 0 or more"
        )
    return int(given)


@functools.cache
def _compiled(name: str, kind: Kind, device: int):
    source = "".join((SOURCES / file).read_text() for file in kind.files(name))
    kernel = torch.cuda._compile_kernel(
        source, name, compute_capability=kind.architecture, nvcc_options=[*kind.defines, *kind.options]
    )
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
