"""BoxWorld once more, slow and plain: the rules for one game, a solver, and the generator with its retries.

A level is a dictionary from cells (row, column) to ("key", colour), ("lock", colour, "way" or "branch") or
("gem",).
"""

from __future__ import annotations

import random
from collections import deque

MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]  # up, down, left, right


def read(room, side=14):
    """The things in a batched game's room (a list of codes), by what docs and colours say about the codes."""
    things = {}
    for number, code in enumerate(room):
        cell = divmod(number, side)
        border = 0 in cell or side - 1 in cell
        assert (code == 1) == border
        if code == 2:
            things[cell] = ("gem",)
        elif 3 <= code < 23:
            things[cell] = ("key", code - 3)
        elif 23 <= code < 43:
            things[cell] = ("lock", code - 23, "way")
        elif 43 <= code < 63:
            things[cell] = ("lock", code - 43, "branch")
    return things


class Game:
    def __init__(self, things, agent, side=14, max_steps=120):
        self.things, self.agent, self.side, self.max_steps = dict(things), agent, side, max_steps
        self.held, self.steps = None, 0

    def step(self, action):
        """-> (reward, terminated, truncated)."""
        self.steps += 1
        r, c = self.agent[0] + MOVES[action][0], self.agent[1] + MOVES[action][1]
        reward, over = 0, False
        if 1 <= r <= self.side - 2 and 1 <= c <= self.side - 2:
            thing = self.things.get((r, c))
            locked = self.things.get((r, c + 1), ("",))[0] == "lock"
            if thing is None:
                self.agent = (r, c)
            elif thing[0] == "lock":
                if self.held == thing[1]:
                    self.agent, self.held = (r, c), None
                    del self.things[r, c]
                    over = thing[2] == "branch"
                    reward = -1 if over else 1
            elif not locked:
                self.agent = (r, c)
                del self.things[r, c]
                if thing[0] == "gem":
                    reward, over = 10, True
                else:
                    self.held = thing[1]
        return reward, over, self.steps >= self.max_steps and not over

    def route(self, goal):
        """The actions of a shortest walk over empty cells that ends on `goal`, or None."""
        queue, seen = deque([(self.agent, [])]), {self.agent}
        while queue:
            (r, c), path = queue.popleft()
            for action, (dr, dc) in enumerate(MOVES):
                cell = (r + dr, c + dc)
                if cell == goal:
                    return [*path, action]
                inside = all(1 <= x <= self.side - 2 for x in cell)
                if inside and cell not in seen and cell not in self.things:
                    seen.add(cell)
                    queue.append((cell, [*path, action]))
        return None


def boxes(things):
    """-> (the loose keys {cell: colour}, the boxes [(cell of the content, lock's colour, content)])."""
    closed = [
        (cell, things[cell[0], cell[1] + 1][1], thing)
        for cell, thing in things.items()
        if is_boxed(things, cell)
    ]
    loose = {cell: t[1] for cell, t in things.items() if t[0] == "key" and not is_boxed(things, cell)}
    return loose, closed


def is_boxed(things, cell):
    return things[cell][0] != "lock" and things.get((cell[0], cell[1] + 1), ("",))[0] == "lock"


def solve(things, agent, side=14):
    """The actions that win, found from colours alone (not from which locks are branches), or None.

    Depth first over which box of the held colour to open; a box is worth trying only if what it holds can
    still lead to the gem.
    """
    loose, closed = boxes(things)
    (start, colour), *others = loose.items()
    assert not others

    def chain(colour, used):
        for cell, lock, content in closed:
            if lock != colour or cell in used:
                continue
            if content[0] == "gem":
                return [cell]
            rest = chain(content[1], used | {cell})
            if rest is not None:
                return [cell, *rest]
        return None

    order = chain(colour, frozenset())
    if order is None:
        return None
    game, actions = Game(things, agent, side, max_steps=10**6), []
    goals = [start] + [goal for cell in order for goal in ((cell[0], cell[1] + 1), cell)]
    for goal in goals:
        path = game.route(goal)
        if path is None:
            return None
        for action in path:
            game.step(action)
        actions += path
    return actions


def generate(rng: random.Random, length, forward, branch_length=1, size=12):
    """One attempt of the original generator -> (things, agent), or None when more than 200 tries failed."""
    locks, keys = list(range(length + 1)), [*range(1, length + 1), "gem"]
    for _ in range(forward):
        lock = rng.randint(1, length)
        for _ in range(branch_length):
            key = lock
            while key == lock:
                key = rng.randint(length + 1, 19)
            locks.append(lock)
            keys.append(key)
            lock = key
    colours = list(range(20))
    rng.shuffle(colours)
    things, failed = {}, 0
    free = lambda r, c: 1 <= r <= size and 1 <= c <= size and (r, c) not in things  # noqa: E731
    for i, (lock, key) in enumerate(zip(locks, keys, strict=True)):
        while True:
            if failed > 200:
                return None
            x, y = rng.randint(1, size - 3), rng.randint(2, size - 1)
            if all(free(r, c) for r in range(y - 1, y + 2) for c in range(x - 1, x + 3)):
                break
            failed += 1
        things[y, x] = ("gem",) if key == "gem" else ("key", colours[key - 1])
        if lock:
            things[y, x + 1] = ("lock", colours[lock - 1], "way" if i <= length else "branch")
    while True:
        if failed > 200:
            return None
        x, y = rng.randint(1, size - 1), rng.randint(2, size - 1)
        if (y, x) not in things:
            return things, (y, x)
        failed += 1
