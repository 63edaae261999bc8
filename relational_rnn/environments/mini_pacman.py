"""Mini Pacman (section 4.2): thousands of games at once, as tensors, on a CPU or a GPU.

Shapes: B games, G ghosts (`max_ghosts`), N = H * W = 15 * 19 cells of the maze, h x w the part that is seen.
A position is a cell number: row * W + column. Cell 0 is a wall, so it stands for "not in the maze": an eaten
pill, an eaten ghost.

Every step has fixed shapes, reads nothing back to the host, and takes all its random numbers from one
`torch.rand` call, so it can be captured in a CUDA graph.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relational_rnn.environments.base import (
    Step,
    check_actions,
    check_batch,
    check_generator,
    clone,
    look_up,
    pick,
    where,
    whole,
)
from relational_rnn.environments.mini_pacman_maze import GONE, MOVES, H, N, W, tables

POWER_STEPS = 20
STRAY = 0.05  # probability of a random turn at a junction
# What a cell shows, as its colour: bit 0 red, bit 1 green, bit 2 blue.
EMPTY, GHOST, PACMAN, FOOD, PILL, WALL = 0b000, 0b001, 0b010, 0b100, 0b110, 0b111


@dataclass(frozen=True)
class Mode:
    """Rewards, and what ends a level: all "food", "pills" or "ghosts" eaten, or `timer` steps (0: none)."""

    step: float
    food: float
    pill: float
    ghost: float
    death: float
    clears: str
    timer: int = 0


MODES = {
    "regular": Mode(0, 1, 2, 5, 0, "food"),
    "avoid": Mode(0.1, -0.1, -5, -10, -20, "food", timer=128),
    "hunt": Mode(0, 0, 1, 10, -20, "ghosts"),
    "ambush": Mode(0, -0.1, 0, 10, -20, "ghosts"),
    "rush": Mode(0, -0.1, 10, 0, 0, "pills"),
}
# What the paper of Weber et al. is remembered to say where it differs from the code its author published.
PAPER_MODES = MODES | {
    "hunt": dataclasses.replace(MODES["hunt"], timer=80),
    "ambush": dataclasses.replace(MODES["ambush"], timer=80),
    "rush": dataclasses.replace(MODES["rush"], pill=9.9),
}


@dataclass
class MiniPacmanState:
    pacman: Tensor  # [B] cell
    food: Tensor  # [B, N] uint8, 1 or 0 (several operations are far faster on bytes than on bool)
    pills: Tensor  # [B, 2] cell, or GONE
    ghosts: Tensor  # [B, G] cell, or GONE
    heading: Tensor  # [B, G] 0..5
    power: Tensor  # [B] steps for which ghosts stay edible
    level: Tensor  # [B] from 1
    timer: Tensor  # [B] steps in this level
    steps: Tensor  # [B] steps in this episode
    episode_return: Tensor  # [B] float32


class MiniPacman:
    """Pacman eats, ghosts chase.

    ## Description
    A fixed maze of 15 x 19 cells, 138 of them free, food on every free cell and two power pills on random
    ones. Level l has 1 + floor((l - 1) / 2) ghosts, which start outside a box around Pacman and move in each
    step with probability 0.5 + 0.1 (l - 1), half of it while Pacman is powered. In corridors they keep going;
    at junctions they never turn back, take the direction that points most towards Pacman (one time in twenty
    a random one), and most away from him while he is powered. A pill gives 20 steps of power, in which ghosts
    can be eaten, at most one per step. A cleared level is followed by the next in the same episode.

    ## Actions
    0 stay, 1 right, 2 up, 3 left, 4 down. Walking into a wall is staying.

    ## Observation
    float32 RGB planes `[B, 3, h, w]`: `view="viewport"` the 5 x 5 cells around Pacman (outside the maze is
    wall), `view="full"` all 15 x 19. Pacman green, ghosts red (while edible their green is power / 20, so
    yellow at first), pills cyan, food blue, walls white.

    ## Rewards
    | mode    | step | food | pill | ghost | death | a level ends with            |
    |---------|------|------|------|-------|-------|------------------------------|
    | regular | 0    | 1    | 2    | 5     | 0     | all food eaten               |
    | avoid   | 0.1  | -0.1 | -5   | -10   | -20   | all food eaten, or 128 steps |
    | hunt    | 0    | 0    | 1    | 10    | -20   | all ghosts eaten             |
    | ambush  | 0    | -0.1 | 0    | 10    | -20   | all ghosts eaten             |
    | rush    | 0    | -0.1 | 10   | 0     | 0     | all pills eaten              |

    ## Termination
    Terminated when Pacman, without power, walks into a ghost or a ghost into him (he moves first);
    truncated after `frame_cap` steps (0: never).

    `dynamics="paper"` plays what the description in Weber et al. says where it differs from the published
    code (as far as known): ghosts move every step, a powered Pacman moves two cells and meets what he passes,
    hunt and ambush levels end after 80 steps, a pill in rush is worth 9.9.

    `max_ghosts` fixes the tensors' size. With the default cap of 3000 steps, 12 is as many as regular and
    avoid can reach; in the other modes levels beyond 24 keep 12 ghosts unless it is raised.
    """

    num_actions = len(MOVES)

    def __init__(
        self,
        mode: str = "regular",
        *,
        view: str = "viewport",
        frame_cap: int = 3000,
        dynamics: str = "notebook",
        max_ghosts: int = 12,
        device: torch.device | str = "cpu",
    ):
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; allowed: {', '.join(MODES)}")
        if view not in ("viewport", "full"):
            raise ValueError(f"view is {view!r}; allowed: viewport, full")
        if dynamics not in ("notebook", "paper"):
            raise ValueError(f"dynamics is {dynamics!r}; allowed: notebook, paper")
        frame_cap, max_ghosts = whole("frame_cap", frame_cap), whole("max_ghosts", max_ghosts)
        if not 1 <= max_ghosts <= 1000:  # of a long game's last level
            raise ValueError(f"max_ghosts is {max_ghosts}; allowed: 1 to 1000")
        if frame_cap >= 2**31:
            raise ValueError(f"frame_cap is {frame_cap}; allowed: less than 2^31, and 0 for none")
        self.mode_name, self.view, self.dynamics = mode, view, dynamics
        self.mode = (MODES if dynamics == "notebook" else PAPER_MODES)[mode]
        self.frame_cap, self.max_ghosts = frame_cap, max_ghosts
        self.device = torch.device(device)
        self.observation_shape = (3, 5, 5) if view == "viewport" else (3, H, W)
        for name, table in tables().items():
            setattr(self, f"_{name}", table.to(self.device))
        self._ghost_number = torch.arange(max_ghosts, device=self.device)

    # -- the interface ---------------------------------------------------------------------------------------

    def reset(self, batch_size: int, generator: torch.Generator) -> MiniPacmanState:
        """A new episode in each of B games."""
        check_batch(batch_size, generator, self.device)
        zero = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        uniform = torch.rand(batch_size, 3 + self.max_ghosts, generator=generator, device=self.device)
        level = self._new_level(zero + 1, uniform)
        food = self._is_free.expand(batch_size, N)
        return clone(MiniPacmanState(**level, food=food, steps=zero, episode_return=uniform[:, 0] * 0))

    def step(
        self, state: MiniPacmanState, actions: Tensor, generator: torch.Generator, *, auto_reset: bool = True
    ) -> tuple[MiniPacmanState, Step]:
        """One step of every game; games that end restart in place unless `auto_reset` is false."""
        batch_size = state.pacman.shape[0]
        check_actions(actions, batch_size, self.num_actions, self.device)
        check_generator(generator, self.device)
        uniform = torch.rand(batch_size, self.uniforms_per_step, generator=generator, device=self.device)
        return self.step_given(state, actions, uniform, auto_reset=auto_reset)

    @property
    def uniforms_per_step(self) -> int:
        """Columns: G whether a ghost moves, G whether and where it strays, then 3 + G for each level that may
        be laid out (two pills, Pacman, the ghosts): a restart, a cleared level, a level whose time was up."""
        return 2 * self.max_ghosts + (3 if self.mode.timer else 2) * (3 + self.max_ghosts)

    def step_given(
        self, state: MiniPacmanState, actions: Tensor, uniform: Tensor, *, auto_reset: bool = True
    ) -> tuple[MiniPacmanState, Step]:
        """`step` as a pure function of its random numbers, uniform `[B, uniforms_per_step]` in [0, 1)."""
        g, mode = self.max_ghosts, self.mode
        move_u, stray_u, restart_u, clear_u, *timer_u = uniform.split(
            [g, g] + [3 + g] * (2 + bool(mode.timer)), 1
        )

        s = dataclasses.replace(state, steps=state.steps + 1)
        if mode.timer:
            # The original changes the level after drawing the frame of the last step; doing it before the
            # next step is the same game and leaves the observation a function of the state.
            s = self._begin_level(s, s.timer == mode.timer, timer_u[0])
        s = dataclasses.replace(s, timer=s.timer + 1, power=(s.power - 1).clamp(min=0))
        reward = torch.full_like(s.episode_return, mode.step)

        powered, level = s.power > 0, s.level
        s, reward = self._move_pacman(s, actions, clear_u, reward)
        passed = s.pacman
        if self.dynamics == "paper":
            again = powered & (s.level == level)  # not in a level that just began
            twice, second = self._move_pacman(s, actions, clear_u, reward)
            passed = torch.where(again & (twice.level > s.level), twice.pacman, passed)
            fields = {f.name: where(again, getattr(twice, f.name), getattr(s, f.name)) for f in _FIELDS}
            s, reward = MiniPacmanState(**fields), torch.where(again, second, reward)

        s, eaten, deaths = self._move_ghosts(s, move_u, stray_u, passed)
        reward = reward + mode.ghost * eaten + mode.death * deaths
        if mode.clears == "ghosts":
            s = self._begin_level(s, eaten & (s.ghosts == GONE).all(1), clear_u)

        terminated = deaths > 0
        truncated = ~terminated & (s.steps >= self.frame_cap) if self.frame_cap > 0 else terminated & False
        s = dataclasses.replace(s, episode_return=s.episode_return + reward)
        step = Step(reward, terminated, truncated, s.episode_return, s.steps, final=s)
        return (self._restart(s, step.done, restart_u) if auto_reset else s), step

    def observe(self, state: MiniPacmanState) -> Tensor:
        """What the agent sees: `[B, 3, h, w]` float32."""
        shown = self.cells(state)  # [B, N]
        edible = state.power / POWER_STEPS  # [B]
        if self.view == "viewport":
            shown = shown.gather(1, look_up(self._window, state.pacman))  # [B, 25]
        image = torch.empty(shown.shape[0], 3, shown.shape[1], device=self.device)
        image[:, 0] = shown & 1
        image[:, 1] = (shown >> 1) & 1
        image[:, 2] = shown >> 2
        if self.view == "viewport":
            image[:, 1] += (shown == GHOST) * edible[:, None]
        else:
            # The same, at the ghosts only: one that is gone or under Pacman leaves the green that is there.
            hidden = (state.ghosts == GONE) | (state.ghosts == state.pacman[:, None])  # [B, G]
            image[:, 1].scatter_(1, state.ghosts, torch.where(hidden, 1.0, edible[:, None]))
        return image.view(-1, *self.observation_shape)

    def cells(self, state: MiniPacmanState) -> Tensor:
        """What each cell of the maze shows, `[B, N]` uint8: EMPTY, FOOD, PILL, GHOST, PACMAN or WALL."""
        shown = state.food * FOOD + self._walls * WALL  # food lies on free cells only
        shown.scatter_(1, state.pills, PILL).scatter_(1, state.ghosts, GHOST)
        shown.scatter_(1, state.pacman[:, None], PACMAN)
        shown[:, GONE] = WALL
        return shown

    def position(self, state: MiniPacmanState) -> Tensor:
        """Row and column of Pacman, `[B, 2]`."""
        return torch.stack((state.pacman // W, state.pacman % W), 1)

    def render(self, state: MiniPacmanState, index: int = 0, cell_pixels: int = 32) -> np.ndarray:
        """A picture of one game for people, uint8 `[height, width, 3]`; what the agent cannot see is dim."""
        from relational_rnn.environments import rendering  # drawing is for looking on, not for training

        return rendering.mini_pacman(self, state, index, cell_pixels)

    # -- the rules -------------------------------------------------------------------------------------------

    def _new_level(self, level: Tensor, uniform: Tensor) -> dict[str, Tensor]:
        """Lay out `level` [B], except its food: uniform [B, 3 + G] for two pills, Pacman and the ghosts."""
        spots = look_up(self._free, pick(uniform[:, :3], self._free.numel()))  # [B, 3]
        pacman = spots[:, 2]
        # One number gives a ghost's cell (among those far enough from Pacman) and its heading (0..3).
        drawn = pick(uniform[:, 3:], 4 * look_up(self._far_count, pacman)[:, None])  # [B, G]
        ghosts = look_up(self._far, pacman[:, None] * N + (drawn >> 2))  # [B, G]
        exists = self._ghost_number <= (level[:, None] - 1) >> 1
        zero = torch.zeros_like(level)
        return dict(
            pacman=pacman,
            pills=spots[:, :2],
            ghosts=torch.where(exists, ghosts, GONE),
            heading=drawn & 3,
            power=zero,
            level=level,
            timer=zero,
        )

    def _begin_level(self, s: MiniPacmanState, cleared: Tensor, uniform: Tensor) -> MiniPacmanState:
        """The next level, in the games where cleared [B]."""
        new = self._new_level(s.level + 1, uniform)
        return self._choose(cleared, new, s)

    def _restart(self, s: MiniPacmanState, done: Tensor, uniform: Tensor) -> MiniPacmanState:
        zero = torch.zeros_like(s.steps)
        new = self._new_level(zero + 1, uniform) | dict(steps=zero, episode_return=s.episode_return * 0)
        return self._choose(done, new, s)

    def _choose(self, mask: Tensor, new: dict[str, Tensor], s: MiniPacmanState) -> MiniPacmanState:
        """`new` in the games where mask [B], s elsewhere."""
        fields = {k: where(mask, v, getattr(s, k)) for k, v in new.items()}
        # A new level has food everywhere; "or" is several times faster here than a select over [B, N].
        fields["food"] = s.food | (mask[:, None].to(torch.uint8) * self._is_free)
        return dataclasses.replace(s, **fields)

    def _move_pacman(self, s: MiniPacmanState, actions: Tensor, clear_u: Tensor, reward: Tensor):
        """Walk, eat what lies there; the last food or pill of a level brings the next level at once."""
        mode = self.mode
        pacman = look_up(self._next, actions * N + s.pacman)  # [B]
        here = pacman[:, None]
        ate = s.food.gather(1, here).squeeze(1).bool()
        food = s.food.scatter(1, here, 0)
        s = dataclasses.replace(s, pacman=pacman, food=food)
        reward = reward + mode.food * ate
        if mode.clears == "food":
            s = self._begin_level(s, ate & (food.amax(1) == 0), clear_u)

        found = s.pills == s.pacman[:, None]  # [B, 2]; in a level just begun, this may be a new pill
        taken = found & (found.cumsum(1) == 1)  # at most one pill per step
        took = found.any(1)
        s = dataclasses.replace(
            s,
            pills=s.pills.masked_fill(taken, GONE),
            power=torch.where(took, POWER_STEPS, s.power),
        )
        reward = reward + mode.pill * took
        if mode.clears == "pills":
            s = self._begin_level(s, took & (s.pills == GONE).all(1), clear_u)
        return s, reward

    def _move_ghosts(
        self, s: MiniPacmanState, move_u: Tensor, stray_u: Tensor, passed: Tensor
    ) -> tuple[MiniPacmanState, Tensor, Tensor]:
        """-> (state, whether a ghost was eaten [B], how often Pacman died [B]).

        The original goes through the ghosts in order and stops after eating one. Nothing else that happens to
        a ghost matters to the next, so all are moved at once, and those after an eaten one are put back.
        `passed` [B] is the cell Pacman crossed in a double step ("paper" dynamics), else where he is.
        """
        cell, heading = s.ghosts, s.heading  # [B, G]
        pacman, powered = s.pacman[:, None], (s.power > 0)[:, None]  # [B, 1]

        turn = look_up(self._turn, ((powered * N + cell) * N + pacman) * 6 + heading).long()  # [B, G]
        options = look_up(self._options, cell * 6 + heading)  # [B, G]: how many, and each, in 3 bits apiece
        choice = pick(stray_u / STRAY, options & 7)
        strays = (stray_u < STRAY) & ~powered & (cell != pacman)
        turn = torch.where(strays, (options >> 3 * (choice + 1)) & 7, turn)
        target = look_up(self._ghost_next, cell * 6 + turn)

        met = cell == pacman  # Pacman walked into it
        if self.dynamics == "notebook":
            speed = (s.level[:, None] + 4) / 10  # 0.5, 0.6, ... of the steps
            moves = move_u < torch.where(powered, 0.5 * speed, speed)
        else:
            met = met | (cell == passed[:, None])  # or, on the first half of a double step, through it
            moves = cell != GONE
        caught = moves & (target == pacman)  # it walked into Pacman

        contact = met | caught
        earlier = contact.cumsum(1) - contact.long()  # [B, G]: contacts with the ghosts before this one
        reached = ~powered | (earlier == 0)
        eaten = powered & reached & contact
        moves = moves & reached
        deaths = (~powered * (met.long() + caught)).sum(1)
        s = dataclasses.replace(
            s,
            ghosts=torch.where(moves, target, cell).masked_fill(eaten, GONE),
            heading=torch.where(moves, turn, heading),
        )
        return s, eaten.any(1), deaths


_FIELDS = dataclasses.fields(MiniPacmanState)
