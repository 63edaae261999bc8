"""The loss, that it learns what only a memory can, and that a stopped run goes on bit for bit."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from relational_rnn.agents import learner, network
from relational_rnn.agents.learner import AgentProblem, Learning, agent_loss, episode_sums
from relational_rnn.agents.rollout import share
from relational_rnn.environments.box_world_levels import LOCK
from relational_rnn.experiments import box_world, mini_pacman
from relational_rnn.experiments.reinforcement import Evaluation, Model, build_network
from relational_rnn.training import checkpoint
from relational_rnn.training.config import Training, from_dict, to_dict
from relational_rnn.training.loop import Trainer
from relational_rnn.training.run_folder import RunFolder
from tests.agents.recall import Recall

CPU = torch.device("cpu")
TIMINGS = ("seconds", "steps_per_second", "frames_per_second")


def recall(core, seed=0, games=32, **learning):
    torch.manual_seed(seed)
    env = Recall()
    model = Model(channels=(4, 4), total_units=32, mem_slots=2, num_heads=2, conv_channels=4)
    learning = Learning(**{"unroll": 9, "entropy_cost": 0.01} | learning)
    network = build_network(env, (2, 2), core, model)
    return AgentProblem(env, network, learning, games=games, seed=seed, eval_episodes=500)


def fused_and_not(problem):
    """Loss, metrics and gradients of the same unroll, plain and fused."""
    unroll = problem.act()
    for problem.model.fuses in (False, True):
        problem.model.zero_grad()
        loss, metrics = problem.loss_of(unroll)
        loss.backward()
        gradients = {n: p.grad for n, p in problem.model.named_parameters() if p.grad is not None}
        yield {"loss": loss.detach()} | metrics, gradients


@pytest.mark.parametrize("core", ["rmc", "lstm", "conv-lstm"])
@pytest.mark.parametrize("experiment", [box_world, mini_pacman], ids=lambda e: e.NAME)
def test_what_is_around_the_core_can_be_fused(experiment, core, monkeypatch):
    """Each part is one graph for torch.compile, and computes the same, acting too."""
    compiled = {}

    def fused(part):
        whole = dict(backend="aot_eager", dynamic=False, fullgraph=True)
        return compiled.setdefault(part, torch.compile(part, **whole))

    for module in (network, learner):
        monkeypatch.setattr(module, "fused", fused)
    torch.compiler.reset()  # of other tests' shapes
    problem = experiment.make_problem(replace(experiment.smoke(), core=core), CPU)
    (plain, gradients), (found, others) = fused_and_not(problem)
    assert len(compiled) == 4  # features, heads, loss, sums
    assert list(plain) == list(found)
    assert list(gradients) == list(others)
    for name, value in (plain | gradients).items():
        torch.testing.assert_close((found | others)[name], value, atol=1e-6, rtol=1e-4)
    assert problem.act().actions.shape == (problem.learning.unroll, problem.games)


# ------------------------------------------------------------------ learning


@pytest.mark.parametrize(("core", "optimizer"), [("rmc", "adam"), ("lstm", "rmsprop"), ("conv-lstm", "adam")])
def test_learns_to_remember(core, optimizer):
    """Return 0 without memory, 1 with it; after a few thousand steps both ways of acting are right."""
    problem = recall(core, reduction="sum" if optimizer == "rmsprop" else "mean")
    training = Training(
        steps=250, batch_size=32, learning_rate=3e-3, optimizer=optimizer, log_every=50, checkpoint_every=50
    )
    trainer = Trainer(problem, training, CPU)
    before = trainer.evaluate()
    assert abs(before["sampled_return"]) < 0.15
    records = []
    trainer.run(report=records.append)
    assert records[-1]["eval_greedy_return"] > 0.95
    assert records[-1]["eval_sampled_return"] > 0.8
    assert records[-1]["episode_return"] > max(0.8, records[0]["episode_return"])
    assert records[-1]["frames"] == 250 * 32 * 9
    assert records[-1]["episode_length"] == 3


def test_it_is_the_memory_that_learns():
    """The control: with the state cleared before every step nothing can be learned."""
    problem = recall("rmc")
    step, forward = problem.model.step, problem.model.forward
    problem.model.step = lambda inputs, state, first, ready: step(inputs, state, first | True, ready)
    problem.model.forward = lambda inputs, state, first: forward(inputs, state, first | True)
    training = Training(steps=100, batch_size=32, learning_rate=3e-3, log_every=50, checkpoint_every=50)
    trainer = Trainer(problem, training, CPU)
    trainer.run()
    assert abs(trainer.evaluate()["sampled_return"]) < 0.2


def test_learns_from_an_older_policy():
    """Unrolls acted by weights that are 20 updates old, as distributed actors send them, still teach."""
    problem = recall("lstm")
    actor = recall("lstm")
    optimizer = torch.optim.Adam(problem.model.parameters(), lr=3e-3)
    for update in range(220):
        if update % 20 == 0:
            actor.model.load_state_dict(problem.model.state_dict())
        loss, metrics = agent_loss(problem.model, actor.act(), problem.learning)
        if update % 20 == 0:
            assert metrics["ratio"].item() == pytest.approx(1, abs=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        assert problem.evaluate()["greedy_return"] > 0.9


# ------------------------------------------------------------------ the loss


def test_the_loss_is_the_sum_of_its_parts():
    problem = recall("lstm")
    unroll = problem.act()
    mean = Learning(unroll=9, entropy_cost=0.3, baseline_cost=0.7, reward_scale=2.0)
    loss, metrics = agent_loss(problem.model, unroll, mean)
    expected = metrics["policy_loss"] + 0.7 * metrics["value_loss"] - 0.3 * metrics["entropy"]
    torch.testing.assert_close(loss.detach(), expected)
    added, _ = agent_loss(problem.model, unroll, replace(mean, reduction="sum"))
    torch.testing.assert_close(added, loss * unroll.actions.numel())
    assert metrics["entropy"].item() == pytest.approx(math.log(2), abs=0.01)


def test_several_updates_of_one_unroll():
    """Four updates learn from four different quarters of the games, which were acted before the first."""
    problem = recall("lstm", games=8, updates_per_unroll=4)
    assert problem.prepare_every == 4
    training = Training(steps=8, batch_size=8, learning_rate=0.05, log_every=1, checkpoint_every=1)
    records, acted = [], []
    problem.act = lambda act=problem.act: acted.append(act()) or acted[-1]
    Trainer(problem, training, CPU).run(report=records.append)
    assert len(acted) == 2
    assert [r["frames"] for r in records] == [72] * 4 + [144] * 4
    ratios = [r["ratio"] for r in records]
    assert ratios[0] == pytest.approx(1, abs=1e-5)
    assert ratios[4] == pytest.approx(1, abs=1e-5)  # acted by the newest weights again
    assert all(abs(ratio - 1) > 1e-5 for ratio in ratios[1:4])
    whole = acted[0]
    for part in range(4):
        piece = share(whole, torch.tensor(part), 4)
        games = slice(2 * part, 2 * part + 2)
        assert torch.equal(piece.actions, whole.actions[:, games])
        assert torch.equal(piece.inputs.image, whole.inputs.image[:, games])
        assert torch.equal(piece.start[1], whole.start[1][games])
        assert records[part]["return_sum"] == (whole.episode_returns * whole.done)[:, games].sum().item()
    words = r"games=8 is not allowed; allowed: a multiple of updates_per_unroll = 3 \(the games are train"
    with pytest.raises(ValueError, match=words):
        recall("lstm", games=8, updates_per_unroll=3)


def test_learns_with_several_updates_of_one_unroll():
    problem = recall("lstm", games=128, updates_per_unroll=4)
    training = Training(steps=250, batch_size=128, learning_rate=3e-3, log_every=50, checkpoint_every=50)
    trainer = Trainer(problem, training, CPU)
    trainer.run()
    assert trainer.evaluate()["greedy_return"] > 0.95


def test_nothing_flows_back_over_an_episode_end():
    """A reward in the second episode leaves the loss at the steps of the first unchanged."""
    problem = recall("lstm", games=4)
    unroll = problem.act()
    gradients = []
    for bonus in (0.0, 100.0):
        rewards = unroll.rewards.clone()
        rewards[4:] += bonus
        output, _ = problem.model(unroll.inputs, unroll.start, unroll.first)
        changed = replace(unroll, rewards=rewards)
        logits = output.logits.detach().requires_grad_()
        stored = (output._replace(logits=logits), None)
        loss, _ = agent_loss(lambda *_, stored=stored: stored, changed, problem.learning)
        gradients.append(torch.autograd.grad(loss, logits)[0])
    torch.testing.assert_close(gradients[0][:3], gradients[1][:3])  # the first episode is steps 0 to 2
    assert not torch.allclose(gradients[0][3:5], gradients[1][3:5])


def test_time_outs():
    """An end by time alone is worth the value there, or nothing; an end by the rules is worth nothing."""
    problem = recall("lstm", games=4, unroll=9)
    unroll = problem.act()
    assert not unroll.truncated.any()
    cut = replace(unroll, truncated=unroll.done, rewards=unroll.rewards * 0)
    output, _ = problem.model(unroll.inputs, unroll.start, unroll.first)
    values = torch.full_like(output.value, 3.0)
    logits = output.logits.detach().requires_grad_()
    stored = (output._replace(logits=logits, value=values), None)
    gradients = {}
    for kind in ("end", "bootstrap"):
        learning = Learning(unroll=9, time_outs=kind, entropy_cost=0, discount=1.0)
        loss, metrics = agent_loss(lambda *_: stored, cut, learning)
        gradients[kind] = torch.autograd.grad(loss, logits)[0], metrics["value_loss"].item()
    # Nothing is surprising where a value of 3 leads to a value of 3; where it leads to nothing, all is.
    assert gradients["bootstrap"][0].abs().max() < 1e-6
    assert gradients["bootstrap"][1] == pytest.approx(0, abs=1e-6)
    assert gradients["end"][0][:-1].abs().min() > 1e-3
    assert gradients["end"][1] == pytest.approx(4.5)
    plain = Learning(unroll=9, time_outs="bootstrap")
    assert agent_loss(problem.model, unroll, plain)[0] == agent_loss(problem.model, unroll, Learning())[0]


def test_levels_grow_with_success():
    """All numbers of distractors, then the lengths; a resumed run is where it was."""
    config = box_world.smoke()
    task = replace(
        config.task, grid_size=12, solution_lengths=(1, 2, 3), num_forward=(0, 1, 2), curriculum=0.9
    )
    config = replace(config, task=task)
    problem = box_world.make_problem(config, CPU)
    seen = []
    for solved in (0.5, 0.9, 1.0, 1.0, 0.89, 1.0):
        metrics = {"episodes": 10.0, "return_sum": 0.0, "length_sum": 0.0, "solved_sum": 10 * solved}
        record = problem.after_interval(metrics)
        seen.append((record["stage"], record["offered_lengths"], record["offered_distractors"]))
    # Of the levels that were played, so one behind.
    assert seen == [(0, 1, 1), (0, 1, 1), (1, 1, 2), (2, 1, 3), (3, 2, 3), (3, 2, 3)]
    generator = torch.Generator().manual_seed(0)

    def boxes(problem_env):
        return (problem_env.generator.sample(500, generator).room >= LOCK).sum(1)

    easy = box_world.make_problem(config, CPU)
    assert boxes(easy.env).max() == 1
    assert boxes(easy.eval_env).max() == 5  # 3 on the way and 2 distractors
    easy.load_state(problem.state())
    assert boxes(easy.env).max() == 5
    with pytest.raises(ValueError, match=r"curriculum=1.5 is not allowed; allowed: 0 to 1"):
        box_world.Task(curriculum=1.5)
    with pytest.raises(ValueError, match="4 of solution_lengths cannot be offered; allowed: 1 to 3"):
        easy.env.generator.offer(4, 1)


def test_harder_levels_are_for_training_only():
    """Of two draws the larger: of 1 and 3 boxes and no distractors, 3 in three of four levels."""
    config = box_world.smoke()
    task = replace(config.task, grid_size=12, solution_lengths=(1, 3), num_forward=(0,), harder=2.0)
    problem = box_world.make_problem(replace(config, task=task), CPU)
    generator = torch.Generator().manual_seed(0)
    for env, expected in ((problem.env, 0.75), (problem.eval_env, 0.5)):
        levels = env.generator.sample(4000, generator)
        boxes = (levels.room >= LOCK).sum(1)[levels.accepted]
        assert (boxes == 3).double().mean().item() == pytest.approx(expected, abs=0.03)
    env, _ = box_world.make_player(replace(config, task=task), CPU)  # to look on and to be scored
    assert env.generator.harder == 1
    with pytest.raises(ValueError, match=r"harder=0.5 is not allowed; allowed: 1 to 16"):
        box_world.Task(harder=0.5)


def test_a_level_is_solved_by_its_gem_alone():
    """Ten locks are worth as much as a gem: a way of ten boxes may run out of time just before it."""
    for lengths in ((1, 2), (10,)):
        task = replace(box_world.smoke().task, grid_size=16, solution_lengths=lengths)
        solved_at = box_world.make_problem(replace(box_world.smoke(), task=task), CPU).solved_at
        assert max(lengths) < solved_at <= min(lengths) + 10
    # The locks of 11 boxes are worth 11, as much as a level of one box that is solved.
    for lengths, fine in (((1, 10), True), ((1, 11), False)):
        task = replace(box_world.smoke().task, solution_lengths=lengths, num_forward=(0,), grid_size=16)
        config = replace(box_world.smoke(), task=task)
        with nullcontext() if fine else pytest.raises(ValueError, match=r"solution_lengths=\(1, 11\) is not"):
            box_world.make_problem(config, CPU)


def test_every_weight_gets_a_gradient_under_autocast():
    """Acting comes first and without gradients; its cast weights must not be those of the loss."""
    problem = recall("rmc")
    with torch.autocast("cpu", torch.bfloat16):
        loss, metrics = problem.loss()
    loss.backward()
    without = [n for n, p in problem.model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
    assert metrics["ratio"].item() == pytest.approx(1, abs=0.02)


def test_episodes_are_counted():
    """Three unrolls of 4 steps over episodes of 3: 1, 1 and 2 ends per game."""
    problem = recall("lstm", games=6, unroll=4)
    for ends in (1, 1, 2):
        sums = episode_sums(problem.act(), 1.0)
        assert sums["episodes"].item() == 6 * ends
        assert sums["length_sum"].item() == 18 * ends
        assert sums["return_sum"].item() == 2 * sums["solved_sum"].item() - 6 * ends
    assert problem.after_interval({"episodes": 0.0, "return_sum": 0.0, "length_sum": 0.0}) == {"frames": 72}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("unroll", 0, "unroll=0 is not allowed; allowed: 1 or more"),
        ("discount", 1.5, "discount=1.5 is not allowed; allowed: 0 to 1"),
        ("entropy_cost", -1.0, "entropy_cost=-1.0"),
        ("clip_rho", 0.0, "clip_rho=0.0"),
        ("reduction", "max", "reduction='max' is not allowed; allowed: mean or sum"),
    ],
)
def test_wrong_settings(field, value, message):
    with pytest.raises(ValueError, match=message):
        Learning(**{field: value})


# ------------------------------------------------------------------ runs


@pytest.mark.parametrize("experiment", [box_world, mini_pacman], ids=lambda e: e.NAME)
def test_presets(experiment):
    for preset in experiment.PRESETS.values():
        config = preset()
        assert from_dict(type(config), to_dict(config)) == config
        assert f"rmc train {experiment.NAME} --preset {preset.__name__}" in preset.__doc__
    for preset in (experiment.paper, experiment.fast):
        training, learning = preset().training, preset().learning
        frames = training.steps * training.batch_size * learning.unroll / learning.updates_per_unroll
        assert f"{frames:.0e} steps".replace("e+0", "e") in preset.__doc__
        assert (learning.discount, learning.unroll) == (0.99, 40)
    assert experiment.paper().learning.entropy_cost == 0.005
    assert experiment.paper().training.steps * 32 * 40 == 10**9


def run(experiment, config, path, *, stops=()):
    """A run, stopped and taken up by a new trainer at every one of `stops`; its tensors and records."""
    trainer = Trainer(experiment.make_problem(config, CPU), config.training, CPU)
    trainer.run_folder = RunFolder.create(path, experiment.NAME, "smoke", to_dict(config))
    trainer.save()
    for stop in stops:
        trainer.run(until=stop)
        trainer.save()
        trainer.run_folder.close()
        torch.manual_seed(12345)  # a new process has another global random state
        trainer = Trainer(experiment.make_problem(config, CPU), config.training, CPU)
        trainer.run_folder = RunFolder.open(path)
        trainer.resume()
        assert trainer.step == stop
    trainer.run()
    tensors, _ = checkpoint.load(trainer.run_folder.latest_checkpoint())
    records = [{k: v for k, v in r.items() if k not in TIMINGS} for r in trainer.run_folder.metrics()]
    trainer.run_folder.close()
    return tensors, records


@pytest.mark.parametrize(
    ("experiment", "core", "optimizer", "updates"),
    [
        (box_world, "rmc", "adam", 1),
        (box_world, "conv-lstm", "rmsprop", 1),
        (box_world, "rmc", "rmsprop", 4),
        (mini_pacman, "lstm", "adam", 2),
        (mini_pacman, "rmc", "rmsprop", 1),
    ],
)
def test_stop_and_resume(tmp_path, experiment, core, optimizer, updates):
    config = experiment.smoke()
    config = replace(
        config,
        core=core,
        training=replace(config.training, optimizer=optimizer),
        learning=replace(config.learning, updates_per_unroll=updates),
    )
    whole = run(experiment, config, tmp_path / "whole")
    parts = run(experiment, config, tmp_path / "parts", stops=(1, 5, 8, 11))
    assert whole[0].keys() == parts[0].keys()
    for name, tensor in whole[0].items():
        assert torch.equal(tensor, parts[0][name]), name
    assert whole[1] == parts[1]
    assert "problem/frames" in whole[0]
    assert {"eval_greedy_return", "eval_sampled_return", "frames"} <= whole[1][-1].keys()
    assert ("eval_greedy_solved" in whole[1][-1]) == (experiment is box_world)


@pytest.mark.slow
def test_learns_a_small_box_world():
    """One box, no distractors, a room of 5 x 5: a random policy solves 8 %."""
    training = Training(
        steps=800, batch_size=64, learning_rate=2e-3, clip_norm=1.0, log_every=50, checkpoint_every=50
    )
    config = box_world.Config(
        training=training,
        task=box_world.Task(grid_size=5, solution_lengths=(1,), num_forward=(0,), max_steps=30, refill=0.4),
        model=Model(total_units=64, num_heads=2),
        learning=Learning(unroll=20),
        evaluation=Evaluation(500, 500),
    )
    trainer = Trainer(box_world.make_problem(config, CPU), training, CPU)
    assert trainer.evaluate()["sampled_solved"] < 0.15
    trainer.run()
    assert trainer.evaluate()["sampled_solved"] > 0.9
