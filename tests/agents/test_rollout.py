"""Acting: what an unroll holds, that unrolls join, and that replaying one gives the acting policy again."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from relational_rnn.agents import rollout
from relational_rnn.agents.evaluation import EVAL_SEED, play_episodes, scores
from relational_rnn.agents.learner import AgentProblem, Learning, agent_loss
from relational_rnn.agents.network import NO_ACTION, Inputs
from relational_rnn.cores.base import map_state
from relational_rnn.environments import BoxWorld, MiniPacman, base, box_world, mini_pacman
from relational_rnn.experiments.reinforcement import Model, build_network
from tests.agents.recall import Recall

MODEL = Model(total_units=32, mem_slots=2, num_heads=2, conv_channels=3)
GAMES = {
    "box": lambda: BoxWorld(grid_size=8, solution_lengths=(1,), num_forward=(1,), max_steps=7, refill=0.4),
    "pacman": lambda: MiniPacman(frame_cap=9),
    "recall": Recall,
}


def make(game, core="rmc", games=5, seed=0, **learning):
    torch.manual_seed(0)
    env = GAMES[game]()
    network = build_network(env, (15, 19), core, MODEL)
    with torch.no_grad():  # far from uniform, so that wrong inputs would show
        network.policy.weight.normal_()
    return AgentProblem(env, network, Learning(**learning), games=games, seed=seed)


@pytest.mark.parametrize("core", ["rmc", "lstm", "conv-lstm"])
@pytest.mark.parametrize("game", GAMES)
def test_replaying_an_unroll(game, core):
    """The learner's forward pass over a stored unroll gives the logits of acting, across episode ends and
    from the middle of an episode; so all importance ratios are 1."""
    problem = make(game, core, unroll=12)
    ends = 0
    for _ in range(2):
        unroll = problem.act()
        ends += int(unroll.done.sum())
        output, _ = problem.model(unroll.inputs, unroll.start, unroll.first)
        torch.testing.assert_close(output.logits[:-1], unroll.logits, rtol=1e-4, atol=1e-5)
        _, metrics = agent_loss(problem.model, unroll, problem.learning)
        assert metrics["ratio"].item() == pytest.approx(1, abs=1e-5)
    assert ends > 2


def test_without_resets_the_replay_differs():
    """Otherwise the test above would say nothing."""
    problem = make("recall", unroll=12)
    unroll = problem.act()
    output, _ = problem.model(unroll.inputs, unroll.start, unroll.first & False)
    assert (output.logits[:-1] - unroll.logits).abs().max() > 1e-2


@pytest.mark.parametrize("game", GAMES)
def test_what_an_unroll_holds(game):
    problem = make(game, unroll=20)
    unroll = problem.act()
    assert unroll.first[0].all()
    assert torch.equal(unroll.first[1:], unroll.done)
    assert torch.equal(unroll.inputs.last_action[1:], unroll.actions.masked_fill(unroll.done, NO_ACTION))
    assert torch.equal(unroll.inputs.last_reward[1:], unroll.rewards.masked_fill(unroll.done, 0))
    # Rewards since the episode began add up to its return; steps are counted from there too.
    total, length = torch.zeros(5), torch.zeros(5)
    for t in range(20):
        total, length = total.masked_fill(unroll.first[t], 0), length.masked_fill(unroll.first[t], 0)
        total, length = total + unroll.rewards[t], length + 1
        torch.testing.assert_close(unroll.episode_returns[t], total)
        assert torch.equal(unroll.episode_lengths[t].float(), length)


def test_unrolls_join():
    """What one unroll ends with, the next begins with."""
    problem = make("box", unroll=5)
    before = problem.act()
    _, last = problem.model(before.inputs, before.start, before.first)
    after = problem.act()
    for a, b in zip(before.inputs, after.inputs, strict=True):
        assert torch.equal(a[-1], b[0])
    assert torch.equal(before.first[-1], after.first[0])
    # `last` has seen the bootstrap's observation as well; one step before it is the state that is carried.
    parts = Inputs(*(part[:-1] for part in before.inputs))
    _, carried = problem.model(parts, before.start, before.first[:-1])
    torch.testing.assert_close(carried, after.start, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(last, after.start)


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_steps_with_weights_made_ready(core):
    """What is computed once for many steps gives the numbers of computing it for each."""
    env = GAMES["box"]()
    network = build_network(env, (10, 10), core, replace(MODEL, backend="torch"))
    carry = rollout.begin(env, network, 5, torch.Generator().manual_seed(0))
    state = map_state(torch.randn_like, carry.core)
    first = torch.tensor([True, False, True, False, False])
    ready = network.ready(state)
    assert (ready.folded is not None) == (core == "rmc")
    inputs = rollout.look(env, carry)
    once, after = network.step(inputs, state, first, ready)
    each, after_each = network.step(inputs, state, first)
    for a, b in zip((*once, after), (*each, after_each), strict=True):
        torch.testing.assert_close(a, b)


def test_acting_leaves_its_start_alone_and_repeats_itself():
    problem = make("box", unroll=9)
    problem.act()
    held = {name: tensor.clone() for name, tensor in rollout.named_tensors(problem.carry).items()}
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    unrolls = [rollout.act(problem.env, problem.model, problem.carry, 9, g)[0] for g in generators]
    assert all(torch.equal(held[n], t) for n, t in rollout.named_tensors(problem.carry).items())
    assert torch.equal(unrolls[0].actions, unrolls[1].actions)
    assert torch.equal(unrolls[0].inputs.image, unrolls[1].inputs.image)


def test_box_world_is_restocked():
    """Levels are made for eight steps at once, and no game is given an old one."""
    torch.manual_seed(0)
    env = BoxWorld(solution_lengths=(1,), max_steps=25)
    problem = AgentProblem(env, build_network(env, (14, 14), "lstm", MODEL), Learning(unroll=40), games=64)
    for _ in range(3):
        problem.act()
    assert int(problem.carry.game.reserve.repeats) == 0
    assert int(problem.carry.game.reserve.fresh) > 0


class NoHostReads(TorchDispatchMode):
    """Fails on what would stall a GPU, or cannot be captured in a CUDA graph."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.overloadpacket.__name__ not in self.forbidden, function
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("game", ["box", "pacman"])
def test_an_update_reads_nothing_back(game, monkeypatch):
    problem = make(game, "rmc", unroll=9)
    for module in (box_world, mini_pacman):
        monkeypatch.setattr(module, "check_actions", lambda *_: None)  # looks at values on a CPU only
    with pytest.raises(AssertionError), NoHostReads():
        bool(torch.ones(2).sum() > 0)
    with NoHostReads():
        loss, _ = problem.loss()
        loss.backward()


def test_staggered_games_end_at_different_times():
    env = GAMES["box"]()
    network = build_network(env, (10, 10), "lstm", MODEL)
    for stagger, most in ((0, 64), (7, 30)):
        problem = AgentProblem(env, network, Learning(unroll=7), games=64, stagger=stagger)
        ended = problem.act().done.sum(1)
        assert ended.sum() >= 64
        assert ended.max() <= most
        assert (ended.min() > 0) == (stagger > 0)


def test_actions_follow_the_policy():
    probabilities = torch.tensor([0.5, 0.3, 0.2, 0.0])
    logits = probabilities.log().expand(20_000, 4)
    drawn = rollout.sample(logits, torch.Generator().manual_seed(0))
    assert drawn.bincount(minlength=4).div(20_000).tolist() == pytest.approx(
        probabilities.tolist(), abs=0.015
    )


def test_a_carry_survives_as_tensors():
    problem = make("box", "lstm", unroll=6)
    problem.act()
    saved = {name: tensor.clone() for name, tensor in problem.state().items()}
    assert {"core.0", "core.1", "game.reserve.room", "first", "frames"} <= saved.keys()
    other = make("box", "lstm", seed=1, unroll=6)
    other.load_state(saved)
    for a, b in zip(base.tensors(problem.carry.game), base.tensors(other.carry.game), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match=r"lacks 'core\.1' of the games"):
        other.load_state({k: v for k, v in saved.items() if k != "core.1"})
    with pytest.raises(ValueError, match=r"'first' has shape \[2\]; allowed: \[5\]"):
        other.load_state(saved | {"first": saved["first"][:2]})


# ------------------------------------------------------------------ evaluation


def test_each_game_plays_one_episode():
    problem = make("pacman")
    played = play_episodes(problem.env, problem.model, 10, games=4, greedy=True)
    assert played.returns.shape == played.lengths.shape == (10,)
    assert played.lengths.max() <= 9
    again = play_episodes(problem.env, problem.model, 10, games=4, greedy=True)
    assert torch.equal(played.returns, again.returns)


def test_greedy_and_sampled():
    """A policy that prefers one action a little: greedy always takes it, sampling does not."""
    problem = make("recall", games=2)
    with torch.no_grad():
        problem.model.policy.weight.zero_()
        problem.model.policy.bias.copy_(torch.tensor([0.1, 0.0]))
    generator = torch.Generator(problem.env.device).manual_seed(EVAL_SEED)
    cues = problem.env.reset(400, generator).cue
    greedy = play_episodes(problem.env, problem.model, 400, games=400, greedy=True)
    assert torch.equal(greedy.returns, 1 - 2 * cues.float())
    sampled = play_episodes(problem.env, problem.model, 400, games=400)
    assert abs(sampled.returns.mean()) < 0.2
    assert (sampled.returns != greedy.returns).float().mean() > 0.3
    assert sampled.lengths.tolist() == [3] * 400


def test_scores_are_exact_means():
    """Not those of 32 bits, where 3 of 10 read 0.30000001192092896."""
    problem = make("recall")
    with torch.no_grad():
        problem.model.policy.weight.zero_()  # uniform: some episodes are won, some lost
    found = scores(problem.env, problem.model, 7, 4, solved_at=1.0)
    returns = play_episodes(problem.env, problem.model, 7, games=4).returns.tolist()
    assert 0 < returns.count(1) < 7  # so many sevenths, which no float32 is equal to
    assert found["sampled_return"] == sum(returns) / 7
    assert found["sampled_solved"] == returns.count(1) / 7
    assert found["sampled_length"] == 3
