"""Learning to execute: our samples are distributed as the original's."""

import random
import re
from collections import Counter

import pytest

from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.tasks.lte_text import MEMORISATION, TASKS, answer, decode
from tests.tasks.lte_samples import chi_square_p, draw, recorded


def test_chi_square_by_hand():
    """Heads 60 : 40 and 40 : 60: the statistic is 8 with one degree of freedom, p = 0.00468."""
    first, second = Counter(h=60, t=40), Counter(h=40, t=60)
    assert chi_square_p(first, second) == pytest.approx(0.0046777, rel=1e-4)
    assert chi_square_p(first, first) == 1.0


def features(program: str, value: str) -> dict:
    """What is compared between the generators."""
    operations = tuple(re.findall(r"\+(?!=)|-|\*|<|>|for", program))
    return {
        "operations": operations,
        "program length": len(program),
        "value length": len(value),
        "loop counts": tuple(re.findall(r"\[(\d)\]", program)),
        "first digit": re.search(r"\d", program).group(),
        "last digit": program[-1],
        "value's first digit": value[0],
        "value's last digit": value[-1],
    }


@pytest.mark.parametrize("name", TASKS)
def test_distributions_are_sonnets(name):
    batch = draw(LearningToExecute(name), 20_000, seed=6)
    ours = [features(*pair) for pair in zip(decode(batch.inputs), decode(batch.targets), strict=True)]
    theirs = [features(*pair) for pair in recorded(name)]
    for feature in ours[0]:
        p = chi_square_p(*(Counter(sample[feature] for sample in samples) for samples in (ours, theirs)))
        assert p > 0.001, f"{feature}: p = {p}"


def sonnets_sample(generator: random.Random, task: str, length: int, nest: int) -> tuple[str, str]:
    """Sonnet's way: operations push a value and its code, and take what was pushed as their first operand."""

    def literal() -> int:
        return generator.randint(10 ** (length - 1), 10**length - 1)

    if task in MEMORISATION:
        digits = str(literal())
        return digits, {"copy": digits, "reverse": digits[::-1], "double": 2 * digits}[task]
    value, code = literal(), None
    for _ in range(nest):
        operation = generator.choice(
            {"addition": "+", "control": "if for", "program": "+ - * if for"}[task].split()
        )
        first, b, k = value if code is None else f"({code})", literal(), generator.randint(1, 9)
        if operation == "if":
            c, d, sign = literal(), literal(), generator.choice("<>")
            code = f"{first}if{b}{sign}{c}else{d}"
            value = value if (b > c if sign == ">" else b < c) else d
        elif operation == "for":
            code, value = f"x={first}for[{k}]x+={b}", value + k * b
        else:
            code = f"{first}{operation}{b}"
            value = {"+": value + b, "-": value - b, "*": value * b}[operation]
    return code, str(value % 10 ** (length + 1))


@pytest.mark.parametrize(
    ("name", "length", "nest"),
    [
        ("program", 1, 1),
        ("program", 1, 3),
        ("program", 6, 3),
        ("program", 8, 2),
        ("control", 2, 4),
        ("addition", 3, 1),
        ("copy", 1, 1),
        ("reverse", 12, 1),
        ("double", 3, 1),
    ],
)
def test_distributions_are_sonnets_at_other_sizes(name, length, nest):
    generator = random.Random(1)
    theirs = [sonnets_sample(generator, name, length, nest) for _ in range(5_000)]
    assert all(answer(name, program) == value for program, value in theirs)
    batch = draw(LearningToExecute(name, length, nest), 20_000, seed=9)
    ours = zip(decode(batch.inputs), decode(batch.targets), strict=True)
    ours, theirs = ([features(*pair) for pair in samples] for samples in (ours, theirs))
    for feature in ours[0]:
        p = chi_square_p(*(Counter(sample[feature] for sample in samples) for samples in (ours, theirs)))
        assert p > 0.001, f"{feature}: p = {p}"
