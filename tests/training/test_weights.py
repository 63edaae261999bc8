"""A run's weights: from its last checkpoint, or from what was kept at its end."""

import shutil

import pytest
import torch

from relational_rnn.cli.__main__ import main
from relational_rnn.experiments import open_run
from relational_rnn.pretrained import load_pretrained
from relational_rnn.training import checkpoint
from relational_rnn.training.run_folder import RunFolderError
from relational_rnn.training.weights import load_weights


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run that averages its weights."""
    run = tmp_path_factory.mktemp("weights") / "run"
    arguments = ["train", "nth-farthest", "--preset", "smoke", "--training.average-decay", "0.9"]
    assert main([*arguments, "--run", str(run)]) == 0
    return run


def weights_of(folder):
    run, experiment, config = open_run(folder)
    model = experiment.make_problem(config, torch.device("cpu")).model
    meta = load_weights(run, model)
    return model.state_dict(), meta


def test_a_finished_run_without_checkpoints_has_the_same_weights(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    (before, said), (after, also) = weights_of(finished), weights_of(tmp_path / "copy")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert said["step"] == also["step"] == 60
    assert also["seconds"] == pytest.approx(said["seconds"], abs=1e-3)


def test_an_end_cut_off_before_its_last_checkpoint_has_the_weights_kept(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    checkpoints = tmp_path / "copy" / "checkpoints"
    (checkpoints / "step-000000060.safetensors").unlink()
    assert any(checkpoints.iterdir()), "an older one is there"
    weights, meta = weights_of(tmp_path / "copy")
    assert meta["step"] == 60
    assert all(torch.equal(value, weights[name]) for name, value in weights_of(finished)[0].items())


def test_damaged_weights_do_not_matter_where_there_is_a_checkpoint(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    (tmp_path / "copy" / "weights.safetensors").write_bytes(b"no weights")
    assert weights_of(tmp_path / "copy")[1]["step"] == 60


def test_a_damaged_last_checkpoint_does_not_matter_where_the_weights_are_whole(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "checkpoints" / "step-000000060.safetensors").write_bytes(b"")
    (before, said), (after, also) = weights_of(finished), weights_of(copy)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert said["step"] == also["step"] == 60


def test_without_either_it_says_so(finished, tmp_path):
    ignored = shutil.ignore_patterns("checkpoints", "weights.safetensors")
    shutil.copytree(finished, tmp_path / "copy", ignore=ignored)
    with pytest.raises(RunFolderError, match="has no checkpoint"):
        weights_of(tmp_path / "copy")


def test_damaged_weights_are_named(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "copy" / "weights.safetensors").write_bytes(b"no weights")
    with pytest.raises(RunFolderError, match=r"weights\.safetensors"):
        weights_of(tmp_path / "copy")


@pytest.mark.parametrize("meta", [{}, {"step": "60"}])
def test_weights_that_no_run_wrote(finished, tmp_path, meta):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    checkpoint.save(
        folder / "weights.safetensors", checkpoint.load(finished / "weights.safetensors")[0], meta
    )
    assert weights_of(folder)[1]["step"] == 60
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(RunFolderError, match="it has no step"):
        weights_of(folder)


# ------------------------------------------------------------------ a run that begins with another's


def begun(finished, run, *options):
    """The weights at step 0 of a run that begins with those of another one."""
    smoke = [
        "train",
        "nth-farthest",
        "--preset",
        "smoke",
        "--training.steps",
        "1",
        "--training.log-every",
        "1",
    ]
    every = ["--training.eval-every", "0", "--training.checkpoint-every", "1"]
    named = ["--training.weights", str(finished), "--run", str(run)]
    assert main([*smoke, *every, *named, *options]) == 0
    tensors, _ = checkpoint.load(run / "checkpoints" / "step-000000000.safetensors")
    return tensors


def test_a_run_begins_with_anothers_averaged_weights(finished, tmp_path):
    tensors = begun(finished, tmp_path / "run", "--training.average-decay", "0.9")
    for name, value in weights_of(finished)[0].items():
        assert torch.equal(tensors[f"model/{name}"], value)
        assert torch.equal(tensors[f"average/{name}"], value)


def test_the_other_run_may_be_gone_when_it_goes_on(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "other")
    begun(tmp_path / "other", tmp_path / "run")
    shutil.rmtree(tmp_path / "other")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert main(["eval", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert '"step": 1' in capsys.readouterr().out


def test_a_run_begins_with_weights_of_the_package(tmp_path):
    name, run = "nth-farthest-8x16", tmp_path / "run"
    small = ["--training.steps", "1", "--training.batch-size", "2", "--training.log-every", "1"]
    small += ["--training.eval-every", "0", "--training.checkpoint-every", "1", "--eval-samples", "2"]
    small += ["--training.device", "cpu", "--training.precision", "fp32"]
    arguments = ["train", "nth-farthest", "--preset", "fast", *small, "--training.weights", name]
    assert main([*arguments, "--run", str(run)]) == 0
    tensors, _ = checkpoint.load(run / "checkpoints" / "step-000000000.safetensors")
    for part, value in load_pretrained(name).model.state_dict().items():
        assert torch.equal(tensors[f"model/{part}"], value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lte", "--preset", "smoke"], "weights are of a run of nth-farthest; allowed: a run of lte"),
        (["nth-farthest", "--preset", "smoke", "--core", "lstm"], "it is not of this model"),
    ],
)
def test_weights_of_something_else(finished, tmp_path, capsys, arguments, message):
    named = ["--training.weights", str(finished), "--run", str(tmp_path / "run")]
    assert main(["train", *arguments, *named]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
