"""rmc train, eval and resume with the games."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from relational_rnn.agents.playing import NetworkPlayer
from relational_rnn.agents.rollout import begin, look
from relational_rnn.cli.__main__ import main
from relational_rnn.experiments import box_world


@pytest.mark.parametrize(("game", "solved"), [("box-world", True), ("mini-pacman", False)])
def test_train_eval_resume(tmp_path, capsys, game, solved):
    run = tmp_path / "run"
    assert main(["train", game, "--preset", "smoke", "--core", "lstm", "--run", str(run)]) == 0
    said = capsys.readouterr().out
    assert "eval_greedy_return" in said
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["frames"] == 12 * 8 * 6
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["step"] == 12
    assert scores["sampled_return"] == last["eval_sampled_return"]
    assert ("greedy_solved" in scores) == solved
    assert main(["train", "--resume", str(run)]) == 0
    assert "is complete: 12 of 12 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["box-world", "--task.grid-size", "4"],
            "grid_size is 4; allowed: whole numbers from 5",
        ),
        (["box-world", "--learning.unroll", "0"], "unroll=0 is not allowed; allowed: 1 or more"),
        (["box-world", "--model.total-units", "30"], "total_units=30 is not allowed"),
        (["mini-pacman", "--task.frame-cap", "0"], "frame_cap=0 is not allowed; allowed: 1 or more"),
        (["mini-pacman", "--core", "gru"], "'gru'"),
        # No limit, some would say; 2^63 is negative where steps are counted.
        (["mini-pacman", "--task.frame-cap", str(2**63)], f"frame_cap={2**63} is not allowed; allowed: 1 or"),
        (["box-world", "--task.max-steps", str(2**63)], f"max_steps is {2**63}; allowed: from 1, less than"),
        (["mini-pacman", "--task.max-ghosts", "99999999"], "max_ghosts is 99999999; allowed: 1 to 1000"),
        (["box-world", "--task.num-forward", str(2**63)], "grid_size is 8, with 24 places"),
        (
            ["mini-pacman", "--core", "lstm", "--model.cells-as-rows"],
            "model.cells_as_rows=True is not allowed; allowed: False, with core lstm",
        ),
        (["box-world", "--learning.reward-scale", "inf"], "reward_scale=inf is not allowed; allowed: less"),
        (["box-world", "--learning.baseline-cost", "inf"], "baseline_cost=inf is not allowed; allowed: 0 or"),
    ],
)
def test_wrong_options(tmp_path, capsys, arguments, message):
    game, *rest = arguments
    run = tmp_path / "run"
    assert main(["train", game, "--preset", "smoke", "--run", str(run), *rest]) == 2
    assert message in capsys.readouterr().err
    assert not run.exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "box"
    assert main(["train", "box-world", "--preset", "smoke", "--run", str(run)]) == 0
    return run


def test_a_film_of_a_trained_agent(trained, tmp_path, capsys):
    film = tmp_path / "film.gif"
    record = ["record", "box-world", str(film), "--run", str(trained), "--episodes", "2"]
    assert main(record) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"film: {film}; scores: ")
    assert said.count(",") == 1  # two episodes
    assert Image.open(film).size[0] == 240  # 24 pixels a cell: the run's room of 8 x 8 with its border
    assert main(record) == 2  # it exists
    sampled = tmp_path / "sampled.gif"
    assert main(["record", "box-world", str(sampled), "--run", str(trained), "--sampled"]) == 0
    assert sampled.read_bytes() != film.read_bytes()


@pytest.mark.parametrize("tags", ["view", "room"])
def test_the_player_is_the_network(tags):
    """Step by step it takes the actions an unroll would, across the end of an episode."""
    config = box_world.smoke()
    config = replace(config, model=replace(config.model, tags=tags))
    torch.manual_seed(0)
    env, network = box_world.make_player(config, torch.device("cpu"))
    with torch.no_grad():
        network.policy.weight.normal_()  # far from uniform, so that a wrong input would show
    generator = torch.Generator().manual_seed(3)
    carry = begin(env, network, 2, generator)
    player, state = NetworkPlayer(network), network.initial_state(2)
    action, reward, first = torch.zeros(2, dtype=torch.long), torch.zeros(2), torch.ones(2, dtype=torch.bool)
    for _ in range(45):  # the limit is 20
        inputs = look(env, carry)
        output, state = network.step(inputs, state, carry.first)
        taken = player(inputs.image, inputs.position, action, reward, first)
        assert torch.equal(taken, output.logits.argmax(-1))
        carry.game, step = env.step(carry.game, taken, generator)
        action, reward, first = taken * ~step.done, step.reward * ~step.done, step.done
        carry.last_action, carry.last_reward = taken.masked_fill(step.done, -1), reward
        carry.first = step.done


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mini-pacman", "FILM", "--run", "RUN"], "is of experiment 'box-world', not 'mini-pacman'"),
        (["box-world", "FILM", "--run", "nowhere"], "nowhere"),
        (["box-world", "FILM", "--sampled"], "--sampled needs --run"),
        (
            ["mini-pacman", "FILM", "--run", "RUN", "--mode", "hunt"],
            "--mode 'hunt' is not allowed with --run",
        ),
        (["box-world", "FILM", "--run", "RUN", "--best"], "takes a game and a path"),
    ],
)
def test_wrong_films(trained, tmp_path, capsys, arguments, message):
    places = {"FILM": str(tmp_path / "film.gif"), "RUN": str(trained)}
    assert main(["record", *(places.get(a, a) for a in arguments)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "film.gif").exists()


def test_a_checkpoint_of_another_core(trained, tmp_path, capsys):
    """A config.json that does not fit the checkpoint beside it: one line that says what is missing."""
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    described = json.loads((trained / "config.json").read_text())
    described["config"]["core"] = "lstm"
    (other / "config.json").write_text(json.dumps(described))
    newest = max((trained / "checkpoints").glob("*.safetensors"))
    (other / "checkpoints" / newest.name).write_bytes(newest.read_bytes())
    for name in ("environment.json", "metrics.jsonl"):
        (other / name).write_bytes((trained / name).read_bytes())
    film = str(tmp_path / "film.gif")
    for command in (["eval", str(other)], ["record", "box-world", film, "--run", str(other)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "it is not of this model" in said
        assert said.count("\n") == 1


def test_eval_over_more_episodes(trained, capsys):
    assert main(["eval", str(trained), "--episodes", "40", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {"greedy_solved", "sampled_solved", "greedy_return", "sampled_return"} <= scores.keys()
    assert round(scores["sampled_solved"] * 40, 6) % 1 == 0
    assert main(["eval", str(trained), "--episodes", "none"]) == 2
    assert "--episodes 'none' is not allowed" in capsys.readouterr().err
    assert main(["eval", str(trained), "--samples", "40"]) == 2
    assert "--samples is not for agents" in capsys.readouterr().err


def test_eval_in_detail(trained, capsys):
    assert main(["eval", str(trained), "--episodes", "41", "--detail", "--device", "cpu"]) == 0
    rows = json.loads(capsys.readouterr().out)["levels"]
    assert [(row["boxes"], row["distractors"], row["episodes"]) for row in rows] == [(1, 0, 21), (1, 1, 21)]
    for row in rows:
        assert row["by_guessing"] == 1
        assert 0 <= row["solved"] + row["cut_off"] <= 1
        assert 0 < row["steps"] <= 20
