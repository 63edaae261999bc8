"""Operations practised besides a task's own: drawn as often as named, right, never in the evaluation."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments import table1_lte
from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.tasks.lte_text import answer, decode
from relational_rnn.training.config import from_dict, to_dict


def operation(program: str) -> str:
    names = {"for": "loops", "if": "comparisons", "+": "sums", "-": "differences", "*": "products"}
    return next(name for symbol, name in names.items() if symbol in program)


def programs(task, samples=8000, seed=0):
    return task.batch(samples, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("task", "also", "shares"),
    [
        ("control", ("sums", "differences"), dict(comparisons=1, loops=1, sums=1, differences=1)),
        ("control", ("products", "products"), dict(comparisons=1, loops=1, products=2)),  # named twice
        ("control", ("loops", "loops", "sums"), dict(comparisons=1, loops=3, sums=1)),  # the task's own
        ("addition", ("loops",), dict(sums=1, loops=1)),
        ("control", (), dict(comparisons=1, loops=1)),
    ],
)
def test_every_operation_is_as_likely_as_it_is_named(task, also, shares):
    batch = programs(LearningToExecute(task, 3, 1, also))
    texts, values = decode(batch.inputs), decode(batch.targets)
    found = Counter(operation(text) for text in texts)
    assert set(found) == set(shares)
    for name, share in shares.items():
        assert found[name] / 8000 == pytest.approx(share / sum(shares.values()), abs=0.025)
    assert all(answer("program", text) == value for text, value in zip(texts[:500], values, strict=False))


def test_nested_programs_mix_them():
    """Two levels of four operations: all sixteen pairs, all right."""
    batch = programs(LearningToExecute("control", 2, 2, ("sums", "differences")), 2000)
    texts = decode(batch.inputs)
    assert all(answer("program", t) == v for t, v in zip(texts, decode(batch.targets), strict=True))
    inner = Counter(operation(t[t.index("(") + 1 : t.index(")")]) for t in texts)
    assert set(inner) == {"comparisons", "loops", "sums", "differences"}


def test_a_task_alone_draws_what_it_drew_before():
    """The samples of runs that were made without the setting."""
    assert LearningToExecute("program").choices == (1, 1, 2, 2, 3, 3, 4, 5, 6, 6)
    assert LearningToExecute("control").choices == (4, 5, 6, 6)
    assert set(LearningToExecute("addition").choices) == {1}


@pytest.mark.parametrize(
    ("task", "also", "message"),
    [
        ("control", ("sines",), "also='sines' is not allowed; allowed: sums, differences, products, comp"),
        ("copy", ("sums",), r"also=\('sums',\) is not allowed; allowed: none, for copy has no operations"),
    ],
)
def test_bad_operations(task, also, message):
    with pytest.raises(ValueError, match=message):
        LearningToExecute(task, 3, None, also)
    smoke = table1_lte.smoke()
    with pytest.raises(ValueError, match=message):
        replace(smoke, task=task, length=3, curriculum=replace(smoke.curriculum, also=also))


def test_training_practises_and_the_evaluation_does_not():
    smoke = table1_lte.smoke()
    curriculum = replace(smoke.curriculum, strategy="mix", also=("sums",))
    config = replace(smoke, task="control", curriculum=curriculum)
    assert from_dict(table1_lte.Config, to_dict(config)) == config
    problem = table1_lte.make_problem(config, torch.device("cpu"))
    drawn = {id(problem.task): [], id(problem.training_task): []}
    original = LearningToExecute.batch

    def batch(self, *arguments, **options):
        made = original(self, *arguments, **options)
        drawn[id(self)] += decode(made.inputs)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearningToExecute, "batch", batch)
        for _ in range(20):
            problem.loss()
        problem.evaluate()
    assert any("+" in text.replace("x+=", "") for text in drawn[id(problem.training_task)])
    assert len(drawn[id(problem.task)]) == config.eval_samples
    assert not any("+" in text.replace("x+=", "") for text in drawn[id(problem.task)])
