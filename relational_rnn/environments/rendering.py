"""Pictures of the games for people to look at.

Everything is drawn four times too large and scaled down, which smooths the edges. Coordinates are in cells.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from relational_rnn.environments.box_world_levels import BORDER, GEM, KEY, LOCK
from relational_rnn.environments.mini_pacman_maze import GONE, MAZE, H, W

SMOOTHING = 4
STRIP = 1.25  # cells below the game: score and the like
NIGHT, INK, PAPER = (12, 14, 38), (38, 40, 48), (236, 236, 232)


class Canvas:
    """An image of `rows` x `columns` cells and a strip below, drawn on in units of cells."""

    def __init__(self, rows: int, columns: int, cell_pixels: int, background):
        if cell_pixels < 4:
            raise ValueError(f"cell_pixels is {cell_pixels}; allowed: from 4")
        self.rows, self.columns, self.cell = rows, columns, cell_pixels
        self.unit = cell_pixels * SMOOTHING
        size = (columns * self.unit, round((rows + STRIP) * self.unit))
        self.image = Image.new("RGB", size, background)
        self.draw = ImageDraw.Draw(self.image)

    def _box(self, row, column, height, width):
        return [round(x * self.unit) for x in (column, row, column + width, row + height)]

    def rectangle(self, row, column, height, width, colour, round_by=0.0, line=None, line_width=0.0):
        self.draw.rounded_rectangle(
            self._box(row, column, height, width),
            round(round_by * self.unit),
            fill=colour,
            outline=line,
            width=round(line_width * self.unit),
        )

    def disc(self, row, column, radius, colour, start=0, end=360):
        """A disc, or the piece of it between two angles, around a point."""
        self.draw.pieslice(
            self._box(row - radius, column - radius, 2 * radius, 2 * radius), start, end, fill=colour
        )

    def polygon(self, points, colour):
        self.draw.polygon([(round(c * self.unit), round(r * self.unit)) for r, c in points], fill=colour)

    def ring(self, row, column, radius, width, colour, start=0, end=360):
        box = self._box(row - radius, column - radius, 2 * radius, 2 * radius)
        self.draw.arc(box, start, end, fill=colour, width=max(1, round(width * self.unit)))

    def text(self, row, column, words, colour, anchor="lm", size=0.62):
        font = ImageFont.load_default(size=size * self.unit)
        self.draw.text((column * self.unit, row * self.unit), words, fill=colour, font=font, anchor=anchor)

    def dim_outside(self, row, column, reach, towards, amount):
        """Fade all but the cells within `reach` of a cell."""
        faded = Image.blend(self.image, Image.new("RGB", self.image.size, towards), amount)
        seen = Image.new("L", self.image.size, 0)
        box = self._box(row - reach, column - reach, 2 * reach + 1, 2 * reach + 1)
        box[3] = min(box[3], self.rows * self.unit)
        ImageDraw.Draw(seen).rectangle([box[0], box[1], box[2] - 1, box[3] - 1], fill=255)
        self.image = Image.composite(self.image, faded, seen)
        self.draw = ImageDraw.Draw(self.image)

    def array(self) -> np.ndarray:
        return np.asarray(self.image.reduce(SMOOTHING))


# -- Mini Pacman ---------------------------------------------------------------------------------------------

WALL, WALL_EDGE, FOOD, PILL = (28, 36, 104), (74, 98, 220), (238, 196, 156), (255, 236, 200)
YELLOW, SCARED, FLASH = (255, 214, 40), (52, 76, 230), (236, 240, 255)
GHOSTS = [(236, 58, 58), (255, 150, 196), (70, 214, 220), (255, 166, 62), (170, 110, 240), (110, 210, 90)]


def mini_pacman(env, state, index: int, cell_pixels: int) -> np.ndarray:
    canvas = Canvas(H, W, cell_pixels, NIGHT)
    wall = lambda r, c: not (0 <= r < H and 0 <= c < W) or MAZE[r][c] == "#"  # noqa: E731
    for r in range(H):
        for c in range(W):
            if wall(r, c):
                canvas.rectangle(r, c, 1, 1, WALL)
    for r in range(H):  # a bright edge where a wall meets the corridor
        for c in range(W):
            if not wall(r, c):
                for dr, dc in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                    if wall(r + dr, c + dc):
                        row, column = r + (0.94 if dr > 0 else 0), c + (0.94 if dc > 0 else 0)
                        canvas.rectangle(row, column, 0.06 if dr else 1, 0.06 if dc else 1, WALL_EDGE)

    power, step = int(state.power[index]), int(state.steps[index])
    for number, there in enumerate(state.food[index].tolist()):
        if there:
            canvas.disc(number // W + 0.5, number % W + 0.5, 0.1, FOOD)
    for number in state.pills[index].tolist():
        if number != GONE:
            canvas.disc(number // W + 0.5, number % W + 0.5, 0.3, PILL)
    flashes = 0 < power <= 6 and power % 2 == 0  # about to wear off
    for slot, number in enumerate(state.ghosts[index].tolist()):
        if number != GONE:
            colour = FLASH if flashes else SCARED if power else GHOSTS[slot % len(GHOSTS)]
            _ghost(canvas, number // W, number % W, colour, bool(power))
    pacman = int(state.pacman[index])
    row, column = divmod(pacman, W)
    mouth = 38 if step % 2 else 14
    canvas.disc(row + 0.5, column + 0.5, 0.44, YELLOW, mouth, 360 - mouth)
    canvas.disc(row + 0.27, column + 0.55, 0.06, NIGHT)
    if env.view == "viewport":
        canvas.dim_outside(row, column, 2, NIGHT, 0.62)

    middle = H + STRIP / 2
    canvas.rectangle(H, 0, STRIP, W, NIGHT)
    canvas.text(middle, 0.4, f"score {state.episode_return[index]:g}", PAPER)
    canvas.text(middle, W / 2, f"level {int(state.level[index])}", PAPER, anchor="mm")
    canvas.text(middle, W - 0.4, f"step {step}", PAPER, anchor="rm")
    if power:
        canvas.rectangle(H + 0.02, 0, 0.12, W * power / 20, YELLOW)
    return canvas.array()


def _ghost(canvas, row, column, colour, scared):
    canvas.disc(row + 0.47, column + 0.5, 0.4, colour)
    canvas.rectangle(row + 0.47, column + 0.1, 0.34, 0.8, colour)
    for k in range(3):  # the hem
        canvas.disc(row + 0.8, column + 0.1 + 0.8 * (k + 0.5) / 3, 0.134, colour)
    for side in (-0.16, 0.16):
        canvas.disc(row + 0.42, column + 0.5 + side, 0.12 if not scared else 0.07, (255, 255, 255))
        if not scared:
            canvas.disc(row + 0.44, column + 0.5 + side, 0.06, (20, 24, 90))


# -- BoxWorld ------------------------------------------------------------------------------------------------

FLOOR, FLOOR_LINE, WALLS = (216, 216, 212), (206, 206, 201), (30, 30, 34)


def box_world(env, state, index: int, cell_pixels: int) -> np.ndarray:
    side = env.side
    canvas = Canvas(side, side, cell_pixels, WALLS)
    canvas.rectangle(1, 1, side - 2, side - 2, FLOOR)
    for k in range(2, side - 1):
        canvas.rectangle(k - 0.02, 1, 0.04, side - 2, FLOOR_LINE)
        canvas.rectangle(1, k - 0.02, side - 2, 0.04, FLOOR_LINE)

    colours = (env._palette.T * 255).round().int().tolist()
    room = state.room[index].tolist()
    for number, code in enumerate(room):
        row, column = divmod(number, side)
        if code > BORDER:
            tile = tuple(colours[code])
            boxed = code < LOCK and room[number + 1] >= LOCK
            if boxed:
                canvas.rectangle(row + 0.02, column + 0.02, 0.96, 1.96, INK, round_by=0.2)
            if code == GEM:
                canvas.rectangle(row + 0.08, column + 0.08, 0.84, 0.84, (255, 255, 255), round_by=0.14)
                _gem(canvas, row, column)
            else:
                canvas.rectangle(row + 0.08, column + 0.08, 0.84, 0.84, tile, round_by=0.14)
                (_key if code < LOCK else _lock)(canvas, row, column)
    agent = int(state.agent[index])
    row, column = divmod(agent, side)
    canvas.disc(row + 0.5, column + 0.5, 0.4, (90, 90, 94))
    for eye in (-0.14, 0.14):
        canvas.disc(row + 0.43, column + 0.5 + eye, 0.075, (255, 255, 255))
    if env.view == "viewport":
        canvas.dim_outside(row, column, 2, WALLS, 0.5)

    middle, held = side + STRIP / 2, int(state.held[index])
    canvas.rectangle(side, 0, STRIP, side, WALLS)
    canvas.text(middle, 0.4, "key", PAPER)
    if held >= KEY:
        canvas.rectangle(middle - 0.42, 1.75, 0.84, 0.84, tuple(colours[held]), round_by=0.14)
        _key(canvas, middle - 0.5, 1.67)
    else:
        canvas.rectangle(
            middle - 0.42, 1.75, 0.84, 0.84, None, round_by=0.14, line=(96, 96, 100), line_width=0.04
        )
    score, step = f"{state.episode_return[index]:g}", f"{int(state.steps[index])}/{env.max_steps}"
    if side >= 12:  # a narrow room has no place for the words
        score, step = f"score {score}", f"step {step}"
    canvas.text(middle, side / 2 + 0.6, score, PAPER, anchor="mm")
    canvas.text(middle, side - 0.4, step, PAPER, anchor="rm")
    return canvas.array()


def _key(canvas, row, column):
    canvas.ring(row + 0.5, column + 0.34, 0.15, 0.075, INK)
    canvas.rectangle(row + 0.463, column + 0.47, 0.075, 0.32, INK)
    for tooth in (0.6, 0.71):
        canvas.rectangle(row + 0.5, column + tooth, 0.17, 0.075, INK)


def _lock(canvas, row, column):
    canvas.ring(row + 0.45, column + 0.5, 0.17, 0.075, INK, 180, 360)
    canvas.rectangle(row + 0.45, column + 0.28, 0.32, 0.44, INK, round_by=0.05)
    canvas.disc(row + 0.61, column + 0.5, 0.06, (250, 250, 250))


def _gem(canvas, row, column):
    left, right, top, waist, tip = column + 0.2, column + 0.8, row + 0.25, row + 0.44, row + 0.8
    a, b, middle = column + 0.36, column + 0.64, column + 0.5
    canvas.polygon([(top, a), (top, b), (waist, right), (tip, middle), (waist, left)], (92, 196, 255))
    canvas.polygon([(waist, a), (waist, b), (tip, middle)], (150, 222, 255))
    canvas.polygon([(top, a), (waist, a), (waist, left)], (190, 236, 255))
    canvas.polygon([(top, b), (waist, b), (waist, right)], (60, 160, 232))
