"""The choice of optimiser: one step of each by hand, settings that are wrong, run folders from before it."""

import json
import math

import pytest
import torch
from torch import nn

from relational_rnn.experiments import nth_farthest
from relational_rnn.training.checkpoint import optimizer_tensors
from relational_rnn.training.config import Training, from_dict, to_dict
from relational_rnn.training.loop import make_optimizer
from relational_rnn.training.optimizers import kind_of, kind_with_memory_of

CPU = torch.device("cpu")


def after_one_step(gradient=2.0, **options):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    optimizer = make_optimizer(model, Training(steps=1, batch_size=1, learning_rate=0.1, **options), CPU)
    model.weight.grad = torch.full_like(model.weight, gradient)
    optimizer.step()
    return model.weight.item()


def test_one_step_by_hand():
    assert after_one_step() == pytest.approx(1 - 0.1)  # Adam's first step has the size of the learning rate
    # RMSProp: squares 0.01 * 2^2 = 0.04, root 0.2.
    assert after_one_step(optimizer="rmsprop") == pytest.approx(1 - 0.1 * 2 / (0.2 + 0.01))
    assert after_one_step(optimizer="rmsprop", epsilon=0.2) == pytest.approx(1 - 0.1 * 2 / (0.2 + 0.2))
    decayed = after_one_step(optimizer="rmsprop", rmsprop_decay=0.5)
    assert decayed == pytest.approx(1 - 0.1 * 2 / (math.sqrt(2) + 0.01))
    assert after_one_step(epsilon=2.0) == pytest.approx(1 - 0.1 * 2 / (2 + 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "sgd"}, r"optimizer='sgd' is not allowed; allowed: adam \| rmsprop"),
        ({"rmsprop_decay": 1.0}, "rmsprop_decay=1.0"),
        ({"epsilon": 0.0}, "epsilon=0.0 is not allowed; allowed: None or more than 0"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Training(steps=1, batch_size=1, **options)


def test_a_run_folder_from_before_the_choice_was_trained_with_adam():
    config = nth_farthest.smoke()
    values = json.loads(json.dumps(to_dict(config)))
    for name in ("optimizer", "rmsprop_decay", "epsilon"):
        del values["training"][name]
    assert from_dict(nth_farthest.Config, values) == config
    del values["training"]["adam_beta2"]
    with pytest.raises(ValueError, match=r"config.training lacks \['adam_beta2'\]"):
        from_dict(nth_farthest.Config, values)


@pytest.mark.parametrize(
    ("name", "width", "kind"),
    [("adam", 64, "adam"), ("rmsprop", 64, "rmsprop"), ("muon", 64, "muon"), ("muon", 2, "adam")],
)
def test_a_checkpoint_tells_its_optimiser(name, width, kind):
    model = nn.Linear(width, width)
    optimizer = make_optimizer(model, Training(steps=1, batch_size=1, optimizer=name), CPU)
    assert kind_with_memory_of(optimizer_tensors(optimizer, model)) is None
    model(torch.ones(width)).sum().backward()
    optimizer.step()
    keys = {tensor.partition("/")[0] for tensor in optimizer_tensors(optimizer, model)}
    assert kind_of(optimizer) == kind_with_memory_of(keys) == kind
