"""The maze of Mini Pacman, and everything about it that can be looked up instead of computed.

Shapes: N = H * W = 15 * 19 cells. A position is a cell number, row * W + column; cell 0 is a wall.
"""

from __future__ import annotations

import torch
from torch import Tensor

_UPPER_HALF = [
    "###################",
    "#...#.........#...#",
    "#.#.#.#######.#.#.#",
    "#.................#",
    "#.#.#.#######.#.#.#",
    "#.#.............#.#",
    "#.####.#####.####.#",
    "#......#####......#",
]
MAZE = _UPPER_HALF + _UPPER_HALF[-2::-1]  # the lower half mirrors the upper one
H, W = len(MAZE), len(MAZE[0])
N = H * W
GONE = 0

MOVES = ((0, 0), (0, 1), (-1, 0), (0, -1), (1, 0))  # stay, right, up, left, down
# A ghost's heading: 2..5 are right, up, left, down. The original draws a new ghost's heading from 0..3, so
# 0 and 1 exist too: never a possible exit, turning like left and down; kept, they walk down and stay.
HEADING_MOVE = (4, 0, 1, 2, 3, 4)  # index into MOVES
HEADING_REVERSE = (2, 3, 4, 5, 2, 3)
SAFE_DISTANCE = 5  # ghosts start outside this box around Pacman


def tables() -> dict[str, Tensor]:
    """All of them, those of several dimensions flattened (except `window`)."""
    walls = torch.tensor([[c == "#" for c in row] for row in MAZE]).flatten()  # [N]
    free = (~walls).nonzero().flatten()  # [138]
    row, col = torch.arange(N) // W, torch.arange(N) % W

    step_to = torch.arange(N)[:, None].repeat(1, len(MOVES))  # [N, 5]
    for k, (dr, dc) in enumerate(MOVES):
        goal = free + dr * W + dc
        step_to[free, k] = torch.where(walls[goal], free, goal)
    ghost_next = step_to[:, list(HEADING_MOVE)]  # [N, 6]

    # Ghosts start outside rows pr-5..pr+4 and columns pc-5..pc+4: the original's half-open box.
    inside = [
        (x[None] >= x[:, None] - SAFE_DISTANCE) & (x[None] < x[:, None] + SAFE_DISTANCE) for x in (row, col)
    ]
    allowed = ~walls[None] & ~(inside[0] & inside[1])  # [N, N]
    far = (~allowed).long().argsort(dim=1, stable=True)  # [N, N]: the allowed cells first

    turn, options = _ghost_turns(step_to)
    return dict(
        walls=walls.to(torch.uint8),
        is_free=(~walls).to(torch.uint8),
        free=free,
        next=step_to.T.flatten(),  # by [action, cell]: an action too many reads beyond the end, an error
        ghost_next=ghost_next.flatten(),
        far=far.flatten(),
        far_count=allowed.sum(1),
        turn=turn.flatten(),
        options=options.flatten(),
        window=_windows(),
    )


def _ghost_turns(step_to: Tensor) -> tuple[Tensor, Tensor]:
    """The heading a ghost takes, by [powered, its cell, Pacman's cell, its heading], int8 [2, N, N, 6]; and
    its choices when it strays, by [its cell, its heading], int64 [N, 6]: how many, then each, in three bits.
    """
    turn = torch.zeros(2, N, N, 6, dtype=torch.int8)
    options = torch.ones(N, 6, dtype=torch.long)  # a ghost that is gone: one choice, whatever it is
    cells = torch.arange(N)
    away = torch.stack((cells // W, cells % W), 1)  # [N, 2]
    for cell in range(N):
        exits = [k + 1 for k in range(1, 5) if step_to[cell, k] != cell]  # headings, in the order of ties
        if not exits:
            continue
        for heading in range(6):
            reverse = HEADING_REVERSE[heading]
            if len(exits) == 2:
                ahead = [heading] if heading in exits else [h for h in exits if h != reverse][:1]
            else:
                ahead = [h for h in exits if h != reverse]
            options[cell, heading] = sum(h << 3 * (k + 1) for k, h in enumerate(ahead)) + len(ahead)
            towards = (away - away[cell]) @ torch.tensor([MOVES[h - 1] for h in ahead]).T  # [N, len(ahead)]
            headings = torch.tensor(ahead, dtype=torch.int8)
            turn[0, cell, :, heading] = headings[towards.argmax(1)]
            turn[1, cell, :, heading] = headings[towards.argmin(1)]
            if len(exits) > 2:
                turn[:, cell, cell, heading] = heading  # Pacman is here, no direction points at him: keep on
    return turn, options


def _windows() -> Tensor:
    """The 5 x 5 cells around each cell, [N, 25]; outside the maze reads cell 0, a wall."""
    row, col = (torch.arange(N) // W)[:, None, None], (torch.arange(N) % W)[:, None, None]
    rows, cols = row + torch.arange(-2, 3)[:, None], col + torch.arange(-2, 3)
    inside = (rows >= 0) & (rows < H) & (cols >= 0) & (cols < W)
    return torch.where(inside, rows * W + cols, 0).flatten(1)
