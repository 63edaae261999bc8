"""Averaged weights by hand; AdamW by hand; what is evaluated and kept."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from relational_rnn.experiments.nth_farthest import NthFarthestProblem, smoke
from relational_rnn.training import checkpoint
from relational_rnn.training.averaging import WeightAverage
from relational_rnn.training.config import Training, to_dict
from relational_rnn.training.loop import Trainer
from relational_rnn.training.optimizers import make_optimizer
from relational_rnn.training.run_folder import RunFolder

CPU = torch.device("cpu")


def averages(decay, after, values):
    """What the average is after each of these values of a single weight, which begins as 5."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 5.0)
    settings = Training(steps=9, batch_size=1, average_decay=decay, average_after=after)
    average, seen = WeightAverage(model, settings, CPU), []
    for step, value in enumerate(values):
        nn.init.constant_(model.weight, value)
        average.set_share(step)
        average.update()
        seen.append(average.tensors()["weight"].item())
    return seen


def test_averages_by_hand():
    values = [1.0, 2.0, 6.0, 7.0]
    assert averages(1.0, 0, values) == pytest.approx([1, 1.5, 3, 4])  # the plain mean
    assert averages(1.0, 2, values) == pytest.approx([1, 2, 6, 6.5])  # of those from the third on
    assert averages(0.5, 0, values) == pytest.approx([1, 1.5, 3.75, 5.375])  # half of it new every time


def test_the_model_has_the_average_only_in_place():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    average = WeightAverage(model, Training(steps=1, batch_size=1, average_decay=1.0), CPU)
    nn.init.constant_(model.weight, 3.0)
    memory = model.weight.data_ptr()
    with average.in_place():
        assert model.weight.item() == 1
        assert model.weight.data_ptr() == memory
    assert model.weight.item() == 3


def trained(path, **options):
    base = smoke()
    settings = replace(base, training=replace(base.training, **options))
    trainer = Trainer(NthFarthestProblem(settings, CPU), settings.training, CPU)
    trainer.run_folder = RunFolder.create(path, "nth-farthest", "smoke", to_dict(settings))
    trainer.run()
    return trainer


def test_the_average_is_evaluated_and_kept(tmp_path):
    trainer = trained(tmp_path / "run", average_decay=1.0, average_after=30)
    weights, _ = checkpoint.load(trainer.run_folder.weights_path)
    last, _ = checkpoint.load(trainer.run_folder.latest_checkpoint())
    name = "head.0.weight"
    assert torch.equal(weights[name], last[f"average/{name}"])
    assert not torch.equal(weights[name], last[f"model/{name}"])
    assert all(torch.equal(weights[n], t) for n, t in checkpoint.evaluated_weights(last).items())
    score = trainer.run_folder.metrics()[-1]["eval_accuracy"]
    checkpoint.load_model(trainer.problem.model, weights, tmp_path)
    trainer.average = None
    assert trainer.evaluate()["accuracy"] == score


def test_averaging_leaves_the_training_alone(tmp_path):
    plain, averaged = trained(tmp_path / "a"), trained(tmp_path / "b", average_decay=0.9)
    for (name, a), b in zip(
        plain.problem.model.named_parameters(), averaged.problem.model.parameters(), strict=True
    ):
        assert torch.equal(a, b), name


def test_weight_decay_by_hand():
    """AdamW: the first step has the size of the learning rate; matrices also shrink by rate x decay."""
    model = nn.Linear(1, 1)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 2.0)
        parameter.grad = torch.full_like(parameter, 3.0)
    settings = Training(steps=1, batch_size=1, learning_rate=0.1, weight_decay=0.5)
    make_optimizer(model, settings, CPU).step()
    assert model.weight.item() == pytest.approx(2 - 0.1 * 0.5 * 2 - 0.1)
    assert model.bias.item() == pytest.approx(2 - 0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(weight_decay=-1.0), "weight_decay=-1.0 is not allowed; allowed: 0 or more"),
        (dict(weight_decay=0.1, optimizer="rmsprop"), "weight_decay=0.1 .* 0 with optimizer='rmsprop'"),
        (
            dict(average_decay=1.5),
            "average_decay=1.5 is not allowed; allowed: None or more than 0, at most 1",
        ),
        (dict(average_after=-1), "average_after=-1"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Training(steps=1, batch_size=1, **options)
