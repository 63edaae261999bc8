"""N-th farthest: the label rule by hand and against Sonnet's samples; what every batch must satisfy."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relational_rnn.tasks.nth_farthest import NthFarthest, nth_position

DATA = Path(__file__).parents[1] / "data"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def decode(task: NthFarthest, inputs):
    """The parts of a batch [V, B, I]: vectors [B, V, D], label, n and m one-hots [B, V, V]."""
    x, label, n, m = inputs.transpose(0, 1).split([task.dims] + [task.vectors] * 3, -1)
    return (x, label, m, n) if task.order == "sonnet" else (x, label, n, m)


@pytest.mark.parametrize(
    ("convention", "by_n"),
    [("farthest", [2, 0, 3, 1]), ("nearest", [1, 3, 0, 2])],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_label_rule_by_hand(convention, by_n, dtype):
    # From the vector at step 1, (0, 0): distances 2, 0, 5 (a 3-4-5 triangle) and sqrt(2).
    x = torch.tensor([[[2.0, 0.0], [0.0, 0.0], [3.0, 4.0], [1.0, -1.0]]], dtype=dtype)
    for n, wanted in enumerate(by_n):
        position = nth_position(x, x[:, 1:2], torch.tensor([n]), None, convention)
        assert position.tolist() == [wanted]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_absent_vectors_are_never_the_answer(dtype):
    # Step 0 is absent, though its zeros are far from 0.5.
    x = torch.tensor([[[0.0], [0.5], [0.4]]], dtype=dtype)
    present = torch.tensor([False, True, True])
    for convention, by_n in (("farthest", [2, 1]), ("nearest", [1, 2])):
        got = [nth_position(x, x[:, 1:2], torch.tensor([n]), present, convention).item() for n in (0, 1)]
        assert got == by_n


def test_sonnet_samples_have_our_labels():
    """2000 samples of the original generator: 4 vectors x 4 dims, features [x, label, m, n], n-th nearest."""
    with np.load(DATA / "nth_farthest_4x4.npz") as file:
        inputs, labels = torch.from_numpy(file["inputs"]), torch.from_numpy(file["labels"])
    task = NthFarthest(4, 4, convention="nearest", order="sonnet")
    x, label, n, m = decode(task, inputs.transpose(0, 1))
    ids, m, n = label.argmax(-1), m[:, 0].argmax(-1), n[:, 0].argmax(-1)
    vector_m = x[ids == m[:, None]][:, None]
    position = nth_position(x, vector_m, n, None, "nearest")
    assert (ids.gather(1, position[:, None]).squeeze(1) == labels).sum() == len(labels) == 2000


@given(
    vectors=st.integers(2, 9),
    dims=st.integers(1, 12),
    convention=st.sampled_from(["farthest", "nearest"]),
    order=st.sampled_from(["paper", "sonnet"]),
    data=st.data(),
)
def test_every_batch(vectors, dims, convention, order, data):
    """Shapes, one-hots, absent parts, and the answer recomputed sample by sample in Python."""
    task = NthFarthest(vectors, dims, convention, order)
    v, d = data.draw(st.integers(2, vectors)), data.draw(st.integers(1, dims))
    inputs, targets = task.batch(
        7, generator=generator(data.draw(st.integers(0, 99))), active=torch.tensor([v, d])
    )
    assert inputs.shape == (vectors, 7, task.input_size)
    x, label, n, m = decode(task, inputs)
    assert inputs[: vectors - v].count_nonzero() == 0
    assert x[..., d:].count_nonzero() == 0
    assert x.abs().max() <= 1
    for b in range(7):
        shown = range(vectors - v, vectors)
        ids = [label[b, t].nonzero().item() for t in shown]
        assert sorted(ids) == list(range(v))
        (question_n,) = {n[b, t].nonzero().item() for t in shown}
        (question_m,) = {m[b, t].nonzero().item() for t in shown}
        assert question_n < v
        assert question_m < v
        reference = x[b, vectors - v + ids.index(question_m)]
        distances = {i: (x[b, t] - reference).norm().item() for i, t in zip(ids, shown, strict=True)}
        ranked = sorted(distances, key=distances.get, reverse=convention == "farthest")
        assert targets[b] == ranked[question_n]
        if question_n == (v - 1 if convention == "farthest" else 0):
            assert targets[b] == question_m


def test_full_stage_is_the_task_itself():
    task = NthFarthest(5, 3)
    plain = task.batch(50, generator=generator())
    staged = task.batch(50, generator=generator(), active=torch.tensor([5, 3]))
    assert all(torch.equal(a, b) for a, b in zip(plain, staged, strict=True))


def test_generator_decides_everything():
    task = NthFarthest()
    first, again, other = (task.batch(20, generator=generator(s))[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_vectors_are_uniform():
    x, *_ = decode(task := NthFarthest(3, 5), task.batch(20_000, generator=generator())[0])
    assert x.mean().abs() < 0.005
    assert (x.var() - 1 / 3).abs() < 0.005
    torch.testing.assert_close(
        torch.histc(x, 10, -1, 1) / x.numel(), torch.full((10,), 0.1), atol=0.003, rtol=0
    )
    neighbours = torch.corrcoef(x.flatten(0, 1).T)  # dimensions come from halves of the same random integers
    assert (neighbours - torch.eye(5)).abs().max() < 0.02


def test_questions_and_answers_are_uniform():
    task = NthFarthest(4, 2)
    inputs, targets = task.batch(40_000, generator=generator())
    _, label, n, m = decode(task, inputs)
    for one_hot in (label[:, 0], n[:, 0], m[:, 0]):
        torch.testing.assert_close(one_hot.mean(0), torch.full((4,), 0.25), atol=0.01, rtol=0)
    torch.testing.assert_close(targets.bincount() / 40_000, torch.full((4,), 0.25), atol=0.01, rtol=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"vectors": 1},
        {"vectors": 2.5},
        {"dims": 0},
        {"dims": "16"},
        {"dims": True},
        {"convention": "closest"},
        {"order": "alphabetical"},
    ],
)
def test_wrong_settings(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed; allowed: "):
        NthFarthest(**wrong)


def test_a_batch_of_fewer_than_no_samples_is_refused():
    with pytest.raises(ValueError, match="batch_size=-1 is not allowed; allowed: 0 or more"):
        NthFarthest().batch(-1, generator=generator())
