"""Triton launches on the current GPU: whoever launches makes the one of its tensors the current one."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from relational_rnn import RelationalMemory
from relational_rnn.kernels import dnc_sequence, lstm, on_gpu_of, op, recurrence


@pytest.fixture
def current(monkeypatch):
    """Devices that are made the current one, the last of them innermost."""
    devices = []

    @contextlib.contextmanager
    def recording(tensor):
        devices.append(tensor.device)
        yield
        devices.pop()

    for module in (op, lstm, dnc_sequence):
        monkeypatch.setattr(module, "on_gpu_of", recording)
    return devices


def test_the_gpu_of_a_tensor_is_made_the_current_one():
    second = torch.device("cuda", 1)
    assert on_gpu_of(SimpleNamespace(is_cuda=True, device=second)).idx == 1
    assert on_gpu_of(torch.ones(2)).idx == -1  # for torch: no change


def test_it_can_be_compiled():
    def double(x):
        with on_gpu_of(x):
            return x * 2

    assert torch.compile(double, fullgraph=True, backend="eager")(torch.ones(2)).sum() == 4


def test_the_recurrence_runs_on_the_gpu_of_its_tensors(current, monkeypatch):
    forward, seen = recurrence.forward, []

    def recording(*args):
        seen.extend(current)
        return forward(*args)

    monkeypatch.setattr(recurrence, "forward", recording)
    RelationalMemory(3, 2, 4, 2, backend="torch")(torch.randn(3, 2, 3))
    assert seen == [torch.device("cpu")]


def test_lstms_and_dncs_run_on_the_gpu_of_their_tensors(current, monkeypatch):
    meta, seen = torch.ones(2, 3, 4, device="meta"), []

    def recording(*args):
        seen.extend(current)
        return meta, meta

    monkeypatch.setattr(lstm.Recurrence, "apply", recording)
    monkeypatch.setattr(dnc_sequence.Sequence, "apply", recording)
    lstm.scan(meta, meta[0], meta[0], meta[0], None)
    dnc_sequence.scan(meta, [meta], [], [], (meta, meta), None, None)
    assert seen == [torch.device("meta")] * 2


def test_a_cross_entropy_runs_on_the_gpu_of_its_logits(current, monkeypatch):
    pytest.importorskip("triton")
    from relational_rnn.kernels import cross_entropy_triton

    monkeypatch.setattr(cross_entropy_triton, "on_gpu_of", op.on_gpu_of)

    class Kernel:
        def __getitem__(self, programs):
            return lambda *args, **options: seen.extend(current)

    seen = []
    monkeypatch.setattr(cross_entropy_triton, "_cross_entropy_kernel", Kernel())
    logits = torch.ones(2, 64, device="meta")
    cross_entropy_triton.cross_entropy_(logits, torch.ones(2, device="meta"), 60, -100, True)
    assert seen == [torch.device("meta")]
