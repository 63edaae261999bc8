import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relational_rnn.cores.conv_lstm import ConvLSTM, same_conv2d
from relational_rnn.cores.sonnet_variables import conv_lstm_variables
from tests.cores.baseline_oracle import check, check_contract, check_packed, load


def test_reproduces_sonnets_conv_2d_lstm():
    oracle = load("convlstm_5x5_k2")

    def pair(kind):
        return oracle[f"{kind}/0"], oracle[f"{kind}/1"]

    core = ConvLSTM((5, 5, 4), 6, 2)
    check(core, conv_lstm_variables, oracle, "conv_2d_lstm/", pair("state0"), pair("states"))


def test_same_conv2d_pads_an_even_kernel_at_the_bottom_and_right():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 2, 2, 1)
    ones = torch.ones(1, 1, 2, 2)
    assert same_conv2d(x, ones, None).flatten().tolist() == [10, 6, 7, 4]
    three = torch.ones(1, 1, 1, 3)  # an odd kernel is centred
    assert same_conv2d(x, three, None).flatten().tolist() == [3, 3, 7, 7]


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from([1, 2, 3, (2, 3)]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 100),
)
def test_contract(kernel, time, batch, use_bias, seed):
    torch.manual_seed(seed)
    core = ConvLSTM((3, 4, 2), 3, kernel, use_bias=use_bias, dtype=torch.float64)
    check_contract(core, time, batch, seed)


def test_packed():
    check_packed(ConvLSTM((3, 2, 2), 3, 3, dtype=torch.float64))


def test_gradcheck():
    torch.manual_seed(0)
    core = ConvLSTM((2, 3, 2), 2, 2, dtype=torch.float64)
    x = torch.randn(2, 2, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: core(x)[0], x)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"input_shape=\(5, 5\)"):
        ConvLSTM((5, 5), 6, 2)
    with pytest.raises(ValueError, match=r"kernel_size=\(0, 0\)"):
        ConvLSTM((5, 5, 4), 6, 0)
    with pytest.raises(ValueError, match="output_channels=0"):
        ConvLSTM((5, 5, 4), 0, 2)
    for shape in (5, None, "abc", (5, 5, True)):
        with pytest.raises(ValueError, match=r"input_shape=.*; allowed: \(height, width, channels\)"):
            ConvLSTM(shape, 6, 2)
    for kernel in (2.5, None, True, (2, 2, 2)):
        with pytest.raises(ValueError, match=r"kernel_size=.*; allowed: an integer or a pair"):
            ConvLSTM((5, 5, 4), 6, kernel)
    core = ConvLSTM([5, 5, 4], 6, [2, 2])
    with pytest.raises(ValueError, match=r"allowed: \[T, B, 5, 5, 4\]"):
        core(torch.zeros(2, 3, 4, 5, 5))
    with pytest.raises(ValueError, match=r"allowed: \[B, 5, 5, 4\]"):
        core.step(torch.zeros(3, 4, 5, 5), core.initial_state(3))
