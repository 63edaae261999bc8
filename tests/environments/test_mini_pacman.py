"""Mini Pacman: against the slow reference, and against traces made by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from relational_rnn.environments.base import clone, copy_, tensors
from relational_rnn.environments.mini_pacman import GONE, MODES, MiniPacman, MiniPacmanState
from relational_rnn.environments.mini_pacman_maze import MAZE, N, W
from tests.environments.reference_mini_pacman import FREE, Game

STAY, RIGHT, UP, LEFT, DOWN = range(5)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mixed_state(env, batch, generator):
    """Positions that random play would rarely reach: high levels, little food, power, ghosts close by."""
    state = env.reset(batch, generator)
    integers = lambda high, *shape: torch.randint(high, shape, generator=generator)  # noqa: E731
    some = lambda share: torch.rand(batch, 1, generator=generator) < share  # noqa: E731
    free = torch.tensor([r * W + c for r, c in FREE])
    level = 1 + integers(9, batch)
    alive = torch.arange(env.max_ghosts) < 1 + (level[:, None] - 1) // 2
    alive &= ~some(0.3) | (torch.arange(env.max_ghosts) == 0)  # a single one left
    pacman = free[integers(138, batch)]
    beside = env._next.view(5, N).T[pacman].gather(1, integers(5, batch, env.max_ghosts))  # next to him
    anywhere = free[integers(138, batch, env.max_ghosts)]
    one = torch.zeros(batch, N, dtype=torch.uint8).scatter(1, beside[:, :1], 1)
    last_pill = torch.stack((beside[:, 1], torch.full((batch,), GONE)), 1)
    return dataclasses.replace(
        state,
        level=level,
        pacman=pacman,
        food=torch.where(some(0.4), one, state.food * some(0.8)),
        pills=torch.where(some(0.4), last_pill, state.pills),
        ghosts=torch.where(alive, torch.where(some(0.5), beside, anywhere), GONE),
        heading=integers(6, batch, env.max_ghosts),
        power=integers(21, batch) * some(0.6)[:, 0],
        timer=(env.mode.timer or 100) - 1 - integers(10, batch),
        steps=2960 + integers(40, batch),
    )


def same(game, state, i):
    """Whether game i of a batched state is the reference's."""
    other = Game(game.mode).load(state, i)
    for name in ("pacman", "food", "pills", "power", "level", "timer", "frames"):
        assert getattr(other, name) == getattr(game, name), name
    assert [vars(ghost) for ghost in other.ghosts] == [vars(ghost) for ghost in game.ghosts]


@pytest.mark.parametrize("dynamics", ["notebook", "paper"])
@pytest.mark.parametrize("mode", MODES)
def test_every_step_equals_the_reference(mode, dynamics):
    batch, rounds, steps, generator = 40, 3, 12, seeded(7)
    full = MiniPacman(mode, view="full", dynamics=dynamics)
    near = MiniPacman(mode, view="viewport", dynamics=dynamics)
    happened = dict(death=0, cap=0, eaten=0, level=0)
    for _ in range(rounds):
        state = mixed_state(full, batch, generator)
        games = [Game(mode, dynamics).load(state, i) for i in range(batch)]
        for _ in range(steps):
            actions = torch.randint(5, (batch,), generator=generator)
            uniform = torch.rand(batch, full.uniforms_per_step, generator=generator)
            before = state
            state, step = full.step_given(state, actions, uniform)
            pictures, windows = full.observe(step.final), near.observe(step.final)
            fewer = (step.final.ghosts > 0).sum(1) < (before.ghosts > 0).sum(1)
            happened["eaten"] += int((fewer & (step.final.level == before.level)).sum())
            happened["level"] += int((step.final.level > before.level).sum())
            happened["death"] += int(step.terminated.sum())
            happened["cap"] += int(step.truncated.sum())
            for i, (game, row) in enumerate(zip(games, uniform.numpy(), strict=True)):
                reward, terminated, truncated = game.step(int(actions[i]), row)
                assert float(step.reward[i]) == pytest.approx(reward, abs=1e-5)
                assert (bool(step.terminated[i]), bool(step.truncated[i])) == (terminated, truncated)
                same(game, step.final, i)
                np.testing.assert_allclose(pictures[i].permute(1, 2, 0).numpy(), game.picture(), atol=1e-6)
                np.testing.assert_allclose(windows[i].permute(1, 2, 0).numpy(), game.window(), atol=1e-6)
                if terminated or truncated:
                    game.new_level(1, row[2 * full.max_ghosts :])
                    game.frames = 0
                    same(game, state, i)
                    assert float(state.episode_return[i]) == 0
    assert min(happened.values()) >= 8, happened  # else the comparison would be worth little


# -- traces by hand ------------------------------------------------------------------------------------------


def cell(row, column):
    assert MAZE[row][column] == "."
    return row * W + column


def place(env, pacman, ghosts=(), *, pills=(), food=None, power=0, level=1, headings=None):
    """One game with everything put where it is wanted; ghosts are ((row, column), ...)."""
    state = clone(env.reset(1, seeded()))
    state.pacman[0] = cell(*pacman)
    state.pills[0] = torch.tensor([cell(*p) for p in pills] + [GONE] * (2 - len(pills)))
    state.ghosts[0] = GONE
    state.ghosts[0, : len(ghosts)] = torch.tensor([cell(*g) for g in ghosts], dtype=torch.long)
    state.heading[0, : len(ghosts)] = torch.tensor(headings or [2] * len(ghosts), dtype=torch.long)
    if food is not None:
        state.food[0] = 0
        state.food[0, [cell(*f) for f in food]] = 1
    state.power[0], state.level[0] = power, level
    return state


def play(env, state, *actions, move=False, stray=0.99):
    """Steps with chosen luck: do ghosts move, do they stray."""
    rewards = []
    for action in actions:
        uniform = torch.full((1, env.uniforms_per_step), 0.5)
        uniform[:, : env.max_ghosts] = 0.0 if move else 0.9999
        uniform[:, env.max_ghosts : 2 * env.max_ghosts] = stray
        state, step = env.step_given(state, torch.tensor([action]), uniform, auto_reset=False)
        rewards.append(round(float(step.reward), 4))
    return state, rewards, step


def test_walls_stop_and_food_is_eaten_where_he_stands():
    env = MiniPacman()
    state, rewards, _ = play(env, place(env, (1, 1)), UP, RIGHT, STAY, LEFT, LEFT)
    assert rewards == [1, 1, 0, 0, 0]  # a bump eats the food underneath; (1, 2) is next; the rest is empty
    assert env.position(state).tolist() == [[1, 1]]


def test_a_pill_lasts_for_19_more_steps():
    env = MiniPacman("hunt")
    state, rewards, _ = play(env, place(env, (3, 5), [(3, 15)], pills=[(3, 6)]), RIGHT)
    assert rewards == [1]
    assert int(state.power) == 20
    state, _, _ = play(env, state, *[STAY] * 19)
    assert int(state.power) == 1
    touching = dataclasses.replace(state, ghosts=state.ghosts.clone())
    touching.ghosts[0, 0] = cell(3, 6)
    assert play(env, touching, STAY)[2].terminated  # power falls to 0 before anyone is met


def test_on_the_last_edible_step_a_ghost_is_eaten():
    env = MiniPacman()
    state = place(env, (3, 5), [(3, 6)], food=[(1, 1)], power=2)
    _, rewards, step = play(env, state, RIGHT)
    assert rewards == [5]
    assert not step.terminated


def test_two_pills_on_one_cell_are_eaten_one_by_one():
    env = MiniPacman(max_ghosts=1)
    state = place(env, (1, 1), pills=[(1, 2), (1, 2)], food=[(13, 1)])
    assert play(env, state, RIGHT, STAY, STAY)[1] == [2, 2, 0]


def test_one_ghost_per_step_and_the_later_ones_wait():
    env = MiniPacman()
    ghosts = [(3, 6), (3, 6), (11, 9)]
    state = place(env, (3, 5), ghosts, food=[(1, 1)], power=10)
    state, rewards, _ = play(env, state, RIGHT, move=True)
    assert rewards == [5]
    assert state.ghosts[0, :3].tolist() == [GONE, cell(3, 6), cell(11, 9)]  # neither met nor moved
    state, rewards, _ = play(env, state, STAY, move=True)
    assert rewards == [5]


def test_a_ghost_is_met_before_it_moves_so_they_cannot_swap():
    env = MiniPacman()
    state = place(env, (5, 8), [(5, 9)], food=[(1, 1)], headings=[4])
    _, _, step = play(env, state, RIGHT, move=True)
    assert step.terminated  # he moves first, onto it


def test_death_counts_for_each_ghost():
    env = MiniPacman("avoid")
    state = place(env, (5, 8), [(5, 9), (5, 9)], food=[(1, 1)])
    assert play(env, state, RIGHT)[1] == [pytest.approx(0.1 - 40)]


@pytest.mark.parametrize(
    ("pacman", "power", "heading", "target"),
    [
        # At (3, 3) there are four exits. A ghost heading right may not turn left.
        ((3, 9), 0, 2, (3, 4)),
        ((11, 3), 0, 2, (4, 3)),
        ((3, 1), 0, 2, (2, 3)),  # behind it: up and down tie at 0, up comes first
        ((3, 9), 9, 2, (2, 3)),  # fleeing: up and down tie, up comes first
        ((1, 3), 9, 2, (4, 3)),
        ((5, 5), 0, 3, (3, 4)),  # right and down tie; down would be back, right it is
        ((5, 5), 0, 2, (3, 4)),  # right comes before down
        ((5, 5), 9, 5, (3, 2)),  # left and up tie as the furthest; up would be back
    ],
)
def test_ghosts_at_a_junction(pacman, power, heading, target):
    env = MiniPacman()
    state = place(env, pacman, [(3, 3)], food=[(13, 1)], power=power + (power > 0), headings=[heading])
    state, _, _ = play(env, state, STAY, move=True)
    assert int(state.ghosts[0, 0]) == cell(*target)


def test_straying_takes_any_direction_but_back():
    env = MiniPacman()
    state = place(env, (3, 9), [(3, 3)], food=[(13, 1)], headings=[2])
    went = [
        int(play(env, state, STAY, move=True, stray=u)[0].ghosts[0, 0]) for u in (0.01, 0.03, 0.049, 0.051)
    ]
    assert went == [cell(3, 4), cell(2, 3), cell(4, 3), cell(3, 4)]


def test_in_corridors_ghosts_keep_going_and_never_turn_back():
    env = MiniPacman()
    state = place(env, (5, 5), [(5, 8)], food=[(13, 1)], headings=[2])  # he is behind it
    state, _, _ = play(env, state, STAY, move=True)
    assert int(state.ghosts[0, 0]) == cell(5, 9)
    state = place(env, (13, 9), [(1, 1)], food=[(13, 1)], headings=[4])  # a bend: exits right and down
    state, _, _ = play(env, state, STAY, move=True)
    assert int(state.ghosts[0, 0]) == cell(2, 1)


def test_ghost_speed_by_level_and_power():
    env = MiniPacman(max_ghosts=12)
    for level, power, chance in [
        (1, 0, 0.5),
        (3, 0, 0.7),
        (6, 0, 1.0),
        (9, 0, 1.0),
        (1, 9, 0.25),
        (6, 9, 0.5),
    ]:
        state = place(env, (13, 9), [(5, 9)], food=[(13, 1)], power=power, level=level)
        for luck, moves in ((chance - 0.01, True), (chance + 0.01, False)):
            uniform = torch.full((1, env.uniforms_per_step), 0.99)
            uniform[:, 0] = min(luck, 0.9999)
            after, _ = env.step_given(state, torch.tensor([STAY]), uniform)
            assert (int(after.ghosts[0, 0]) != cell(5, 9)) == (moves or chance == 1.0), (level, power)


def test_the_last_food_brings_the_next_level_within_the_step():
    env = MiniPacman()
    state = place(env, (1, 1), [(13, 9), (13, 11)], food=[(1, 2)], level=2, power=9)
    # With all luck alike, Pacman and both pills start on one cell, and he eats one of them in the same step.
    state, rewards, _ = play(env, state, RIGHT)
    assert rewards == [1 + 2]
    assert (int(state.level), int(state.power), int(state.timer)) == (3, 20, 0)
    assert sorted(state.pills[0].tolist()) == [GONE, int(state.pacman)]
    assert int(state.food.sum()) == 138  # but not the food under him
    assert int((state.ghosts > 0).sum()) == 2  # level 3: 1 + floor(2 / 2)


def test_a_double_step_does_not_go_on_in_the_next_level():
    """Even if it begins on a pill: paper dynamics, the last food is eaten by the first half of the step."""
    env = MiniPacman(dynamics="paper")
    state = place(env, (1, 1), [(13, 9)], food=[(1, 2)], power=9)
    start = env._new_level(torch.tensor([2]), torch.full((1, 3 + env.max_ghosts), 0.5))["pacman"]
    state, rewards, _ = play(env, state, RIGHT)
    assert rewards == [1 + 2]
    assert (int(state.level), int(state.power)) == (2, 20)
    assert torch.equal(state.pacman, start)


@pytest.mark.parametrize(("mode", "pill"), [("rush", 10), ("hunt", 1)])
def test_clearing_by_pills_or_ghosts(mode, pill):
    env = MiniPacman(mode)
    state = place(env, (1, 1), [(1, 3)], pills=[(1, 2)], food=[(13, 1)])
    state, rewards, _ = play(env, state, RIGHT)
    assert rewards == [pill]
    assert int(state.level) == (2 if mode == "rush" else 1)
    if mode == "hunt":
        state, rewards, _ = play(env, state, RIGHT)
        assert rewards == [10]
        assert int(state.level) == 2


def test_the_timer_changes_the_level_after_the_frame_is_drawn():
    env = MiniPacman("avoid", view="full")
    state = dataclasses.replace(place(env, (1, 1), [(13, 9)], food=[(13, 1)]), timer=torch.tensor([127]))
    state, rewards, _ = play(env, state, STAY)
    assert rewards == [0.1]
    assert env.observe(state)[0, 2, 1:-1, 1:-1].sum() < 100  # still the old level's picture
    state, _, _ = play(env, state, STAY)
    assert (int(state.level), int(state.timer)) == (2, 1)


def test_the_frame_cap_truncates_and_the_old_episode_stays_readable():
    env = MiniPacman(frame_cap=3)
    generator = seeded()
    state = env.reset(4, generator)
    for _ in range(3):
        state, step = env.step(state, torch.full((4,), STAY), generator)
    assert step.truncated.all()
    assert step.episode_length.tolist() == [3] * 4
    assert step.final.steps.tolist() == [3] * 4
    assert state.steps.tolist() == [0] * 4
    assert step.episode_return.tolist() == [1] * 4
    assert not MiniPacman(frame_cap=0).step(state, torch.full((4,), STAY), generator)[1].truncated.any()


def test_levels_are_laid_out_as_the_rules_say():
    env = MiniPacman()
    state = env.reset(20000, seeded())
    row, column = state.pacman // W, state.pacman % W
    ghost = state.ghosts[:, 0]
    r, c = ghost // W, ghost % W
    near = (r >= row - 5) & (r < row + 5) & (c >= column - 5) & (c < column + 5)
    assert not near.any()
    assert ((r == row + 5) | (c == column + 5)).any()  # the box is half open
    assert (state.ghosts[:, 1:] == GONE).all()
    walls = torch.tensor([[x == "#" for x in line] for line in MAZE]).flatten()
    for cells in (state.pacman, state.pills[:, 0], state.pills[:, 1], ghost):
        assert not walls[cells].any()
    # 138 free cells, equally likely: chi-square has mean 137 and standard deviation sqrt(274) = 16.6.
    for cells in (state.pacman, state.pills[:, 0]):
        count = torch.bincount(cells, minlength=N)[~walls].double()
        chi = ((count - 20000 / 138) ** 2 / (20000 / 138)).sum()
        assert 137 - 5 * 16.6 < chi < 137 + 5 * 16.6


def test_same_seed_same_games():
    env = MiniPacman()

    def run(seed):
        generator = seeded(seed)
        state = env.reset(64, generator)
        for t in range(50):
            state, _ = env.step(state, torch.full((64,), t % 5), generator)
        return tensors(state)

    assert all(torch.equal(a, b) for a, b in zip(run(3), run(3), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(run(3), run(4), strict=True))


def test_states_copy_in_place():
    env = MiniPacman()
    a, b = env.reset(8, seeded(0)), env.reset(8, seeded(1))
    addresses = [t.data_ptr() for t in tensors(a)]
    copy_(a, b)
    assert addresses == [t.data_ptr() for t in tensors(a)]
    assert all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))
    assert isinstance(clone(a), MiniPacmanState)


def test_errors_name_the_value():
    for options, words in [
        (dict(mode="chase"), "mode is 'chase'; allowed: regular, avoid, hunt, ambush, rush"),
        (dict(view="near"), "view is 'near'"),
        (dict(dynamics="fast"), "dynamics is 'fast'"),
        (dict(max_ghosts=0), "max_ghosts is 0"),
        (dict(max_ghosts=1.5), "max_ghosts is 1.5; allowed: whole numbers"),
        (dict(frame_cap="long"), "frame_cap is 'long'; allowed: whole numbers"),
    ]:
        with pytest.raises(ValueError, match=words):
            MiniPacman(**options)
    env, generator = MiniPacman(), seeded()
    state = env.reset(2, generator)
    for actions, words in [
        (torch.tensor([0, 5]), r"action 5 is not allowed; actions are 0\.\.4"),
        (torch.tensor([-1, 0]), "action -1"),
        (torch.tensor([0]), "shape"),
        (torch.tensor([0.0, 1.0]), "dtype"),
    ]:
        with pytest.raises(ValueError, match=words):
            env.step(state, actions, generator)
    with pytest.raises(ValueError, match="batch_size is 0"):
        env.reset(0, generator)
    with pytest.raises(ValueError, match=r"generator is None; allowed: a torch\.Generator"):
        env.step(state, torch.tensor([0, 1]), None)


@pytest.mark.parametrize("action", [5, 9, -1])
def test_a_bad_action_meets_the_end_of_the_table_where_values_are_not_read(action):
    """`step` reads actions on the CPU only; on a GPU the lookup's own check is all there is (here too)."""
    env = MiniPacman()
    state = place(env, (7, 3))
    with pytest.raises(IndexError):
        env.step_given(state, torch.tensor([action]), torch.full((1, env.uniforms_per_step), 0.5))
