"""Learning to execute (section 4.1, A.2): read a small program, write its value; or copy, reverse, double.

The generator is Sonnet's (docs/learning-to-execute.md). A program of nest N is built from the inside out: N
times an operation is drawn and its first operand is the program so far, in brackets, or at first a literal;
all other operands are literals of `length` digits:

    a+b  a-b  a*b  aifb>celsed  aifb<celsed  x=afor[k]x+=b      (k in 1..9; the value of the last is a + k b)

So length, nest and operations fix where every character stands, and only digits differ: programs are made
by looking up a template and filling in digits, a whole batch at a time and on any device. The value is taken
modulo 10^(length + 1). Conditions compare literals only, and adding and multiplying may be done modulo at
every level, so 64-bit integers are exact although (10^6)^4 would not fit.

Shapes: B batch, L longest literal, N deepest nest, S input steps, T output steps, Q literals, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.cores.base import require
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_text import IDS, MEMORISATION, PAD, START, TASKS, VOCABULARY, ZERO
from relational_rnn.tasks.lte_thinning import thin

TaskName = Literal["addition", "control", "program", "copy", "reverse", "double"]
OperationName = Literal["sums", "differences", "products", "comparisons", "loops"]

# An operation is one of OPERATIONS by number, 0 where a program is less deep than the deepest. Operations are
# drawn with equal chances, the two comparisons sharing one, hence each of the others twice.
OPERATIONS = ("", "+", "-", "*", ">", "<", "for")
BY_NAME: dict[OperationName, tuple[int, int]] = {
    "sums": (1, 1),
    "differences": (2, 2),
    "products": (3, 3),
    "comparisons": (4, 5),
    "loops": (6, 6),
}
OPERATIONS_OF = {"addition": ("sums",), "control": ("comparisons", "loops"), "program": tuple(BY_NAME)}
MAX_LENGTH, MAX_NEST = 8, 4  # of programs: products must fit 63 bits; templates grow as 6^nest


class Steps(NamedTuple):
    """What a program computes, level by level, the innermost first; where it is less deep, values stay."""

    a: Tensor  # [B, N], the first operand: the value of the level below, or a literal
    b: Tensor  # [B, N], the second one
    c: Tensor  # [B, N], the third, with which a comparison compares it
    k: Tensor  # [B, N], how often a loop runs
    holds: Tensor  # [B, N], whether a comparison does
    value: Tensor  # [B, N]
    modulus: Tensor  # [B]


class Batch(NamedTuple):
    """Ids of the vocabulary, time first, padded with PAD behind each sample's own length."""

    inputs: Tensor  # [S, B]
    targets: Tensor  # [T, B]
    input_lengths: Tensor  # [B]
    target_lengths: Tensor  # [B]
    operations: Tensor | None = None  # [B, N] of a program, the innermost first, as numbers of OPERATIONS
    steps: Steps | None = None  # of a program

    @property
    def mask(self) -> Tensor:
        """[T, B], true where a target is to be predicted; there is no end symbol, the length is given."""
        return torch.arange(len(self.targets), device=self.targets.device)[:, None] < self.target_lengths

    @property
    def decoder_inputs(self) -> Tensor:
        """[T, B]: the start symbol, then the targets one step late: what teacher forcing feeds."""
        start = torch.full_like(self.targets[:1], START)
        return torch.cat([start, self.targets[:-1]])


@dataclass(frozen=True)
class LearningToExecute:
    """One of the six tasks at a maximum length and nest; `batch` draws samples, no loop and no host sync."""

    task: TaskName = "program"
    length: int = 5
    """Digits of the longest literal."""
    nest: int | None = None
    """Deepest nesting of a program: 2 unless given. Memorisation has only 1."""
    also: tuple[OperationName, ...] = ()
    """Operations to draw besides the task's own, each as likely as one of those; of the task's own or named
    again: that much more often. To practise, not to be scored."""
    thinned: float = 0.0
    """Share of samples with digits missing (lte_thinning.py). To practise, not to be scored."""

    def __post_init__(self):
        require(self.task in TASKS, "task", self.task, ", ".join(TASKS))
        if self.nest is None:
            object.__setattr__(self, "nest", 1 if self.memorisation else 2)
        require(_whole(self.length) and self.length >= 1, "length", self.length, "1 or more")
        require(0 <= self.thinned <= 1, "thinned", self.thinned, "0 to 1")
        if self.memorisation:
            valid = _whole(self.nest) and self.nest == 1
            require(valid, "nest", self.nest, f"1, for {self.task} has no programs to nest")
            require(not self.also, "also", self.also, f"none, for {self.task} has no operations")
        else:
            require(self.length <= MAX_LENGTH, "length", self.length, f"1 to {MAX_LENGTH} for programs")
            valid = _whole(self.nest) and 1 <= self.nest <= MAX_NEST
            require(valid, "nest", self.nest, f"1 to {MAX_NEST}")
            for name in self.also:
                require(name in BY_NAME, "also", name, ", ".join(BY_NAME))

    @property
    def choices(self) -> tuple[int, ...]:
        """Operations by number, to draw from with equal chances."""
        return sum((BY_NAME[name] for name in (*OPERATIONS_OF[self.task], *self.also)), ())

    @property
    def memorisation(self) -> bool:
        return self.task in MEMORISATION

    @property
    def input_steps(self) -> int:
        """S: Sonnet's bound, a little above the longest program."""
        L, N = self.length, self.nest
        return L + 1 if self.memorisation else (3 * L + 10) * (N - 1) + 4 * L + 10 + 2 * (N - 1)

    @property
    def output_steps(self) -> int:
        """T."""
        if self.task == "double":
            return 2 * self.length + 1
        return self.length + 1 if self.memorisation else 2 * self.length

    def batch(
        self,
        batch_size: int,
        *,
        generator: torch.Generator,
        curriculum: Curriculum | None = None,
        odds: Tensor | None = None,
    ) -> Batch:
        """Draw samples on the generator's device: of the curriculum's difficulties, or all of the maximum.
        `odds`: of the `choices`, which are equal otherwise."""
        require(_whole(batch_size) and batch_size >= 0, "batch_size", batch_size, "0 or more")
        if curriculum is None:
            length, nest = (
                torch.full((batch_size,), n, device=generator.device) for n in (self.length, self.nest)
            )
        else:
            limits = (curriculum.length, curriculum.nest)
            require(limits == (self.length, self.nest), "curriculum", limits, f"{(self.length, self.nest)}")
            length, nest = curriculum.draw(batch_size, generator)
        if self.memorisation:
            return _memorisation(self, length, generator)
        return _programs(self, length, nest, generator, odds)


def _whole(number) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy of logits [T, B, V], summed over the mask and divided by all T * B, as Sonnet does."""
    _check_logits(logits, batch)
    entropy = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    return (entropy * batch.mask.flatten()).sum() / batch.mask.numel()


def accuracy(logits: Tensor, batch: Batch) -> Tensor:
    """The paper's per-character accuracy: right characters / characters to predict, over the whole batch."""
    _check_logits(logits, batch)
    right = (logits.argmax(-1) == batch.targets) & batch.mask
    return right.sum() / batch.target_lengths.sum()


def solved(logits: Tensor, batch: Batch) -> Tensor:
    """The fraction of samples whose characters are all right."""
    _check_logits(logits, batch)
    right = (logits.argmax(-1) == batch.targets) | ~batch.mask
    return right.all(0).float().mean()


def _check_logits(logits: Tensor, batch: Batch) -> None:
    wanted = (*batch.targets.shape, VOCABULARY)
    require(tuple(logits.shape) == wanted, "logits shape", list(logits.shape), f"{list(wanted)}")


# ------------------------------------------------------------------ programs


class Templates(NamedTuple):
    """Rows by (length, operations of all levels): every program's characters, its digits left open.

    A character's id is `fixed` plus the entry `source` of the sample's digits, whose entry 0 is zero.
    """

    fixed: Tensor  # [rows, S] uint8; an open digit's is that of "0"
    source: Tensor  # [rows, S]
    lengths: Tensor  # [rows]
    choices: Tensor  # [2 * operations]
    powers: Tensor  # [L, L]: of length l the weights of the first l digits, ..., 100, 10, 1, 0, ...
    tens: Tensor  # [L + 2]: 10^0, 10^1, ...


@cache  # kept for good: a CUDA graph may hold their addresses
def _templates(task: LearningToExecute, device: torch.device) -> Templates:
    L, N, S, base = task.length, task.nest, task.input_steps, len(OPERATIONS)
    rows = L * base**N
    fixed, source, lengths = [[PAD] * S] * rows, [[0] * S] * rows, [0] * rows
    used = sorted(set(task.choices))
    for length, nest in product(range(1, L + 1), range(1, N + 1)):
        for operations in product(used, repeat=nest):
            row = length - 1
            for operation in (*operations, *[0] * (N - nest)):
                row = row * base + operation
            text = characters(operations, length, L, N)
            rest = S - len(text)
            fixed[row] = [ZERO if isinstance(c, int) else IDS[c] for c in text] + [PAD] * rest
            source[row] = [c if isinstance(c, int) else 0 for c in text] + [0] * rest
            lengths[row] = len(text)
    fixed, source, lengths = (
        torch.tensor(fixed, dtype=torch.uint8),
        torch.tensor(source),
        torch.tensor(lengths),
    )
    choices = torch.tensor(task.choices)
    powers = torch.tensor([[10 ** (n - 1 - i) if i < n else 0 for i in range(L)] for n in range(1, L + 1)])
    tens = torch.tensor([10**i for i in range(L + 2)])
    return Templates(*(t.to(device) for t in (fixed, source, lengths, choices, powers, tens)))


def characters(operations: tuple[int, ...], length: int, L: int, N: int) -> list[str | int]:
    """A program's characters, innermost level first; an integer is the index of a digit to fill in.

    Digits of a sample: 0, then Q = 1 + 3N literals of L digits (the innermost operand, and b, c, d of every
    level), of which the first `length` digits are used, then the count k of every level.
    """

    def literal(index: int) -> list[str | int]:
        return list(range(1 + index * L, 1 + index * L + length))

    program = literal(0)
    for level, operation in enumerate(operations):
        b, c, d = (literal(1 + 3 * level + i) for i in range(3))
        first = ["(", *program, ")"] if level else program
        symbol = OPERATIONS[operation]
        if symbol in "<>":
            program = [*first, *"if", *b, symbol, *c, *"else", *d]
        elif symbol == "for":
            count = 1 + (1 + 3 * N) * L + level
            program = [*"x=", *first, *"for[", count, *"]x+=", *b]
        else:
            program = [*first, symbol, *b]
    return program


def _programs(
    task: LearningToExecute, length: Tensor, nest: Tensor, generator: torch.Generator, odds: Tensor | None
) -> Batch:
    device, B, L, N = generator.device, len(length), task.length, task.nest
    tables = _templates(task, device)
    random = dict(generator=generator, device=device)
    literals = torch.randint(0, 10, (B, 1 + 3 * N, L), **random)  # [B, Q, L] digits
    not_zero = torch.randint(1, 10, (B, 1 + 4 * N), **random)
    literals[..., 0], count = not_zero.split((1 + 3 * N, N), dim=1)  # leading digits; k of every level
    if task.thinned:
        literals, count = thin(literals, count, task.thinned, generator)
    if odds is None:
        chosen = torch.randint(0, len(tables.choices), (B, N), **random)
    else:
        chosen = (torch.rand(B, N, 1, **random) >= odds.cumsum(0)[:-1]).sum(-1)
    operations = tables.choices[chosen]
    operations = operations * (torch.arange(N, device=device) < nest[:, None])  # [B, N]

    row = length - 1
    for level in range(N):
        row = row * len(OPERATIONS) + operations[:, level]
    digits = torch.cat([torch.zeros_like(length)[:, None], literals.flatten(1), count], dim=1).to(torch.uint8)
    inputs = tables.fixed[row] + digits.gather(1, tables.source[row])  # [B, S]

    values = (literals * tables.powers[length - 1].unsqueeze(1)).sum(-1)  # [B, Q]
    b, c, d = values[:, 1:].unflatten(1, (N, 3)).unbind(2)  # [B, N]
    holds = torch.where(operations == OPERATIONS.index(">"), b > c, b < c)
    factor, summand = _affine(operations, b, d, count, holds)
    value, modulus, reached = values[:, 0], tables.tens[length + 1], [values[:, 0]]
    for level in range(N):
        value = (value * factor[:, level] + summand[:, level]).remainder(modulus)  # Python's, never negative
        reached.append(value)
    reached = torch.stack(reached, 1)  # [B, N + 1]
    targets, target_lengths = _written(value, tables.tens, task.output_steps)
    inputs, targets = inputs.t().contiguous().long(), targets.t().contiguous()
    steps = Steps(reached[:, :-1], b, c, count, holds, reached[:, 1:], modulus)
    return Batch(inputs, targets, tables.lengths[row], target_lengths, operations, steps)


def _affine(operation: Tensor, b: Tensor, d: Tensor, k: Tensor, holds: Tensor) -> tuple[Tensor, Tensor]:
    """Every operation is affine in its first operand: (f, s) with value = f a + s, in OPERATIONS' order."""
    one, zero, chosen = torch.ones_like(b), torch.zeros_like(b), holds.long()
    factors = torch.stack([one, one, one, b, chosen, chosen, one], dim=-1)
    summands = torch.stack([zero, b, -b, zero, (1 - chosen) * d, (1 - chosen) * d, k * b], dim=-1)
    return tuple(x.gather(-1, operation.unsqueeze(-1)).squeeze(-1) for x in (factors, summands))


def _written(value: Tensor, tens: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Decimal digits of value [B] -> (ids [B, steps], their number [B])."""
    lengths = 1 + (value[:, None] >= tens[1:]).sum(1)
    place = lengths[:, None] - 1 - torch.arange(steps, device=value.device)  # [B, steps]
    digits = (value[:, None] // tens[place.clamp(min=0)]).remainder(10)
    return torch.where(place >= 0, ZERO + digits, PAD), lengths


# ------------------------------------------------------------------ memorisation


def _memorisation(task: LearningToExecute, length: Tensor, generator: torch.Generator) -> Batch:
    device, B, L = generator.device, len(length), task.length
    digits = torch.randint(0, 10, (B, L), generator=generator, device=device)
    digits[:, 0] = torch.randint(1, 10, (B,), generator=generator, device=device)
    if task.thinned:
        digits = thin(digits[:, None], digits[:, :0], task.thinned, generator)[0].squeeze(1)
    at = torch.arange(L + 1, device=device)
    inputs = torch.where(at < length[:, None], ZERO + F.pad(digits, (0, 1)), PAD)  # [B, S]

    at = torch.arange(task.output_steps, device=device)
    target_lengths = 2 * length if task.task == "double" else length
    if task.task == "reverse":
        source = (length[:, None] - 1 - at).clamp(min=0)
    else:
        source = at.remainder(length[:, None])
    targets = torch.where(at < target_lengths[:, None], ZERO + digits.gather(1, source), PAD)
    return Batch(inputs.t().contiguous(), targets.t().contiguous(), length, target_lengths)
