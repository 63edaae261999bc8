"""CUDA C++ of ours, compiled for Hopper by NVIDIA's compiler, which needs no GPU: what the emulator (simt/)
stands in for, instructions and registers, is seen here."""

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from relational_rnn.kernels import dnc, nvrtc, shapes


def library() -> ctypes.CDLL | None:
    """NVRTC of the package nvidia-cuda-nvrtc."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else ():
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return ctypes.CDLL(str(path))
    return None


COMPILER = library()
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs nvidia-cuda-nvrtc")


def compiler_says(name: str, kind: nvrtc.Kind) -> str:
    """Its log; an error if it finds one."""
    source = "".join((nvrtc.SOURCES / file).read_text() for file in kind.files(name))
    options = [
        f"--gpu-architecture=sm_{kind.architecture or '90'}",
        "--ptxas-options=-v",
        "-diag-suppress=177",
    ]
    options = [option.encode() for option in [*options, *kind.options, *kind.defines]]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert (
        COMPILER.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    )
    failed = COMPILER.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    COMPILER.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    COMPILER.nvrtcGetProgramLog(program, log)
    COMPILER.nvrtcDestroyProgram(ctypes.byref(program))
    text = log.value.decode()
    assert not failed, text
    return text


def spilled(log: str) -> int:
    """Bytes of registers kept in memory."""
    (stores,) = re.findall(r"(\d+) bytes spill stores", log)
    return int(stores)


THE_PAPERS = (256, 8, 8, 2, 2)  # features, slots, heads, layers, gates of N-th farthest
GAMES = (256, 4, 4, 2, 1)


def shape(sizes, *how) -> shapes.Shape:
    return shapes.Shape(*sizes, *how, True, True, "float")


STREAMED, RESIDENT = shape(THE_PAPERS, 64, 8, 1, 2, 4), shape(GAMES, 32, 8, 8, 1, 0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sequence_means", STREAMED),
        ("sequence_pack", STREAMED),
        ("sequence_forward", STREAMED),
        ("sequence_backward", STREAMED),
        ("resident_forward", RESIDENT),
        ("resident_backward", RESIDENT),
        ("dnc_forward", dnc.Kind(80, 64, 4)),
        ("dnc_backward", dnc.Kind(80, 64, 4)),
    ],
)
def test_kernels_compile(name, kind):
    assert "Used" in compiler_says(name, kind)


@pytest.mark.parametrize(("sizes", "rows"), [(THE_PAPERS, 12_800), (THE_PAPERS, 8192), (GAMES, 4096)])
def test_kernels_of_groups_have_the_registers_they_want(sizes, rows):
    """Nor do products wait for each other, as they must where the compiler finds too few registers."""
    kind = shapes.by_groups(shape(sizes, 64, 8, 1, 2, 4), rows)
    log = compiler_says("wide_forward", kind)
    assert "serialized" not in log
    assert spilled(log) < 200, log  # of about 65,000
    assert "Used" in compiler_says("wide_pack", kind)
