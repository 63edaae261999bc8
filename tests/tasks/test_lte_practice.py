"""Operations drawn as often as they are got wrong: the odds, the draws, and a training that follows them."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments import table1_lte
from relational_rnn.experiments.lte_problem import operations
from relational_rnn.tasks.learning_to_execute import BY_NAME, LearningToExecute
from relational_rnn.tasks.lte_practice import LEAST, Practice
from relational_rnn.tasks.lte_text import decode
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.loop import Trainer


def generator():
    return torch.Generator().manual_seed(0)


def test_odds_by_hand():
    """Comparisons all right, loops half wrong, sums a quarter: 0.03 to 0.53 to 0.28."""
    practice = Practice(LearningToExecute("control", 3, 1, ("sums",)))
    assert practice.names == ["sums", "comparisons", "loops"]
    metrics = dict(comparisons_right=8.0, comparisons_asked=8.0, loops_right=5.0, loops_asked=10.0)
    record = practice.update(metrics | dict(sums_right=3.0, sums_asked=4.0))
    assert record == dict(accuracy_comparisons=1.0, accuracy_loops=0.5, accuracy_sums=0.75)
    total = 1.75 - 1 + 3 * LEAST
    by_number = Counter()
    for number, odds in zip(practice.choices.tolist(), practice.odds.tolist(), strict=True):
        by_number[number] += odds
    expected = {4: 0.015 / total, 5: 0.015 / total, 6: 0.53 / total, 1: 0.28 / total}
    assert dict(by_number) == pytest.approx(expected)


def test_draws_follow_the_odds():
    task = LearningToExecute("control", 2, 2)
    odds = torch.tensor([0.05, 0.05, 0.5, 0.4])  # two comparisons; loops twice
    batch = task.batch(20_000, generator=generator(), odds=odds)
    shares = Counter(batch.operations.flatten().tolist())
    assert shares[6] / 40_000 == pytest.approx(0.9, abs=0.01)
    assert shares[4] / 40_000 == pytest.approx(0.05, abs=0.01)


def test_a_batch_says_its_operations():
    names = {number: name for name, numbers in BY_NAME.items() for number in numbers}
    batch = LearningToExecute("program", 3, 2).batch(64, generator=generator())
    for text, numbers in zip(decode(batch.inputs), batch.operations.tolist(), strict=True):
        assert operations(text) == ", ".join(names[number] for number in numbers)


def test_counts_characters_of_programs_that_have_an_operation():
    task = LearningToExecute("control", 2, 2)
    practice, batch = Practice(task), task.batch(500, generator=generator())
    right = torch.zeros_like(batch.mask)
    loops = (batch.operations == 6).any(1)
    right[:, loops] = True  # all of these right, and nothing else
    found = practice.count(batch.operations[None], right, batch.mask)
    assert found["loops_right"] == found["loops_asked"] == batch.target_lengths[loops].sum()
    compared = (batch.operations == 4).any(1) | (batch.operations == 5).any(1)
    assert found["comparisons_asked"] == batch.target_lengths[compared].sum()
    assert found["comparisons_right"] == batch.target_lengths[compared & loops].sum()


@pytest.mark.parametrize("scratchpad", [False, True])
def test_a_training_practises_what_is_wrong_and_resumes_with_its_odds(scratchpad):
    smoke = table1_lte.smoke()
    curriculum = replace(smoke.curriculum, strategy="mix", balance=True)
    model = replace(smoke.model, scratchpad=scratchpad)
    config = replace(smoke, task="control", curriculum=curriculum, model=model)
    assert from_dict(table1_lte.Config, to_dict(config)) == config
    problem = table1_lte.make_problem(config, torch.device("cpu"))
    records = []
    Trainer(problem, replace(config.training, steps=20, log_every=10), torch.device("cpu")).run(
        report=records.append
    )
    assert {"accuracy_comparisons", "accuracy_loops"} <= records[-1].keys()
    assert problem.practice.odds.sum().item() == pytest.approx(1)
    assert not torch.equal(problem.practice.odds, torch.full((4,), 0.25))
    other = table1_lte.make_problem(config, torch.device("cpu"))
    other.load_state(problem.state())
    assert torch.equal(other.practice.odds, problem.practice.odds)


def test_memorisation_has_nothing_to_balance():
    smoke = table1_lte.smoke()
    with pytest.raises(ValueError, match="balance=True is not allowed; allowed: False, for copy has no op"):
        replace(smoke, task="copy", nest=None, curriculum=replace(smoke.curriculum, balance=True))
