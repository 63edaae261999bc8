"""A BoxWorld level beside the graph it was made from (appendix A.3): boxes as nodes, keys as edges."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from relational_rnn.analysis.figures import new_figure, styled
from relational_rnn.environments import rendering
from relational_rnn.environments.box_world import BoxWorld
from relational_rnn.environments.box_world_levels import DECOY, GEM, KEY, LOCK, NUM_COLOURS

INK = "#26282f"
APART = 1.5  # boxes that follow each other


@dataclass(frozen=True)
class Box:
    lock: int | None
    """Colour of the lock; None is the loose key."""
    key: int | None
    """Colour of the key inside; None is the gem."""
    distractor: bool


def boxes(room: list[int]) -> list[Box]:
    """What a room holds, from the codes of its cells: the loose key, then the boxes."""
    found = []
    for cell, code in enumerate(room):
        if code == GEM or KEY <= code < LOCK:
            behind = room[cell + 1]
            lock = (behind - LOCK) % NUM_COLOURS if behind >= LOCK else None
            found.append(Box(lock, None if code == GEM else code - KEY, behind >= DECOY))
    return sorted(found, key=lambda box: box.lock is not None)


def solution(found: list[Box]) -> list[Box]:
    """The chain from the loose key to the gem."""
    chain = [next(box for box in found if box.lock is None)]
    while chain[-1].key is not None:
        chain.append(next(box for box in found if box.lock == chain[-1].key and not box.distractor))
    return chain


def layout(found: list[Box]) -> dict[int, tuple[float, float]]:
    """A place for every box, by its index: the solution on a line, each branch in a row of its own below.

    Branches further right have the upper rows, so that no line to a lower row runs through a box.
    """
    chain = solution(found)
    places = {found.index(box): (APART * x, 0.0) for x, box in enumerate(chain)}
    waiting = [index for index, box in enumerate(found) if box.distractor]
    starts = {index: parent(found, index, places) for index in waiting}
    roots = [index for index in waiting if starts[index] is not None]
    for row, index in enumerate(sorted(roots, key=lambda i: -places[starts[i]][0]), 1):
        x, _ = places[starts[index]]
        places[index] = (x + APART, -float(row))
    waiting = [index for index in waiting if index not in places]
    while waiting:  # the rest of longer branches, beside what they follow
        index = next((i for i in waiting if parent(found, i, places) is not None), None)
        if index is None:  # starts nowhere: not drawn
            break
        waiting.remove(index)
        x, y = places[parent(found, index, places)]
        places[index] = (x + APART, y)
    return places


def parent(found: list[Box], index: int, placed) -> int | None:
    """The placed box whose key opens this one: on the way to the gem if there is one, else on a branch."""
    fitting = [
        i for i in placed if found[i].key is not None and found[i].key == found[index].lock and i != index
    ]
    return min(fitting, key=lambda i: found[i].distractor, default=None)


@styled
def level_and_graph(seed: int, *, length: int = 5, branches: int = 4, view: str = "viewport") -> Figure:
    """One level of that many boxes and distractor branches: as it is seen, and its graph."""
    env = BoxWorld(solution_lengths=(length,), num_forward=(branches,), view=view)
    generator = torch.Generator().manual_seed(seed)
    state = env.reset(1, generator)
    room = state.room[0].tolist()
    picture = rendering.box_world(env, state, 0, 40)[: 40 * env.side]  # without the strip of score and key
    colours = env._palette.T.tolist()

    figure, axes = new_figure(2, width=4.4, height=4.0)
    left, right = axes[0]
    left.imshow(picture)
    left.set_title("the level; what the agent sees is bright")
    left.set_axis_off()
    _draw_graph(right, boxes(room), colours)
    distractors = sum(box.distractor for box in boxes(room))
    right.set_title(
        f"its graph: {len(solution(boxes(room))) - 1} boxes to the gem, {distractors} distractors"
    )
    return figure


def _draw_graph(axes: Axes, found: list[Box], colours: list[list[float]]) -> None:
    places = layout(found)
    last = APART * (len(solution(found)) - 1)
    for index, (x, y) in places.items():
        box = found[index]
        if box.lock is not None:
            from_x, from_y = places[parent(found, index, places)]
            style = dict(arrowstyle="-|>", color="#8c8c8c" if box.distractor else INK, linewidth=1.2)
            style |= dict(shrinkA=0, shrinkB=1, mutation_scale=8)
            start = (from_x + 0.36, from_y)
            if from_y != y:
                start = (from_x, from_y - 0.2)
                style["connectionstyle"] = "angle,angleA=90,angleB=0,rad=4"
            axes.annotate("", (x - 0.36, y), start, arrowprops=style)
        _draw_box(axes, x, y, box, colours)
    deepest = min(y for _, y in places.values())
    axes.set(xlim=(-0.6, max(last, *(x for x, _ in places.values())) + 0.6), ylim=(deepest - 0.8, 0.9))
    axes.set_aspect("equal")
    axes.set_axis_off()
    small = dict(fontsize=8, ha="center")
    axes.text(0, 0.5, "loose key", **small)
    axes.text(last - 0.17, 0.5, "gem", **small)
    axes.text(-0.5, deepest - 0.65, "left: the key inside; right: the lock", fontsize=8, color="#666666")


def _draw_box(axes: Axes, x: float, y: float, box: Box, colours: list[list[float]]) -> None:
    """As in the level: the key left, the lock right; the loose key alone, the gem white."""
    inside = (1.0, 1.0, 1.0) if box.key is None else colours[KEY + box.key]
    line = dict(edgecolor=INK, linewidth=1.0)
    if box.lock is None:
        axes.add_patch(Circle((x, y), 0.26, facecolor=inside, zorder=3, **line))
        return
    for left, colour in ((x - 0.34, inside), (x, colours[LOCK + box.lock])):
        axes.add_patch(Rectangle((left, y - 0.17), 0.34, 0.34, facecolor=colour, zorder=3, **line))
    if box.key is None:
        axes.plot(x - 0.17, y, marker="D", color="#56b4e9", markersize=5, zorder=4)
