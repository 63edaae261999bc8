"""The fused recurrence of LSTM and ConvLSTM: on a GPU where there is one, and in Triton's interpreter."""

import importlib.util

import pytest
import torch

from relational_rnn.cores.conv_lstm import ConvLSTM
from relational_rnn.cores.lstm import LSTM
from relational_rnn.kernels import lstm as fused
from tests.kernels.comparison import in_the_interpreter
from tests.kernels.lstms import CASES, act, compare

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@needs_triton
def test_in_the_interpreter():
    """Outputs, states and every gradient within 1e-5 of float64, with torch.empty full of NaN."""
    assert in_the_interpreter("tests.kernels.interpreted_lstm").count("worst") == len(CASES)


@needs_gpu
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_on_the_gpu(name, autocast):
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # of the input's convolution
        found = compare(name, "cuda", autocast)
        found |= {f"{part} in acting": e for part, e in act(name, "cuda", autocast).items()}
    assert max(found.values()) < (1e-5 if autocast is None else 0.02), found


@needs_gpu
def test_exact_cells():
    """A cell that grows by 0.0005 a step is not stopped by rounding, as it is at 0.25 in cuDNN's bf16."""
    core, x = LSTM(3, 16, exact_cells=True).cuda(), torch.zeros(1000, 2, 3, device="cuda")
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
        _, keep, new, _ = core.lstm.bias_ih_l0.chunk(4)  # half of tanh(new) is added
        keep.fill_(30.0)
        new.fill_(0.001)
    with torch.autocast("cuda", torch.bfloat16):
        _, (_, exact) = core(x)
        core.exact_cells = False
        _, (_, rounded) = core(x)
    assert exact.dtype == torch.float32
    assert (exact - 0.5).abs().max() < 0.01
    assert rounded.max() < 0.3


def test_a_state_of_nan_is_forgotten_where_an_episode_begins():
    """In every implementation: a reset replaces the state and does not multiply it by zero."""
    for core in (LSTM(3, 4), ConvLSTM((2, 2, 3), 4, 2)):
        state = tuple(torch.full_like(part, torch.nan) for part in core.initial_state(2))
        x = torch.randn(2, 2, *core.input_shape)
        output, _ = core(x, state, resets=torch.tensor([[True, True], [False, True]]))
        assert output.isfinite().all()


def test_what_it_does_not_take_goes_the_other_way(monkeypatch):
    x = torch.zeros(1, 2, 3)
    assert not fused.takes(x, 4)  # on a CPU
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") is not None:
        assert fused.takes(x, 4)
        assert not fused.takes(x, 2**29)  # 32-bit indices would not do
    assert not fused.takes(x.double(), 4)
    assert not torch.func.vmap(lambda part: torch.tensor(fused.takes(part, 4)))(x[None]).item()
