"""What simple players score in both games: known from elsewhere, and a check on all of the rules at once."""

import random
from fractions import Fraction

import pytest
import torch

from relational_rnn.environments.box_world import BoxWorld
from relational_rnn.environments.mini_pacman import GONE, MiniPacman
from relational_rnn.environments.mini_pacman_maze import N
from relational_rnn.experiments.box_world import guessed
from tests.environments.reference_box_world import Game, boxes
from tests.environments.test_box_world_levels import levels, seeded


def test_box_world_a_random_player_solves_six_in_a_thousand():
    env, generator = BoxWorld(), seeded(5)
    state = env.reset(8192, generator)
    solved = torch.zeros(8192, dtype=torch.bool)
    total = torch.zeros(8192)
    open_ = torch.ones(8192, dtype=torch.bool)
    for _ in range(120):
        actions = torch.randint(4, (8192,), generator=generator)
        state, step = env.step(state, actions, generator, auto_reset=False)
        ended = step.done & open_
        solved |= ended & (step.reward == 10)
        total[ended] = step.episode_return[ended]
        open_ &= ~ended
    assert not open_.any()
    assert float(solved.float().mean()) == pytest.approx(0.006, abs=4 * (0.006 / 8192) ** 0.5)
    assert float(total.mean()) == pytest.approx(0.07, abs=4 * float(total.std()) / 8192**0.5 + 0.005)


MIX = [guessed(boxes, distractors) for boxes in range(1, 6) for distractors in range(6)]


@pytest.mark.parametrize(("knows_the_gem", "expected"), [(False, 0.36), (True, float(sum(MIX) / len(MIX)))])
def test_box_world_matching_colours_without_looking_ahead(knows_the_gem, expected):
    rng, solved, n = random.Random(0), 0, 1500
    for things, agent in levels(n, seed=9):
        game = Game(things, agent)
        (goal,) = boxes(things)[0]
        over = False
        while not over:
            for action in game.route(goal):
                reward, over, late = game.step(action)
                over = over or late
                if over:
                    break
            if over:
                solved += reward == 10
                break
            if game.held is None:
                goal = (goal[0], goal[1] - 1)  # just opened: take what was inside
            else:
                locks = [cell for cell, t in game.things.items() if t[:2] == ("lock", game.held)]
                with_gem = [(y, x) for y, x in locks if game.things[y, x - 1][0] == "gem"]
                goal = rng.choice((knows_the_gem and with_gem) or locks)
    assert solved / n == pytest.approx(expected, abs=4 * (expected * (1 - expected) / n) ** 0.5)


def test_box_world_guessing_by_hand():
    assert [guessed(1, 5), guessed(4, 0)] == [1, 1]
    assert guessed(2, 1) == Fraction(
        3, 4
    )  # at the first lock, and then the other one in half of them, or not
    assert guessed(2, 2) == Fraction(1, 4) + Fraction(1, 2) / 2 + Fraction(1, 4) / 3
    assert guessed(3, 1) == Fraction(2, 3)


def first_episodes(env, policy, batch, steps, seed=0):
    """Return and length of the first episode of each game."""
    generator = seeded(seed)
    state = env.reset(batch, generator)
    score, length = torch.zeros(batch), torch.zeros(batch)
    open_ = torch.ones(batch, dtype=torch.bool)
    for _ in range(steps):
        state, step = env.step(state, policy(state, generator), generator)
        ended = step.done & open_
        score[ended], length[ended] = step.episode_return[ended], step.episode_length[ended].float()
        open_ &= ~ended
        if not open_.any():
            break
    assert not open_.any()
    return score, length


def random_player(state, generator):
    return torch.randint(5, state.pacman.shape, generator=generator)


def agrees(sample, expected, *, known_to=0.05):
    """Whether a mean is as expected, up to four standard errors and the digits the expectation has."""
    return abs(sample.mean() - expected) < 4 * sample.std() / len(sample) ** 0.5 + known_to


@pytest.mark.parametrize(("dynamics", "expected"), [("notebook", 9.8), ("paper", 6.8)])
def test_mini_pacman_a_random_player_scores_as_known(dynamics, expected):
    # A ghost that was eaten does not come back in its level, so a few episodes last to the cap.
    score, length = first_episodes(MiniPacman(dynamics=dynamics, max_ghosts=2), random_player, 256, 3000)
    assert agrees(score, expected)
    if dynamics == "notebook":
        assert agrees(length, 70, known_to=0.5)


def test_mini_pacman_a_script_that_goes_for_the_nearest_food_clears_three_levels():
    """With full sight, and keeping two steps from ghosts; such scripts are known to score about 470."""
    env = MiniPacman()
    step_to = env._next.view(5, N).T
    distance = torch.full((N, N), 999.0).fill_diagonal_(0)
    for _ in range(60):  # one more step at a time
        distance = torch.minimum(distance, distance[step_to].amin(1) + 1)

    def script(state, generator):
        target = step_to[state.pacman]  # [B, 5]
        away = distance[target]  # [B, 5, N]
        food = torch.where(state.food[:, None] > 0, away, 999).amin(2)
        away[:, :, GONE] = 999
        ghost = away.gather(2, state.ghosts[:, None].expand(-1, 5, -1)).amin(2)
        danger = (ghost <= 1) & (state.power[:, None] <= 1)
        return (food + danger * (2000 - 100 * ghost) + 0.5 * (target == state.pacman[:, None])).argmin(1)

    score, length = first_episodes(env, script, 192, 3000)
    assert 400 < score.mean() < 500
    assert 500 < length.mean() < 700
