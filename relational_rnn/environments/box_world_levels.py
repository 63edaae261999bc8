"""Levels of BoxWorld (section A.3): DeepMind's generator, for thousands of levels at once.

Shapes: n levels, S slots (the loose key, the boxes of the solution, those of the branches; some stay empty),
P places a box may stand, C = side * side cells of the room, side = grid_size + 2.
A cell is a number, row * side + column.

The original places item after item by trying random places until one is free, and gives up on a level after
200 failed tries. Drawing a place among the free ones, and the number of failed tries from the geometric
distribution it has, is the same process without a loop of unknown length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relational_rnn.environments.base import look_up, pick, whole, whole_numbers

NUM_COLOURS = 20
# What a cell holds. A key of colour c is KEY + c; its locks are LOCK + c on the way to the gem and DECOY + c
# on a distractor branch (the two look the same).
BACKGROUND, BORDER, GEM, KEY = 0, 1, 2, 3
LOCK = KEY + NUM_COLOURS
DECOY = LOCK + NUM_COLOURS

MAX_FAILED_TRIES = 200
LARGEST_ROOM = 50  # the table of which places exclude which has about grid_size^4 entries


@dataclass
class Levels:
    room: Tensor  # [n, C] uint8
    agent: Tensor  # [n] cell
    accepted: Tensor  # [n] bool: whether the original would have found a place for everything


class LevelGenerator:
    """Samples levels: a chain of boxes from a loose key to the gem, and branches that lead nowhere.

    `harder` (1): a level has of `solution_lengths`, and of `num_forward`, the last one of so many drawn.
    """

    def __init__(
        self,
        grid_size: int = 12,
        solution_lengths: Sequence[int] = (1, 2, 3, 4, 5),
        num_forward: Sequence[int] = (0, 1, 2, 3, 4, 5),
        num_backward: Sequence[int] = (0,),
        branch_length: int = 1,
        device: torch.device | str = "cpu",
    ):
        grid_size, branch_length = whole("grid_size", grid_size), whole("branch_length", branch_length)
        solution_lengths = whole_numbers("solution_lengths", solution_lengths)
        num_forward = whole_numbers("num_forward", num_forward)
        num_backward = whole_numbers("num_backward", num_backward)
        # Ids 1..19 are drawn; a chain of distractors needs two that are not on the way to the gem.
        longest = NUM_COLOURS - 2 - (branch_length > 1)
        if not solution_lengths or not all(1 <= length <= longest for length in solution_lengths):
            raise ValueError(f"solution_lengths is {solution_lengths}; allowed: each from 1 to {longest}")
        for name, counts in (("num_forward", num_forward), ("num_backward", num_backward)):
            if not counts or min(counts) < 0:
                raise ValueError(f"{name} is {counts}; allowed: counts from 0")
        if branch_length < 1:
            raise ValueError(f"branch_length is {branch_length}; allowed: from 1")
        if not 5 <= grid_size <= LARGEST_ROOM:
            raise ValueError(
                f"grid_size is {grid_size}; allowed: whole numbers from 5, which a box and its surroundings "
                f"need, to {LARGEST_ROOM}"
            )
        self.grid_size, self.side, self.branch_length = grid_size, grid_size + 2, branch_length
        self.harder = 1.0
        self.device = torch.device(device)
        self.longest, self.most_forward, self.most_backward = (
            max(counts) for counts in (solution_lengths, num_forward, num_backward)
        )
        self.slots = 1 + self.longest + self.most_forward * branch_length + self.most_backward
        places = (grid_size - 4) * (grid_size - 2)
        if self.slots > places:
            raise ValueError(
                f"grid_size is {grid_size}, with {places} places for a key and boxes, and these are up to "
                f"{self.slots}: use a larger room or fewer boxes"
            )
        branches = self.most_forward * (1 + branch_length) + 2 * self.most_backward
        self._split = [3, NUM_COLOURS, branches, self.slots, self.slots + 1, 1]  # uniform numbers of a level
        tensor = lambda values: torch.tensor(list(values), device=self.device)  # noqa: E731
        self._choices = tensor(solution_lengths), tensor(num_forward), tensor(num_backward)
        self._offered = tuple(torch.tensor(choices.numel(), device=self.device) for choices in self._choices)
        self._slot = torch.arange(self.longest + 1, device=self.device)

        # The original draws x from 1..grid_size-3 and y from 2..grid_size-1; the 3 x 4 cells around key and
        # lock must be background, which rules out x = 1.
        n = grid_size
        self.tries_per_box, self.tries_per_agent = (n - 3) * (n - 2), (n - 1) * (n - 2)
        y, x = torch.arange(2, n).repeat_interleave(n - 4), torch.arange(2, n - 2).repeat(n - 2)  # [P]
        self._place = (y * self.side + x).to(self.device)
        near = (y[:, None] - y).abs() <= 1  # [P, P]: an item at the first, a box considered at the second
        apart = x - x[:, None]
        stays_free = [~(near & (apart >= -2) & (apart <= reach)) for reach in (1, 2)]  # a loose key, a box
        nothing = torch.ones(1, len(x), dtype=torch.bool)  # the last row: an empty slot takes no room
        self._stays_free = [torch.cat((table, nothing)).to(self.device) for table in stays_free]

        room = torch.full((self.side, self.side), BORDER, dtype=torch.uint8)
        room[1:-1, 1:-1] = BACKGROUND
        self._empty_room = room.flatten().to(self.device)

    def offer(self, lengths: int, forward: int) -> None:
        """Draw from the first so many of `solution_lengths` and of `num_forward` only, from now on.

        The numbers are read on the device: a CUDA graph captured before draws by the new ones too.
        """
        named = ("solution_lengths", lengths), ("num_forward", forward)
        for (name, count), choices, offered in zip(named, self._choices, self._offered, strict=False):
            if not 1 <= count <= choices.numel():
                raise ValueError(f"{count} of {name} cannot be offered; allowed: 1 to {choices.numel()}")
            offered.fill_(count)

    def sample(self, n: int, generator: torch.Generator) -> Levels:
        """n levels; those not `accepted` are to be thrown away, as the original starts over with them."""
        return self.levels_given(self.chance(n, generator))

    def chance(self, n: int, generator: torch.Generator) -> Tensor:
        """The uniform numbers behind n levels, [n, any]."""
        return torch.rand(n, sum(self._split), generator=generator, device=self.device)

    def levels_given(self, uniform: Tensor) -> Levels:
        """`sample` as a pure function of `chance`."""
        n = uniform.shape[0]
        counts_u, shuffle_u, branch_u, place_u, tries_u, agent_u = uniform.split(self._split, 1)

        lock, content, present = self._problem(counts_u, branch_u)  # [n, S] each
        places, chances = self._place_items(present, place_u)  # [n, S] each

        # Ids become colours by a fresh shuffle in every level.
        colour = shuffle_u.argsort(1)  # [n, 20]
        key = torch.where(content == 0, GEM, KEY + colour.gather(1, (content - 1).clamp(min=0)))
        kind = torch.full_like(lock, DECOY)
        kind[:, : self.longest + 1] = LOCK
        lock_code = kind + colour.gather(1, (lock - 1).clamp(min=0))

        # An empty slot writes border onto cell 0, which is border. The loose key (slot 0) has no lock.
        cell = torch.where(present, look_up(self._place, places), 0)
        cells = torch.cat((cell, torch.where(present, cell + 1, 0)[:, 1:]), 1)
        codes = torch.cat((key, lock_code[:, 1:]), 1).masked_fill(cells == 0, BORDER).to(torch.uint8)
        room = self._empty_room.repeat(n, 1).scatter_(1, cells, codes)  # [n, C]

        size = self.grid_size  # the agent starts on background with x in 1..size-1, y in 2..size-1
        area = room.view(n, self.side, self.side)[:, 2:size, 1:size].flatten(1)
        spot, count = _draw(area == BACKGROUND, agent_u.squeeze(1))
        agent = (2 + spot // (size - 1)) * self.side + 1 + spot % (size - 1)

        chances = torch.cat((chances, (count / self.tries_per_agent)[:, None]), 1)  # [n, S + 1]
        accepted = _failed_tries(tries_u, chances).sum(1) <= MAX_FAILED_TRIES
        return Levels(room, agent, accepted)

    def _problem(self, counts_u: Tensor, branch_u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> lock id, content id (0: the gem) and whether it is used, of each slot, [n, S] each.

        Ids 1..L are the keys on the way: box i has lock i and holds key i + 1. A distractor starts at a
        random one of them, and its keys are of ids L+1..19 (20 is never drawn).
        """
        if self.harder != 1:  # the largest of k uniform numbers is distributed as the k-th root of one
            counts_u = counts_u ** (1 / self.harder)
        length, forward, backward = (
            look_up(choices, pick(counts_u[:, i], offered))[:, None]
            for i, (choices, offered) in enumerate(zip(self._choices, self._offered, strict=True))
        )  # [n, 1] each
        slot = self._slot.expand(counts_u.shape[0], -1)  # [n, longest + 1]
        locks, contents, present = [slot], [torch.where(slot == length, 0, slot + 1)], [slot <= length]

        rest = NUM_COLOURS - 1 - length  # how many ids are not on the way
        column = (branch_u[:, i : i + 1] for i in range(branch_u.shape[1]))
        for branch in range(self.most_forward):
            lock = 1 + pick(next(column), length)
            content = length + 1 + pick(next(column), rest)
            for link in range(self.branch_length):
                if link:
                    # One of the others: the next key of a chain differs from the lock it lies behind.
                    lock, other = content, length + 1 + pick(next(column), rest - 1)
                    content = other + (other >= lock)
                locks.append(lock)
                contents.append(content)
                present.append(forward > branch)
        for branch in range(self.most_backward):
            contents.append(1 + pick(next(column), length))
            locks.append(length + 1 + pick(next(column), rest))
            present.append(backward > branch)
        return torch.cat(locks, 1), torch.cat(contents, 1), torch.cat(present, 1)

    def _place_items(self, present: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """-> the place of each slot, and the chance a single try had (1: nothing to place), [n, S] each."""
        n = present.shape[0]
        free = torch.ones(n, self._place.numel(), dtype=torch.bool, device=self.device)  # [n, P]
        places, chances = [], []
        for i in range(self.slots):
            place, count = _draw(free, uniform[:, i])
            places.append(place)
            chances.append(count / self.tries_per_box)
            taken = torch.where(present[:, i], place, self._place.numel())
            free &= look_up(self._stays_free[min(i, 1)], taken)
        return torch.stack(places, 1), torch.where(present, torch.stack(chances, 1), 1.0)


def _draw(free: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """-> a uniform one of the free places [n, P] (meaningless where none is), and how many there are, [n]."""
    rank = free.cumsum(1, dtype=torch.int32)  # [n, P]
    count = rank[:, -1]
    drawn = pick(uniform, count)[:, None].int()
    # The two are the same; of the first torch.compile makes one kernel with all of this.
    before = (rank <= drawn).sum(1) if free.is_cuda else torch.searchsorted(rank, drawn, right=True)[:, 0]
    return before.clamp(max=free.shape[1] - 1), count


def _failed_tries(uniform: Tensor, chance: Tensor) -> Tensor:
    """How often a try that succeeds with `chance` fails first: P(at least m times) = (1 - chance)^m."""
    failed = (uniform.log() / torch.log1p(-chance)).floor()
    return torch.where(chance == 0, torch.inf, failed)
