"""Trained weights: from a run folder into files, back into a model, and what is refused on the way."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relational_rnn import pretrained
from relational_rnn.agents.evaluation import play_episodes
from relational_rnn.cli.__main__ import main
from relational_rnn.experiments import box_world, mini_pacman, nth_farthest
from relational_rnn.training import checkpoint
from relational_rnn.training.config import from_dict
from relational_rnn.training.run_folder import RunFolder
from tests.markdown import ROOT

SMOKE = ["train", "nth-farthest", "--preset", "smoke"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("pretrained") / "run"
    assert main([*SMOKE, "--run", str(path), "--training.steps", "200", "--model.backend", "torch"]) == 0
    return path


@pytest.fixture(scope="module")
def released(run):
    about = pretrained.release(run, "tiny", samples=4000, folder=run.parent / "weights", device="cpu")
    return run.parent / "weights", about


def copy_with(run, target, change):
    """A copy of the run whose newest checkpoint's model tensors are changed."""
    for path in run.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    newest = RunFolder.open(target).latest_checkpoint()
    tensors, meta = checkpoint.load(newest)
    change(tensors)
    checkpoint.save(newest, tensors, meta)
    RunFolder.open(target).weights_path.unlink()  # which has those of the same step
    return target


def last_weight(tensors):
    return tensors["model/head.2.weight"]  # [classes, units], the logits


def test_a_released_model_is_the_runs(run, released):
    folder, about = released
    assert pretrained.available(folder) == ["tiny"]
    before = torch.get_rng_state()
    model, config, card = pretrained.load_pretrained("tiny", folder=folder)
    original = pretrained.load_run(run)
    assert torch.equal(torch.get_rng_state(), before)  # loading does not seed the caller's generator
    assert card == about
    assert config == original.config == from_dict(nth_farthest.Config, about["config"])
    assert not model.training
    assert model.core.backend == "auto"  # the run's "torch" is no property of the weights
    x, _ = config.task.batch(50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x), original.model(x), rtol=0, atol=2e-2)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, original.model.state_dict()[name].half().float()), name


def test_the_card_says_how_it_was_made_and_what_it_scores(run, released):
    folder, about = released
    assert json.loads((folder / "tiny.json").read_text()) == about
    assert (about["experiment"], about["preset"], about["seed"], about["step"]) == (
        *("nth-farthest", "smoke", 0),
        200,
    )
    session = json.loads((run / "environment.json").read_text())[0]
    assert about["commit"] == session["commit"]
    options = "--training.steps 200 --model.backend torch"
    assert about["command"] == f"rmc train nth-farthest --preset smoke {options}"
    content = (folder / "tiny.safetensors").read_bytes()
    assert about["sha256"] == hashlib.sha256(content).hexdigest()
    assert about["bytes"] == len(content)
    model, config, _ = pretrained.load_pretrained("tiny", folder=folder)
    assert about["accuracy"] == nth_farthest.accuracy(model, config.task, 4000, CPU)
    assert about["accuracy"] > 0.45  # three classes: more than chance
    assert {t.dtype for t in checkpoint.load(folder / "tiny.safetensors")[0].values()} == {torch.float16}


def test_the_card_does_not_say_where_the_run_lay(run, tmp_path):
    copy = copy_with(run, tmp_path / "copy", lambda tensors: None)
    described = json.loads((copy / "config.json").read_text())
    described["config"]["training"]["weights"] = "/mnt/my disk/first"
    (copy / "config.json").write_text(json.dumps(described))
    session = {"command": "rmc train nth-farthest --training.weights=/mnt/my disk/first"}
    (copy / "environment.json").write_text(json.dumps([session]))
    about = pretrained.release(copy, "copy", samples=4000, folder=tmp_path / "weights", device="cpu")
    assert "/mnt" not in json.dumps(about)
    assert "--training.weights first" in about["command"]
    assert pretrained.load_pretrained("copy", folder=tmp_path / "weights").config.training.weights == "first"


def test_a_loss_of_just_half_a_point_is_allowed(run, tmp_path, monkeypatch):
    scores = iter([0.57, 0.565])
    monkeypatch.setattr(pretrained, "_evaluated", lambda *_: next(scores))
    about = pretrained.release(run, "half", samples=200, folder=tmp_path, device="cpu")
    assert (about["accuracy_32_bits"], about["accuracy"]) == (0.57, 0.565)


def test_damaged_weights_are_refused(released, tmp_path):
    folder, _ = released
    for name in ("tiny.json", "tiny.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    path = tmp_path / "tiny.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tiny.safetensors is damaged: its SHA-256"):
        pretrained.load_pretrained("tiny", folder=tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda card: card[:300], "tiny.json is damaged: "),
        (lambda card: b"\xff", "tiny.json is damaged: "),
        (lambda card: b"[1]", "tiny.json is damaged: "),
        (lambda card: b"{}", "tiny.json is damaged: it lacks 'sha256'"),
        (
            lambda card: card.replace(b'"nth-farthest"', b'["lte"]'),
            "tiny.json is damaged: unknown experiment",
        ),
        (
            lambda card: card.replace(b'"eval_samples": 200', b'"eval_samples": "2"'),
            "tiny.json is damaged: config",
        ),
        (lambda card: card, "tiny.safetensors is missing"),
    ],
)
def test_a_damaged_card_is_named(released, tmp_path, change, reason):
    card = (released[0] / "tiny.json").read_bytes()
    (tmp_path / "tiny.json").write_bytes(change(card))
    with pytest.raises(ValueError, match=reason):
        pretrained.load_pretrained("tiny", folder=tmp_path)


@pytest.mark.parametrize("name", ["huge", "../tiny", "", "/etc/passwd"])
def test_unknown_names_are_refused(released, name):
    with pytest.raises(ValueError, match=r"no weights named .*; allowed: tiny"):
        pretrained.load_pretrained(name, folder=released[0])


def test_weights_that_16_bits_round_away_are_refused(run, tmp_path):
    """A constant on all logits changes no answer in 32 bits; in 16 it swallows what differs between them."""
    path = copy_with(run, tmp_path / "run", lambda tensors: last_weight(tensors).add_(1000))
    with pytest.raises(ValueError, match=r"in 16 bits it scores .* %; allowed: a loss of 0.50 %"):
        pretrained.release(path, "tiny", samples=2000, folder=tmp_path / "weights", device="cpu")
    assert not (tmp_path / "weights").exists()


def test_weights_that_16_bits_cannot_hold_are_refused(run, tmp_path):
    path = copy_with(run, tmp_path / "run", lambda tensors: last_weight(tensors).fill_(1e6))
    with pytest.raises(ValueError, match=r"head.2.weight has values of up to 1e\+06"):
        pretrained.release(path, "tiny", samples=100, folder=tmp_path / "weights", device="cpu")


def test_large_models_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"bytes in 16 bits; allowed: 1,000"):
        pretrained.release(run, "tiny", samples=100, folder=tmp_path / "weights", device="cpu")


def test_points_are_no_accuracy(tmp_path, capsys):
    path, into = str(tmp_path / "run"), tmp_path / "weights"
    assert main(["train", "mini-pacman", "--preset", "smoke", "--run", path]) == 0
    scored = ["--device", "cpu", "--samples", "50"]
    assert main(["release", path, "agent", "--into", str(into), *scored]) == 0
    card = json.loads((into / "agent.json").read_text())
    assert f"agent: {card['points']:.1f} points on 50 fresh samples" in capsys.readouterr().out
    assert "accuracy" not in card
    assert main(["eval", path, "--episodes", "50", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert card["points_32_bits"] == scores["sampled_return"] > 0


def test_an_experiment_without_such_a_score_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.delitem(pretrained.SCORED, "nth-farthest")
    with pytest.raises(ValueError, match=r"is of 'nth-farthest', which has no such score; allowed: lte, "):
        pretrained.release(run, "tiny", folder=tmp_path / "weights")


@pytest.mark.parametrize("command", ["attention", "ablate", "export"])
def test_a_name_that_is_none_is_told_which_there_are(command, tmp_path, capsys):
    output = [str(tmp_path / "x.onnx")] if command == "export" else ["--output", str(tmp_path / "new")]
    assert main([command, "nosuch", *output]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("nosuch does not exist", *pretrained.available()))


def test_an_agents_accuracy_is_the_share_of_levels_it_solves(tmp_path, capsys):
    path, into = tmp_path / "run", tmp_path / "weights"
    assert main(["train", "box-world", "--preset", "smoke", "--run", str(path)]) == 0
    scored = ["--device", "cpu", "--samples", "200"]
    assert main(["release", str(path), "agent", "--into", str(into), *scored]) == 0
    card = json.loads((into / "agent.json").read_text())
    assert main(["eval", str(path), "--episodes", "200", "--device", "cpu"]) == 0
    solved = json.loads(capsys.readouterr().out.splitlines()[-1])["sampled_solved"]
    assert card["accuracy_32_bits"] == solved > 0  # by chance: it has hardly learned
    assert pretrained.load_pretrained("agent", folder=into).config.core == "rmc"


@pytest.mark.parametrize("note", [None, b"", b"\xff", b"[{}]"])
def test_a_run_without_a_note_of_where_it_was_made(run, tmp_path, note):
    path = copy_with(run, tmp_path / "run", lambda tensors: None)
    (path / "environment.json").unlink()
    if note is not None:
        (path / "environment.json").write_bytes(note)
    about = pretrained.load_run(path).about
    assert (about["step"], about["command"], about["commit"], about["gpu"]) == (200, None, None, None)


def test_the_papers_model_fits():
    problem = nth_farthest.NthFarthestProblem(nth_farthest.fast(), CPU)
    assert 2 * sum(t.numel() for t in problem.model.state_dict().values()) < pretrained.MAX_BYTES


def test_the_command(run, tmp_path, capsys):
    into = str(tmp_path / "weights")
    arguments = ["release", str(run), "small-one", "--into", into, "--samples", "500", "--device", "cpu"]
    assert main(arguments) == 0
    assert "on 500 fresh samples in 16 bits" in capsys.readouterr().out
    before = (tmp_path / "weights" / "small-one.json").read_text()
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*arguments, "--replace", "--samples", "600"]) == 0
    assert (tmp_path / "weights" / "small-one.json").read_text() != before
    for wrong, part in (
        (["release", str(run)], "a run folder and a name"),
        (["release", str(run), "Big/One", "--into", into], "lower-case"),
        (["release", "missing", "name", "--into", into], "missing does not exist"),
        (["release", str(run), "x", "--samples", "many"], "'many'"),
        (["release", str(run), "x", "--samples", "²"], "'²'"),
        (["release", str(run), "x", "--into", str(run / "config.json")], "config.json is a file; allowed: a"),
    ):
        assert main(wrong) == 2
        assert part in capsys.readouterr().err


def test_every_packaged_model_loads_and_says_what_it_is():
    for name in pretrained.available():
        model, _, about = pretrained.load_pretrained(name)
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        assert about["name"] == name
        assert about["bytes"] < pretrained.MAX_BYTES + 20_000  # the header


def test_the_packaged_model_ranks_vectors():
    model, config, about = pretrained.load_pretrained("nth-farthest-8x16")
    x, target = config.task.batch(500, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        right = (model(x).argmax(-1) == target).float().mean()
    assert right == pytest.approx(about["accuracy"], abs=0.04)  # more than four standard deviations


def test_the_packaged_agent_looks_ahead():
    """Of two boxes and four distractors an agent that opens whatever fits solves 39 %."""
    model, config, _ = pretrained.load_pretrained("box-world-viewport")
    env = box_world.make_env(replace(config.task, solution_lengths=(2,), num_forward=(4,)), CPU)
    played = play_episodes(env, model, 200, games=200)
    solved = (played.returns >= box_world.GEM_REWARD + 2).float().mean()
    assert solved > 0.39 + 0.25  # seven standard deviations


@pytest.mark.parametrize("name", ["mini-pacman-viewport", "mini-pacman-full"])
def test_the_packaged_players_have_their_points(name):
    model, config, about = pretrained.load_pretrained(name)
    played = play_episodes(mini_pacman.make_env(config.task, CPU), model, 50, games=50)
    error = played.returns.std().item() / 50**0.5
    assert error < 50
    assert played.returns.mean() == pytest.approx(about["points"], abs=4 * error)


def test_the_wheel_has_the_weights():
    wheel = pytest.importorskip("hatchling.builders.wheel")
    packed = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    files = [path for path in Path(pretrained.WEIGHTS).iterdir() if path.is_file()]
    assert files
    assert {str(path.relative_to(ROOT)) for path in files} <= packed
