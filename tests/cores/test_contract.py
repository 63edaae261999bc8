"""What every core must do, whichever it is."""

import copy
import math

import pytest
import torch
import torch._dynamo.testing
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
@pytest.mark.parametrize("dtype", [torch.float64, torch.long, torch.bool, torch.complex64])
def test_autocast_excuses_no_input_that_it_does_not_cast(core, dtype):
    x, state = torch.ones(3, 2, *core.input_shape, dtype=dtype), core.initial_state(2)
    calls = (
        lambda: core(x),
        lambda: core.step(x[0], state),
        lambda: core(pack_sequence([x[:, 0], x[:2, 1]])),
    )
    for call in calls:
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(ValueError, match=f"input has dtype {dtype}; allowed: torch.float32, .*bfloat16"),
        ):
            call()


@every_core
def test_a_sparse_or_nested_input_is_refused(core):
    x = torch.randn(3, 2, *core.input_shape)
    for wrong in (x.to_sparse(), torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged)):
        with pytest.raises(ValueError, match="input must be a tensor or PackedSequence, got one that is"):
            core(wrong)
    with pytest.raises(
        ValueError, match="input of a step must be a tensor, got one that is sparse or nested"
    ):
        core.step(x[0].to_sparse(), core.initial_state(2))


@every_core
def test_a_sparse_state_or_sparse_resets_are_refused(core):
    x, resets = torch.randn(3, 2, *core.input_shape), torch.ones(3, 2, dtype=torch.bool)
    sparse = map_state(torch.Tensor.to_sparse, core.initial_state(2))
    for call in (lambda: core(x, sparse), lambda: core.step(x[0], sparse)):
        with pytest.raises(ValueError, match=r"must be a tensor of shape .* got one that is sparse"):
            call()
    with pytest.raises(ValueError, match=r"resets must be a torch\.bool tensor .* sparse or nested"):
        core(x, resets=resets.to_sparse())


@every_core
def test_a_step_is_compiled_once(core):
    if isinstance(core, DNC):
        pytest.skip("as the others, but slow")
    compiled, count = copy.deepcopy(core), torch._dynamo.testing.CompileCounter()
    compiled._shapes = None
    step = torch.compile(compiled.step, backend=count)
    graphs = []
    for _ in range(2):
        step(torch.randn(2, *core.input_shape), core.initial_state(2))
        graphs.append(count.frame_count)
    assert graphs[0] == graphs[1]


@every_core
@pytest.mark.parametrize("size", [-1, 2.0, "2", None, True])
def test_a_batch_size_that_is_none_is_named(core, size):
    with pytest.raises(ValueError, match=f"batch_size={size!r} .*: an integer of at least 0"):
        core.initial_state(size)


@every_core
def test_a_packed_input_of_another_size_is_named(core):
    wanted = ", ".join(map(str, core.input_shape))
    with pytest.raises(ValueError, match=rf"\[4, 9\]; allowed: \[sum of lengths, {wanted}\]"):
        core(pack_sequence([torch.randn(4, 9)]))


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
@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0), (0, 0)])
def test_empty_outputs_have_gradients_of_zero(core, time, batch):
    core, x = copy.deepcopy(core), torch.randn(time, batch, *core.input_shape, requires_grad=True)
    for resets in (None, torch.ones(time, batch, dtype=torch.bool)):
        output, _ = core(x, resets=resets)
        assert output.shape == (time, batch, *core.output_shape)
        output.sum().backward()
    assert x.grad.shape == x.shape
    assert all(not p.grad.any() for p in core.parameters() if p.requires_grad)


@every_core
def test_shapes_on_the_meta_device(core):
    core = copy.deepcopy(core).to("meta")
    x, resets = torch.randn(3, 2, *core.input_shape, device="meta"), torch.ones(3, 2, device="meta").bool()
    for output, state in (core(x), core(x, resets=resets), core.step(x[0], core.initial_state(2))):
        assert output.shape[-1 - len(core.output_shape) :] == (2, *core.output_shape)
        assert {part.device.type for part in flat((output, state))} == {"meta"}


@pytest.mark.parametrize("name", [name for name in CORES if "torch" not in name])
def test_vmap_over_inputs_resets_and_weights(name):
    """And gradients sample by sample."""
    torch.manual_seed(0)
    core, other = CORES[name](), CORES[name]()
    xs, resets = torch.randn(2, 4, 3, *core.input_shape), torch.rand(2, 4, 3) < 0.4
    ours = torch.func.vmap(lambda x, r: core(x, resets=r)[0])(xs, resets)
    torch.testing.assert_close(
        ours, torch.stack([core(x, resets=r)[0] for x, r in zip(xs, resets, strict=True)])
    )
    weights, _ = torch.func.stack_module_state([core, other])
    ours = torch.func.vmap(lambda w: torch.func.functional_call(core, w, (xs[0],))[0])(weights)
    torch.testing.assert_close(ours, torch.stack([core(xs[0])[0], other(xs[0])[0]]))

    def loss(weights, x):
        return torch.func.functional_call(core, weights, (x.unsqueeze(1),))[0].sin().sum()

    own = {name: parameter.detach() for name, parameter in core.named_parameters()}
    found = torch.func.vmap(torch.func.grad(loss), (None, 1))(own, xs[0])
    core(xs[0])[0].sin().sum().backward()
    for key, parameter in core.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(found[key].sum(0), parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in CORES if name != "dnc"])  # as the others, but slow
def test_torch_export_with_resets(name):
    core = CORES[name]()
    x, one, other = torch.randn(3, 2, *core.input_shape), *(torch.rand(2, 3, 2) < 0.4)
    program = torch.export.export(core, (x,), dict(resets=one))
    torch.testing.assert_close(program.module()(x, resets=other)[0], core(x, resets=other)[0])


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
@pytest.mark.parametrize("value", [1e6, math.inf, math.nan])
def test_what_comes_before_a_late_beginning_does_not_matter(core, value):
    x, begins = torch.randn(5, 3, *core.input_shape), torch.tensor([0, 2, 4])
    before = torch.arange(5).unsqueeze(-1) < begins
    wanted, state = core.scan_late(x, begins)
    x[before] = value
    found, other = core.scan_late(x, begins)
    torch.testing.assert_close(found[~before], wanted[~before])
    for ours, theirs in zip(flat(other), flat(state), strict=True):
        torch.testing.assert_close(ours, theirs)


@every_core
def test_parameters_made_on_the_meta_device_can_be_started_later(core):
    torch.manual_seed(0)
    later = copy.deepcopy(core).to("meta").to_empty(device="cpu")
    later.reset_parameters()
    x = torch.randn(3, 2, *core.input_shape)
    assert later(x)[0].isfinite().all()
    later.load_state_dict(core.state_dict())
    torch.testing.assert_close(later(x)[0], core(x)[0])


@pytest.mark.parametrize("bias", ["1", None, math.nan, [1.0], True])
def test_a_forget_bias_that_is_no_number_is_named(bias):
    makers = (
        lambda: RelationalMemory(3, 2, 4, forget_bias=bias),
        lambda: LSTM(3, 4, bias),
        lambda: DeepLSTM(3, 4, forget_bias=bias),
        lambda: EntNet(3, 2, 4, forget_bias=bias),
        lambda: ConvLSTM((3, 4, 2), 3, 2, bias),
    )
    for make in makers:
        with pytest.raises(ValueError, match=r"forget_bias=.* is not allowed; allowed: a number, not NaN"):
            make()


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
