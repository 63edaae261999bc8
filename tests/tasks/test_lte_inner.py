"""What stands in brackets: its value and place, the layer that reads it, and a training with it."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments import table1_lte
from relational_rnn.tasks.learning_to_execute import Batch, LearningToExecute
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_inner import InnerValues
from relational_rnn.tasks.lte_text import answer, decode
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.loop import Trainer
from tests.tasks.lte_samples import draw


def brackets(text):
    """[(what stands in it, where it closes)], the innermost first: a nested term is the first operand."""
    closed = [i for i, letter in enumerate(text) if letter == ")"]
    opened = [i for i, letter in enumerate(text) if letter == "("][::-1]
    return [(text[first + 1 : last], last) for first, last in zip(opened, closed, strict=True)]


@pytest.mark.parametrize(
    ("task", "length", "nest"), [("control", 3, 2), ("program", 4, 3), ("addition", 2, 4)]
)
def test_values_and_places_are_those_of_the_text(task, length, nest):
    batch = draw(LearningToExecute(task, length, nest), 400, curriculum=Curriculum(length, nest, "mix"))
    seen = set()
    for text, inner, closed in zip(
        decode(batch.inputs), batch.inner.tolist(), batch.closed.tolist(), strict=True
    ):
        expected = brackets(text)
        found = [(value, at) for value, at in zip(inner, closed, strict=True) if at >= 0]
        assert found == [(int(answer("program", program)), at) for program, at in expected]
        seen.add(len(expected))
    assert seen == set(range(nest))


def test_programs_without_brackets_have_none():
    batch = draw(LearningToExecute("control", 2, 1), 3)
    assert batch.inner.shape == batch.closed.shape == (3, 0)
    assert batch.closed.dtype == torch.long


def one_bracket(closed):
    """Two samples; in the first a bracket closes around 47, the second has none."""
    nothing = torch.zeros(1, 2, dtype=torch.long)
    return Batch(
        *(nothing, nothing, nothing[0], nothing[0]),
        inner=torch.tensor([[47], [99]]),
        closed=torch.tensor([[closed], [-1]]),
    )


def test_digits_are_read_so_many_steps_after_the_bracket():
    """Begun at step 1, closed 2 steps later, read 3 steps after that: step 6 says 7, then 4, by hand."""
    values = InnerValues(features=20, length=1, delay=3)
    with torch.no_grad():
        values.read.weight.copy_(torch.eye(20))
        values.read.bias.zero_()
    outputs = torch.zeros(9, 2, 20)
    outputs[6, 0, 7], outputs[6, 0, 10 + 4] = 30.0, 30.0
    outputs.requires_grad_()
    loss, right = values(outputs, torch.tensor([1, 0]), one_bracket(closed=2))
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert right.item() == 1
    loss, right = values(outputs, torch.tensor([2, 0]), one_bracket(closed=2))  # a step later all are equal
    # two of four digits count, log 10 each; the first digit of ten equal ones is 0
    assert loss.item() == pytest.approx(2 * torch.tensor(10.0).log().item() / 4)
    assert right.item() == 0
    loss.backward()
    assert outputs.grad[:, 1].abs().sum() == 0  # the sample without a bracket
    assert outputs.grad[7, 0].abs().sum() > 0


def test_what_is_asked_for_behind_the_last_step_is_asked_at_it():
    values = InnerValues(features=20, length=1, delay=100)
    outputs = torch.randn(9, 2, 20, requires_grad=True)
    values(outputs, torch.tensor([1, 0]), one_bracket(closed=2))[0].backward()
    assert outputs.grad[:-1].abs().sum() == 0
    assert outputs.grad[-1, 0].abs().sum() > 0


def config(**model):
    smoke = table1_lte.smoke()
    mixed = replace(smoke.curriculum, strategy="mix")  # brackets from the first update on
    return replace(smoke, task="control", nest=2, model=replace(smoke.model, **model), curriculum=mixed)


def test_a_training_asks_for_them_and_answers_without():
    asked = config(inner=1.0, inner_delay=2)
    assert from_dict(table1_lte.Config, to_dict(asked)) == asked
    problem = table1_lte.make_problem(asked, torch.device("cpu"))
    before, records = problem.model.inner.read.weight.clone(), []
    trainer = Trainer(problem, replace(asked.training, steps=20, log_every=10), torch.device("cpu"))
    trainer.run(report=records.append)
    assert {"inner_loss", "inner_accuracy"} <= records[-1].keys()
    assert not torch.equal(problem.model.inner.read.weight, before)
    model, batch = problem.model.eval(), draw(asked.samples, 5)
    steps = asked.samples.output_steps
    outputs, _ = model.all_outputs(batch.inputs, batch.input_lengths, steps)
    answers = model(batch.inputs, batch.input_lengths, steps)
    torch.testing.assert_close(model.logits(outputs[-steps:]), answers)
    model.inner = None
    torch.testing.assert_close(model(batch.inputs, batch.input_lengths, steps), answers)


def test_the_paper_asks_for_none():
    problem = table1_lte.make_problem(config(), torch.device("cpu"))
    assert problem.model.inner is None
    assert problem.loss()[1].keys() == {"accuracy"}


@pytest.mark.parametrize(
    "change",
    [
        dict(nest=1),
        dict(task="copy", nest=None),
        dict(model=replace(config().model, inner=1.0, regime="teacher")),
        dict(model=replace(config().model, inner=1.0, decoder="separate")),
    ],
)
def test_where_nothing_can_be_asked_for(change):
    with pytest.raises(ValueError, match=r"inner=1.0 is not allowed; allowed: 0, unless programs are nested"):
        replace(config(inner=1.0), **change)


def test_settings_that_are_none():
    with pytest.raises(ValueError, match=r"inner=-1 is not allowed; allowed: 0 or more"):
        config(inner=-1)
    with pytest.raises(ValueError, match=r"inner_delay=-1 is not allowed; allowed: 0 or more"):
        config(inner=1.0, inner_delay=-1)
