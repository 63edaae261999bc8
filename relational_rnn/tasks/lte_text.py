"""Learning to execute, as text: the vocabulary of 45 ids, ids to strings and back, and a checker.

The checker parses and evaluates one program at a time and shares nothing with the vectorised generator of
learning_to_execute.py, which it is there to check.

Shapes: T time, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relational_rnn.cores.base import require

# Sonnet's order: the unknown token, three special ones, then all others as Python sorts them. Programs are
# spelt by character: the tokens of several characters keep their ids and are never used.
_CHARACTERS = " !()*+-./0123456789:<=>[]"
_WORDS = ("a", "e", "else", "f", "for", "g", "i", "if", "l", "n", "o", "r", "range", "s", "x", "~")
TOKENS = ("_unk_", "_null_", "_eos_", "|", *_CHARACTERS, *_WORDS)
IDS = {token: i for i, token in enumerate(TOKENS)}
VOCABULARY = len(TOKENS)  # 45
PAD, START, ZERO = IDS["."], IDS["~"], IDS["0"]

PROGRAMS = ("addition", "control", "program")
MEMORISATION = ("copy", "reverse", "double")
TASKS = (*PROGRAMS, *MEMORISATION)
OPERATIONS = {"addition": ("+",), "control": ("if", "for"), "program": ("+", "-", "*", "if", "for")}
DIGITS = set("0123456789")
DEEPEST = 100  # nesting that the checker reads: it recurses


def encode(texts: Sequence[str], steps: int | None = None) -> Tensor:
    """Texts -> ids [T, B], padded to `steps`; without `steps` all texts must be of one length."""
    lengths = sorted({len(text) for text in texts})
    if steps is None and len(lengths) > 1:
        raise ValueError(
            f"texts of mixed lengths {lengths} in one batch; allowed: one length, or give `steps`"
        )
    steps = lengths[-1] if steps is None and lengths else (steps or 0)
    require(not lengths or lengths[-1] <= steps, "steps", steps, f"at least {lengths[-1:]}, the longest text")
    unknown = sorted({character for text in texts for character in text} - set(IDS))
    require(not unknown, "characters", unknown, f"one of {''.join(t for t in TOKENS if len(t) == 1)!r}")
    rows = [[IDS[character] for character in text.ljust(steps, ".")] for text in texts]
    return torch.tensor(rows, dtype=torch.long).reshape(len(texts), steps).t().contiguous()


def decode(ids: Tensor | Sequence, *, keep_padding: bool = False) -> list[str]:
    """Ids [T, B] (or one sequence [T]) -> readable texts, without the padding at their end."""
    if not isinstance(ids, Tensor):
        rows = [row.tolist() if hasattr(row, "tolist") else row for row in ids]
        lengths = sorted({len(row) if isinstance(row, Sequence) else 0 for row in rows})
        require(len(lengths) <= 1, "row lengths", lengths, "rows of one length; a batch may not mix them")
        ids = torch.as_tensor(rows, dtype=None if rows else torch.long)
    require(ids.dim() in (1, 2), "shape", list(ids.shape), "[T, B] or [T]")
    check_ids(ids)
    rows = (ids if ids.dim() == 2 else ids[:, None]).tolist()  # a list of no rows does not know its columns
    columns = zip(*rows, strict=True) if rows else [()] * (ids.shape[1] if ids.dim() == 2 else 1)
    texts = ["".join(TOKENS[i] for i in column) for column in columns]
    return texts if keep_padding else [text.rstrip(".") for text in texts]


def check_ids(ids: Tensor, vocabulary: int = VOCABULARY) -> None:
    """A ValueError that names the ids that are not in the vocabulary."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"ids have dtype {ids.dtype}; allowed: an integer dtype")
    wrong = ids[(ids < 0) | (ids >= vocabulary)]
    require(not wrong.numel(), "ids", sorted(set(wrong.tolist()))[:5], f"0 to {vocabulary - 1}")


# ------------------------------------------------------------------ the checker


def answer(task: str, text: str) -> str:
    """What a task asks for, given its input; a ValueError where the input is not one of the task's."""
    require(task in TASKS, "task", task, ", ".join(TASKS))
    if task in MEMORISATION:
        require(text.isdigit() and text.isascii(), "text", text, "digits")
        return {"copy": text, "reverse": text[::-1], "double": text + text}[task]
    require(text.count("(") <= DEEPEST, "text", f"{text[:20]}...", f"at most {DEEPEST} brackets")
    parser = Parser(text)
    value = parser.expression()
    parser.expect("")
    others = sorted(parser.operations - set(OPERATIONS[task]))
    require(not others, "operations", others, f"{', '.join(OPERATIONS[task])} in {task}")
    require(bool(parser.operations), "text", text, "a program with an operation")
    lengths = sorted(parser.literal_lengths)
    require(len(lengths) == 1, "literal lengths", lengths, "one length for all literals of a program")
    return str(value % 10 ** (lengths[0] + 1))


class Parser:
    """Recursive descent over:

    expression: `x=` term `for[` digit `]x+=` number | term | term (`+` | `-` | `*`) number
                | term `if` number (`>` | `<`) number `else` number
    term:       `(` expression `)` | number
    """

    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.literal_lengths: set[int] = set()
        self.operations: set[str] = set()

    def expression(self) -> int:
        if self.accept("x="):
            value = self.term()
            self.expect("for[")
            self.operations.add("for")
            times = self.count()
            self.expect("]x+=")
            step = self.number()
            for _ in range(times):
                value += step
            return value
        value = self.term()
        if self.operation("+"):
            return value + self.number()
        if self.operation("-"):
            return value - self.number()
        if self.operation("*"):
            return value * self.number()
        if self.operation("if"):
            left, greater = self.number(), self.accept(">")
            if not greater:
                self.expect("<")
            right = self.number()
            self.expect("else")
            otherwise = self.number()
            return value if (left > right if greater else left < right) else otherwise
        return value

    def term(self) -> int:
        if self.accept("("):
            value = self.expression()
            self.expect(")")
            return value
        return self.number()

    def number(self) -> int:
        begin = self.at
        while self.text[self.at : self.at + 1] in DIGITS:
            self.at += 1
        digits = self.text[begin : self.at]
        if not digits or digits[0] == "0":
            raise ValueError(f"{self.text!r}: a number without leading zero must stand at {begin}")
        self.literal_lengths.add(len(digits))
        return int(digits)

    def count(self) -> int:
        digit = self.text[self.at : self.at + 1]
        if digit not in DIGITS or digit == "0":
            raise ValueError(f"{self.text!r}: a digit from 1 to 9 must stand at {self.at}")
        self.at += 1
        return int(digit)

    def operation(self, word: str) -> bool:
        found = self.accept(word)
        if found:
            self.operations.add(word)
        return found

    def accept(self, word: str) -> bool:
        found = self.text.startswith(word, self.at)
        self.at += len(word) * found
        return found

    def expect(self, word: str) -> None:
        """The word, or with no word the end of the text."""
        if not self.accept(word) or (not word and self.at < len(self.text)):
            raise ValueError(f"{self.text!r}: {word or 'the end'!r} must stand at {self.at}")
