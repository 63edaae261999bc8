"""On a GPU: the captured update is the eager one, draws new data at each replay, follows stages, resumes."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments.nth_farthest import NthFarthestProblem, smoke
from relational_rnn.training import checkpoint
from relational_rnn.training.config import to_dict
from relational_rnn.training.device import pick_device
from relational_rnn.training.loop import Trainer
from relational_rnn.training.run_folder import RunFolder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(core="rmc", **training):
    base = smoke()
    curriculum = replace(base.curriculum, threshold=1e-3)  # every interval opens the next stage
    training = replace(base.training, device="cuda", **training)
    config = replace(base, core=core, training=training, curriculum=curriculum)
    if training.optimizer == "muon":  # which is for large matrices
        config = replace(config, model=replace(config.model, total_units=128, mem_slots=2, num_heads=2))
    device = pick_device("cuda")
    return config, Trainer(NthFarthestProblem(config, device), config.training, device)


def weights(trainer):
    return {name: p.detach().cpu() for name, p in trainer.problem.model.state_dict().items()}


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_captured_update_is_the_eager_one(core):
    """Same data, stages, learning rates and weights, up to the order of floating point sums."""
    records, finals, states = [], [], []
    for cuda_graph in (False, True):
        _, trainer = make(core, cuda_graph=cuda_graph)
        seen = []
        trainer.run(report=seen.append)
        assert (trainer._updates.graph is not None) == cuda_graph
        records.append(seen)
        finals.append(weights(trainer))
        states.append(trainer.problem.generators["data"].get_state())
    assert torch.equal(*states)
    for eager, captured in zip(*records, strict=True):
        assert eager["stage"] == captured["stage"]
        assert eager["loss"] == pytest.approx(captured["loss"], rel=1e-3)
    assert {record["stage"] for record in records[0]} == {0, 1}
    for name, tensor in finals[0].items():
        torch.testing.assert_close(
            finals[1][name], tensor, rtol=1e-2, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_every_replay_draws_new_data():
    _, trainer = make(learning_rate=1e-12, schedule="constant", log_every=1, checkpoint_every=1, eval_every=0)
    losses = []
    trainer.run(until=30, report=lambda record: losses.append(record["loss"]))
    assert len(set(losses)) == 30


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_the_learning_rate_is_read_at_every_replay(optimizer):
    """With a rate of 1e-30 after the warm-up of the graph the weights must stay; zeros may become 1e-30."""
    more = dict(log_every=10, checkpoint_every=10, eval_every=0, optimizer=optimizer)
    _, trainer = make(schedule="linear", steps=20, **more)
    begin = weights(trainer)
    trainer.run(until=10)
    before = weights(trainer)
    assert all(t.isfinite().all() for t in before.values())
    assert max((before[name] - begin[name]).abs().max() for name in before) > 1e-4
    trainer.config = replace(trainer.config, learning_rate=1e-30, final_learning_rate=0.0)
    trainer.run()
    after = weights(trainer)
    assert max((before[name] - after[name]).abs().max() for name in before) < 1e-25


def test_bf16_keeps_fp32_weights():
    _, trainer = make(precision="bf16")
    trainer.run()
    assert {p.dtype for p in trainer.problem.model.parameters()} == {torch.float32}
    assert all(p.isfinite().all() for p in trainer.problem.model.parameters())


def test_stop_and_resume(tmp_path):
    config, whole = make()
    whole.run()
    config, trainer = make()
    trainer.run_folder = RunFolder.create(tmp_path / "run", "nth-farthest", "smoke", to_dict(config))
    trainer.run(until=37)  # captured, inside an interval
    trainer.save()
    trainer.run_folder.close()
    _, again = make()
    again.run_folder = RunFolder.open(tmp_path / "run")
    again.resume()
    assert again.step == 37
    again.run()
    tensors, _ = checkpoint.load(again.run_folder.latest_checkpoint())
    assert torch.equal(tensors["generator/data"], whole.problem.generators["data"].get_state())
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(tensors[f"model/{name}"], tensor, rtol=1e-2, atol=1e-4)
