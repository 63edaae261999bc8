"""A run stopped at any step and resumed ends as one that was never stopped, bit for bit."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments.nth_farthest import NthFarthestProblem, smoke
from relational_rnn.training import checkpoint, loop
from relational_rnn.training.config import to_dict
from relational_rnn.training.loop import Diverged, Trainer
from relational_rnn.training.muon import Muon
from relational_rnn.training.run_folder import RunFolder, RunFolderError

CPU = torch.device("cpu")
TIMINGS = ("seconds", "steps_per_second")


def config(core="rmc", **training):
    base = smoke()
    return replace(base, core=core, training=replace(base.training, **training))


def fresh(settings, path):
    trainer = Trainer(NthFarthestProblem(settings, CPU), settings.training, CPU)
    trainer.run_folder = RunFolder.create(path, "nth-farthest", "smoke", to_dict(settings))
    trainer.save()
    return trainer


def resumed(settings, path):
    torch.manual_seed(12345)  # a new process has another global random state
    trainer = Trainer(NthFarthestProblem(settings, CPU), settings.training, CPU)
    trainer.run_folder = RunFolder.open(path)
    trainer.resume()
    return trainer


def outcome(run: RunFolder):
    """Every tensor of the last checkpoint, and every record without its timings."""
    tensors, _ = checkpoint.load(run.latest_checkpoint())
    records = [{k: v for k, v in record.items() if k not in TIMINGS} for record in run.metrics()]
    return tensors, records


def same(a, b):
    assert a[0].keys() == b[0].keys()
    for name, tensor in a[0].items():
        assert torch.equal(tensor, b[0][name]), name
    assert a[1] == b[1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    outcomes = {}
    for core in ("rmc", "lstm"):
        trainer = fresh(config(core), tmp_path_factory.mktemp("runs") / core)
        trainer.run()
        outcomes[core] = outcome(trainer.run_folder)
    return outcomes


def test_the_run_changes_stage(uninterrupted):
    """Otherwise the stops below would not be about a curriculum."""
    for _, records in uninterrupted.values():
        assert {record["stage"] for record in records} == {0, 1}


def test_nobody_trains_on_while_a_run_is_being_resumed(tmp_path, monkeypatch):
    """Else the run could go back behind a checkpoint that another process writes in the meantime."""
    settings = config()
    trainer = fresh(settings, tmp_path / "run")
    trainer.run_folder.close()
    read = loop.load_checkpoint

    def while_others_try(path):
        with pytest.raises(RunFolderError, match="in use by another process"):
            RunFolder.open(tmp_path / "run").lock()
        return read(path)

    monkeypatch.setattr(loop, "load_checkpoint", while_others_try)
    resumed(settings, tmp_path / "run").run_folder.close()


# 1 and 59: the ends; 17: inside an interval; 20: a checkpoint; 30 and 31: a boundary where stages can change.
@pytest.mark.parametrize("core", ["rmc", "lstm"])
@pytest.mark.parametrize("stop", [0, 1, 17, 20, 29, 30, 31, 45, 59])
def test_stop_and_resume(tmp_path, uninterrupted, core, stop):
    settings = config(core)
    trainer = fresh(settings, tmp_path / "run")
    trainer.run(until=stop)
    trainer.save()
    trainer.run_folder.close()
    trainer = resumed(settings, tmp_path / "run")
    assert trainer.step == stop
    trainer.run()
    same(outcome(trainer.run_folder), uninterrupted[core])


def test_stop_at_every_few_steps(tmp_path, uninterrupted):
    settings = config()
    trainer = fresh(settings, tmp_path / "run")
    while trainer.step < 60:
        trainer.run_folder.close()
        trainer = resumed(settings, tmp_path / "run")
        trainer.run(until=trainer.step + 7)
        trainer.save()
    same(outcome(trainer.run_folder), uninterrupted["rmc"])


def test_muon_resumes(tmp_path):
    settings = config(optimizer="muon", steps=20, checkpoint_every=20)
    settings = replace(settings, model=replace(settings.model, total_units=128, mem_slots=2, num_heads=2))
    whole, parts = (fresh(settings, tmp_path / name) for name in ("whole", "parts"))
    assert isinstance(whole.optimizer, Muon)
    whole.run()
    parts.run(until=7)
    parts.save()
    parts.run_folder.close()
    parts = resumed(settings, tmp_path / "parts")
    parts.run()
    same(outcome(parts.run_folder), outcome(whole.run_folder))


def test_records_after_the_checkpoint_are_made_again(tmp_path, uninterrupted):
    """A kill loses steps back to the last checkpoint, whose records must not appear twice."""
    settings = config()
    trainer = fresh(settings, tmp_path / "run")
    trainer.run(until=30)  # checkpoint at 20, records at 10, 20 and 30
    with trainer.run_folder.metrics_path.open("a") as file:
        file.write('{"step": 40, "lo')  # a line cut off by the kill
    trainer.run_folder.close()
    trainer = resumed(settings, tmp_path / "run")
    assert trainer.step == 20
    trainer.run()
    same(outcome(trainer.run_folder), uninterrupted["rmc"])


def test_clipping_and_bf16_resume_too(tmp_path):
    settings = config(clip_norm=0.1, precision="bf16", steps=30, checkpoint_every=10)
    whole = fresh(settings, tmp_path / "whole")
    whole.run()
    trainer = fresh(settings, tmp_path / "run")
    trainer.run(until=13)
    trainer.save()
    trainer.run_folder.close()
    trainer = resumed(settings, tmp_path / "run")
    trainer.run()
    same(outcome(trainer.run_folder), outcome(whole.run_folder))
    assert "gradient_norm" in trainer.run_folder.metrics()[0]


def test_final_weights_are_those_of_the_last_checkpoint(tmp_path):
    trainer = fresh(config(), tmp_path / "run")
    trainer.run()
    weights, meta = checkpoint.load(trainer.run_folder.weights_path)
    assert meta["step"] == 60
    last, _ = checkpoint.load(trainer.run_folder.latest_checkpoint())
    last = checkpoint.without_prefix("model", last)
    assert weights.keys() == last.keys()
    assert all(torch.equal(weights[name], last[name]) for name in weights)
    assert len(list(trainer.run_folder.checkpoints.iterdir())) == 2  # keep_checkpoints


def test_divergence_keeps_the_last_checkpoint(tmp_path):
    trainer = fresh(config(), tmp_path / "run")
    trainer.run(until=20)
    good = trainer.run_folder.latest_checkpoint().read_bytes()
    with torch.no_grad():
        next(trainer.problem.model.parameters()).fill_(torch.nan)
    with pytest.raises(Diverged, match="the loss is nan at step 30"):
        trainer.run()
    assert trainer.run_folder.latest_checkpoint().read_bytes() == good


def test_broken_weights_never_replace_a_good_checkpoint(tmp_path):
    """By the last update before a checkpoint, or before a stop, whose loss was still a number."""
    trainer = fresh(config(), tmp_path / "run")
    trainer.run(until=20)
    files = {path: path.read_bytes() for path in trainer.run_folder.checkpoints.iterdir()}
    compute = trainer._compute

    def broken():
        compute()
        if trainer.step == 39:
            with torch.no_grad():
                next(trainer.problem.model.parameters()).fill_(torch.inf)

    trainer._compute = broken
    with pytest.raises(Diverged, match="weights are not finite at step 40"):
        trainer.run()
    with pytest.raises(Diverged, match="weights are not finite at step 40"):
        trainer.save()  # as a stop would
    assert {path: path.read_bytes() for path in trainer.run_folder.checkpoints.iterdir()} == files
    assert trainer.run_folder.metrics()[-1]["step"] == 30


@pytest.mark.parametrize(("was", "now"), [(None, 0.9), (0.9, None)])
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, was, now):
    """Settings edited by hand to average, where the run did not, and the other way round."""
    settings = config(steps=20)
    settings = replace(settings, training=replace(settings.training, average_decay=was))
    trainer = fresh(settings, tmp_path / "run")
    trainer.run(until=10)
    trainer.save()
    trainer.run_folder.close()
    settings = replace(settings, training=replace(settings.training, average_decay=now))
    said = (
        "without a mean of the weights; allowed: None" if was is None else "with a mean .* allowed: a number"
    )
    with pytest.raises(RunFolderError, match=f"average_decay is {now}, and checkpoint .* is {said}"):
        resumed(settings, tmp_path / "run")


def test_a_stop_before_the_first_update_of_an_interval_records_nothing(tmp_path, uninterrupted):
    """A signal may come between the loop's look at the interval and that at its first update."""
    for step in (0, 10):
        path = tmp_path / str(step)
        trainer = fresh(config(), path)
        trainer.run(until=step)
        answers = iter([False, True])
        trainer.run(stop=lambda answers=answers: next(answers, True))
        assert trainer.step == step
        trainer.save()
        trainer.run_folder.close()
        trainer = resumed(config(), path)
        trainer.run()
        same(outcome(trainer.run_folder), uninterrupted["rmc"])
