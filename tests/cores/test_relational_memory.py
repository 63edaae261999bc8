"""Properties of the Relational Memory Core that need no recorded numbers."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from relational_rnn import RelationalMemory
from relational_rnn.kernels import op
from tests.cores.naive_rmc import naive_scan

shapes = st.fixed_dictionaries(
    {
        "mem_slots": st.integers(1, 9),
        "num_heads": st.integers(1, 4),
        "head_size": st.integers(1, 5),
        "num_blocks": st.integers(1, 3),
        "attention_mlp_layers": st.integers(1, 3),
        "gate_style": st.sampled_from(["unit", "memory", None]),
        "key_size": st.sampled_from([None, 1, 3]),
        "input_rows": st.sampled_from([None, 1, 3]),
        "legacy_scale": st.booleans(),
    }
)
few = settings(max_examples=15, deadline=None)
BACKENDS = ["reference", "auto", "torch"]


def covered(backend, config):
    """The hand-written recurrence has one block and one input row."""
    general = config.get("num_blocks", 1) > 1 or (config.get("input_rows") or 1) > 1
    return "auto" if backend == "torch" and general else backend


def perturbed(config, seed=0, **more):
    """A float64 core whose biases and norms are not at their trivial starting values."""
    torch.manual_seed(seed)
    core = RelationalMemory(4, **config, **more, dtype=torch.float64)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return core


def example(core, time, batch, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(time, batch, *core.input_shape, dtype=torch.float64, generator=generator)
    state = torch.randn(batch, core.mem_slots, core.slot_size, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), state.requires_grad_()


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(config=shapes, time=st.integers(1, 4), batch=st.integers(1, 3), resetting=st.booleans())
def test_equals_the_naive_equations_forward_and_backward(backend, config, time, batch, resetting):
    core = perturbed(config, backend=covered(backend, config))
    x, state = example(core, time, batch)
    resets = torch.rand(time, batch) < 0.4 if resetting else None
    wanted = naive_scan(core, x, state, resets)
    output, final = core(x, state, resets=resets)
    torch.testing.assert_close(output, wanted.flatten(2), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(final, wanted[-1], rtol=1e-10, atol=1e-10)
    leaves = [x, state, *core.parameters()]
    cotangent = torch.randn_like(output)
    ours = torch.autograd.grad((output * cotangent).sum() + final.sin().sum(), leaves)
    theirs = torch.autograd.grad((wanted.flatten(2) * cotangent).sum() + wanted[-1].sin().sum(), leaves)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=6, deadline=None)
@given(config=shapes)
def test_gradcheck(backend, config):
    core = perturbed(config | {"mem_slots": min(config["mem_slots"], 3)}, backend=covered(backend, config))
    x, state = example(core, 2, 2)
    resets = torch.tensor([[False, False], [True, False]])
    assert torch.autograd.gradcheck(lambda x, s: core(x, s, resets=resets), (x, state))


@pytest.mark.parametrize("backend", BACKENDS)
@few
@given(config=shapes, output_gate=st.booleans())
def test_a_loop_over_step_equals_forward(backend, config, output_gate):
    output_gate = output_gate and config["gate_style"] is not None
    core = perturbed(config, backend=covered(backend, config), output_gate=output_gate)
    x, _ = example(core, 4, 2)
    state = core.initial_state(2)
    outputs = []
    for t in range(4):
        output, state = core.step(x[t], state)
        outputs.append(output)
    whole, final = core(x)
    exact = dict(rtol=0, atol=0) if backend == "reference" else dict(rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole, torch.stack(outputs), **exact)
    torch.testing.assert_close(final, state, **exact)


@few
@given(config=shapes, data=st.data())
def test_resets_equal_separate_sequences(config, data):
    core = perturbed(config)
    x, _ = example(core, 6, 2)
    cut = data.draw(st.integers(1, 5))
    resets = torch.zeros(6, 2, dtype=torch.bool)
    resets[cut, 1] = True
    output, final = core(x, resets=resets)
    whole, _ = core(x[:, :1])
    first, _ = core(x[:cut, 1:])
    second, last = core(x[cut:, 1:])
    torch.testing.assert_close(output[:, :1], whole)
    torch.testing.assert_close(output[:, 1:], torch.cat([first, second]))
    torch.testing.assert_close(final[1:], last)


@pytest.mark.parametrize("enforce_sorted", [True, False])
@few
@given(config=shapes, data=st.data())
def test_packed_sequences_equal_one_run_each(enforce_sorted, config, data):
    core = perturbed(config)
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    if enforce_sorted:
        lengths = sorted(lengths, reverse=True)
    x, state = example(core, 5, len(lengths))
    sequences = [x[:n, b] for b, n in enumerate(lengths)]
    output, final = core(pack_sequence(sequences, enforce_sorted=enforce_sorted), state)
    padded, got = pad_packed_sequence(output)
    assert got.tolist() == lengths
    for b, n in enumerate(lengths):
        alone, last = core(x[:n, b : b + 1], state[b : b + 1])
        torch.testing.assert_close(padded[:n, b], alone[:, 0])
        torch.testing.assert_close(final[b], last[0])


def test_packed_padded_sequence_with_batch_first():
    core = RelationalMemory(3, 2, 4, batch_first=True)
    x = torch.randn(3, 5, 3)
    packed = pack_padded_sequence(x, torch.tensor([2, 5, 1]), batch_first=True, enforce_sorted=False)
    output, state = core(packed)
    padded, _ = pad_packed_sequence(output, batch_first=True)
    torch.testing.assert_close(padded[1], core(x[1:2])[0][0])
    torch.testing.assert_close(state[0], core(x[:1, :2])[1][0])


def test_batch_first_and_unbatched_inputs_give_the_same_numbers():
    core = RelationalMemory(3, 2, 4, 2)
    first = RelationalMemory(3, 2, 4, 2, batch_first=True)
    first.load_state_dict(core.state_dict())
    x, resets = torch.randn(5, 2, 3), torch.rand(5, 2) < 0.5
    output, state = core(x, resets=resets)
    other, other_state = first(x.transpose(0, 1), resets=resets.t())
    torch.testing.assert_close(output, other.transpose(0, 1))
    torch.testing.assert_close(state, other_state)
    alone, alone_state = core(x[:, 0], core.initial_state(1)[0], resets=resets[:, 0])
    assert alone.shape == (5, 16)
    assert alone_state.shape == (2, 8)
    torch.testing.assert_close(alone, output[:, 0])
    torch.testing.assert_close(alone_state, state[0])


@pytest.mark.parametrize("style", ["unit", "memory"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_gate_biases_leave_the_memory_exactly_unchanged(style, backend):
    core = RelationalMemory(
        3, 4, 5, 2, gate_style=style, forget_bias=math.inf, input_bias=-math.inf, backend=backend
    )
    state = torch.randn(2, 4, 10, requires_grad=True)
    output, final = core(torch.randn(6, 2, 3), state)
    assert torch.equal(final, state)
    assert torch.equal(output[2], state.flatten(1))
    final.sum().backward()
    assert torch.equal(state.grad, torch.ones_like(state))


def test_without_gates_the_memory_is_normalised_attention():
    core = RelationalMemory(3, 4, 5, 2, gate_style=None)
    _, state = core(torch.randn(1, 2, 3))
    torch.testing.assert_close(state.mean(-1), torch.zeros(2, 4), atol=1e-5, rtol=0)  # a fresh LayerNorm


def test_the_number_of_slots_changes_no_parameter():
    few_slots = RelationalMemory(5, 1, 8, 4)
    many = RelationalMemory(5, 13, 8, 4)
    many.load_state_dict(few_slots.state_dict())
    assert many(torch.randn(2, 3, 5))[0].shape == (2, 3, 13 * 32)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (dict(input_size=40, mem_slots=8, head_size=32, num_heads=8), 605_184),
        (dict(input_size=40, mem_slots=8, head_size=32, num_heads=8, gate_style="memory"), 343_044),
        (dict(input_size=40, mem_slots=16, head_size=16, num_heads=8), 155_136),
        (dict(input_size=40, mem_slots=1, head_size=256, num_heads=8), 37_871_616),
    ],
)
def test_parameter_counts_are_the_papers(config, parameters):
    core = RelationalMemory(**config, device="meta")
    assert sum(p.numel() for p in core.parameters()) == parameters


def test_output_gate_follows_the_papers_equations():
    """h = sigmoid(o) tanh(m), gates from h: written out for two steps and compared."""
    core = perturbed(dict(mem_slots=3, head_size=2, num_heads=2), output_gate=True)
    x, _ = example(core, 2, 2)
    output, (memory, hidden) = core(x)
    m = core.initial_state(2)[0]
    h = m.tanh()
    for t in range(2):
        rows = core.input_projection(x[t])
        gates = core.gate_from_input(rows)[:, None] + core.gate_from_memory(h)
        i, f, o = gates.chunk(3, dim=-1)
        with torch.no_grad():
            plain = RelationalMemory(4, 3, 2, 2, gate_style=None, dtype=torch.float64)
            plain.load_state_dict({k: v for k, v in core.state_dict().items() if not k.startswith("gate")})
            candidate = naive_scan(plain, x[t : t + 1], m)[0]
        m = torch.sigmoid(f + 1) * m + torch.sigmoid(i) * candidate.tanh()
        h = torch.sigmoid(o) * m.tanh()
    torch.testing.assert_close(memory, m)
    torch.testing.assert_close(hidden, h)
    torch.testing.assert_close(output[-1], h.flatten(1))


def test_deepcopy_and_state_dict_round_trip():
    core = RelationalMemory(3, 2, 4, 2)
    x = torch.randn(4, 2, 3)
    clone, other = copy.deepcopy(core), RelationalMemory(3, 2, 4, 2)
    other.load_state_dict(core.state_dict())
    assert torch.equal(core(x)[0], clone(x)[0])
    assert torch.equal(core(x)[0], other(x)[0])


def test_autocast_keeps_the_state_in_float32():
    core = RelationalMemory(3, 2, 4, 2)
    x = torch.randn(6, 2, 3)
    exact, _ = core(x)
    with torch.autocast("cpu", torch.bfloat16):
        output, state = core(x)
        stepped, next_state = core.step(x[0], core.initial_state(2))
    assert state.dtype == next_state.dtype == torch.float32
    assert (output - exact).norm() / exact.norm() < 0.02
    assert (stepped - exact[0]).norm() / exact[0].norm() < 0.02
    output.float().sum().backward()
    assert all(p.grad is not None for p in core.parameters())


@pytest.mark.parametrize("time_and_batch", [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_sequences_and_batches(time_and_batch, backend):
    core = RelationalMemory(3, 2, 4, backend=backend)
    time, batch = time_and_batch
    output, state = core(torch.randn(time, batch, 3, requires_grad=True))
    assert output.shape == (time, batch, 8)
    assert state.shape == (batch, 2, 4)
    if time == 0:
        assert torch.equal(state, core.initial_state(batch))


def test_recompute_gives_the_same_gradients():
    kept = perturbed(dict(mem_slots=3, head_size=4, num_heads=2), backend="torch")
    again = copy.deepcopy(kept)
    again.recompute = True
    x, state = example(kept, 19, 2)  # more than two stretches of recomputed steps
    resets = torch.rand(19, 2) < 0.2
    for core in (kept, again):
        output, final = core(x, state, resets=resets)
        (output.sin().sum() + final.sum()).backward()
    for mine, other in zip(kept.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_and_inputs_need_not_be_contiguous(backend):
    core = RelationalMemory(3, 2, 4, 2, backend=backend)
    x, state = torch.randn(2, 6, 5)[..., 1:4].transpose(0, 1), torch.randn(8, 2, 2).permute(2, 1, 0)
    torch.testing.assert_close(core(x, state)[0], core(x.contiguous(), state.contiguous())[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_of_another_float_dtype_is_taken(backend):
    core, x, state = RelationalMemory(3, 2, 4, backend=backend), torch.randn(4, 2, 3), torch.randn(2, 2, 4)
    output, final = core(x, state.double())
    torch.testing.assert_close(output, core(x, state)[0])
    assert final.dtype == torch.float32


@pytest.mark.parametrize("inputs", [3, 20])  # narrower and wider than a slot: multiplied out, or not
def test_folded_weights_take_the_same_steps_until_the_weights_change(inputs):
    core = RelationalMemory(inputs, 2, 4, 2, backend="torch")
    x, state = torch.randn(5, inputs), core.initial_state(5)
    with torch.no_grad():
        folded = core.fold()
        expected = core.step(x, state, folded)[0]
        torch.testing.assert_close(core.step(x, state)[0], expected)
        for parameter in core.parameters():
            parameter.add_(torch.randn_like(parameter))
        assert torch.equal(core.step(x, state, folded)[0], expected)
        changed = core.step(x, state, core.fold())[0]
        assert (changed - expected).abs().max() > 0.01
        torch.testing.assert_close(core.step(x, state)[0], changed)
    assert RelationalMemory(inputs, 2, 4, 2, backend="reference").fold() is None


def test_triton_refuses_gates_beyond_32_bit_indices(monkeypatch):
    """With narrow keys there are more gates than queries, keys and values."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # else it is refused for want of a GPU
    core = RelationalMemory(3, 4, 64, 4, key_size=1, device="meta")
    for batch, refused in ((1_300_000, True), (900_000, False)):
        memory = torch.empty(batch, 4, 256, device="meta")
        reason = op._why_not_triton(memory, core.weights())
        assert (reason is not None and "under 2**31" in reason) == refused
