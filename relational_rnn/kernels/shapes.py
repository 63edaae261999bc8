"""What the kernels of whole sequences (cuda/) are compiled for, and how they share their work.

sequence.py launches them.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

LAYERS = 5  # of the MLP, at most
GATES = {None: 0, "memory": 1, "unit": 2}
SLAB, GROUP_TILE = 16 * 1024, 32 * 1024  # bytes, by groups: of weights that come at a time; of a group's rows
MULTIPROCESSORS, SHARED_BYTES = 132, 227 * 1024  # of an H200
FILES = {
    "sequence_forward": ("tiles.cuh", "streamed.cuh", "attention.cuh", "forward.cu"),
    "sequence_backward": ("tiles.cuh", "streamed.cuh", "attention.cuh", "backward.cu"),
    "resident_forward": ("tiles.cuh", "attention.cuh", "resident.cuh", "resident_forward.cu"),
    "resident_backward": ("tiles.cuh", "attention.cuh", "resident.cuh", "resident_backward.cu"),
    "sequence_means": ("tiles.cuh", "pack.cu"),
    "sequence_pack": ("tiles.cuh", "pack.cu"),
    "wide_forward": ("tiles.cuh", "attention.cuh", "wide.cuh", "wide_forward.cu"),
    "wide_pack": ("tiles.cuh", "wide_pack.cu"),
}


class Shape(NamedTuple):
    """What a kernel is compiled for: cuda/tiles.cuh says what each is."""

    F: int
    N: int
    HEADS: int
    LAYERS: int
    GATES: int
    ROWS: int
    WARPS: int
    CLUSTER: int
    TOGETHER: int
    DEPTH: int
    KEEP: bool  # the backward pass wants what is computed
    RESETS: bool  # episodes may begin anywhere
    SOURCE: str  # type of the weights
    WIDE: bool = False  # groups of warps multiply together

    def shared_bytes(self, name: str) -> int:
        """Three tiles, the weights' ring and, going back, if there is room, six sums of each warp's rows."""
        if self.WIDE:
            return 1024 if name == "wide_pack" else self._without_ring + self.DEPTH * SLAB
        if name in ("sequence_means", "sequence_pack"):
            return 1024
        if self.DEPTH == 0:  # cuda/resident.cuh
            products = 3 + self.LAYERS + (2 if self.GATES == 2 else 0)
            rows = self.ROWS // self.CLUSTER * ((5 if self.GATES == 2 else 3) * self.F * 2 + 64)
            sums = (7 if self.GATES == 2 else 5) * self.WARPS * 512 if self.ROWS <= 32 else 0
            return 128 + products * self.F * 64 + 4 * self.ROWS * self.F * 2 + rows + self.WARPS * 64 + sums
        sums = (
            6 * self.WARPS * self.F * 4
            if name == "sequence_backward" and self.ROWS * self.F < 64 * 256
            else 0
        )
        return 3 * self.ROWS * self.F * 2 + self.DEPTH * self.WARPS * 512 + sums

    options = ("--use_fast_math",)

    @property
    def _without_ring(self) -> int:
        """By groups: barriers, tiles of the groups that multiply, and all vectors."""
        return 256 + (self.WARPS // 4 - 1) * GROUP_TILE + 4 * ((15 + self.LAYERS) * self.F + 4)

    @property
    def way(self) -> str:
        return "wide" if self.WIDE else "sequence" if self.DEPTH else "resident"

    @property
    def architecture(self) -> str | None:
        return "90a" if self.WIDE else None  # instructions of no other GPU

    def files(self, name: str) -> tuple[str, ...]:
        return FILES[name]

    @property
    def defines(self) -> list[str]:
        values = {k: int(v) if isinstance(v, bool) else v for k, v in self._asdict().items()}
        return [f"-D{name}={value}" for name, value in values.items()]


class How(NamedTuple):
    """How a kernel shares its work: cuda/tiles.cuh says what each is."""

    ROWS: int
    WARPS: int
    CLUSTER: int
    TOGETHER: int  # programs of a multiprocessor
    DEPTH: int  # of the ring through which weights stream; 0: they stay


CLUSTERS = 15  # of 8 programs, that an H200 runs at once
MANY_ROWS = 32 * MULTIPROCESSORS  # above, tiles are large


@functools.cache
def how(rows: int, size: int, layers: int = 2, gates: int = 2, clusters: int = CLUSTERS) -> How:
    """Weights that stay where all rows can run at once (`clusters`: as many as fit), or else large tiles,
    which read the weights less often, unless that leaves multiprocessors without one."""
    if tile := _resident_tile(rows, size, layers, gates, clusters):
        return How(tile, 8, size // 32, 1, 0)
    if rows > MANY_ROWS:
        return How(64, 8, 1, 2, 4)
    if size == 128:
        return How(16, 8, 1, 1, 8)
    return How(16 if rows <= MANY_ROWS // 2 else 32, 8, 1, 1, 16)


def _resident_tile(rows: int, size: int, layers: int, gates: int, clusters: int) -> int | None:
    """The smallest with which all rows run at once, if there is one: a second round takes as long again."""
    for tile in (16, 32, 48, 64) if size == 256 else (16, 32):
        kind = Shape(size, 1, 1, layers, gates, tile, 8, size // 32, 1, 0, True, True, "float")
        if rows <= clusters * tile:
            return tile if kind.shared_bytes("resident_backward") <= SHARED_BYTES else None
    return None


def by_groups(kind: Shape, rows: int) -> Shape:
    """The same by groups of warps: as few rows a program as leave no multiprocessor two of them."""
    half = rows <= 32 * MULTIPROCESSORS and kind.N <= 8  # of a tile
    groups = 1 if rows <= 64 * MULTIPROCESSORS else 2
    kind = kind._replace(
        ROWS=32 if half else 64 * groups, WARPS=4 * groups + 4, CLUSTER=1, TOGETHER=1, DEPTH=0, WIDE=True
    )
    return kind._replace(DEPTH=(SHARED_BYTES - kind._without_ring) // SLAB)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def share(batch: int, kind: Shape) -> int:
    """Samples of a tile: all it can hold, unless multiprocessors would have two programs and others one."""
    most = kind.ROWS // kind.N
    places = MULTIPROCESSORS * kind.TOGETHER
    if kind.TOGETHER == 1 or batch * kind.N <= MANY_ROWS:
        return most
    rounds = ceil_div(ceil_div(batch, most), places)
    return ceil_div(batch, rounds * places)


def programs(batch: int, kind: Shape) -> int:
    """How many a kernel is launched with."""
    return ceil_div(batch, share(batch, kind)) * kind.CLUSTER
