"""On a GPU: acting, V-trace and the update as one CUDA graph do what they do eagerly, and resume."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from relational_rnn.agents import evaluation
from relational_rnn.environments.box_world_levels import LOCK
from relational_rnn.experiments import box_world, mini_pacman
from relational_rnn.kernels.graphs import Repeated
from relational_rnn.training.config import to_dict
from relational_rnn.training.device import pick_device
from relational_rnn.training.loop import Trainer
from relational_rnn.training.run_folder import RunFolder
from tests.agents.test_learner import fused_and_not

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(experiment, core, updates=1, **training):
    config = experiment.smoke()
    learning = replace(config.learning, updates_per_unroll=updates)
    training = replace(config.training, device="cuda", **training)
    config = replace(config, core=core, learning=learning, training=training)
    device = pick_device("cuda")
    return config, Trainer(experiment.make_problem(config, device), config.training, device)


@pytest.mark.parametrize(("optimizer", "updates"), [("adam", 1), ("rmsprop", 1), ("adam", 2)])
@pytest.mark.parametrize("core", ["rmc", "lstm", "conv-lstm"])
@pytest.mark.parametrize("experiment", [box_world, mini_pacman], ids=lambda e: e.NAME)
def test_captured_update_is_the_eager_one(experiment, core, optimizer, updates):
    """The same games: with a learning rate of almost zero no rounding can lead them apart."""
    seen = []
    for cuda_graph in (False, True):
        options = dict(cuda_graph=cuda_graph, optimizer=optimizer, learning_rate=1e-12, eval_every=0)
        _, trainer = make(experiment, core, updates, **options)
        records = []
        trainer.run(report=records.append)
        assert (trainer._updates.graph is not None) == cuda_graph
        assert (trainer._preparations.graph is not None) == (cuda_graph and updates > 1)
        seen.append((records, trainer.problem.state()))
    for name, tensor in seen[0][1].items():
        if not name.startswith("core"):
            assert torch.equal(tensor, seen[1][1][name]), name
    for eager, captured in zip(seen[0][0], seen[1][0], strict=True):
        assert eager["episodes"] == captured["episodes"]
        assert eager["frames"] == captured["frames"]
        assert eager["loss"] == pytest.approx(captured["loss"], rel=1e-3, abs=1e-5)
        assert captured["ratio"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("core", ["rmc", "conv-lstm"])
@pytest.mark.parametrize("experiment", [box_world, mini_pacman], ids=lambda e: e.NAME)
def test_fused_kernels_compute_the_same(experiment, core):
    torch.compiler.reset()  # of other tests' shapes
    _, trainer = make(experiment, core)
    assert trainer.problem.model.fuses
    (plain, gradients), (found, others) = fused_and_not(trainer.problem)
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)
    for name, value in gradients.items():
        assert (others[name] - value).norm() <= 1e-4 * value.norm() + 1e-7, name


@pytest.mark.parametrize("experiment", [box_world, mini_pacman], ids=lambda e: e.NAME)
def test_every_replay_plays_on(experiment):
    _, trainer = make(experiment, "rmc", log_every=1, checkpoint_every=1, eval_every=0)
    frames, before = [], None
    for step in range(1, 13):
        trainer.run(until=step, report=lambda record: frames.append(record["frames"]))
        now = torch.cat([t.flatten().double() for t in trainer.problem.state().values()])
        assert before is None or not torch.equal(before, now)
        before = now
    assert frames == [48 * step for step in range(1, 13)]


def test_bf16_learns_with_every_weight():
    _, trainer = make(box_world, "rmc", precision="bf16")
    start = {name: p.detach().clone() for name, p in trainer.problem.model.named_parameters()}
    trainer.run()
    for name, parameter in trainer.problem.model.named_parameters():
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, start[name]), name


def test_stop_and_resume(tmp_path):
    """A resumed run begins with three eager updates; a rate of almost zero keeps rounding from the games."""
    config, whole = make(box_world, "rmc", learning_rate=1e-12)
    whole.run()
    _, trainer = make(box_world, "rmc", learning_rate=1e-12)
    trainer.run_folder = RunFolder.create(tmp_path / "run", box_world.NAME, "smoke", to_dict(config))
    trainer.run(until=7)
    trainer.save()
    trainer.run_folder.close()
    _, trainer = make(box_world, "rmc", learning_rate=1e-12)
    trainer.run_folder = RunFolder.open(tmp_path / "run")
    trainer.resume()
    trainer.run()
    for name, tensor in whole.problem.state().items():
        if not name.startswith("core"):
            assert torch.equal(tensor, trainer.problem.state()[name]), name


@pytest.mark.parametrize("core", ["rmc", "lstm", "conv-lstm"])
@pytest.mark.parametrize("experiment", [box_world, mini_pacman], ids=lambda e: e.NAME)
def test_evaluation_in_a_graph_is_the_eager_one(experiment, core, monkeypatch):
    """The same levels, the same actions: of some hundred episodes every return and length."""
    _, trainer = make(experiment, core)
    env, network = trainer.problem.eval_env, trainer.problem.model
    with torch.no_grad():
        network.policy.weight.mul_(100)  # so that the best action is no matter of rounding
    options = dict(games=64, greedy=False)
    captured = evaluation.play_episodes(env, network, 128, **options)
    best = evaluation.play_episodes(env, network, 128, games=64, greedy=True)
    monkeypatch.setattr(evaluation, "Repeated", partial(Repeated, enabled=False))
    assert torch.equal(captured.returns, evaluation.play_episodes(env, network, 128, **options).returns)
    eager = evaluation.play_episodes(env, network, 128, games=64, greedy=True)
    assert torch.equal(best.returns, eager.returns)
    assert torch.equal(best.lengths, eager.lengths)


def test_a_captured_update_follows_the_curriculum():
    config = box_world.smoke()
    task = replace(config.task, grid_size=12, solution_lengths=(1, 3), num_forward=(0,), curriculum=1.0)
    training = replace(config.training, device="cuda", steps=200, eval_every=0)
    config, device = replace(config, task=task, training=training), pick_device("cuda")
    problem = box_world.make_problem(config, device)
    trainer = Trainer(problem, training, device)

    def boxes():
        return int((problem.carry.game.reserve.room[:-1] >= LOCK).sum(1).max())

    trainer.run(until=20)
    assert trainer._updates.graph is not None
    assert boxes() == 1
    problem._offer(2, 1)
    trainer.run(until=200)
    assert boxes() == 3
