"""V-trace against numbers worked out by hand, a plain recursion and what it must reduce to."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relational_rnn.agents.vtrace import Targets, entropy, log_probability, losses, vtrace


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_by_hand():
    """Ratios 2 and 1/2, gamma 1/2. Backwards: delta_1 = 1/2 (1 + 1/2 * 4 - 2) = 1/2, so v_1 = 5/2;
    delta_0 = 1 (3 + 1/2 * 2 - 1) = 3, v_0 = 1 + 3 + 1/2 * 1 * 1/2 = 17/4;
    A_1 = 1/2 (1 + 1/2 * 4 - 2) = 1/2, A_0 = 1 (3 + 1/2 * 5/2 - 1) = 13/4."""
    args = (column(2, 0.5).log(), column(0.5, 0.5), column(3, 1), column(1, 2), torch.tensor([4.0]).double())
    targets = vtrace(*args)
    assert targets.values.flatten().tolist() == pytest.approx([17 / 4, 5 / 2])
    assert targets.advantages.flatten().tolist() == pytest.approx([13 / 4, 1 / 2])
    # Without clips: rho_0 = c_0 = 2, delta_0 = 6, v_0 = 1 + 6 + 1/2 * 2 * 1/2 = 15/2, A_0 = 2 * 13/4.
    targets = vtrace(*args, clip_rho=10, clip_c=10)
    assert targets.values.flatten().tolist() == pytest.approx([15 / 2, 5 / 2])
    assert targets.advantages.flatten().tolist() == pytest.approx([13 / 2, 1 / 2])
    # Traces cut: one-step targets.
    assert vtrace(*args, trace_decay=0).values.flatten().tolist() == pytest.approx([4, 5 / 2])


def test_an_episode_end_cuts_the_unroll():
    """gamma 1, on policy, three steps, the second ends the episode: v = (1 + 2, 2, 4 + 8)."""
    zero = column(0, 0, 0)
    targets = vtrace(zero, column(1, 0, 1), column(1, 2, 4), column(5, 6, 7), torch.tensor([8.0]).double())
    assert targets.values.flatten().tolist() == [3, 2, 12]
    assert targets.advantages.flatten().tolist() == [3 - 5, 2 - 6, 12 - 7]


def plain(log_ratios, discounts, rewards, values, bootstrap, clip_rho, clip_c, decay):
    """One game, numbers only, the definition (equation 1 of the paper) as a sum over the future."""
    steps = len(rewards)
    ratio = [math.exp(x) for x in log_ratios]
    v = [*values, bootstrap]
    delta = [min(clip_rho, ratio[t]) * (rewards[t] + discounts[t] * v[t + 1] - v[t]) for t in range(steps)]
    target = []
    for s in range(steps):
        total = v[s]
        for t in range(s, steps):
            weight = math.prod(discounts[i] * decay * min(clip_c, ratio[i]) for i in range(s, t))
            total += weight * delta[t]
        target.append(total)
    after = [*target[1:], bootstrap]
    gain = [min(clip_rho, ratio[t]) * (rewards[t] + discounts[t] * after[t] - v[t]) for t in range(steps)]
    return target, gain


def example(steps, games, seed):
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    ends = torch.rand(steps, games, generator=generator) < 0.2
    discounts = torch.where(ends, 0.0, 0.9).double()
    return normal(steps, games), discounts, normal(steps, games), normal(steps, games), normal(games)


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(0, 10**6),
    st.floats(0.1, 5),
    st.floats(0.1, 5),
    st.floats(0, 1),
)
def test_against_the_definition(steps, games, seed, clip_rho, clip_c, decay):
    inputs = example(steps, games, seed)
    got = vtrace(*inputs, clip_rho=clip_rho, clip_c=clip_c, trace_decay=decay)
    for b in range(games):
        one = [part[:, b].tolist() for part in inputs[:4]] + [inputs[4][b].item()]
        target, gain = plain(*one, clip_rho, clip_c, decay)
        assert got.values[:, b].tolist() == pytest.approx(target)
        assert got.advantages[:, b].tolist() == pytest.approx(gain)


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_on_policy_it_is_the_n_step_return(steps, seed):
    log_ratios, discounts, rewards, values, bootstrap = example(steps, 2, seed)
    targets = vtrace(log_ratios * 0, discounts, rewards, values, bootstrap)
    expected = bootstrap
    for t in reversed(range(steps)):
        expected = rewards[t] + discounts[t] * expected
        torch.testing.assert_close(targets.values[t], expected)
        torch.testing.assert_close(targets.advantages[t], expected - values[t])


@given(st.integers(0, 10**6))
def test_the_right_values_stay(seed):
    """If V is the on-policy return already, nothing is to be learned."""
    _, discounts, rewards, _, bootstrap = example(6, 2, seed)
    zero = torch.zeros(6, 2, dtype=torch.float64)
    right = vtrace(zero, discounts, rewards, zero, bootstrap).values
    again = vtrace(zero + 0.7, discounts, rewards, right, bootstrap)
    torch.testing.assert_close(again.values, right)
    torch.testing.assert_close(again.advantages, zero)


def test_losses_by_hand():
    """Logits (log 3, 0): probabilities 3/4, 1/4."""
    logits = torch.tensor([[[math.log(3), 0.0]]], requires_grad=True)
    values = torch.tensor([[1.0]], requires_grad=True)
    actions = torch.tensor([[1]])
    assert log_probability(logits, actions).item() == pytest.approx(math.log(1 / 4))
    h = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert entropy(logits).item() == pytest.approx(h)
    policy, value, bonus = losses(
        logits, actions, values, Targets(torch.tensor([[4.0]]), torch.tensor([[2.0]]))
    )
    assert policy.item() == pytest.approx(-2 * math.log(1 / 4))
    assert value.item() == pytest.approx(4.5)
    assert bonus.item() == pytest.approx(h)
    (policy + value).sum().backward()
    assert values.grad.item() == pytest.approx(-3)  # towards the target
    assert logits.grad.flatten().tolist() == pytest.approx([1.5, -1.5])  # 2 (p - onehot): action 1 is raised


def test_masked_actions_add_no_entropy():
    logits = torch.tensor(
        [[0.0, 1.0, 2.0], [0.0, -math.inf, 2.0], [-math.inf, 3.0, -math.inf]], requires_grad=True
    )
    allowed = torch.tensor([0.0, 2.0], requires_grad=True)
    found, wanted = entropy(logits), entropy(allowed)
    assert found[1].item() == pytest.approx(wanted.item())
    assert found[2].item() == 0
    found.sum().backward()
    wanted.backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[1].tolist() == pytest.approx([allowed.grad[0].item(), 0, allowed.grad[1].item()])
    assert logits.grad[2].tolist() == [0, 0, 0]


def test_targets_carry_no_gradient():
    log_ratios, discounts, rewards, values, bootstrap = example(4, 2, 0)
    targets = vtrace(log_ratios.requires_grad_(), discounts, rewards, values.requires_grad_(), bootstrap)
    assert not targets.values.requires_grad
    assert not targets.advantages.requires_grad


def test_wrong_shapes():
    log_ratios, discounts, rewards, values, bootstrap = example(4, 2, 0)
    with pytest.raises(ValueError, match=r"rewards has shape \[3, 2\]; allowed: .* \[4, 2\]"):
        vtrace(log_ratios, discounts, rewards[:3], values, bootstrap)
    with pytest.raises(ValueError, match=r"bootstrap has shape \[4, 2\]; allowed: \[2\]"):
        vtrace(log_ratios, discounts, rewards, values, values)
