import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relational_rnn.cores import dnc_memory
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.sonnet_variables import dnc_variables
from tests.cores.baseline_oracle import check, check_contract, check_packed, load

ACCESS = ["memory", "read_weights", "write_weights", "linkage/link", "linkage/precedence_weights", "usage"]


def oracle_state(oracle, kind):
    memory = (oracle[f"{kind}/access_state/{part}"] for part in ACCESS)
    controller = tuple(oracle[f"{kind}/controller_state/{part}"] for part in ("hidden", "cell"))
    return (oracle[f"{kind}/access_output"], *memory, controller)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("limit", [0.05, 1.0])
def test_controllers_are_clipped(layers, limit):
    torch.manual_seed(0)
    core = DNC(3, 4, 4, 3, hidden_size=5, num_layers=layers, clip_value=limit, dtype=torch.float64)
    for parameter in core.controller.parameters():
        parameter.data.mul_(10)  # so that cells grow beyond both limits
    unlimited = DNC(3, 4, 4, 3, hidden_size=5, num_layers=layers, clip_value=None, dtype=torch.float64)
    unlimited.load_state_dict(core.state_dict())
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    (_, state), (_, free) = core(x), unlimited(x)
    pairs = [state[-1]] if layers == 1 else state[-1]
    assert max(part.abs().max() for pair in pairs for part in pair) <= limit
    free = [free[-1]] if layers == 1 else free[-1]
    assert max(cell.abs().max() for _, cell in free) > 1


@pytest.mark.parametrize(
    ("name", "heads", "clip"), [("dnc_n8_w6_r2_w1_rs", (2, 1), 20.0), ("dnc_n8_w6_r3_w2", (3, 2), None)]
)
def test_reproduces_deepmind_dnc(name, heads, clip):
    oracle = load(name)
    core = DNC(5, 7, 8, 6, *heads, hidden_size=10, clip_value=clip)
    check(core, dnc_variables, oracle, "dnc/", oracle_state(oracle, "state0"), oracle_state(oracle, "states"))


def test_deep_controller_takes_the_names_at_hand():
    core = DNC(5, 7, 8, 6, hidden_size=10, num_layers=2)
    default = dnc_variables(core)
    assert default["lstm_1/w_gates"][1] == (5 + 6 + 10 + 10, 40)
    assert default["output_linear/w"][1] == (10 + 10 + 6, 7)
    outside = [name if "lstm" in name else f"dnc/{name}" for name in default]  # layers made outside the scope
    assert set(dnc_variables(core, outside)) == set(outside)
    inside = [f"dnc/{name}" for name in default]
    assert set(dnc_variables(core, inside)) == set(inside)


# ------------------------------------------------------------------ the memory's equations, by hand


def sorted_allocation(usage):
    """The original's order of work: sort, running product, put back."""
    u = 1e-6 + (1 - 1e-6) * usage
    ordered, order = torch.sort(u, dim=-1, stable=True)
    before = torch.cat([torch.ones_like(ordered[..., :1]), ordered[..., :-1].cumprod(-1)], dim=-1)
    return torch.zeros_like(u).scatter(-1, order, (1 - ordered) * before)


def test_allocation_by_hand():
    usage = torch.tensor([[0.5, 0.1, 0.1]])
    wanted = torch.tensor([[0.5 * 0.01, 0.9, 0.9 * 0.1]])
    torch.testing.assert_close(dnc_memory.allocation(usage), wanted, rtol=1e-4, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 1000))
def test_allocation_is_the_sorted_one(slots, seed):
    generator = torch.Generator().manual_seed(seed)
    usage = torch.randint(0, 5, (3, slots), generator=generator).double() / 4  # ties, zeros and ones
    usage[1] = torch.rand(slots, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(dnc_memory.allocation(usage), sorted_allocation(usage), rtol=1e-9, atol=1e-12)


def test_allocation_and_its_gradient_are_finite_at_the_corners():
    for usage in (torch.zeros(2, 50), torch.ones(2, 50), torch.tensor([[0.0, 1.0] * 25]), -torch.ones(1, 3)):
        usage.requires_grad_()
        free = dnc_memory.allocation(usage)
        assert free.isfinite().all()
        (gradient,) = torch.autograd.grad(free.sum(), usage)
        assert gradient.isfinite().all()


def test_allocation_rounds_as_the_original():
    """It takes usages back from the sorted 1 - u: of an empty slot 1.0133e-6 in float32, not 1e-6."""
    used = 1 - (1 - torch.tensor(1e-6))
    torch.testing.assert_close(dnc_memory.allocation(torch.zeros(1, 2))[0, 1], used, rtol=1e-5, atol=0)


def test_allocation_has_its_gradient_where_rounding_left_a_usage_above_one():
    usage = torch.tensor([[0.25, 1 + 1e-7, 0.5]], dtype=torch.float64, requires_grad=True)
    ours, theirs = (
        torch.autograd.grad(f(usage).sum(), usage) for f in (dnc_memory.allocation, sorted_allocation)
    )
    torch.testing.assert_close(ours, theirs)


def test_content_weights_by_hand():
    memory = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    weights = dnc_memory.content_weights(memory, torch.tensor([[[3.0, 0.0]]]), torch.tensor([[2.0]]))
    torch.testing.assert_close(weights, torch.softmax(torch.tensor([[[2.0, 0.0]]]), -1), rtol=1e-5, atol=1e-5)


def test_content_weights_of_zeros_have_a_gradient():
    memory, keys = torch.zeros(1, 3, 2, requires_grad=True), torch.zeros(1, 1, 2, requires_grad=True)
    weights = dnc_memory.content_weights(memory, keys, torch.ones(1, 1))
    torch.testing.assert_close(weights, torch.full((1, 1, 3), 1 / 3))
    for gradient in torch.autograd.grad(weights[0, 0, 0], (memory, keys)):
        assert gradient.isfinite().all()


def test_usage_by_hand():
    usage = torch.tensor([[0.5, 0.0]])
    write = torch.tensor([[[0.5, 1.0], [0.0, 0.5]]])  # two write heads: 1 - (1 - 0.5)(1 - 0) = 0.5, and 1
    read, free = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[0.25]])
    wanted = torch.tensor([[0.5 + 0.5 * 0.5, 1 * 0.75]])
    torch.testing.assert_close(dnc_memory.next_usage(usage, write, free, read), wanted)


def test_link_by_hand():
    """Slot 0 was written last (p = 1); writing slot 1 in full links 1 back to 0."""
    link, precedence = torch.zeros(1, 1, 2, 2), torch.tensor([[[1.0, 0.0]]])
    link, precedence = dnc_memory.next_link(link, precedence, torch.tensor([[[0.0, 1.0]]]))
    assert link.tolist() == [[[[0, 0], [1, 0]]]]
    assert precedence.tolist() == [[[0, 1]]]
    read = torch.tensor([[[1.0, 0.0]]])  # the last read was slot 0: forward of it lies slot 1
    content = torch.tensor([[[0.5, 0.5]]])
    forward = dnc_memory.next_read_weights(content, link, read, torch.tensor([[[0.0, 1.0, 0.0]]]))
    assert forward.tolist() == [[[0, 1]]]
    backward = dnc_memory.next_read_weights(content, link, forward, torch.tensor([[[1.0, 0.0, 0.0]]]))
    assert backward.tolist() == [[[1, 0]]]


def test_second_write_head_allocates_another_slot():
    usage, content = torch.tensor([[0.0, 0.1, 0.5]]).double(), torch.zeros(1, 2, 3).double()
    weights = dnc_memory.next_write_weights(usage, content, torch.ones(1, 2), torch.ones(1, 2))
    wanted = torch.tensor([[[1, 0, 0], [0, 0.9, 0.5 * 0.1]]]).double()  # slot 0 is taken when head 1 chooses
    torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-5)


# ------------------------------------------------------------------ the core

configs = st.sampled_from(
    [
        dict(num_reads=2),
        dict(num_writes=2, clip_value=None),
        dict(num_layers=2, num_reads=3, num_writes=3),
        dict(controller="feedforward", num_layers=2),
        dict(memory_size=1),
    ]
)


def small(seed=0, **options):
    torch.manual_seed(seed)
    return DNC(3, 4, **{"memory_size": 5, "word_size": 3, "hidden_size": 6, "dtype": torch.float64} | options)


@settings(max_examples=15, deadline=None)
@given(configs, st.integers(1, 5), st.integers(1, 3), st.integers(0, 100))
def test_contract(options, time, batch, seed):
    check_contract(small(seed, **options), time, batch, seed)


def test_packed():
    check_packed(small(num_reads=2))


@pytest.mark.parametrize(
    "options", [dict(num_reads=2, num_writes=2), dict(controller="feedforward", num_layers=2)]
)
def test_gradcheck(options):
    """One step from a random state: at a tie of usages, as in the zero state, allocation has no derivative.

    Left out are the write weights, through which the original, too, stops the gradient from step to step.
    """
    core = small(**options)
    x = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
    reads, memory, read, write, link, precedence, usage, controller = core.initial_state(2)
    noise = [torch.rand_like(t) / 3 for t in (reads, memory, read, link, precedence, usage)]

    def run(x, reads, memory, read, link, precedence, usage):
        output, state = core(x, (reads, memory, read, write, link, precedence, usage, controller))
        return output, *state[:-1]

    assert torch.autograd.gradcheck(run, (x, *(n.requires_grad_() for n in noise)))


def test_long_training_run_stays_finite():
    """All that drives weights to the corners: large inputs, a high learning rate, no gradient clipping."""
    torch.manual_seed(0)
    core = DNC(3, 4, 4, 3, 2, 2, hidden_size=6)
    optimizer = torch.optim.Adam(core.parameters(), lr=0.03)
    for _ in range(150):
        x = 10 * torch.randn(8, 2, 3)
        output, _ = core(x)
        loss = (output - x.sum(-1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite()
    assert all(p.isfinite().all() for p in core.parameters())


def test_autocast_keeps_the_memory_in_float32():
    torch.manual_seed(0)
    core = DNC(3, 4, 4, 3, hidden_size=6)
    x = torch.randn(5, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = core(x)
    assert state[1].dtype == torch.float32
    torch.testing.assert_close(output, core(x)[0])


def test_interface_initialisation_is_per_layer():
    core = DNC(3, 4, 32, 16, 4, hidden_size=400)
    assert core.interface.weight.abs().max() <= 2 / 20
    assert core.interface.bias.abs().max() == 0
    assert core.interface.weight.shape[0] == sum(core.interface_sizes.values())


def test_bad_arguments():
    with pytest.raises(ValueError, match="controller='gru'"):
        DNC(3, 4, controller="gru")
    with pytest.raises(ValueError, match="memory_size=0"):
        DNC(3, 4, 0)
    for limit in (-1, 0, "20", [1], True, float("nan")):
        with pytest.raises(ValueError, match=r"clip_value=.*; allowed: a positive number or None"):
            DNC(3, 4, clip_value=limit)
    core = DNC(3, 4)
    with pytest.raises(ValueError, match="tuple of 8"):
        core(torch.zeros(1, 2, 3), core.initial_state(2)[:3])
    with pytest.raises(ValueError, match="controller='feedforward'"):
        dnc_variables(DNC(3, 4, controller="feedforward"))


@pytest.mark.slow
def test_compiled_memory_is_the_same():
    torch.manual_seed(0)
    core = DNC(3, 4, 5, 3, 2, 2, hidden_size=6, compile=True)
    x = torch.randn(4, 2, 3, requires_grad=True)
    output, _ = core(x)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    core._access = dnc_memory.access
    plain, _ = core(x)
    torch.testing.assert_close(output, plain)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain.sum(), x)[0])
