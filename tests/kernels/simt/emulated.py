"""Compiles a CUDA kernel of ours for the CPU (simt.h) and calls it as torch calls a compiled one."""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import torch

from relational_rnn.kernels import nvrtc

HERE = Path(__file__).parent


class Emulated:
    def __init__(self, name: str, shape, options: tuple[str, ...]):
        self.folder = tempfile.TemporaryDirectory()
        source, library = Path(self.folder.name) / "kernel.cpp", Path(self.folder.name) / "kernel.so"
        parts = [HERE / "simt.h", *(nvrtc.SOURCES / file for file in shape.files(name))]
        text = "\n".join(f'#include "{part.resolve()}"' for part in parts) + "\n"
        text += 'extern "C" void run(int grid, int threads, int bytes, void** args) {\n'
        text += f"  simt::launch({name}, grid, threads, bytes, args);\n}}\n"
        source.write_text(text)
        command = [
            "g++",
            "-std=c++17",
            "-O2",
            "-shared",
            "-fPIC",
            "-w",
            "-fno-gnu-unique",
            "-U_FORTIFY_SOURCE",  # which would not let a thread jump from its stack to another
            *shape.defines,
            *options,
        ]
        subprocess.run([*command, "-o", library, source], check=True)
        self.library = ctypes.CDLL(str(library))

    def __call__(self, grid, block, args, shared_mem):
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor)
            else ctypes.c_double(a) if isinstance(a, float) else ctypes.c_int(a)
            for a in args
        ]  # fmt: skip
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.library.run(grid[0], block[0], shared_mem, addresses)


@functools.cache
def compiled(name: str, shape, *options: str) -> Emulated:
    return Emulated(name, shape, options)
