"""Muon: against torch's own, what it is for, and that a run with it resumes."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from relational_rnn.training.config import Training
from relational_rnn.training.muon import filled_up, groups_of, inside, large_matrices, orthogonal
from relational_rnn.training.optimizers import make_optimizer

CPU = torch.device("cpu")


def settings(**changes) -> Training:
    return Training(steps=10, batch_size=1, optimizer="muon", learning_rate=1e-2, **changes)


def small_model() -> nn.Sequential:
    """Tall, wide and square."""
    sizes = (64, 128, 128, 64)
    *hidden, last = (nn.Linear(a, b, bias=b == 64) for a, b in pairwise(sizes))
    return nn.Sequential(*hidden, last)


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 64, 96), (1, 64, 200)])
def test_singular_values_come_near_one(shape):
    torch.manual_seed(0)
    matrices = torch.randn(shape) * torch.tensor([1e-3, 1.0, 1e3])[: shape[0], None, None]
    values = torch.linalg.svdvals(orthogonal(matrices).float())
    assert values.max() < 1.3
    assert (values > 0.6).float().mean() > 0.9  # a square one has some that are nearly zero, and stay small


def test_matrices_of_different_shapes_go_together():
    """Filled up with zeros each one moves as it does alone; tall ones lie on their side."""
    torch.manual_seed(0)
    matrices = [torch.randn(shape) for shape in ((64, 64), (200, 64), (64, 655), (64, 100), (128, 128))]
    assert groups_of(matrices) == [[2, 1], [4], [3, 0]]
    together = orthogonal(filled_up([matrices[2], matrices[1]]))
    assert together[1, :, 200:].eq(0).all()
    for i, place in zip((2, 1), together, strict=True):
        alone = orthogonal(filled_up([matrices[i]]))[0]
        assert inside(place, matrices[i]).shape == matrices[i].shape
        torch.testing.assert_close(inside(place, matrices[i]), inside(alone, matrices[i]), atol=0.02, rtol=0)


def test_a_gradient_of_zeros_moves_nothing():
    assert orthogonal(torch.zeros(2, 64, 64)).eq(0).all()


def test_moves_as_torchs_own():
    torch.manual_seed(0)
    ours = small_model()
    theirs = small_model()
    theirs.load_state_dict(ours.state_dict())
    before = [p.detach().clone() for p in ours.parameters()]
    optimizer = make_optimizer(ours, settings(muon_ratio=2.0), CPU)
    matrices = [p for p in theirs.parameters() if p.dim() == 2]
    options = dict(momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    others = [
        torch.optim.Muon(matrices, lr=2e-2, **options),
        torch.optim.Adam([theirs[2].bias], lr=1e-2),
    ]
    for _ in range(4):
        gradients = [torch.randn_like(p) for p in ours.parameters()]
        for model, steps in ((ours, [optimizer]), (theirs, others)):
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            for each in steps:
                each.step()
    for a, b, start in zip(ours.parameters(), theirs.parameters(), before, strict=True):
        assert (a - b).norm() < 0.02 * (b - start).norm()  # bf16 inside, in another order


def test_only_large_matrices_and_no_embeddings():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.lstm = nn.Embedding(100, 64), nn.LSTM(70, 32)
            self.tied = nn.Linear(64, 100)
            self.tied.weight = self.table.weight
            self.inputs, self.hidden, self.classes = nn.Linear(45, 64), nn.Linear(64, 64), nn.Linear(64, 8)
            self.kernel = nn.Conv2d(64, 64, 3)

    model = Model()
    wanted = [model.lstm.weight_ih_l0, model.hidden.weight]
    assert [id(p) for p in large_matrices(model)] == [id(p) for p in wanted]
    optimizer = make_optimizer(model, settings(), CPU)
    covered = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(covered) == sorted(id(p) for p in model.parameters())


def test_matrices_of_many_rows_go_with_their_equals():
    shapes = ((1024, 600), (600, 900), (600, 1024), (512, 2048), (512, 600))
    matrices = [torch.empty(shape, device="meta") for shape in shapes]
    assert groups_of(matrices) == [[3, 4], [0, 2], [1]]


def test_the_learning_rate_of_every_group_counts():
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = make_optimizer(model, settings(), CPU)
    before = [p.detach().clone() for p in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_a_model_without_large_matrices_is_adams():
    assert isinstance(make_optimizer(nn.Linear(3, 3), settings(), CPU), torch.optim.Adam)


def test_a_wrong_ratio():
    with pytest.raises(ValueError, match="muon_ratio=0 is not allowed; allowed: more than 0"):
        settings(muon_ratio=0)
