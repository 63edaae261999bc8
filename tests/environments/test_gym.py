"""The Gymnasium side: its own checkers, and agreement with the games behind it."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics

import relational_rnn.environments.gym as games
from relational_rnn.environments import BoxWorld, MiniPacman

IDS = ["relational_rnn/MiniPacman-v0", "relational_rnn/BoxWorld-v0"]
SHORT = {IDS[0]: dict(frame_cap=12), IDS[1]: dict(max_steps=12)}


@pytest.mark.parametrize("view", ["viewport", "full"])
@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_checker_is_content(name, view):
    env = gymnasium.make(name, view=view, render_mode="rgb_array", disable_env_checker=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("name", IDS)
def test_same_seed_same_environment(name):
    one, other = (gymnasium.make(name) for _ in range(2))
    check_environments_match(one, other, num_steps=60, seed=4)


@pytest.mark.parametrize("name", IDS)
def test_a_single_environment_waits_for_its_reset(name):
    env = RecordEpisodeStatistics(gymnasium.make(name, **SHORT[name]))
    env.reset(seed=0)
    length, over = 0, False
    while not over:
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        length, over = length + 1, terminated or truncated
    assert info["episode"]["l"] == length <= 12
    first, _ = env.reset()
    assert env.observation_space.contains(first)
    assert not np.array_equal(first, env.reset()[0])


@pytest.mark.parametrize("view", ["viewport", "full"])
@pytest.mark.parametrize("name", IDS)
def test_vector_environment_keeps_the_same_step_contract(name, view):
    envs = gymnasium.make_vec(name, num_envs=16, view=view, **SHORT[name])
    assert isinstance(envs.unwrapped, games.GameVectorEnv)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    observation, infos = envs.reset(seed=1)
    assert infos == {}
    assert envs.observation_space.contains(observation)
    envs.action_space.seed(0)
    episode_return, length = np.zeros(16), np.zeros(16, dtype=int)
    ended = 0
    for _ in range(30):
        actions = envs.action_space.sample()
        observation, reward, terminated, truncated, infos = envs.step(actions)
        assert envs.observation_space.contains(observation)
        assert (reward.shape, reward.dtype) == ((16,), np.float64)
        assert terminated.dtype == truncated.dtype == np.bool_
        done = terminated | truncated
        episode_return, length = episode_return + reward, length + 1
        if done.any():
            assert np.array_equal(infos["_final_obs"], done)
            episode = infos["final_info"]["episode"]
            for i in np.flatnonzero(done):
                assert envs.single_observation_space.contains(infos["final_obs"][i])
                assert not np.array_equal(infos["final_obs"][i], observation[i])
            np.testing.assert_allclose(episode["r"][done], episode_return[done], atol=1e-5)
            assert (episode["l"][done] == length[done]).all()
            assert all(infos["final_obs"][i] is None for i in np.flatnonzero(~done))
            ended += done.sum()
            episode_return[done], length[done] = 0, 0
        else:
            assert infos == {}
    assert ended >= 32
    envs.close()


def test_vector_wrappers_of_gymnasium_work():
    envs = VectorRecordEpisodeStatistics(gymnasium.make_vec(IDS[0], num_envs=8, frame_cap=9))
    envs.reset(seed=0)
    for _ in range(9):
        *_, infos = envs.step(envs.action_space.sample())
    assert (infos["episode"]["l"][infos["_episode"]] <= 9).all()


def test_copies_of_the_single_environment_work_too():
    envs = gymnasium.make_vec(IDS[1], num_envs=3, vectorization_mode="sync", max_steps=5)
    envs.reset(seed=0)
    for _ in range(12):
        observation, *_ = envs.step(envs.action_space.sample())
    assert observation.shape == (3, 6, 5, 5)


@pytest.mark.parametrize(("name", "game"), [(IDS[0], MiniPacman()), (IDS[1], BoxWorld())])
def test_the_batch_is_the_games_own(name, game):
    envs = gymnasium.make_vec(name, num_envs=5)
    observation, _ = envs.reset(seed=3)
    seed = int(np.random.default_rng(3).integers(2**62))
    generator = torch.Generator().manual_seed(seed)
    state = game.reset(5, generator)
    np.testing.assert_array_equal(observation, game.observe(state).numpy())
    for t in range(20):
        observation, reward, *_ = envs.step(np.full(5, t % 4))
        state, step = game.step(state, torch.full((5,), t % 4), generator)
        np.testing.assert_array_equal(observation, game.observe(state).numpy())
        np.testing.assert_array_equal(reward, step.reward.numpy())


@pytest.mark.parametrize("name", IDS)
def test_pictures(name):
    env = gymnasium.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert min(picture.shape[:2]) >= 400
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
    pictures = gymnasium.make_vec(name, num_envs=2, render_mode="rgb_array")
    pictures.reset(seed=0)
    assert [p.shape for p in pictures.render()] == [picture.shape] * 2


@pytest.mark.parametrize("name", IDS)
def test_gymnasium_collects_pictures(name):
    """And would open a window for "human": it adds both where it knows that a game can be drawn."""
    env = gymnasium.make(name, render_mode="rgb_array_list")
    env.reset(seed=0)
    for _ in range(2):
        env.step(1)
    assert [picture.dtype for picture in env.render()] == [np.uint8] * 3


def test_errors_name_the_value():
    with pytest.raises(ValueError, match="render_mode is 'human'; allowed: None, rgb_array"):
        games.GameEnv(BoxWorld(), "human")
    with pytest.raises(ValueError, match="num_envs is 0"):
        games.GameVectorEnv(BoxWorld(), 0)
    with pytest.raises(ValueError, match=r"num_envs is 2\.5; allowed: whole numbers"):
        games.GameVectorEnv(BoxWorld(), 2.5)
    envs = games.GameVectorEnv(BoxWorld(), 2)
    with pytest.raises(ValueError, match="before reset"):
        envs.step([0, 0])
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="action 7 is not allowed"):
        envs.step([0, 7])
    with pytest.raises(ValueError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.ones(2, dtype=bool)})


@pytest.mark.parametrize("bad", [1.7, np.float32(2), float("nan"), "up", None, True])
def test_actions_must_be_whole_numbers(bad):
    env = games.GameEnv(BoxWorld())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"allowed: whole numbers, 0\.\.3"):
        env.step(bad)
    envs = games.GameVectorEnv(BoxWorld(), 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"allowed: whole numbers, 0\.\.3"):
        envs.step([bad, bad])
    envs.step(np.array([1, 3], dtype=np.uint8))
    env.step(np.int32(3))


def test_nothing_is_drawn_before_reset():
    for env in (games.GameEnv(BoxWorld(), "rgb_array"), games.GameVectorEnv(BoxWorld(), 2, "rgb_array")):
        with pytest.raises(ValueError, match="render was called before reset"):
            env.render()
