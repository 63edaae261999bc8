"""Games fused by torch.compile are the same games."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from relational_rnn.environments import base
from relational_rnn.environments.box_world import BoxWorld
from relational_rnn.environments.mini_pacman import MiniPacman

GAMES = {"box world": lambda: BoxWorld(max_steps=15), "mini pacman": MiniPacman}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", GAMES)
def test_compiled_games_play_the_same(name):
    plain = GAMES[name]()
    players = [(game, torch.Generator().manual_seed(0)) for game in (plain, base.compiled(plain))]
    states = [game.reset(200, generator) for game, generator in players]
    choices = torch.Generator().manual_seed(1)
    ended = 0
    for _ in range(40):
        actions = torch.randint(0, plain.num_actions, (200,), generator=choices)
        seen = []
        for i, (game, generator) in enumerate(players):
            states[i], step = game.step(states[i], actions, generator)
            outcome = (step.reward, step.terminated, step.truncated, step.episode_return, step.episode_length)
            pictures = (game.observe(states[i]), game.position(states[i]))
            seen.append([*outcome, *pictures, *base.tensors(states[i]), *base.tensors(step.final)])
        for ours, theirs in zip(*seen, strict=True):
            assert torch.equal(ours, theirs)
        ended += step.done.sum().item()
    assert ended > 10


def test_only_games_of_tensors_on_a_gpu_with_triton_are_worth_it(monkeypatch):
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: name == "triton")
    games = SimpleNamespace(device=torch.device("cuda"), step_given=None)
    assert base.worth_compiling(games)
    assert not base.worth_compiling(SimpleNamespace(device=games.device))
    assert not base.worth_compiling(SimpleNamespace(device=torch.device("cpu"), step_given=None))
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: None)
    assert not base.worth_compiling(games)


def test_what_is_not_made_of_tensors_cannot_be_compiled():
    with pytest.raises(ValueError, match="object cannot be compiled; allowed: games that are tensors"):
        base.compiled(object())
