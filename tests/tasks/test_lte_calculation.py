"""What is written down of a program: by hand, and against long multiplication of strings."""

import re
from pathlib import Path

import pytest
import torch

from relational_rnn.tasks.learning_to_execute import LearningToExecute, Steps
from relational_rnn.tasks.lte_calculation import WAYS, Calculation
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_text import TOKENS, answer, decode, encode
from tests.tasks.lte_samples import draw

LEVEL = re.compile(r"(?:x=)?(\d*)(?:for\[(\d)\]x\+=|if(\d+)([<>])|([-+*]))(\d+)(?:else(\d+))?")


def backwards(number, width):
    return str(number % 10**width).zfill(width)[::-1]


def by_place(*numbers):
    """Digits written backwards: the first of each, the second of each, and so on."""
    return "".join("".join(digits) for digits in zip(*numbers, strict=True))


def calculated(text, width):
    """A program with its calculation, from its text alone: what a level takes over is computed by the checker
    of lte_text.py, which does not know about it."""
    levels, read, inner = text.lstrip("(x=").split(")"), "", None
    opening = text[: len(text) - len(text.lstrip("(x="))]
    for number, level in enumerate(levels):
        a, times, compared, sign, symbol, b, otherwise = LEVEL.fullmatch(level).groups()
        length, a = len(b), int(a) if inner is None else inner
        if sign:
            c = int(b)
            holds = int(compared) > c if sign == ">" else int(compared) < c
            value = a if holds else int(otherwise)
            ends = [(compared[-n:], b[-n:]) for n in range(1, width)]  # the whole of a shorter number
            lines = "".join("0" if x < y else "2" if x > y else "1" for x, y in ends) + str(int(holds))
        elif times:
            value = a + int(times) * int(b)
        elif symbol == "*":
            value, lines = a * int(b), long_multiplication(a, b, length + 1, width)
        else:
            value = a + int(symbol + b)
        inner = value % 10 ** (length + 1)
        written = backwards(inner, width)
        first, second = backwards(a, width), backwards(int(b), width)
        if times:
            written = times + by_place(second, backwards(int(times) * int(b), width), first, written)
        elif symbol in ("+", "-"):
            written = by_place(first, second, written)
        else:
            written = lines + written
        read += f"{level}{')' if number + 1 < len(levels) else ''}_{written}"
    return opening + read


def long_multiplication(a, b, digits, width):
    """The lines of a times b as they are written, and that their last digits are those of the product."""
    line, lines, last = 0, "", ""
    for place in range(width - 1):
        digit = int(b[::-1][place]) if place < len(b) else 0
        shown, space = (
            max(digits - place, 0),
            width - place,
        )  # the digits of the value that are left, and room
        product = digit * a
        line = line // 10 + product
        rows = (product, line) if place else (product,)
        lines += str(digit) + by_place(*(backwards(row % 10**shown, space) for row in rows))
        last += str(line % 10) if shown else "0"
    assert last == backwards(a * int(b) % 10**digits, width)[: width - 1]
    return lines


def spelled(calculation, batch):
    """What is read of every sample, _ where there is nothing."""
    text = calculation.text(batch.inputs, batch.input_lengths)
    symbols = calculation.symbols(batch.steps, text)
    reads, found = text.reads, []
    for b in range(batch.inputs.shape[1]):
        letters = ""
        for t in range(int(text.lengths[b])):
            symbol = symbols[t - 1, b] if reads[t, b] else text.ids[t, b]
            letters += "_" if text.blank[t, b] else TOKENS[symbol]
        found.append(letters)
        assert text.blank[int(text.lengths[b]) :, b].all()
        assert int(text.writes[:, b].sum()) == int(reads[:, b].sum())  # nothing is written that is not read
    return found


@pytest.mark.parametrize(
    ("task", "length", "nest"),
    [("program", 5, 2), ("program", 2, 3), ("program", 8, 4), ("control", 3, 2), ("addition", 1, 4)],
)
def test_what_is_read_is_the_program_and_its_calculation(task, length, nest):
    task = LearningToExecute(task, length, nest)
    batch = draw(task, 600, curriculum=Curriculum(length, nest, "mix"))
    for text, read in zip(decode(batch.inputs), spelled(Calculation(task), batch), strict=True):
        assert read == calculated(text, length + 1)
        digits = re.findall(r"_(\d+)", read)[-1]
        last = text.rpartition(")")[2]
        apart = 1 if "if" in last or "*" in last else 4 if "for" in last else 3  # the value's digits
        value = digits[::-apart][: length + 1]
        assert int(value) == int(answer("program", text))  # by the checker


def test_a_product_by_hand():
    """24 * 13, and its product with 50 modulo 1000: 312 * 50 = 15,600."""
    pairs = [
        torch.tensor([pair]) for pair in ([24, 312], [13, 50], [0, 0], [1, 1], [False, False], [312, 600])
    ]
    steps = Steps(*pairs, modulus=torch.tensor([1000]))
    calculation = Calculation(LearningToExecute("program", 2, 2))
    digits = calculation.digits(steps)[WAYS.index("product"), 0].tolist()
    written = ["".join(map(str, level))[: calculation.counts[WAYS.index("product")]] for level in digits]
    assert written == ["3270" + "14123" + "213", "0000" + "50066" + "006"]


def test_the_example_of_the_docs():
    program, read = "x=(31if24<17else86)for[3]x+=25", "x=(31if24<17else86)_020680for[3]x+=25_3556127860001"
    assert calculated(program, 3) == read
    root = Path(__file__).parents[2]
    for page in ("docs/learning-to-execute.md", "relational_rnn/tasks/lte_scratchpad.py"):
        lines = (root / page).read_text().splitlines()
        (at,) = (i for i, line in enumerate(lines) if line.endswith(program))
        assert f" {read} " in lines[at + 1]
        wrote = lines[at + 2]
        for digits in ("020680", "3556127860001"):  # under the steps that write them, before they are read
            assert wrote.index(digits) == lines[at + 1].index(f"_{digits}")


@pytest.mark.parametrize(("task", "nest"), [("program", 2), ("program", 1), ("control", 3), ("addition", 2)])
def test_the_longest_text_is_as_long_as_said(task, nest):
    task = LearningToExecute(task, 3, nest)
    calculation, batch = Calculation(task), draw(task, 6000)
    assert calculation.text(batch.inputs, batch.input_lengths).lengths.max() == calculation.longest


def test_steps_of_the_papers_size():
    """A step without input and 25 digits for a loop, 45 for a product."""
    loops = len("x=(x=12345for[9]x+=12345)for[9]x+=12345")
    assert Calculation(LearningToExecute("control", 5, 2)).longest == loops + 2 * 26
    assert Calculation(LearningToExecute("program", 5, 2)).longest == len("(12345*12345)*12345") + 2 * 46


def test_a_text_that_breaks_off_is_calculated_as_far_as_it_goes():
    """As the page asks for it, after every character."""
    calculation = Calculation(LearningToExecute("program", 1, 2))
    texts = ["(", "(3", "(3*", "(3*4", "(3*4)", "(3*4)+", "(3*4)+5"]
    lengths = torch.tensor([len(text) for text in texts])
    for inputs in (encode(texts, 7), encode(texts[-1:]).expand(-1, 7)):  # or the text goes on behind it
        text = calculation.text(inputs, lengths)
        assert text.writes.sum(0).tolist() == [6, 6, 5, 5, 5 + 6, 5 + 6, 5 + 6]
