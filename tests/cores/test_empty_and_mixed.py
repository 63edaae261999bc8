"""Every core without steps or sequences, and with dtypes that differ from autocast's."""

import copy
import re

import pytest
import torch

from relational_rnn import DNC
from relational_rnn.cores.base import map_state
from tests.cores.baseline_oracle import flat
from tests.cores.test_contract import CORES

every_core = pytest.mark.parametrize("core", [make() for make in CORES.values()], ids=list(CORES))
LOW = (torch.bfloat16, torch.float16)
other = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}


def random_state(core, batch, dtype=torch.float32):
    return map_state(lambda part: torch.rand_like(part).to(dtype), core.initial_state(batch))


@every_core
@pytest.mark.parametrize("resetting", [False, True])
def test_no_steps_leave_a_copy_of_the_state(core, resetting):
    """In the parameters' dtype; what is written to it does not change the one given."""
    for batch in (3, 0, None):  # None: without a batch
        sizes = (0,) if batch is None else (0, batch)
        state = random_state(core, 1 if batch is None else batch, torch.float64)
        if batch is None:
            state = map_state(lambda part: part[0], state)
        for given in (state, map_state(torch.Tensor.float, state)):
            x, resets = torch.randn(*sizes, *core.input_shape), torch.ones(sizes, dtype=torch.bool)
            output, final = core(x, given, resets=resets if resetting else None)
            assert output.shape == (*sizes, *core.output_shape)
            for before, after in zip(flat(given), flat(final), strict=True):
                assert after.dtype == torch.float32
                assert torch.equal(before.float(), after)
                assert after.untyped_storage().data_ptr() != before.untyped_storage().data_ptr() or not batch


@every_core
def test_writing_to_the_state_of_no_steps_changes_no_other(core):
    state = random_state(core, 2)
    before = map_state(torch.clone, state)
    _, final = core(torch.randn(0, 2, *core.input_shape), state)
    for part in flat(final):
        part.fill_(7.0)
    for part, was in zip(flat(state), flat(before), strict=True):
        assert torch.equal(part, was)


@every_core
def test_the_state_of_no_steps_passes_gradients_on(core):
    state = map_state(lambda part: part.requires_grad_(), random_state(core, 2))
    _, final = core(torch.randn(0, 2, *core.input_shape), state)
    sum(part.sum() for part in flat(final)).backward()
    assert all(torch.equal(part.grad, torch.ones_like(part)) for part in flat(state))


@every_core
@pytest.mark.parametrize("autocast", [None, *LOW])
@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
def test_empty_outputs_have_the_dtype_of_others(core, autocast, time, batch):
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        wanted, _ = core(torch.randn(3, 2, *core.input_shape))
        found, _ = core(torch.randn(time, batch, *core.input_shape))
    assert found.dtype == wanted.dtype


@every_core
@pytest.mark.parametrize("autocast", LOW)
def test_parameters_of_the_other_16_bit_type_are_named_under_autocast(core, autocast):
    """Whatever the backend; a DNC leaves autocast aside."""
    dtype = other[autocast]
    core = copy.deepcopy(core).to(dtype)
    x, state = torch.randn(3, 2, *core.input_shape), core.initial_state(2)
    wanted = core(x.to(dtype))[0]
    message = f"parameters have dtype {dtype}; allowed under autocast to {autocast}: torch.float32"
    for kind in (torch.float32, *LOW):
        for call in (core, lambda x: core.step(x[0], state)):
            with torch.autocast("cpu", autocast):
                if isinstance(core, DNC):
                    assert call(x.to(kind))[0].dtype == dtype
                    continue
                with pytest.raises(ValueError, match=re.escape(message)):
                    call(x.to(kind))
    with torch.autocast("cpu", autocast, enabled=False):
        assert torch.equal(core(x.to(dtype))[0], wanted)


@every_core
@pytest.mark.parametrize("autocast", LOW)
@pytest.mark.parametrize("resetting", [False, True])
def test_an_input_of_any_type_that_autocast_casts(core, autocast, resetting):
    """Also of the 16-bit type that autocast is not in, for which torch's `cat` has no common one."""
    x, resets = torch.randn(4, 3, *core.input_shape), torch.rand(4, 3) < 0.3
    begins, state = torch.tensor([0, 2, 1]), core.initial_state(3)
    for kind in (torch.float32, *LOW):
        for parameters in (torch.float32, autocast):
            ours = copy.deepcopy(core).to(parameters)
            exact, given = copy.deepcopy(ours).double(), x.to(kind)
            wanted, _ = exact(given.double(), resets=resets if resetting else None)
            late, _ = exact.scan_late(given.double(), begins)
            with torch.autocast("cpu", autocast):
                found, _ = ours(given, resets=resets if resetting else None)
                stepped, _ = ours.step(given[0], map_state(lambda part, p=parameters: part.to(p), state))
                found_late, _ = ours.scan_late(given, begins)
            for mine, right in ((found, wanted), (found_late[2:], late[2:])):
                assert (mine.double() - right).norm() < 0.05 * right.norm()
            if not resetting:
                assert (stepped.double() - wanted[0]).norm() < 0.05 * wanted[0].norm()
