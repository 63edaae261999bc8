"""BoxWorld's levels: against a solver and a generator that retries, and frequencies counted by hand."""

import random
from collections import Counter

import pytest
import torch

from relational_rnn.environments.base import tensors
from relational_rnn.environments.box_world import BoxWorld, BoxWorldState, palette
from relational_rnn.environments.box_world_levels import DECOY, GEM, KEY, LOCK, LevelGenerator
from tests.environments.reference_box_world import Game, boxes, generate, read, solve

UP, DOWN, LEFT, RIGHT = range(4)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def levels(n, seed=0, **options):
    """n accepted levels -> [(things, agent), ...]."""
    generator = LevelGenerator(**options)
    sample = generator.sample(2 * n, seeded(seed))
    kept = [i for i, ok in enumerate(sample.accepted.tolist()) if ok][:n]
    side = generator.side
    return [(read(sample.room[i].tolist(), side), divmod(int(sample.agent[i]), side)) for i in kept]


@pytest.mark.parametrize(
    ("number", "options"), [(10_000, {}), (1000, dict(branch_length=4, num_forward=(1, 2), grid_size=14))]
)
def test_every_level_is_solvable_and_laid_out_by_the_rules(number, options):
    side = options.get("grid_size", 12) + 2
    steps, branch = {length: [] for length in range(1, 6)}, options.get("branch_length", 1)
    for things, agent in levels(number, **options):
        loose, closed = boxes(things)
        way = [box for box in closed if things[box[0][0], box[0][1] + 1][2] == "way"]
        others = [box for box in closed if box not in way]
        assert len(loose) == 1
        assert len(way) + len(others) == sum(thing[0] == "lock" for thing in things.values())

        # The way: from the loose key, each box holds the key of the next, the last the gem; colours differ.
        (colour,) = loose.values()
        opens = {lock: content for _, lock, content in way}
        seen = []
        while True:
            seen.append(colour)
            content = opens[colour]
            if content == ("gem",):
                break
            colour = content[1]
        assert len(set(seen)) == len(seen) == len(way)
        # Branches: their keys are of no colour of the way; a branch starts at a colour of the way.
        assert len(others) % branch == 0
        assert all(content[1] not in seen for _, _, content in others)
        starts = [lock for _, lock, _ in others if lock in seen]
        assert len(starts) == len(others) // branch

        # Spacing: nothing in the eight cells around a thing but its own box.
        for r, c in things:
            for cell in ((r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)):
                assert all(1 <= x <= side - 2 for x in cell)
                assert cell not in things or (cell[0] == r and "lock" in (things[r, c][0], things[cell][0]))
        assert agent not in things
        assert 1 <= agent[1] <= side - 3
        assert 2 <= agent[0] <= side - 3
        actions = solve(things, agent, side)
        game = Game(things, agent, side)
        outcome = [game.step(action) for action in actions]
        assert sum(reward for reward, _, _ in outcome) == 10 + len(way)
        assert outcome[-1][1]
        steps[len(way)].append(len(actions))
    if not options:
        # Known for the paper's mix, walking shortest ways: 14, 22, 30, 38, 47 steps for 1..5 boxes.
        means = [sum(lengths) / len(lengths) for lengths in steps.values()]
        assert means == pytest.approx([14, 22, 30, 38, 47], abs=1)
        assert max(max(lengths) for lengths in steps.values()) <= 120


def frequencies_agree(count, chances):
    """Chi-square against known probabilities, within five standard deviations."""
    total, freedom = sum(count.values()), len(chances) - 1
    assert set(count) <= set(chances)
    chi = sum((count[k] - total * p) ** 2 / (total * p) for k, p in chances.items())
    return chi < freedom + 5 * (2 * freedom) ** 0.5 + 5


def test_numbers_of_boxes_and_branches_are_uniform():
    # With few boxes nothing is rejected, so L ~ U{1..3}, F ~ U{0..2}: nine pairs of probability 1/9.
    sample = levels(4000, solution_lengths=(1, 2, 3), num_forward=(0, 1, 2))
    pairs = Counter()
    for things, _ in sample:
        kinds = Counter(thing[2] for thing in things.values() if thing[0] == "lock")
        pairs[kinds["way"], kinds["branch"]] += 1
    assert frequencies_agree(pairs, {(a, b): 1 / 9 for a in (1, 2, 3) for b in (0, 1, 2)})


def test_colours_and_branch_points_are_uniform():
    sample = levels(6000, solution_lengths=(3,), num_forward=(2,))
    first, point, shared = Counter(), Counter(), 0
    for things, _ in sample:
        loose, closed = boxes(things)
        (colour,) = loose.values()
        first[colour] += 1
        opens = {lock: content for cell, lock, content in closed if things[cell[0], cell[1] + 1][2] == "way"}
        order = [colour, opens[colour][1], opens[opens[colour][1]][1]]
        branches = [box for box in closed if things[box[0][0], box[0][1] + 1][2] == "branch"]
        for _, lock, _ in branches:
            point[order.index(lock)] += 1
        shared += branches[0][2] == branches[1][2]
    assert frequencies_agree(first, dict.fromkeys(range(20), 1 / 20))
    assert frequencies_agree(point, dict.fromkeys(range(3), 1 / 3))
    # A branch's key is one of the ids 4..19, so two branches share it with probability 1/16.
    assert shared / 6000 == pytest.approx(1 / 16, abs=4 * (15 / 256 / 6000) ** 0.5)


def test_chains_of_distractors_never_lock_a_key_behind_its_own_colour():
    # Ids 18 and 19 remain beside a way of 17: a chain alternates between them.
    generator = LevelGenerator(30, (17,), (1,), (0,), branch_length=3)
    sample = generator.sample(200, seeded())
    assert sample.accepted.float().mean() > 0.9
    for i in sample.accepted.nonzero().flatten().tolist():
        _, closed = boxes(read(sample.room[i].tolist(), generator.side))
        assert all(content == ("gem",) or content[1] != lock for _, lock, content in closed)


@pytest.mark.parametrize(("length", "forward"), [(2, 1), (5, 5)])
def test_places_and_rejections_are_those_of_the_retrying_generator(length, forward):
    n, rng = 3000, random.Random(1)
    theirs = [generate(rng, length, forward) for _ in range(n)]
    generator = LevelGenerator(12, (length,), (forward,))
    sample = generator.sample(n, seeded(2))
    rejected = sum(level is None for level in theirs) / n
    ours = 1 - float(sample.accepted.float().mean())
    assert ours == pytest.approx(rejected, abs=4 * (2 * (rejected + 1e-4) / n) ** 0.5)

    def profile(found):
        """Rows and columns of things and agents, as frequencies."""
        count, total = Counter(), 0
        for things, agent in found:
            total += 1
            for cell, thing in things.items():
                count[thing[0], "row", cell[0]] += 1
                count[thing[0], "column", cell[1]] += 1
            count["agent", agent[0]] += 1
            count["agent column", agent[1]] += 1
        return {key: value / total for key, value in count.items()}

    kept = [i for i, ok in enumerate(sample.accepted.tolist()) if ok]
    ours = profile((read(sample.room[i].tolist()), divmod(int(sample.agent[i]), 14)) for i in kept)
    theirs = profile(level for level in theirs if level)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        # Counts per level are at most a few; their variance is at most about their mean.
        assert ours[key] == pytest.approx(value, abs=4.5 * (2 * value / len(kept)) ** 0.5), key


def test_the_reserve_hands_out_each_level_once():
    env, generator, everyone = BoxWorld(refill=0.3), seeded(), torch.ones(64, dtype=torch.bool)
    state = env.reset(64, generator)
    rooms = {bytes(room.tolist()) for room in state.room}
    for _ in range(10):
        state = env._restart(state, everyone)  # all end at once, as they do when all reach the cap
        rooms |= {bytes(room.tolist()) for room in state.room}
        state = env.restock(state, generator, steps=4)
    assert int(state.reserve.repeats) == 0
    assert len(rooms) == 64 * 11
    assert int(state.reserve.fresh) <= 64


def test_levels_without_room_for_everything_are_never_played():
    """One in fifty levels of so many boxes fits into the room: enough are made for a single game, too."""
    env = BoxWorld(solution_lengths=(14,), num_forward=(0,))
    assert env.acceptance < 0.05
    for seed in range(100):
        state = env.reset(1, seeded(seed))
        assert int((state.room > 1).sum()) == 1 + 2 * 14  # codes from 2 are things; boxes are two cells
        assert int(state.reserve.repeats) == 0


def test_a_crowded_room_does_not_repeat_levels():
    """One level in forty fits. Games of 20 steps want one in 20; with 1 / 8 a step, 2.5 are asked for."""
    env, generator = BoxWorld(solution_lengths=(5,), num_forward=(9,), max_steps=20), seeded()
    assert env.acceptance < 0.05
    state, rooms, episodes = env.reset(16, generator), set(), 0
    for _ in range(100):
        state, step = env.step(state, torch.randint(4, (16,), generator=generator), generator)
        for i in step.done.nonzero().flatten().tolist():
            rooms.add(bytes(state.room[i].tolist()))
            episodes += 1
    assert episodes >= 80
    assert len(rooms) == episodes
    assert int(state.reserve.repeats) == 0


def test_an_empty_reserve_gives_old_levels_and_counts_them():
    env, generator, everyone = BoxWorld(refill=0.25), seeded(), torch.ones(64, dtype=torch.bool)
    state = env.reset(64, generator)
    state = env._restart(state, everyone)
    state = env._restart(env.restock(state, generator), everyone)  # 64 are wanted, at most 16 have been made
    assert 64 - 16 <= int(state.reserve.repeats) <= 64 - 12
    assert int(state.reserve.fresh) == 0
    for room, agent in zip(state.room.tolist(), state.agent.tolist(), strict=True):
        assert solve(read(room), divmod(agent, 14)) is not None


def test_levels_can_be_made_for_several_steps_at_once():
    env, generator = BoxWorld(max_steps=20), seeded()
    state = env.reset(256, generator)
    for t in range(160):
        if t % 8 == 0:
            state = env.restock(state, generator, steps=8)
        actions = torch.randint(4, (256,), generator=generator)
        state, _ = env.step(state, actions, generator, restock=False)
    assert int(state.reserve.repeats) == 0
    for room, agent in zip(state.room[:20].tolist(), state.agent.tolist(), strict=False):
        assert (room[agent], room.count(2)) == (0, 1)


def test_same_seed_same_games():
    env = BoxWorld()

    def run(seed):
        generator = seeded(seed)
        state = env.reset(64, generator)
        for t in range(130):
            state, _ = env.step(state, torch.full((64,), t % 4), generator)
        return tensors(state)

    assert all(torch.equal(a, b) for a, b in zip(run(3), run(3), strict=True))
    assert isinstance(env.reset(1, seeded()), BoxWorldState)


def test_colours_as_in_the_paper_of_the_game():
    colours = palette()
    assert colours[0].tolist() == pytest.approx([800 / 999] * 3)
    assert colours[GEM].tolist() == [1, 1, 1]
    assert colours[KEY].tolist() == pytest.approx([700 / 999, 350 / 999, 350 / 999])
    assert colours[KEY + 10].tolist() == pytest.approx([350 / 999, 700 / 999, 700 / 999])
    assert torch.equal(colours[KEY : KEY + 20], colours[LOCK : LOCK + 20])
    assert torch.equal(colours[KEY : KEY + 20], colours[DECOY : DECOY + 20])
    assert len(colours.unique(dim=0)) == 24
