import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relational_rnn.cores import lstm
from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.sonnet_variables import deep_lstm_variables
from tests.cores.baseline_oracle import check, check_contract, check_packed, load


def test_reproduces_sonnets_deep_rnn():
    oracle = load("deeprnn_lstm_2x8_skip")

    def pairs(kind):
        return tuple((oracle[f"{kind}/{i}/hidden"], oracle[f"{kind}/{i}/cell"]) for i in range(2))

    check(DeepLSTM(5, 8), deep_lstm_variables, oracle, "", pairs("state0"), pairs("states"))


def test_layers_may_have_other_names():
    core = DeepLSTM(2, 3, num_layers=11)
    names = [f"stack/cell_{i}/{part}" for i in range(11) for part in ("w_gates", "b_gates")]
    mapping = deep_lstm_variables(core, names)
    assert list(mapping) == names  # cell_2 before cell_10
    mapping["stack/cell_10/b_gates"][0](torch.arange(12.0))
    assert core.layers[10].lstm.bias_ih_l0.tolist() == [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11]  # i, f, j, o


def test_one_layer_is_an_lstm():
    torch.manual_seed(0)
    core = DeepLSTM(3, 4, num_layers=1)
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(core(x)[0], core.layers[0](x)[0])


@pytest.mark.parametrize("late", [False, True])
def test_features_added_for_a_gpu_change_nothing(late, monkeypatch):
    torch.manual_seed(0)
    core, x = DeepLSTM(3, 4, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)

    def outputs_and_gradients():
        output, state = core.scan_late(x, torch.tensor([0, 2])) if late else core(x)
        loss = (output[2:] * torch.arange(1.0, 9)).sum() + state[1][1].sum()
        return [output[2:], *torch.autograd.grad(loss, [p for p in core.parameters() if p.requires_grad])]

    plain, widths = outputs_and_gradients(), []

    def missing(x, more=0):
        widths.append(-(x.shape[-1] + more) % 8)
        return widths[-1]

    monkeypatch.setattr(lstm, "_missing", missing)
    for ours, theirs in zip(outputs_and_gradients(), plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert max(widths) > 0


def test_without_skip_connections_it_is_torchs_stack():
    torch.manual_seed(0)
    core, stack = DeepLSTM(3, 4, 3, skip_connections=False), torch.nn.LSTM(3, 4, 3)
    weights = {f"{name[:-1]}{d}": p for d in range(3) for name, p in core.layers[d].lstm.named_parameters()}
    stack.load_state_dict(weights)
    x = torch.randn(5, 2, 3)
    output, state = core(x)
    wanted, (hidden, cell) = stack(x)
    torch.testing.assert_close(output, wanted)
    torch.testing.assert_close(torch.stack([h for h, _ in state]), hidden)
    torch.testing.assert_close(torch.stack([c for _, c in state]), cell)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 3), st.booleans(), st.booleans(), st.integers(1, 6), st.integers(1, 3), st.integers(0, 100)
)
def test_contract(layers, skip, concat, time, batch, seed):
    torch.manual_seed(seed)
    core = DeepLSTM(3, 4, layers, skip_connections=skip, concat_outputs=concat, dtype=torch.float64)
    check_contract(core, time, batch, seed)


def test_packed():
    check_packed(DeepLSTM(3, 4, dtype=torch.float64))


def test_gradcheck():
    torch.manual_seed(0)
    core = DeepLSTM(2, 3, dtype=torch.float64)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: core(x)[0], x)


@pytest.mark.parametrize("sizes", [(0, 4, 2), (3, 0, 2), (3, 4, 0), (3, 4, 1.5)])
def test_bad_sizes(sizes):
    with pytest.raises(ValueError, match="allowed: an integer of at least 1"):
        DeepLSTM(*sizes)
