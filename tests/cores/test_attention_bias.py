"""attention_bias: what is blocked is not seen, nothing else changes, and what cannot be is refused."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from relational_rnn import RelationalMemory

T, B, N, H, INF = 5, 3, 4, 2, float("inf")


def make(**options):
    torch.manual_seed(0)
    return RelationalMemory(6, N, 5, H, **options), torch.randn(T, B, 6)


def bias(*, steps=slice(None), heads=slice(None), queries=slice(0, N), keys=N, blocks=1, rows=1):
    """-inf from those query rows to those key rows, in those steps and heads; the input rows come last."""
    full = torch.zeros(T, 1, blocks, H, N + rows, N + rows)
    full[steps, :, :, heads, queries, keys] = -INF
    return full


def test_zeros_change_nothing():
    core, x = make(backend="reference")
    output, state = core(x)
    biased, biased_state = core(x, attention_bias=torch.zeros(1, 1, 1, 1, 1, 1))
    assert torch.equal(output, biased)
    assert torch.equal(state, biased_state)


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_other_keys_share_what_the_blocked_one_had(blocks):
    core, x = make(num_blocks=blocks)
    _, _, free = core(x[:1], need_weights=True)
    blocked = bias(heads=1, queries=2, keys=N, blocks=blocks)[:1]
    _, _, trace = core(x[:1], need_weights=True, attention_bias=blocked)
    first = free.attention[:, :, 0].clone()  # later blocks see other rows
    first[:, :, 1, 2, N] = 0
    first[:, :, 1, 2] /= first[:, :, 1, 2].sum(-1, keepdim=True)
    torch.testing.assert_close(trace.attention[:, :, 0], first)
    assert (trace.attention[:, :, :, 1, 2, N] == 0).all()
    assert (trace.attention[:, :, :, 0, 2, N] > 0).all()


def test_from_step_t_on_means_nothing_before_t():
    core, x = make()
    output, _ = core(x)
    biased, _ = core(x, attention_bias=bias(steps=slice(2, None)))
    torch.testing.assert_close(biased[:2], output[:2])
    assert ((biased[2:] - output[2:]).abs().amax(dim=(1, 2)) > 1e-3).all()


def test_without_gates_a_memory_that_cannot_attend_to_the_input_does_not_depend_on_it():
    core, x = make(gate_style=None)
    x.requires_grad_()
    output, _ = core(x, attention_bias=bias(steps=slice(2, None)))
    output[-1].sum().backward()
    assert x.grad[:2].any()
    assert not x.grad[2:].any()


def test_a_slot_nobody_attends_to_reaches_no_other_slot():
    core, x = make(gate_style=None)
    memory = core.initial_state(B).requires_grad_()
    others = [slot for slot in range(N) if slot != 1]
    cut = bias(queries=others, keys=1)
    output, _ = core(x[:1], memory, attention_bias=cut[:1])
    output.unflatten(-1, (N, -1))[..., others, :].sum().backward()
    assert not memory.grad[:, 1].any()
    assert memory.grad[:, others].any()


@pytest.mark.parametrize("rows", [None, 2])
def test_the_same_in_every_layout_and_backend(rows):
    core, x = make(input_rows=rows)
    x = x if rows is None else torch.randn(T, B, rows, 6)
    R = rows or 1
    cut = torch.randn(T, B, 1, H, N + R, N + R)
    cut[1:, :, :, 0, 3, :N] = -INF
    output, state, trace = core(x, attention_bias=cut, need_weights=True)
    plain, plain_state = core(x, attention_bias=cut)
    torch.testing.assert_close(plain, output)
    torch.testing.assert_close(plain_state, state)
    core.batch_first = True
    swapped, _, swapped_trace = core(x.transpose(0, 1), attention_bias=cut.transpose(0, 1), need_weights=True)
    torch.testing.assert_close(swapped.transpose(0, 1), output)
    torch.testing.assert_close(swapped_trace.attention.transpose(0, 1), trace.attention)
    one, _ = core(x[:, 1], attention_bias=cut[:, 1])
    torch.testing.assert_close(one, output[:, 1])
    core.batch_first, core.backend = False, "torch"
    torch.testing.assert_close(core(x, attention_bias=cut)[0], output)


@pytest.mark.parametrize(
    ("core_dtype", "dtype"), [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)]
)
def test_a_bias_of_another_precision_is_cast(core_dtype, dtype):
    core, x = make(dtype=core_dtype)
    x, cut = x.to(core_dtype), bias()
    output, _ = core(x, attention_bias=cut.to(dtype))
    assert torch.equal(output, core(x, attention_bias=cut.to(core_dtype))[0])
    with pytest.raises(ValueError, match="every query row a key row"):  # what is -inf in the core's dtype
        core(x, attention_bias=torch.full((1,) * 6, torch.finfo(dtype).min, dtype=dtype))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(T, B, 1, H, N, N), r"shape \[5, 3, 1, 2, 4, 4\]; allowed: \[5, 3, 1, 2, 5, 5\]"),
        (torch.tensor(0.0), r"shape \[\]; allowed"),
        (torch.zeros(N + 1, N + 1), r"shape \[5, 5\]; allowed"),
        (torch.zeros(1, 1, 1, 1, 1, 1).bool(), "floating point dtype, got torch.bool"),
        ("none", "floating point dtype, got str"),
        (torch.full((1, 1, 1, 1, 1, 1), -INF), "every query row a key row"),
        (torch.full((1, 1, 1, 1, 1, 1), INF), "no inf or NaN"),
        (torch.full((1, 1, 1, 1, 1, 1), float("nan")), "no inf or NaN"),
        (torch.zeros(1, 1, 1, 1, 1, 1, device="meta"), "is on meta, the input on cpu"),
    ],
)
def test_what_is_refused(wrong, message):
    core, x = make()
    with pytest.raises(ValueError, match=message):
        core(x, attention_bias=wrong)


def test_refused_where_there_is_no_trace_either():
    zero = torch.zeros(1, 1, 1, 1, 1, 1)
    core, x = make()
    with pytest.raises(ValueError, match="attention_bias is not allowed with a PackedSequence"):
        core(pack_sequence([x[:, 0]]), attention_bias=zero)
    with pytest.raises(ValueError, match="at least 1 with attention_bias"):
        core(x[:0], attention_bias=zero)
    gated, x = make(output_gate=True)
    with pytest.raises(ValueError, match=r"attention_bias is not allowed with .* an output gate"):
        gated(x, attention_bias=zero)
