"""BoxWorld (section A.3): thousands of games at once, as tensors, on a CPU or a GPU.

Shapes: B games, R levels in reserve, C = side * side cells of the room (14 * 14).
A cell is a number, row * side + column; what it holds is a code of box_world_levels.py.

Every step has fixed shapes and reads nothing back to the host, so it can be captured in a CUDA graph. Making
a level costs more than a step and few games end in a step, so levels are made ahead, a fraction of a batch
per step, into a reserve from which the games that end take theirs.
"""

from __future__ import annotations

import colorsys
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from relational_rnn.environments.base import (
    Step,
    check_actions,
    check_batch,
    check_generator,
    look_up,
    where,
    whole,
)
from relational_rnn.environments.box_world_levels import (
    BACKGROUND,
    BORDER,
    DECOY,
    GEM,
    KEY,
    LOCK,
    NUM_COLOURS,
    LevelGenerator,
    Levels,
)

NO_KEY = BORDER  # what is held shows as black, like the border, when it is nothing
AGENT = DECOY + NUM_COLOURS  # only drawn, never in a room
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right


@dataclass
class Reserve:
    """Levels waiting to be played: a ring of R rows, and one more that takes what is thrown away."""

    room: Tensor  # [R + 1, C] uint8
    agent: Tensor  # [R + 1]
    first: Tensor  # [] the row to hand out next
    fresh: Tensor  # [] how many rows from there have not been played
    repeats: Tensor  # [] how many games so far were given an old level because no fresh one was left


@dataclass
class BoxWorldState:
    room: Tensor  # [B, C] uint8
    agent: Tensor  # [B] cell
    held: Tensor  # [B] code of the key, or NO_KEY
    steps: Tensor  # [B]
    episode_return: Tensor  # [B] float32
    reserve: Reserve


class BoxWorld:
    """Open boxes with the keys found in others, until one holds the gem.

    ## Description
    A room of 12 x 12 cells inside a border. A lone coloured cell is a key. Two coloured cells side by side
    are a box: the right one is its lock, the left one what it holds, a key or the white gem. The agent holds
    one key at a time; a key opens one lock of its colour and is used up. Exactly one chain of boxes, `1..5`
    long, leads from the loose key to the gem; `0..5` distractor branches start at the colours of that chain
    and end nowhere. Levels are drawn afresh for every episode, as DeepMind's generator draws them.

    ## Actions
    0 up, 1 down, 2 left, 3 right. The border, a lock whose key is not held, and the content of a locked box
    cannot be entered. Entering a lock opens it; entering a key takes it and drops the one held.

    ## Observation
    float32 RGB planes. `view="viewport"`: `[B, 6, 5, 5]`, the 5 x 5 cells around the agent (outside the room
    is black) and three constant planes with the colour of the held key (black: none). `view="full"`:
    `[B, 3, 14, 14]`, with the held key in the corner. Background light grey, agent dark grey, border black.

    ## Rewards
    +1 for a lock on the way to the gem, -1 for one of a distractor, +10 for the gem, otherwise 0.

    ## Termination
    Terminated with the gem or with a distractor's lock; truncated after `max_steps` (120).

    `refill` levels per game and step are made ahead (the reserve holds one per game). Played perfectly an
    episode takes 14 steps on average with one box, 30 in the paper's mix: 1/8 is ample. If games end faster
    than that for long, some are given a level that was played before, and `state.reserve.repeats` counts
    them. From 0.4 on that does not happen, since no episode is shorter than three steps. In a crowded room
    only the share `acceptance` of the levels made has a place for everything: there as many more are made.
    """

    num_actions = len(MOVES)

    def __init__(
        self,
        *,
        grid_size: int = 12,
        solution_lengths: Sequence[int] = (1, 2, 3, 4, 5),
        num_forward: Sequence[int] = (0, 1, 2, 3, 4, 5),
        num_backward: Sequence[int] = (0,),
        branch_length: int = 1,
        view: str = "viewport",
        max_steps: int = 120,
        refill: float = 0.125,
        device: torch.device | str = "cpu",
    ):
        if view not in ("viewport", "full"):
            raise ValueError(f"view is {view!r}; allowed: viewport, full")
        max_steps = whole("max_steps", max_steps)
        if not 1 <= max_steps < 2**31:
            raise ValueError(f"max_steps is {max_steps}; allowed: from 1, less than 2^31")
        if not isinstance(refill, Real) or not 0 < refill <= 1:
            raise ValueError(f"refill is {refill!r}; allowed: above 0, up to 1")
        self.view, self.max_steps, self.refill = view, max_steps, refill
        self.device = torch.device(device)
        options = (grid_size, solution_lengths, num_forward, num_backward, branch_length)
        self.generator = LevelGenerator(*options, device=self.device)
        self.side = self.generator.side
        self.observation_shape = (6, 5, 5) if view == "viewport" else (3, self.side, self.side)
        self.acceptance = _acceptance(*options)
        self._tries = max(1, round(1 / self.acceptance))  # levels made for one that is accepted
        self._offset = torch.tensor([dr * self.side + dc for dr, dc in MOVES], device=self.device)
        self._palette = palette().T.contiguous().to(self.device)  # [3, codes]
        self._window = _windows(self.side).to(self.device)  # [C, 25]

    # -- the interface ---------------------------------------------------------------------------------------

    def reset(self, batch_size: int, generator: torch.Generator) -> BoxWorldState:
        """A new episode in each of B games, and B levels in reserve."""
        check_batch(batch_size, generator, self.device)
        wanted = 2 * batch_size
        spare = math.ceil(max(64, 32 / self.acceptance))  # of which some 32 or more are accepted
        levels = self.generator.sample(math.ceil(1.1 * wanted / self.acceptance) + spare, generator)
        accepted = levels.accepted.sum()
        # The accepted ones first; should they not suffice, which is all but impossible, they are used again.
        row = (~levels.accepted).to(torch.uint8).argsort(stable=True)
        row = look_up(row, torch.arange(wanted, device=self.device) % accepted.clamp(min=1))
        room, agent = look_up(levels.room, row), look_up(levels.agent, row)
        zero = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        reserve = Reserve(
            room=torch.cat((room[batch_size:], room[:1])),
            agent=torch.cat((agent[batch_size:], agent[:1])),
            first=zero[0].clone(),
            fresh=(accepted - batch_size).clamp(0, batch_size),
            repeats=(batch_size - accepted).clamp(min=0),
        )
        return BoxWorldState(
            room=room[:batch_size].clone(),
            agent=agent[:batch_size].clone(),
            held=zero + NO_KEY,
            steps=zero.clone(),
            episode_return=torch.zeros(batch_size, device=self.device),
            reserve=reserve,
        )

    def step(
        self,
        state: BoxWorldState,
        actions: Tensor,
        generator: torch.Generator,
        *,
        auto_reset: bool = True,
        restock: bool = True,
    ) -> tuple[BoxWorldState, Step]:
        """One step of every game; games that end restart in place unless `auto_reset` is false.

        `restock=False` makes no new levels: for callers that make them for several steps at once (`restock`).
        """
        check_actions(actions, state.agent.shape[0], self.num_actions, self.device)
        if auto_reset and restock:
            state = self.restock(state, generator)
        return self.step_given(state, actions, auto_reset=auto_reset)

    def step_given(
        self, state: BoxWorldState, actions: Tensor, *, auto_reset: bool = True
    ) -> tuple[BoxWorldState, Step]:
        """`step` as a pure function, with the levels that are in the reserve."""
        target = state.agent + look_up(self._offset, actions)  # [B]
        here = state.room.gather(1, target[:, None]).squeeze(1).long()
        right = state.room.gather(1, target[:, None] + 1).squeeze(1)  # a box has its lock on the right

        holding = state.held >= KEY
        opens = (here >= LOCK) & holding & ((here - state.held) % NUM_COLOURS == 0)
        takes = (here >= GEM) & (here < LOCK) & (right < LOCK)
        gem = takes & (here == GEM)
        decoy = opens & (here >= DECOY)
        changes = opens | takes  # what was there is gone
        reward = opens.float() - 2 * decoy.float() + 10 * gem.float()
        steps = state.steps + 1
        s = BoxWorldState(
            room=state.room.scatter(
                1, target[:, None], here.masked_fill(changes, BACKGROUND)[:, None].to(torch.uint8)
            ),
            agent=torch.where(changes | (here == BACKGROUND), target, state.agent),
            held=torch.where(opens, NO_KEY, torch.where(takes & ~gem, here, state.held)),
            steps=steps,
            episode_return=state.episode_return + reward,
            reserve=state.reserve,
        )
        terminated = gem | decoy
        truncated = ~terminated & (steps >= self.max_steps)
        step = Step(reward, terminated, truncated, s.episode_return, steps, final=s)
        return (self._restart(s, step.done) if auto_reset else s), step

    def restock(self, state: BoxWorldState, generator: torch.Generator, steps: int = 1) -> BoxWorldState:
        """Make the levels due for `steps` steps. On a GPU most of a step's kernels are for making levels,
        however few; for every eighth step `restock(state, generator, 8)` takes an eighth of them."""
        check_generator(generator, self.device)
        made = math.ceil(self.refill * state.agent.shape[0] * steps) * self._tries
        return self.restock_given(state, self.generator.chance(made, generator))

    def restock_given(self, state: BoxWorldState, uniform: Tensor) -> BoxWorldState:
        """`restock` as a pure function: `uniform` is `generator.chance` of the levels made."""
        reserve = _store(state.reserve, self.generator.levels_given(uniform))
        return dataclasses.replace(state, reserve=reserve)

    def observe(self, state: BoxWorldState) -> Tensor:
        """What the agent sees: `[B, 6, 5, 5]` or `[B, 3, 14, 14]` float32."""
        shown = self.shown(state)
        image = torch.empty(shown.shape[0], self.observation_shape[0], shown.shape[1], device=self.device)
        for channel, table in enumerate(self._palette):
            image[:, channel] = look_up(table, shown)
            if self.view == "viewport":
                image[:, 3 + channel] = look_up(table, state.held)[:, None]
        return image.view(-1, *self.observation_shape)

    def shown(self, state: BoxWorldState) -> Tensor:
        """What is in the cells that the agent sees, `[B, 25]` or `[B, C]`."""
        if self.view == "viewport":
            shown = state.room.gather(1, look_up(self._window, state.agent)).int()
            shown[:, 12] = AGENT
        else:
            shown = self.cells(state).int()
            shown[:, 0] = state.held
        return shown

    def cells(self, state: BoxWorldState) -> Tensor:
        """The room with the agent in it, `[B, C]` uint8."""
        return state.room.scatter(1, state.agent[:, None], AGENT)

    def position(self, state: BoxWorldState) -> Tensor:
        """Row and column of the agent, `[B, 2]`."""
        return torch.stack((state.agent // self.side, state.agent % self.side), 1)

    def render(self, state: BoxWorldState, index: int = 0, cell_pixels: int = 32) -> np.ndarray:
        """A picture of one game for people, uint8 `[height, width, 3]`; what the agent cannot see is dim."""
        from relational_rnn.environments import rendering  # drawing is for looking on, not for training

        return rendering.box_world(self, state, index, cell_pixels)

    def _restart(self, s: BoxWorldState, done: Tensor) -> BoxWorldState:
        room, agent, reserve = _hand_out(s.reserve, done)
        return dataclasses.replace(
            s,
            room=where(done, room, s.room),
            agent=torch.where(done, agent, s.agent),
            held=s.held.masked_fill(done, NO_KEY),
            steps=s.steps.masked_fill(done, 0),
            episode_return=s.episode_return.masked_fill(done, 0),
            reserve=reserve,
        )


def _store(reserve: Reserve, levels: Levels) -> Reserve:
    """Put the accepted levels behind the fresh ones, as many as there is room for."""
    rows = reserve.room.shape[0] - 1
    rank = levels.accepted.cumsum(0) - 1  # [n]
    kept = levels.accepted & (rank < rows - reserve.fresh)
    row = torch.where(kept, (reserve.first + reserve.fresh + rank) % rows, rows)
    # What goes to the last row is never read; zeros, so that it does not matter which of them comes last.
    return dataclasses.replace(
        reserve,
        room=reserve.room.index_copy(0, row, where(kept, levels.room, torch.zeros_like(levels.room))),
        agent=reserve.agent.index_copy(0, row, levels.agent.masked_fill(~kept, 0)),
        fresh=reserve.fresh + kept.sum(),
    )


def _hand_out(reserve: Reserve, done: Tensor) -> tuple[Tensor, Tensor, Reserve]:
    """-> a room [B, C] and agent [B] for every game (only meant for those done), and what is left."""
    rows = reserve.room.shape[0] - 1
    rank = done.cumsum(0) - 1  # [B]
    # Behind the fresh levels come the ones played longest ago.
    row = (reserve.first + rank.clamp(min=0)) % rows
    wanted = done.sum()
    given = torch.minimum(wanted, reserve.fresh)
    left = dataclasses.replace(
        reserve,
        first=(reserve.first + given) % rows,
        fresh=reserve.fresh - given,
        repeats=reserve.repeats + wanted - given,
    )
    return look_up(reserve.room, row), look_up(reserve.agent, row), left


def _acceptance(grid_size, solution_lengths, num_forward, num_backward, branch_length) -> float:
    """The share of sampled levels for which there is room; an error if the largest all but never fit."""
    generator = torch.Generator().manual_seed(0)
    largest = [(max(counts),) for counts in (solution_lengths, num_forward, num_backward)]
    sampler = LevelGenerator(grid_size, *largest, branch_length)
    if sampler.sample(2048, generator).accepted.float().mean() < 0.005:
        raise ValueError(
            f"grid_size is {grid_size}; it almost never holds {sampler.slots - 1} boxes (solution_lengths up "
            f"to {sampler.longest}, num_forward up to {sampler.most_forward} branches of {branch_length}, "
            f"num_backward up to {sampler.most_backward}): use a larger room or fewer boxes"
        )
    sampler = LevelGenerator(grid_size, solution_lengths, num_forward, num_backward, branch_length)
    return sampler.sample(2048, generator).accepted.float().mean().item()


def palette() -> Tensor:
    """The colour of each code, [codes, 3]: 20 hues 18 degrees apart; the original counts in 999ths."""
    hues = [colorsys.hsv_to_rgb(c / NUM_COLOURS, 0.5, 700) for c in range(NUM_COLOURS)]
    grey = {BACKGROUND: 800, BORDER: 0, GEM: 999, AGENT: 500}
    colours = [None] * (AGENT + 1)
    for code, value in grey.items():
        colours[code] = (value,) * 3
    for kind in (KEY, LOCK, DECOY):
        colours[kind : kind + NUM_COLOURS] = hues
    return torch.tensor(colours) / 999


def _windows(side: int) -> Tensor:
    """The 5 x 5 cells around each cell, [C, 25]; outside the room reads cell 0, which is border."""
    cell = torch.arange(side * side)[:, None, None]
    rows, cols = cell // side + torch.arange(-2, 3)[:, None], cell % side + torch.arange(-2, 3)
    inside = (rows >= 0) & (rows < side) & (cols >= 0) & (cols < side)
    return torch.where(inside, rows * side + cols, 0).flatten(1)
