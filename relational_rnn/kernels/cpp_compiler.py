"""C++ of ours (cpp/), compiled by the machine's own compiler when it is first wanted, and kept.

Nothing here is needed: without a compiler, or where it fails, backend "auto" does without.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "cpp"
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
DEFINES = {torch.float32: (), torch.bfloat16: ("-DBF16",)}  # by what matrices are multiplied in


@functools.cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """For such operands; None where it cannot be had, with a warning if there is a compiler."""
    compiler = _compiler()
    if compiler is None or dtype not in DEFINES:
        return None
    try:
        command = [*compiler, *OPTIONS, *_processor(), *_threads(compiler), *DEFINES[dtype]]
        texts = [path.read_bytes() for path in sorted(SOURCES.glob("[!.]*.[ch]pp"))]
        name = _digest("\0".join([*command, _machine()]).encode(), *texts)
        folder = cache_folder()
        path = next(_intact(folder, name), None) or _compile(command, folder, name)
        found = ctypes.CDLL(str(path))
        if not hasattr(found, "begin"):
            raise OSError(f"{path} has none of our functions; is {compiler[0]} a C++ compiler?")
        return found
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        warnings.warn(f"the core's C++ could not be compiled, so it runs without: {said}", stacklevel=2)
        return None


def why_not(dtype: torch.dtype) -> str | None:
    """Why there is none for such operands."""
    if dtype not in DEFINES:
        return f"the dtype is {str(dtype).removeprefix('torch.')}; allowed: float32, bfloat16"
    if _compiler() is None:
        return "there is no C++ compiler (CXX, c++, g++ or clang++)"
    return "the C++ compiler failed" if library(dtype) is None else None


def cache_folder() -> Path:
    """A folder of the user's own, since what lies there is run; made if it is missing."""
    given = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(given) if given else Path.home() / ".cache") / "relational-rnn"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise PermissionError(f"{folder} is another user's, or others may write to it")
    return folder


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _compile(command: list[str], folder: Path, name: str) -> Path:
    """-> NAME-DIGEST.so, whose bytes have that digest: one cut off by a crash would crash every process."""
    with tempfile.TemporaryDirectory(dir=folder) as aside:  # several processes may be at it
        made = Path(aside) / "made.so"
        whole = [*command, "-o", str(made), str(SOURCES / "rows.cpp")]
        subprocess.run(whole, check=True, capture_output=True, text=True, errors="replace", timeout=120)
        return made.replace(folder / f"{name}-{_digest(made.read_bytes())}.so")


def _intact(folder: Path, name: str) -> Iterator[Path]:
    """What was compiled before; what is damaged goes, unless another process has just seen to that."""
    for path in folder.glob(f"{name}-*.so"):
        with contextlib.suppress(FileNotFoundError):
            if path.stem == f"{name}-{_digest(path.read_bytes())}":
                yield path
            else:
                path.unlink()


@functools.cache
def _compiler() -> tuple[str, ...] | None:
    given = os.environ.get("CXX")
    try:
        split = shlex.split(given or "")
    except ValueError:  # a quotation mark that is part of a path
        split = [given]
    for words in (split,) if given else (("c++",), ("g++",), ("clang++",)):
        if words and shutil.which(words[0]):
            return tuple(words)
    return None


def _processor() -> tuple[str, ...]:
    return ("-march=native",) if platform.machine() in ("x86_64", "AMD64", "i686") else ("-mcpu=native",)


def _threads(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """With torch's own OpenMP where that is GNU's: two in one process would fight for the cores."""
    asked = [*compiler, "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, errors="replace", timeout=30).stdout
    shared = hasattr(ctypes.CDLL(None), "GOMP_parallel") if os.name == "posix" else False
    return ("-fopenmp",) if shared and "Free Software Foundation" in said else ("-fopenmp-simd",)


def _machine() -> str:
    """What the compiler's "native" means here: a home folder may be shared by several kinds of machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
