"""BoxWorld: its rules, against a slow reference and by hand."""

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
import torch

from relational_rnn.environments.box_world import AGENT, NO_KEY, BoxWorld, palette
from relational_rnn.environments.box_world_levels import DECOY, GEM, KEY, LOCK
from tests.environments.reference_box_world import MOVES, Game, read

UP, DOWN, LEFT, RIGHT = range(4)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# -- the rules -----------------------------------------------------------------------------------------------


def eager_actions(games, rng):
    """Random walks that head for something they may enter, so that boxes do get opened."""
    actions = []
    for game in games:
        goals = [
            cell
            for cell, thing in game.things.items()
            if (thing[0] == "lock" and thing[1] == game.held)
            or (thing[0] != "lock" and game.things.get((cell[0], cell[1] + 1), ("",))[0] != "lock")
        ]
        path = game.route(rng.choice(goals)) if goals and rng.random() < 0.7 else None
        actions.append(path[0] if path else rng.randrange(4))
    return torch.tensor(actions)


@pytest.mark.parametrize(
    "options", [{}, dict(branch_length=3, num_forward=(2, 3)), dict(num_backward=(1, 2), grid_size=13)]
)
def test_every_step_equals_the_reference(options):
    batch, rng, generator = 48, random.Random(0), seeded(1)
    full, near = BoxWorld(view="full", max_steps=60, **options), BoxWorld(max_steps=60, **options)
    side = full.side
    colours = palette()
    state = full.reset(batch, generator)
    game_of = lambda i: Game(  # noqa: E731
        read(state.room[i].tolist(), side), divmod(int(state.agent[i]), side), side, max_steps=60
    )
    games, returns = [game_of(i) for i in range(batch)], [0.0] * batch
    ends = Counter()
    for _ in range(150):
        actions = eager_actions(games, rng)
        state, step = full.step(state, actions, generator)
        final = step.final
        pictures, windows = full.observe(final), near.observe(final)
        for i, game in enumerate(games):
            reward, terminated, truncated = game.step(int(actions[i]))
            returns[i] += reward
            assert (float(step.reward[i]), bool(step.terminated[i]), bool(step.truncated[i])) == (
                reward,
                terminated,
                truncated,
            )
            assert read(final.room[i].tolist(), side) == game.things
            assert divmod(int(final.agent[i]), side) == game.agent
            assert int(final.held[i]) == (NO_KEY if game.held is None else KEY + game.held)
            held = colours[int(final.held[i])]
            assert torch.equal(pictures[i, :, 0, 0], held)
            assert torch.equal(pictures[i][:, game.agent[0], game.agent[1]], colours[AGENT])
            assert torch.equal(windows[i, 3:], held[:, None, None].expand(3, 5, 5))
            surroundings = pictures[i].clone()
            surroundings[:, 0, 0] = 0
            surroundings = torch.nn.functional.pad(surroundings, (2, 2, 2, 2))  # black outside
            r, c = game.agent
            assert torch.equal(windows[i, :3], surroundings[:, r : r + 5, c : c + 5])
            if terminated or truncated:
                ends[reward] += 1
                assert float(step.episode_return[i]) == returns[i]
                assert int(step.episode_length[i]) == game.steps
                assert (int(state.steps[i]), float(state.episode_return[i])) == (0, 0)
                games[i], returns[i] = game_of(i), 0.0
    assert int(state.reserve.repeats) == 0
    assert min(ends[reward] for reward in (10, -1, 0)) >= 5, ends


def draw(env, *rows, agent, held=NO_KEY):
    """One game from a drawing of codes: {(row, column): code}."""
    state = env.reset(1, seeded())
    room = torch.ones(env.side, env.side, dtype=torch.uint8)
    room[1:-1, 1:-1] = 0
    for (r, c), code in rows:
        room[r, c] = code
    return dataclasses.replace(
        state,
        room=room.view(1, -1),
        agent=torch.tensor([agent[0] * env.side + agent[1]]),
        held=torch.tensor([held]),
    )


def play(env, state, *actions):
    rewards = []
    for action in actions:
        state, step = env.step(state, torch.tensor([action]), seeded(), auto_reset=False)
        rewards.append(float(step.reward))
    return state, rewards, step


def where(env, state):
    return tuple(env.position(state)[0].tolist())


RED, GREEN, BLUE = 0, 7, 13


@pytest.mark.parametrize(
    ("action", "start"), [(UP, (1, 5)), (DOWN, (12, 5)), (LEFT, (5, 1)), (RIGHT, (5, 12))]
)
def test_the_border_stops(action, start):
    env = BoxWorld()
    state, rewards, _ = play(env, draw(env, agent=start), action)
    assert (where(env, state), rewards) == (start, [0])


def test_a_lock_without_its_key_stops():
    env = BoxWorld()
    things = [((5, 5), KEY + RED), ((5, 6), LOCK + GREEN)]
    for held in (NO_KEY, KEY + RED, KEY + BLUE):
        state, rewards, _ = play(env, draw(env, *things, agent=(5, 7), held=held), LEFT)
        assert (where(env, state), rewards, int(state.held)) == ((5, 7), [0], held)


def test_what_is_in_a_locked_box_cannot_be_entered():
    env = BoxWorld()
    for content in (GEM, KEY + RED):
        state = draw(env, ((5, 5), content), ((5, 6), LOCK + GREEN), agent=(4, 5), held=KEY + GREEN)
        state, rewards, step = play(env, state, DOWN)
        assert (where(env, state), rewards, bool(step.done)) == ((4, 5), [0], False)


def test_a_box_is_opened_from_above_and_its_key_taken():
    env = BoxWorld()
    state = draw(env, ((5, 5), KEY + RED), ((5, 6), LOCK + GREEN), agent=(4, 6), held=KEY + GREEN)
    state, rewards, _ = play(env, state, DOWN)
    assert (where(env, state), rewards, int(state.held)) == ((5, 6), [1], NO_KEY)  # the key is used up
    state, rewards, _ = play(env, state, LEFT)
    assert (where(env, state), rewards, int(state.held)) == ((5, 5), [0], KEY + RED)
    assert int((state.room > 1).sum()) == 0


def test_a_new_key_replaces_the_old_one_which_is_lost():
    env = BoxWorld()
    state = draw(env, ((5, 5), KEY + RED), agent=(5, 4), held=KEY + BLUE)
    state, rewards, _ = play(env, state, RIGHT)
    assert (rewards, int(state.held)) == ([0], KEY + RED)
    assert int((state.room > 1).sum()) == 0


def test_a_distractors_lock_ends_the_game():
    env = BoxWorld()
    state = draw(env, ((5, 5), KEY + RED), ((5, 6), DECOY + GREEN), agent=(5, 7), held=KEY + GREEN)
    _, rewards, step = play(env, state, LEFT)
    assert (rewards, bool(step.terminated), bool(step.truncated)) == ([-1], True, False)


def test_the_gem_ends_the_game():
    env = BoxWorld()
    state = draw(env, ((5, 5), GEM), ((5, 6), LOCK + GREEN), agent=(5, 7), held=KEY + GREEN)
    _, rewards, step = play(env, state, LEFT, LEFT)
    assert (rewards, bool(step.terminated)) == ([1, 10], True)
    assert float(step.episode_return) == 11


def test_the_step_cap_truncates():
    env = BoxWorld(max_steps=4)
    state = draw(env, agent=(5, 5))
    state, _, step = play(env, state, UP, DOWN, UP)
    assert not step.truncated
    assert play(env, state, DOWN)[2].truncated


def test_errors_name_the_value():
    for options, words in [
        (dict(view="near"), "view is 'near'; allowed: viewport, full"),
        (dict(grid_size=4), "grid_size is 4; allowed: whole numbers from 5"),
        (dict(grid_size=12.5), "grid_size is 12.5; allowed: whole numbers"),
        (dict(grid_size=300), "grid_size is 300; allowed: .* to 50"),
        (dict(grid_size=7), "grid_size is 7; it almost never holds 10 boxes"),
        (dict(solution_lengths=(0, 1)), r"solution_lengths is \(0, 1\); allowed: each from 1 to 18"),
        (dict(solution_lengths=()), r"solution_lengths is \(\)"),
        (dict(solution_lengths=(18,), branch_length=2), "from 1 to 17"),
        (dict(solution_lengths=3), "solution_lengths is 3; allowed: a sequence of whole numbers"),
        (dict(num_forward=(0, 1.5)), r"num_forward is \(0, 1.5\); allowed: a sequence of whole numbers"),
        (dict(num_backward="1"), "num_backward is '1'; allowed: a sequence of whole numbers"),
        (dict(branch_length=1.5), "branch_length is 1.5; allowed: whole numbers"),
        (dict(max_steps=20.5), "max_steps is 20.5; allowed: whole numbers"),
        (dict(num_forward=(-1,)), r"num_forward is \(-1,\)"),
        (dict(branch_length=0), "branch_length is 0"),
        (dict(max_steps=0), "max_steps is 0"),
        (dict(refill=0), "refill is 0"),
        (dict(refill="all"), "refill is 'all'; allowed: above 0, up to 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            BoxWorld(**options)
    assert BoxWorld(grid_size=np.int64(12), solution_lengths=np.array([1, 2])).side == 14
    env, generator = BoxWorld(), seeded()
    state = env.reset(2, generator)
    with pytest.raises(ValueError, match=r"action 4 is not allowed; actions are 0\.\.3"):
        env.step(state, torch.tensor([0, 4]), generator)
    for actions, given in (([0, 1], "list"), (np.array([0, 1]), "ndarray"), (1, "int")):
        with pytest.raises(ValueError, match=f"actions are a {given}; allowed: a tensor"):
            env.step(state, actions, generator)
    for batch_size, given, words in [
        (2.5, generator, "batch_size is 2.5; allowed: whole numbers"),
        ("3", generator, "batch_size is '3'; allowed: whole numbers"),
        (2, 0, "generator is 0; allowed: a torch.Generator"),
        (2, None, "generator is None; allowed: a torch.Generator"),
    ]:
        with pytest.raises(ValueError, match=words):
            env.reset(batch_size, given)
    with pytest.raises(ValueError, match=r"generator is None; allowed: a torch\.Generator"):
        env.step(state, torch.tensor([0, 1]), None)


def test_moves_are_those_documented():
    assert MOVES == [(-1, 0), (1, 0), (0, -1), (0, 1)]
    env = BoxWorld()
    for action, (dr, dc) in enumerate(MOVES):
        state, _, _ = play(env, draw(env, agent=(5, 5)), action)
        assert where(env, state) == (5 + dr, 5 + dc)
