"""How a program is calculated on paper: what is written down at the end of each of its levels.

Numbers are written from the last digit on, with leading zeros, and of several numbers the last digits of all,
those before them, and so on. Each digit then follows from the ones just read and from at most one that has to
be remembered. It matters: the digit of a sum of two remembered ones looks random until both are, and models
stayed for tens of thousands of updates where they knew neither (results/LOG.md).

    a+b, a-b         by place: a, b, the value
    aifb>celsed      whether the last digit of b is less than that of c (0), equal to it (1) or greater (2),
                     the same of the last two digits, and so on; 1 if the comparison holds, else 0; the value
    x=afor[k]x+=b    k; by place: b, k b, a, the value
    a*b              for every digit of b, the last one first: this digit; by place: it times a, and (from the
                     second on) this plus the line before without its last digit; then the value, which is
                     made of the last digits of these lines

    24*13            3   3 times 24: 270   1   1 times 24, and 7 + 24: 4 1 2 3   the value: 213

A line of a product has one digit less than the one before it: more would not be in the value, which is modulo
10^(length + 1). What is written where follows from the program's text alone.

Shapes: S input steps, S' those with the calculation, B batch, N levels, D digits that a level has at most.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.tasks.learning_to_execute import OPERATIONS, LearningToExecute, Steps, characters
from relational_rnn.tasks.lte_text import IDS, PAD, ZERO

CLOSE = IDS[")"]
WAYS = ("value", "comparison", "loop", "product")
BY_SIGN = {"<": 1, ">": 1, "[": 2, "*": 3}  # a level with none of these signs is a sum or a difference


class Text(NamedTuple):
    """A program and, behind each level, a step without input and then the digits of its calculation; behind
    its length there is no input."""

    ids: Tensor  # [S', B], without the digits
    blank: Tensor  # [S', B], where there is no input
    writes: Tensor  # [S', B], where a digit is to be written, to be read at the next step
    level: Tensor  # [S', B], of that digit
    place: Tensor  # [S', B], of that digit, the first is 0
    ways: Tensor  # [B, N], how levels are calculated, as numbers of WAYS
    lengths: Tensor  # [B]

    @property
    def reads(self) -> Tensor:
        """[S', B], where a digit is read."""
        return F.pad(self.writes, (0, 0, 1, 0))[:-1]


class Calculation:
    """Of the programs of a task."""

    def __init__(self, task: LearningToExecute):
        self.levels, self.width = task.nest, task.length + 1
        used = sorted(set(task.choices))
        symbols = {operation: OPERATIONS[operation].replace("for", "[") for operation in used}
        ways = {operation: BY_SIGN.get(symbol, 0) for operation, symbol in symbols.items()}
        # Digits of each line of a product: none is written where there are no products, to save steps.
        self.lines = range(self.width, 1, -1) if WAYS.index("product") in ways.values() else range(0)
        widths = 2 * sum(self.lines) + len(self.lines)
        self.counts = (3 * self.width, 2 * self.width, 1 + 4 * self.width, widths)
        self.longest = max(
            len(characters(operations, task.length, task.length, task.nest))
            + sum(1 + self.counts[ways[operation]] for operation in operations)
            for operations in product(used, repeat=task.nest)
        )

    def text(self, inputs: Tensor, lengths: Tensor) -> Text:
        """Of programs [S, B] and their lengths [B]; S' = `longest`."""
        device, samples = inputs.device, torch.arange(inputs.shape[1], device=inputs.device)
        inputs = until(inputs, lengths)
        number = torch.arange(self.levels, device=device)
        closed = (inputs == CLOSE).cumsum(0)[..., None]  # [S, B, 1]
        ways = torch.zeros(len(lengths), self.levels, dtype=torch.long, device=device)
        for sign, way in BY_SIGN.items():
            here = (inputs == IDS[sign])[..., None] & (closed == number)  # [S, B, N]
            ways = ways.masked_fill(here.any(0), way)
        counts = torch.zeros_like(ways)
        for way, count in enumerate(self.counts):
            counts = counts.masked_fill(ways == way, count)
        there = number <= closed[-1]
        widths = (counts + 1) * there
        # A level ends behind its bracket, the last one with the program.
        ends = torch.where(number < closed[-1], (closed <= number).sum(0) + 1, lengths[:, None])
        begins = ends + widths.cumsum(1) - widths

        step = torch.arange(self.longest, device=device)[:, None]  # [S', 1]
        behind = (step[..., None] >= begins) & there  # [S', B, N]
        level = (behind.sum(-1) - 1).clamp(min=0)  # [S', B]: the last that has begun
        since = step - begins[samples, level]
        inside = behind.any(-1) & (since < widths[samples, level])
        whole = lengths + widths.sum(1)
        return Text(
            ids=inputs.gather(0, (step - (behind * widths).sum(-1)).clamp(0, len(inputs) - 1)),
            blank=(inside & (since == 0)) | (step >= whole),
            writes=inside & (since < counts[samples, level]),
            level=level,
            place=since.clamp(0, max(self.counts) - 1),
            ways=ways,
            lengths=whole,
        )

    def symbols(self, steps: Steps, text: Text) -> Tensor:
        """Of the digits to be written, where they are: [S', B]."""
        digits = self.digits(steps)
        samples = torch.arange(digits.shape[1], device=digits.device)
        return ZERO + digits[text.ways[samples, text.level], samples, text.level, text.place]

    def digits(self, steps: Steps) -> Tensor:
        """What would be written in each of the WAYS: [4, B, N, D], 0 behind its own."""
        a, b, k, value = steps.a, steps.b, steps.k, steps.value
        ends = self._powers(value)[1:]
        compared = 1 + (b[..., None].remainder(ends) - steps.c[..., None].remainder(ends)).sign()
        ways = (
            [self._by_place(a, b, value)],
            [compared, steps.holds.long()[..., None], self._by_place(value)],
            [k[..., None], self._by_place(b, k * b, a, value)],
            [*(self._product(steps) if self.lines else []), self._by_place(value)],
        )
        most = max(self.counts)
        ways = [torch.cat(way, -1) for way in ways]
        return torch.stack([F.pad(way, (0, most - way.shape[-1])) for way in ways])

    def _product(self, steps: Steps) -> list[Tensor]:
        """The lines of a product, [B, N, .] each."""
        a, b = steps.a[..., None], steps.b[..., None]
        powers, ends = self._powers(b)[:-1], self._powers(b)[1:]
        digits = (b // powers).remainder(10)  # [B, N, lines]
        line = b.remainder(ends) * a // powers  # what has been added up, without its last digits
        modulus = (steps.modulus[:, None, None] // powers).clamp(min=1)
        rows = torch.stack([digits * a, line], -1).remainder(modulus[..., None])
        rows = (rows[..., None, :] // self._powers(b)[:, None]).remainder(10)  # [B, N, lines, width, 2]
        lines = []
        for place, width in enumerate(self.lines):  # to the first line nothing is added
            row = rows[..., place, :width, :] if place else rows[..., place, :width, :1]
            lines += [digits[..., place : place + 1], row.flatten(-2)]
        return lines

    def _by_place(self, *numbers: Tensor) -> Tensor:
        """[B, N] each -> the last digit of every number, those before them, and so on, as many as `width`."""
        digits = torch.stack(numbers, -1)[..., None, :] // self._powers(numbers[0])[:, None]
        return digits.remainder(10).flatten(-2)

    def _powers(self, like: Tensor) -> Tensor:
        """1, 10, 100, ..."""
        return 10 ** torch.arange(self.width, device=like.device)


def until(inputs: Tensor, lengths: Tensor) -> Tensor:
    """Programs without what stands behind their lengths."""
    return inputs.masked_fill(torch.arange(len(inputs), device=inputs.device)[:, None] >= lengths, PAD)
