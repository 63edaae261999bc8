import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relational_rnn.cores.entnet import EntNet, henaff_update, unit_norm
from tests.cores.baseline_oracle import check_contract, check_packed


def test_unit_norm_of_zero_is_zero_with_zero_gradient():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    y = unit_norm(x)
    torch.testing.assert_close(y.detach(), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    y.sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad[1].tolist() == [0, 0]


def test_henaff_update_by_hand():
    """One cell: s.h + s.w = 1 - 1 = 0, so the gate is 1/2: (3, 0) + (0, 8) / 2 = (3, 4), norm 5."""
    s, hidden = torch.tensor([[1.0, 0.0]]), torch.tensor([[[3.0, 0.0]]])
    keys, candidate = torch.tensor([[-3.0, 7.0]]), torch.tensor([[[0.0, 8.0]]])
    torch.testing.assert_close(henaff_update(s, hidden, keys, candidate), torch.tensor([[[0.6, 0.8]]]))


def test_henaff_step_by_hand():
    """Every matrix the identity and slope 1: c = h + w + s."""
    core = EntNet(2, 1, 2, style="henaff")
    with torch.no_grad():
        for linear in (core.encoder, core.from_hidden, core.from_key, core.from_input):
            linear.weight.copy_(torch.eye(2))
        core.keys.copy_(torch.tensor([[1.0, 0.0]]))
    output, state = core.step(torch.tensor([[0.0, 1.0]]), core.initial_state(1))
    raw = torch.tensor([1 + 0.5 * 2, 0.5])  # h = w = (1, 0), s = (0, 1), gate 1/2, c = (2, 1)
    torch.testing.assert_close(output[0], raw / raw.norm())
    torch.testing.assert_close(state[0, 0], output[0])


def test_henaff_starts_at_the_keys_and_trains_them():
    core = EntNet(3, 4, 5, style="henaff")
    torch.testing.assert_close(core.initial_state(2)[1], core.keys)
    core(torch.randn(2, 2, 3))[0].sum().backward()
    assert core.keys.grad.abs().sum() > 0
    assert core.slope.item() == 1.0


def test_lstm_bank_is_one_lstm_for_each_key():
    torch.manual_seed(0)
    core = EntNet(3, 4, 5, output="concat")
    x = torch.randn(6, 2, 3)
    outputs, (hidden, _) = core(x)
    for cell in range(4):
        key = core.keys[cell].expand(6, 2, 5)
        alone, (alone_hidden, _) = core.lstm(torch.cat([x, key], dim=-1))
        torch.testing.assert_close(outputs[..., 5 * cell : 5 * cell + 5], alone)
        torch.testing.assert_close(hidden[:, cell], alone_hidden)
    cells = hidden[0]
    assert (cells[0] - cells[1]).abs().max() > 1e-3  # the keys tell equal cells apart


@pytest.mark.parametrize("style", ["lstm", "henaff"])
def test_output_is_the_sum_of_the_cells(style):
    torch.manual_seed(0)
    core = EntNet(3, 4, 5, style)
    outputs, state = core(torch.randn(6, 2, 3))
    cells = state if style == "henaff" else state[0]
    assert outputs.shape == (6, 2, 5)
    torch.testing.assert_close(outputs[-1], cells.sum(1))
    if style == "henaff":
        torch.testing.assert_close(cells.norm(dim=-1), torch.ones(2, 4))


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["lstm", "henaff"]),
    st.sampled_from(["sum", "concat"]),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 100),
)
def test_contract(style, output, cells, time, batch, seed):
    torch.manual_seed(seed)
    check_contract(EntNet(3, cells, 4, style, output, dtype=torch.float64), time, batch, seed)


@pytest.mark.parametrize("style", ["lstm", "henaff"])
def test_packed(style):
    check_packed(EntNet(3, 2, 4, style, dtype=torch.float64))


@pytest.mark.parametrize("style", ["lstm", "henaff"])
def test_gradcheck(style):
    torch.manual_seed(0)
    core = EntNet(2, 2, 3, style, dtype=torch.float64)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)

    def run(x, keys):
        return torch.func.functional_call(core, {"keys": keys}, (x,))[0]

    assert torch.autograd.gradcheck(run, (x, core.keys))


def test_initialisation():
    torch.manual_seed(0)
    core = EntNet(100, 8, 200, style="henaff")
    std = 1 / math.sqrt(200)
    assert core.keys.abs().max() <= 2 * std
    assert 0.8 * std < core.from_hidden.weight.std() < 0.95 * std  # a normal cut at two deviations: 0.88


def test_bad_arguments():
    with pytest.raises(ValueError, match="style='gru'"):
        EntNet(3, 2, 4, style="gru")
    with pytest.raises(ValueError, match="output='mean'"):
        EntNet(3, 2, 4, output="mean")
    with pytest.raises(ValueError, match="num_cells=0"):
        EntNet(3, 0, 4)
