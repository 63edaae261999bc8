"""Every token once; the loss without all its logits; perplexity."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from relational_rnn.tasks import linear_cross_entropy as loss_module
from relational_rnn.tasks.language_modeling import (
    IGNORE,
    DeviceWindows,
    Windows,
    linear_cross_entropy,
    perplexity,
)
from tests.markdown import ROOT

IMPLEMENTATIONS = ["chunked", *(["torch"] if hasattr(F, "linear_cross_entropy") else [])]


# ------------------------------------------------------------------ windows


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9))
def test_evaluation_predicts_every_token_exactly_once(n, B, T):
    tokens = np.arange(100, 100 + n, dtype=np.uint16)
    seen = []
    for window in Windows(tokens, B, T, every_token=True):
        assert window.inputs.shape == window.targets.shape
        real = window.targets != IGNORE
        seen += window.targets[real].tolist()
        # Every input is the token before its target; <eos> begins the text.
        before = torch.where(window.targets == 100, 1, window.targets - 1)
        assert torch.equal(window.inputs[real], before[real])
    assert sorted(seen) == tokens.tolist()


def test_one_stream_reads_the_text_in_order():
    windows = Windows(np.array([5, 6, 7, 8, 9], np.uint32), 1, 2, every_token=True)
    assert [w.inputs[:, 0].tolist() for w in windows] == [[1, 5], [6, 7], [8]]
    assert [w.targets[:, 0].tolist() for w in windows] == [[5, 6], [7, 8], [9]]


def test_training_windows_continue_each_stream_and_have_one_shape():
    windows = Windows(np.arange(2, 102, dtype=np.uint16), 4, 6)
    assert len(windows) == 4  # streams of 25 tokens
    text = torch.cat([window.targets for window in windows])  # [24, 4]
    assert torch.equal(text, 2 + torch.arange(24)[:, None] + 25 * torch.arange(4))
    assert all(window.inputs.shape == (6, 4) for window in windows)
    assert windows[2].inputs.dtype == torch.int64
    assert torch.equal(windows[2].inputs[0], windows[1].targets[-1])


@pytest.mark.parametrize("every_token", [False, True])
def test_ranks_share_the_joint_batch(every_token):
    tokens = np.arange(53, dtype=np.uint16)
    joint = Windows(tokens, 6, 4, every_token)
    shares = [Windows(tokens, 6, 4, every_token, rank, 3) for rank in range(3)]
    for index, window in enumerate(joint):
        parts = [share[index] for share in shares]
        assert torch.equal(torch.cat([part.inputs for part in parts], 1), window.inputs)
        assert torch.equal(torch.cat([part.targets for part in parts], 1), window.targets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(batch_size=0), "batch_size=0 is not allowed"),
        (dict(steps=0), "steps=0 is not allowed"),
        (dict(batch_size=3, ranks=2), "batch_size=3 is not allowed; allowed: a multiple of ranks=2"),
        (dict(ranks=2, rank=2), "rank=2 is not allowed; allowed: 0 to 1"),
        (dict(steps=51), r"len\(tokens\)=100 is not allowed; allowed: 102 or more"),
    ],
)
def test_wrong_windows_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        Windows(np.zeros(100, np.uint16), **dict(batch_size=2, steps=5) | arguments)
    with pytest.raises(IndexError, match="window 10; allowed: 0 to 9"):
        Windows(np.zeros(100, np.uint16), 2, 5)[10]


@pytest.mark.parametrize(("rank", "ranks", "parts"), [(0, 1, 1), (0, 1, 2), (0, 3, 1), (2, 3, 2)])
def test_windows_on_the_device_are_the_same(rank, ranks, parts):
    tokens = np.arange(2, 1002, dtype=np.uint16)
    where = dict(rank=rank, ranks=ranks)
    wanted = Windows(tokens, 12, 7, **where)
    found = DeviceWindows(tokens, 12, 7, device=torch.device("cpu"), **where)
    for number in range(2 * len(wanted) + 3):
        window = wanted[number % len(wanted)]
        taken = [found.take(part, parts) for part in range(parts)]
        for i, whole in enumerate(window):
            assert torch.equal(torch.cat([got[i] for got, _ in taken], dim=1), whole)
        assert all(first.item() == (number % len(wanted) == 0) for _, first in taken)
        assert int(found.epoch) == number // len(wanted)
        found.advance()


def test_shifted_windows_begin_elsewhere_in_every_epoch():
    tokens = np.arange(2, 1002, dtype=np.uint16)
    windows = DeviceWindows(tokens, 4, 10, device=torch.device("cpu"), shift=True)
    begins, state_carries = [], True
    last = None
    for _ in range(24 * 5):
        (inputs, targets), first = windows.take()
        assert torch.equal(inputs[1:], targets[:-1])
        if first:
            begins.append(targets[0, 0].item() - 2)
        else:
            state_carries &= torch.equal(inputs[0], last)
        last = targets[-1]
        windows.advance()
    assert state_carries
    assert begins[:5] == [0, 6, 2, 8, 4]


# ------------------------------------------------------------------ loss


def problem(T=5, B=7, D=16, V=101, dtype=torch.float64, bias=True):
    generator = torch.Generator().manual_seed(0)
    normal = dict(generator=generator, dtype=dtype)
    hidden, weight = torch.randn(T, B, D, **normal), torch.randn(V, D, **normal)
    targets = torch.randint(0, V, (T, B), generator=generator)
    targets[2:4, :3] = IGNORE
    tensors = [hidden, weight, *([torch.randn(V, **normal)] if bias else [])]
    return targets, [tensor.requires_grad_() for tensor in tensors]


def results(implementation, reduction, targets, tensors):
    hidden, weight, *bias = tensors
    loss = linear_cross_entropy(
        hidden, weight, targets, *bias, reduction=reduction, implementation=implementation
    )
    outer = torch.linspace(-1, 2, loss.numel(), dtype=loss.dtype).reshape(loss.shape)  # any outer gradient
    return [loss.detach(), *torch.autograd.grad((loss * outer).sum(), tensors)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("at_once", [1, 1000, 1 << 27])
def test_the_loss_and_its_gradients_are_the_plain_ones(monkeypatch, implementation, reduction, bias, at_once):
    monkeypatch.setattr(loss_module, "LOGITS_AT_ONCE", at_once)
    targets, tensors = problem(bias=bias)
    for got, wanted in zip(
        results(implementation, reduction, targets, tensors),
        results("plain", reduction, targets, tensors),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_no_tokens_have_no_loss(implementation, reduction):
    targets, tensors = problem(T=0)
    for got, wanted in zip(
        results(implementation, reduction, targets, tensors),
        results("plain", reduction, targets, tensors),
        strict=True,
    ):
        assert got.shape == wanted.shape
        assert got.sum() == 0


def test_plain_is_cross_entropy_of_a_linear_layer():
    targets, (hidden, weight, bias) = problem()
    wanted = F.cross_entropy(F.linear(hidden, weight, bias).flatten(0, 1), targets.flatten())
    assert linear_cross_entropy(hidden, weight, targets, bias, implementation="plain") == wanted


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_logits_of_all_tokens_are_never_held(monkeypatch, reduction):
    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
            out = function(*arguments, **(keywords or {}))
            if isinstance(out, torch.Tensor):
                Largest.size = max(Largest.size, out.numel())
            return out

    T, B, D, V = 20, 10, 4, 300
    monkeypatch.setattr(loss_module, "LOGITS_AT_ONCE", 10 * V)
    targets, tensors = problem(T, B, D, V)
    with Largest():
        results("chunked", reduction, targets, tensors)
    assert Largest.size == 10 * V  # of T * B * V = 200 V


@pytest.mark.parametrize("implementation", ["auto", "chunked"])
def test_bfloat16_gives_a_float32_loss_and_close_gradients(implementation):
    targets, wide = problem(T=30, V=500)
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in wide]
    wide = [tensor.detach().double().requires_grad_() for tensor in narrow]
    got = results(implementation, "mean", targets, narrow)
    wanted = results("plain", "mean", targets, wide)
    assert got[0].dtype == torch.float32
    assert got[0].item() == pytest.approx(wanted[0].item(), rel=2e-3)
    for a, b in zip(got[1:], wanted[1:], strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).norm() < 0.02 * b.norm()


def test_autocast_is_that_of_a_linear_layer():
    targets, tensors = problem(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = (results(kind, "mean", targets, tensors) for kind in ("auto", "plain"))
    assert got[0].dtype == torch.float32
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 0.02 * b.norm()


@pytest.mark.parametrize("implementation", ["auto", "chunked", "plain"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_leaves_float64_alone(implementation, reduction):
    targets, tensors = problem(dtype=torch.float64)
    wanted = results(implementation, reduction, targets, tensors)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(tensors[0], tensors[1]).dtype == torch.float64  # as torch does
        got = results(implementation, reduction, targets, tensors)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_without_gradients_none_are_made(monkeypatch):
    monkeypatch.setattr(loss_module._Softmax, "add_gradients", None)
    targets, (hidden, weight, _) = problem()
    with torch.no_grad():
        for reduction in ("mean", "sum", "none"):
            loss = linear_cross_entropy(
                hidden, weight, targets, reduction=reduction, implementation="chunked"
            )
            assert not loss.requires_grad


def test_the_fused_kernel_in_tritons_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "tests.tasks.interpreted_cross_entropy"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("worst") == 9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_fused_kernel_on_a_gpu(dtype, reduction):
    targets, wide = problem(T=30, V=9000)
    narrow = [tensor.detach().to("cuda", dtype).requires_grad_() for tensor in wide]
    wide = [tensor.detach().double().requires_grad_() for tensor in narrow]
    outer = torch.linspace(-1, 2, targets.numel(), device="cuda").reshape(targets.shape)
    found = []
    for kind, (hidden, weight, bias) in (("triton", narrow), ("plain", wide)):
        options = dict(reduction=reduction, implementation=kind)
        loss = linear_cross_entropy(hidden, weight, targets.cuda(), bias, **options)
        total = loss if reduction == "mean" else (loss * outer).sum()
        found.append([loss.detach(), *torch.autograd.grad(total, (hidden, weight, bias))])
    assert found[0][0].dtype == torch.float32
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for a, b in zip(*found, strict=True):
        assert (a.double() - b).norm() < tolerance * b.norm()


def test_wrong_arguments_of_the_loss_are_errors():
    targets, (hidden, weight, _) = problem()
    with pytest.raises(ValueError, match=r"targets shape=\[4, 7\] is not allowed; allowed: \[5, 7\]"):
        linear_cross_entropy(hidden, weight, targets[1:])
    with pytest.raises(ValueError, match=r"hidden shape=\[5, 7, 9\] is not allowed; allowed: \[..., 16\]"):
        linear_cross_entropy(hidden[..., :9], weight, targets)
    with pytest.raises(ValueError, match="reduction='max' is not allowed"):
        linear_cross_entropy(hidden, weight, targets, reduction="max")
    with pytest.raises(ValueError, match="implementation='fast' is not allowed"):
        linear_cross_entropy(hidden, weight, targets, implementation="fast")
    with pytest.raises(ValueError, match="implementation='triton' is not allowed here: the input is on cpu"):
        linear_cross_entropy(hidden, weight, targets, implementation="triton")


# ------------------------------------------------------------------ perplexity


@pytest.mark.parametrize("V", [2, 45, 33_278])
def test_a_uniform_model_scores_the_size_of_the_vocabulary(V):
    tokens = np.random.default_rng(0).integers(0, V, 997).astype(np.uint16)
    nats, count = 0.0, 0
    weight = torch.zeros(V, 3, dtype=torch.float64)
    for window in Windows(tokens, 4, 10, every_token=True):
        hidden = torch.randn(*window.inputs.shape, 3, dtype=torch.float64)
        nats += linear_cross_entropy(hidden, weight, window.targets, reduction="sum").item()
        count += int((window.targets != IGNORE).sum())
    assert count == 997
    assert perplexity(nats, count) == pytest.approx(V, rel=1e-12)


def test_perplexity_of_a_model_that_diverged():
    assert math.isnan(perplexity(math.nan, 3))
    assert perplexity(1e9, 3) == math.inf
    for nats, tokens in ((1.0, 0), (-1.0, 3)):
        with pytest.raises(ValueError, match="is not allowed; allowed:"):
            perplexity(nats, tokens)
