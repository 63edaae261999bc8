"""Mini Pacman once more, slow and plain: one game, lists and coordinates, in the order of the rules.

Only how a uniform number becomes a choice is agreed with the batched game (`choose`, and which column is for
what); everything else is written down separately.
"""

from __future__ import annotations

import numpy as np

ROWS = """
###################
#...#.........#...#
#.#.#.#######.#.#.#
#.................#
#.#.#.#######.#.#.#
#.#.............#.#
#.####.#####.####.#
#......#####......#
#.####.#####.####.#
#.#.............#.#
#.#.#.#######.#.#.#
#.................#
#.#.#.#######.#.#.#
#...#.........#...#
###################
""".strip().splitlines()
FREE = [(r, c) for r in range(15) for c in range(19) if ROWS[r][c] == "."]
STEP = {"stay": (0, 0), "right": (0, 1), "up": (-1, 0), "left": (0, -1), "down": (1, 0)}
ACTIONS = ["stay", "right", "up", "left", "down"]
REVERSE = {"right": "left", "up": "down", "left": "right", "down": "up"}
#            step  food  pill ghost death
REWARDS = {
    "regular": (0, 1, 2, 5, 0),
    "avoid": (0.1, -0.1, -5, -10, -20),
    "hunt": (0, 0, 1, 10, -20),
    "ambush": (0, -0.1, 0, 10, -20),
    "rush": (0, -0.1, 10, 0, 0),
}


def choose(u, count: int) -> int:
    return min(int(np.float32(u) * np.float32(count)), count - 1)


def walk(cell, direction):
    """The next cell; a wall leaves it as it is."""
    r, c = cell[0] + STEP[direction][0], cell[1] + STEP[direction][1]
    return (r, c) if ROWS[r][c] == "." else cell


class Ghost:
    def __init__(self, slot, cell, code):
        self.slot, self.cell = slot, cell
        # Direction codes are 2..5 for right, up, left, down; a new ghost has one of 0..3.
        self.code = code

    @property
    def direction(self):
        return {2: "right", 3: "up", 4: "left", 5: "down"}.get(self.code)

    @property
    def reverse(self):
        # For the codes 0 and 1, the original's table indexed by code - 2 wraps around to its last entries.
        return REVERSE[self.direction] if self.direction else {0: "right", 1: "up"}[self.code]

    def turn(self, game, u):
        exits = [d for d in ACTIONS[1:] if walk(self.cell, d) != self.cell]
        direction = self.direction
        if len(exits) == 1:
            direction = exits[0]
        elif len(exits) == 2:
            if direction not in exits:
                direction = exits[1] if self.reverse == exits[0] else exits[0]
        else:
            if self.reverse in exits:
                exits.remove(self.reverse)
            dr, dc = game.pacman[0] - self.cell[0], game.pacman[1] - self.cell[1]
            if (dr, dc) != (0, 0):
                towards = [dr * STEP[d][0] + dc * STEP[d][1] for d in exits]
                if game.power > 0:
                    direction = exits[towards.index(min(towards))]
                elif u < np.float32(0.05):
                    direction = exits[choose(np.float32(u) / np.float32(0.05), len(exits))]
                else:
                    direction = exits[towards.index(max(towards))]
            elif direction is None:  # keeps a code that is no direction: 0 walks down, 1 stays
                self.cell = walk(self.cell, "down" if self.code == 0 else "stay")
                return
        self.code = {"right": 2, "up": 3, "left": 4, "down": 5}[direction]
        self.cell = walk(self.cell, direction)


class Game:
    def __init__(self, mode, dynamics="notebook", frame_cap=3000, max_ghosts=12):
        self.mode, self.paper, self.frame_cap, self.slots = mode, dynamics == "paper", frame_cap, max_ghosts
        self.r_step, self.r_food, self.r_pill, self.r_ghost, self.r_death = REWARDS[mode]
        self.limit = {"avoid": 128}.get(mode)
        if self.paper:
            self.limit = {"avoid": 128, "hunt": 80, "ambush": 80}.get(mode)
            self.r_pill = 9.9 if mode == "rush" else self.r_pill
        self.frames = 0

    def load(self, state, i):
        """Take over game i of a batched state."""
        numbers = {name: getattr(state, name)[i].tolist() for name in vars(state)}
        cell = lambda number: divmod(number, 19)  # noqa: E731
        self.pacman = cell(numbers["pacman"])
        self.food = {cell(n) for n, there in enumerate(numbers["food"]) if there}
        self.pills = [cell(p) for p in numbers["pills"] if p > 0]
        ghosts = enumerate(zip(numbers["ghosts"], numbers["heading"], strict=True))
        self.ghosts = [Ghost(slot, cell(p), code) for slot, (p, code) in ghosts if p > 0]
        self.power, self.level, self.timer = numbers["power"], numbers["level"], numbers["timer"]
        self.frames = numbers["steps"]
        return self

    def new_level(self, level, u):
        self.level, self.timer, self.power = level, 0, 0
        self.food = set(FREE)
        self.pills = [FREE[choose(u[0], 138)], FREE[choose(u[1], 138)]]
        self.pacman = FREE[choose(u[2], 138)]
        r0, c0 = self.pacman
        far = [(r, c) for r, c in FREE if not (r0 - 5 <= r < r0 + 5 and c0 - 5 <= c < c0 + 5)]
        self.ghosts = []
        for k in range(min(1 + (level - 1) // 2, self.slots)):
            cell, code = divmod(choose(u[3 + k], 4 * len(far)), 4)
            self.ghosts.append(Ghost(k, far[cell], code))

    def eat(self, clear_u):
        if self.pacman in self.food:
            self.reward += self.r_food
            self.food.remove(self.pacman)
            if not self.food and self.mode in ("regular", "avoid"):
                self.new_level(self.level + 1, clear_u)
        if self.pacman in self.pills:
            self.pills.remove(self.pacman)
            self.reward += self.r_pill
            self.power = 20
            if not self.pills and self.mode == "rush":
                self.new_level(self.level + 1, clear_u)

    def contact(self, ghost, clear_u):
        """-> whether the turn of the ghosts is over."""
        if self.power == 0:
            self.reward += self.r_death
            self.dead = True
            return False
        self.ghosts.remove(ghost)
        self.reward += self.r_ghost
        if not self.ghosts and self.mode in ("hunt", "ambush"):
            self.new_level(self.level + 1, clear_u)
        return True

    def step(self, action, u):
        """-> (reward, terminated, truncated)."""
        g = self.slots
        move_u, stray_u, clear_u, timer_u = u[:g], u[g : 2 * g], u[3 * g + 3 : 4 * g + 6], u[4 * g + 6 :]
        if self.limit and self.timer == self.limit:  # at the end of the last step, after its frame was drawn
            self.new_level(self.level + 1, timer_u)
        self.frames += 1
        self.timer += 1
        self.reward, self.dead = self.r_step, False
        self.power = max(0, self.power - 1)

        powered, level = self.power > 0, self.level
        self.pacman = walk(self.pacman, ACTIONS[action])
        self.eat(clear_u)
        passed = None
        if self.paper and powered and self.level == level:
            passed = self.pacman
            self.pacman = walk(self.pacman, ACTIONS[action])
            self.eat(clear_u)
            passed = passed if self.level == level else None

        for ghost in list(self.ghosts):
            if ghost.cell in (self.pacman, passed) and self.contact(ghost, clear_u):
                break
            speed = np.float32((self.level + 4) / 10) * (0.5 if self.power else 1)
            if self.paper or move_u[ghost.slot] < speed:
                ghost.turn(self, stray_u[ghost.slot])
                if ghost.cell == self.pacman and self.contact(ghost, clear_u):
                    break
        capped = self.frame_cap > 0 and self.frames >= self.frame_cap
        return self.reward, self.dead, capped and not self.dead

    def picture(self):
        """15 x 19 x 3; what is drawn later hides what is below."""
        image = np.array([[[x == "#"] * 3 for x in row] for row in ROWS], dtype=np.float32)
        layers = [
            (self.food, (0, 0, 1)),
            (self.pills, (0, 1, 1)),
            ([ghost.cell for ghost in self.ghosts], (1, self.power / 20, 0)),
            ([self.pacman], (0, 1, 0)),
        ]
        for cells, colour in layers:
            for cell in cells:
                image[cell] = colour
        return image

    def window(self):
        """5 x 5 x 3 around Pacman; walls outside."""
        padded = np.pad(self.picture(), ((2, 2), (2, 2), (0, 0)), constant_values=1)
        r, c = self.pacman
        return padded[r : r + 5, c : c + 5]
