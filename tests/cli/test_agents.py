"""rmc train, eval and resume with the games."""

import json

import pytest

from relational_rnn.cli.__main__ import main


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
            "grid_size is 4; a box and its surroundings need at least 5",
        ),
        (["box-world", "--learning.unroll", "0"], "unroll=0 is not allowed; allowed: 1 or more"),
        (["box-world", "--model.total-units", "30"], "total_units=30 is not allowed"),
        (["mini-pacman", "--task.frame-cap", "0"], "frame_cap=0 is not allowed; allowed: 1 or more"),
        (["mini-pacman", "--core", "gru"], "'gru'"),
    ],
)
def test_wrong_options(tmp_path, capsys, arguments, message):
    game, *rest = arguments
    run = tmp_path / "run"
    assert main(["train", game, "--preset", "smoke", "--run", str(run), *rest]) == 2
    assert message in capsys.readouterr().err
    assert not run.exists()
