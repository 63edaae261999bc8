"""Gymnasium's environments as games for an agent."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

import relational_rnn.environments.gym  # noqa: F401  registers the games
from relational_rnn.agents.learner import AgentProblem, Learning
from relational_rnn.environments import BoxWorld
from relational_rnn.environments.from_gymnasium import GymnasiumGames, GymnasiumState, vector_of
from relational_rnn.experiments.reinforcement import Model, build_network
from relational_rnn.training.config import Training
from relational_rnn.training.loop import Trainer

MODEL = Model(channels=(8, 8), kernels=(1, 1), tags="none", total_units=32)


def test_a_batch_of_games_through_gymnasium_is_the_batch():
    """BoxWorld, out through Gymnasium and in again: the same rewards, ends, counts and pictures."""
    options = dict(grid_size=8, solution_lengths=(1,), num_forward=(1,), max_steps=6, refill=0.4)
    games = GymnasiumGames(partial(gymnasium.make_vec, "relational_rnn/BoxWorld-v0", **options))
    env = BoxWorld(**options)
    assert (games.num_actions, games.observation_shape) == (env.num_actions, env.observation_shape)
    state = games.reset(5, torch.Generator().manual_seed(0))
    # The same seed by the way it takes through the adapter and through Gymnasium.
    seed = int(torch.randint(2**31, (), generator=torch.Generator().manual_seed(0)))
    inner = int(np.random.default_rng(np.random.SeedSequence(seed)).integers(2**62))
    generator = torch.Generator().manual_seed(inner)
    mirror = env.reset(5, generator)
    actions = torch.Generator().manual_seed(1)
    ends = 0
    for _ in range(20):
        assert torch.equal(games.observe(state), env.observe(mirror))
        action = torch.randint(4, (5,), generator=actions)
        state, step = games.step(state, action, actions)
        mirror, expected = env.step(mirror, action, generator)
        for name in ("reward", "terminated", "truncated", "episode_return", "episode_length"):
            assert torch.equal(getattr(step, name), getattr(expected, name)), name
        assert torch.equal(state.steps, mirror.steps)
        ends += int(step.done.sum())
    assert ends >= 15


def test_cart_pole_is_learned():
    """Four numbers a step, through Gymnasium; a random player keeps the pole up for 22 steps."""
    torch.manual_seed(0)
    games = GymnasiumGames(vector_of("CartPole-v1"))
    assert games.observation_shape == (4, 1, 1)
    network = build_network(games, (1, 1), "lstm", MODEL)
    learning = Learning(unroll=20, reward_scale=0.1, entropy_cost=0.001)
    problem = AgentProblem(games, network, learning, games=16, eval_episodes=16)
    training = Training(steps=200, batch_size=16, learning_rate=3e-3, log_every=15, checkpoint_every=15)
    records = []
    # Without the evaluation at the end, which would begin other games.
    Trainer(problem, training, torch.device("cpu")).run(until=150, report=records.append)
    assert records[0]["episode_return"] < 45
    assert records[-1]["episode_return"] > 2 * records[0]["episode_return"]
    assert records[-1]["episode_return"] == records[-1]["episode_length"]  # a point for every step


def cart_pole_agent(**learning) -> AgentProblem:
    torch.manual_seed(0)
    games = GymnasiumGames(vector_of("CartPole-v1"))
    network = build_network(games, (1, 1), "lstm", MODEL)
    options = dict(games=4, eval_episodes=3, eval_games=3)
    return AgentProblem(games, network, Learning(unroll=8, **learning), **options)


def assert_one_game_follows_itself(unroll):
    """Where a cart is, is where it was and how fast it went, unless an episode ended."""
    place, speed = unroll.inputs.image[:, :, 0, 0, 0], unroll.inputs.image[:, :, 1, 0, 0]
    jumped = (place[1:] - place[:-1] - 0.02 * speed[:-1]).abs() > 1e-6
    assert not (jumped & ~unroll.done).any()


def test_an_evaluation_leaves_the_games_that_are_learned_from_alone():
    agent = cart_pole_agent()
    before = agent.act()
    agent.evaluate()
    after = agent.act()
    assert torch.equal(after.inputs.image[0], before.inputs.image[-1])
    assert_one_game_follows_itself(after)


def test_no_step_is_lost_to_the_memory_for_an_unroll():
    agent = cart_pole_agent(updates_per_unroll=2)
    agent.prepare()
    assert_one_game_follows_itself(agent.stored)


def test_a_resumed_run_begins_new_games():
    """The old ones are not in the checkpoint: what they showed last must not be taken for the new ones."""
    before, after = cart_pole_agent(), cart_pole_agent()
    before.act()
    after.load_state(before.state())
    after.generators["games"].set_state(before.generators["games"].get_state())
    unroll = after.act()
    assert unroll.first[0].all()
    assert (unroll.episode_lengths[0] == 1).all()
    assert_one_game_follows_itself(unroll)
    assert after.frames == 2 * before.frames


def test_bytes_and_channels_last():
    class Pictures(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
        single_observation_space = gymnasium.spaces.Box(0, 255, (3, 5, 2), np.uint8)
        single_action_space = gymnasium.spaces.Discrete(3)

        def __init__(self, games):
            self.num_envs = games

        def reset(self, *, seed=None, options=None):
            return np.arange(30, dtype=np.uint8).reshape(1, 3, 5, 2).repeat(self.num_envs, 0), {}

    games = GymnasiumGames(Pictures, channels_last=True)
    assert games.observation_shape == (2, 3, 5)
    seen = games.observe(games.reset(2, torch.Generator()))
    assert seen.shape == (2, 2, 3, 5)
    assert seen[1, 1, 2, 4] == pytest.approx(29 / 255)
    assert seen[0, 0, 0, 1] == pytest.approx(2 / 255)


def test_what_games_are_told_is_checked_as_in_the_package():
    games, generator = GymnasiumGames(vector_of("CartPole-v1")), torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="batch_size is 0; at least one game is needed"):
        games.reset(0, generator)
    empty = GymnasiumState(torch.zeros(2, 4, 1, 1), torch.zeros(2, dtype=torch.long), torch.zeros(2))
    with pytest.raises(ValueError, match="step was called before reset"):
        games.step(empty, torch.zeros(2, dtype=torch.long), generator)
    state = games.reset(2, generator)
    for actions, words in (
        (torch.zeros(3, dtype=torch.long), r"actions have shape \(3,\); one per game: \(2,\)"),
        (torch.zeros(2), r"actions have dtype torch\.float32"),
        (torch.tensor([0, 7]), r"action 7 is not allowed; actions are 0\.\.1"),
    ):
        with pytest.raises(ValueError, match=words):
            games.step(state, actions, generator)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (vector_of("Pendulum-v1"), "the action space is Box"),
        (vector_of("FrozenLake-v1"), "the observation space is Discrete"),
        (
            partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="sync"),
            "AutoresetMode.SAME",
        ),
        (lambda games: gymnasium.make("CartPole-v1"), "make gives <TimeLimit.*allowed: .* VectorEnv"),
        ("CartPole-v1", "make gives 'CartPole-v1'; allowed: a function"),
    ],
)
def test_games_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        GymnasiumGames(make)
