"""What every core must do, whichever it is."""

import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from relational_rnn import DNC, LSTM, ConvLSTM, DeepLSTM, EntNet, RelationalMemory
from relational_rnn.cores.base import RecurrentCore, first_tensor, map_state
from tests.cores.baseline_oracle import flat

CORES = {
    "relational memory": lambda: RelationalMemory(5, 3, 4, 2),
    "relational memory, torch": lambda: RelationalMemory(5, 3, 4, 2, backend="torch"),
    "relational memory, output gate": lambda: RelationalMemory(5, 3, 4, 2, output_gate=True),
    "lstm": lambda: LSTM(5, 6),
    "deep lstm": lambda: DeepLSTM(5, 6),
    "dnc": lambda: DNC(5, 4, 6, 3, 2, 2, hidden_size=7),
    "entnet": lambda: EntNet(5, 3, 4),
    "entnet, henaff": lambda: EntNet(5, 3, 4, "henaff"),
    "conv lstm": lambda: ConvLSTM((3, 4, 2), 3, 2),
}
every_core = pytest.mark.parametrize("core", [make() for make in CORES.values()], ids=list(CORES))


@every_core
def test_a_step_refuses_a_state_of_another_size(core):
    """torch's LSTM reads and writes past the end of a state too small, without a word."""
    x = torch.randn(2, *core.input_shape)
    wider = map_state(lambda part: torch.cat([part, part[..., :1]], -1), core.initial_state(2))
    more_rows = map_state(lambda part: torch.cat([part, part[:, :1]], 1), core.initial_state(2))
    for state in (core.initial_state(1), core.initial_state(3), wider, more_rows):
        wrong = list(first_tensor(state).shape)
        with pytest.raises(ValueError, match=r"has shape .*; allowed:") as error:
            core.step(x, state)
        assert str(wrong) in str(error.value)
    for state in (None, [], "state"):
        with pytest.raises(ValueError, match="must be a t"):
            core.step(x, state)


@every_core
def test_an_unbatched_input_refuses_a_state_with_a_batch(core):
    x = torch.randn(4, *core.input_shape)
    with pytest.raises(ValueError, match=r"has shape \[1, .*; allowed:") as error:
        core(x, core.initial_state(1))
    allowed = list(first_tensor(core.initial_state(1)).shape[1:])
    assert str(error.value).endswith(f"allowed: {allowed}")
    with pytest.raises(ValueError, match="must be a t"):
        core(x, "state")


@every_core
def test_a_step_refuses_an_input_that_forward_refuses(core):
    state = core.initial_state(2)
    for x in (torch.randn(2, *core.input_shape).double(), torch.ones(2, *core.input_shape, dtype=torch.long)):
        with pytest.raises(ValueError, match=f"input has dtype {x.dtype}; allowed: torch.float32"):
            core.step(x, state)
        with torch.autocast("cpu", torch.bfloat16):
            core.step(x.bfloat16(), state)
    with pytest.raises(ValueError, match="input of a step must be a tensor, got list"):
        core.step([[0.0]], state)


@every_core
def test_a_state_of_another_precision_is_cast(core):
    x = torch.randn(2, *core.input_shape)
    state = core.initial_state(2)
    output, _ = core.step(x, map_state(torch.Tensor.double, state))
    torch.testing.assert_close(output, core.step(x, state)[0])


@every_core
def test_a_state_of_another_precision_is_cast_for_packed_sequences_too(core):
    packed = pack_sequence([torch.randn(n, *core.input_shape) for n in (2, 3)], enforce_sorted=False)
    _, state = core(packed, map_state(torch.Tensor.double, core.initial_state(2)))
    assert {part.dtype for part in flat(state)} == {torch.float32}


@every_core
def test_autocast_leaves_float64_alone(core):
    core = copy.deepcopy(core).double()
    x = torch.randn(3, 2, *core.input_shape, dtype=torch.float64)
    wanted = flat(core(x))
    with torch.autocast("cpu", torch.bfloat16):
        found = flat(core(x))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)  # the dtype too


@every_core
def test_a_step_has_the_types_of_forward_under_autocast(core):
    x, state = torch.randn(1, 2, *core.input_shape), core.initial_state(2)
    with torch.autocast("cpu", torch.bfloat16):
        wanted, found = flat(core(x, state)), flat(core.step(x[0], state))
        again = flat(core.step(x[0], core.step(x[0], state)[1]))
    assert [part.dtype for part in found] == [part.dtype for part in wanted]
    assert [part.dtype for part in again] == [part.dtype for part in wanted]
    torch.testing.assert_close(found[0], wanted[0][0], rtol=0.03, atol=0.03)


@every_core
def test_what_is_written_to_a_state_changes_nothing_else(core):
    """Neither the outputs, of which nn.LSTM's states are no part either, nor the parameters."""
    weights = copy.deepcopy(core.state_dict())
    with torch.no_grad():
        output, state = core(torch.randn(3, 2, *core.input_shape))
        before = output.clone()
        for part in (*flat(state), *flat(core.initial_state(2)), *flat(core.initial_state(1))):
            part[0] = 7.0
    assert torch.equal(output, before)
    for name, tensor in core.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


@every_core
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_samples_that_begin_late(core, dtype):
    """Each gives what it gives by itself, and so do the weights' gradients."""
    if dtype == torch.bfloat16 and type(core).scan_late is RecurrentCore.scan_late:
        pytest.skip("for cores with an own way to begin late")
    core = copy.deepcopy(core).to(dtype)
    parameters = [p for p in core.parameters() if p.requires_grad]
    x, begins = torch.randn(6, 4, *core.input_shape, dtype=dtype), torch.tensor([0, 3, 5, 1])
    output, state = core.scan_late(x, begins)
    own, own_states, total = [], [], 0.0
    for b, begin in enumerate(begins.tolist()):
        alone, its_state = core(x[begin:, b : b + 1])
        torch.testing.assert_close(output[begin:, b : b + 1], alone)
        own_states.append(first_tensor(its_state))
        total = total + alone.square().sum()
        own.append(output[begin:, b].square().sum())
    torch.testing.assert_close(first_tensor(state), torch.cat(own_states))
    ours = torch.autograd.grad(sum(own), parameters)
    alone = torch.autograd.grad(total, parameters)
    if dtype == torch.float64:
        torch.testing.assert_close(ours, alone)
    else:  # of 8 bits, which sums over samples in another order round otherwise: all of them together
        ours, alone = (torch.cat([g.double().flatten() for g in gradients]) for gradients in (ours, alone))
        assert (ours - alone).norm() < 0.05 * alone.norm()


@every_core
def test_no_samples_that_begin_late(core):
    output, _ = core.scan_late(torch.randn(3, 0, *core.input_shape), torch.zeros(0, dtype=torch.long))
    assert output.shape == (3, 0, *core.output_shape)


@every_core
def test_an_input_on_another_device_is_refused(core):
    with pytest.raises(ValueError, match="input is on meta; allowed: cpu, as the parameters are"):
        core(torch.randn(4, 2, *core.input_shape, device="meta"))


@every_core
def test_a_replica_as_data_parallel_makes_it(core):
    """Its weights are plain tensors: `parameters()` gives none."""
    x = torch.randn(4, 2, *core.input_shape)
    replica = replicate(core)
    assert not list(replica.parameters())
    output, _ = replica(x)
    torch.testing.assert_close(output, core(x)[0])
    output.sum().backward()
    assert all(p.grad is not None for p in core.parameters() if p.requires_grad)
    core.zero_grad()


def replicate(module):
    """What torch.nn.parallel.replicate does for each GPU."""
    replica = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        if parameter is None:
            replica._parameters[name] = None
        else:
            setattr(replica, name, parameter * 1)
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replicate(child)
    return replica
