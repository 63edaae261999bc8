"""A run's weights: from its last checkpoint, or from what was kept at its end."""

import shutil

import pytest
import torch

from relational_rnn.cli.__main__ import main
from relational_rnn.experiments import open_run
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
