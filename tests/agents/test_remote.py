"""Actors on Ray: real processes that learn, are killed and are replaced; and a learner that is killed.

Starting Ray and the actors' imports take most of the time: about a minute on two cores for the whole file.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from relational_rnn.agents.learner import Learning
from relational_rnn.agents.remote import Fleet, Player, Remote, RemoteAgent, actor_count, connect
from relational_rnn.cli.__main__ import main
from relational_rnn.environments.from_gymnasium import GymnasiumGames, vector_of
from relational_rnn.experiments import box_world
from relational_rnn.experiments.reinforcement import Evaluation, Model, build_network
from relational_rnn.training.config import Training
from relational_rnn.training.loop import CannotGoOn, Trainer

# As `connect` does, before anybody imports Ray: it listens on this machine only.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
ray = pytest.importorskip("ray")

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    """One Ray for the tests of this process; it outlives the agents, which have not started it."""
    assert connect(Remote(), 4)
    yield ray
    ray.shutdown()


def small_box_world(steps: int) -> box_world.Config:
    """One box, no distractors, a room of 5 x 5: a random policy solves 8 %."""
    return box_world.Config(
        training=Training(
            steps=steps,
            batch_size=64,
            learning_rate=2e-3,
            clip_norm=0.1,
            log_every=10,
            checkpoint_every=10,
            eval_every=40,
        ),
        core="lstm",
        actors="ray:2",
        task=box_world.Task(grid_size=5, solution_lengths=(1,), num_forward=(0,), max_steps=30, refill=0.4),
        model=Model(total_units=32),
        learning=Learning(unroll=20),
        evaluation=Evaluation(500, 500),
    )


def process_of(actor) -> int:
    return ray.get(actor.__ray_call__.remote(lambda player: os.getpid()))


def test_two_actors_learn_and_are_replaced_when_they_die(cluster):
    """One actor is ended by Ray, later another one by the operating system; nothing else is lost."""
    config = small_box_world(steps=280)  # of both actors' games each
    problem = box_world.make_problem(config, CPU)
    assert isinstance(problem, RemoteAgent)
    trainer = Trainer(problem, config.training, CPU)
    before = trainer.evaluate()["sampled_solved"]
    records, killed = [], []

    def report(record):
        records.append(record)
        actor = problem._fleet.actors[0]
        if record["step"] == 30:
            ray.kill(actor)
            killed.append(actor)
        if record["step"] == 60:
            os.kill(process_of(actor), signal.SIGKILL)
            killed.append(actor)
        if record["step"] == 90:
            assert len(problem._fleet.actors) == 2
            assert not set(killed) & set(problem._fleet.actors)

    trainer.run(report=report)
    assert before < 0.15
    # Which unrolls meet in an update depends on the machine, so no two runs are the same: seen were 0.80 to
    # 0.87 at the end, and with a clip_norm of 1 single evaluations near 0.1 between others above 0.8.
    solved = [r["eval_sampled_solved"] for r in records if "eval_sampled_solved" in r]
    assert max(solved[-3:]) > 0.5, solved
    assert [r["actors_replaced"] for r in records[:2]] == [0, 0]
    assert records[-1]["actors_replaced"] == 2
    # Every update had all its steps, of unrolls about as old as the queue is long.
    assert [r["frames"] for r in records] == [64 * 20 * r["step"] for r in records]
    staleness = [r["staleness"] for r in records]
    assert max(staleness) < 4, staleness
    assert max(staleness) > 0.5, staleness
    assert ray.is_initialized()  # by this test, not by the agent
    assert problem._fleet is None


def gymnasium_player(device):
    games = GymnasiumGames(vector_of("CartPole-v1"), device=device)
    model = Model(channels=(8,), kernels=(1,), strides=(1,), tags="none", total_units=32)
    return games, build_network(games, (1, 1), "lstm", model)


def test_actors_play_any_gymnasium_environment(cluster):
    """And the first update's unrolls are on policy: all ratios are 1."""
    torch.manual_seed(0)
    games, network = gymnasium_player(CPU)
    # From a test module, which the actors cannot import: by value, as from a notebook.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    learning = Learning(unroll=10, updates_per_unroll=2)  # an update of one actor's unroll
    agent = RemoteAgent(
        gymnasium_player, network, learning, actors=2, games=8, eval_env=games, eval_episodes=4
    )
    training = Training(steps=4, batch_size=8, learning_rate=1e-3, log_every=1, checkpoint_every=1)
    records = []
    Trainer(agent, training, CPU).run(report=records.append)
    assert [r["frames"] for r in records] == [40, 80, 120, 160]
    assert records[0]["ratio"] == pytest.approx(1, abs=1e-5)
    assert records[0]["staleness"] == 0
    assert records[0]["reward"] == 1  # a point for every step
    assert records[-1]["eval_greedy_length"] >= 8


def broken_player(device):
    raise OSError("the games are not here")


def test_an_actor_that_cannot_start_ends_the_run(cluster):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    games, network = gymnasium_player(CPU)
    agent = RemoteAgent(broken_player, network, Learning(unroll=2), actors=1, games=2, eval_env=games)
    with pytest.raises(CannotGoOn, match=r"an actor could not start .*: OSError: the games are not here"):
        agent.feed()
    agent.close()


def test_actors_that_find_no_place(cluster):
    """More than the cluster has: the error says what it has."""
    remote = Remote(patience=0.5, gpus_per_actor=1)
    launch = lambda number: ray.remote(num_gpus=1)(Place).remote()  # noqa: E731
    fleet = Fleet(launch, 1, remote)
    fleet.publish(0, {})
    with pytest.raises(CannotGoOn, match=r"none of 1 actors sent an unroll in 0.5 s; .* cluster has {'CPU'"):
        fleet.collect(1)
    fleet.close()


class Place:
    def started(self):
        return None

    def act(self, update, weights):
        return update, None


def test_only_this_machine_can_reach_it(cluster):
    """Every port on which a process of Ray listens is one of the loopback interface."""
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout.splitlines()
    rays = [line for line in listening if any(name in line for name in ("raylet", "gcs_server", '"ray::'))]
    if not rays:
        pytest.skip("ss does not show this user's processes")
    for line in rays:
        host = line.split()[3].rpartition(":")[0].strip("[]").removeprefix("::ffff:")
        assert socket.inet_aton(host)[0] == 127, line


# ------------------------------------------------------------------ the learner is killed


def test_a_killed_learner_goes_on(tmp_path, capsys):
    """kill -9 in mid-run, then --resume: from the last checkpoint, with new actors, to the end."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "relational_rnn.cli", "train"]
    options = ["--training.steps", "200", "--training.log-every", "20", "--training.eval-every", "0"]
    options += ["--training.checkpoint-every", "20", "--actors", "ray:2", "--run", str(run)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    learner = subprocess.Popen(
        [*command, "box-world", "--preset", "smoke", *options], env=environment, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (run / "checkpoints" / "step-000000020.safetensors").exists():
        assert learner.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    learner.kill()
    assert learner.wait() == -signal.SIGKILL
    reached = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert reached[-1] < 200
    done = subprocess.run([*command, "--resume", str(run)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"resuming {run} at step " in done.stdout
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == list(range(20, 201, 20))
    assert [r["frames"] for r in records] == [8 * 6 * r["step"] for r in records]
    # Evaluating it needs no Ray.
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 200


STOPPED = """
import os, signal, time
from relational_rnn.agents.remote import Remote, connect
from relational_rnn.training.stopping import StopRequest
with StopRequest() as stop:
    connect(Remote(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("asked to stop:", stop())
"""


def test_sigterm_asks_a_learner_to_stop():
    """Ray's own handler would end it as if it had crashed, without a last checkpoint."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", STOPPED], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "asked to stop: True\n"), done.stderr


# ------------------------------------------------------------------ settings


def test_actor_counts():
    assert actor_count("local") == 0
    assert actor_count("ray:8") == 8
    for wrong in ("ray", "ray:", "ray:0", "ray:-1", "ray:x", "threads:2", ""):
        with pytest.raises(ValueError, match="is not allowed; allowed: local, or ray:N with N at least 1"):
            actor_count(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--actors", "ray:3"], "batch_size=8 is not allowed; allowed: a multiple of the 3 actors"),
        (["--actors", "ray:many"], "actors='ray:many' is not allowed"),
        (["--actors", "ray:2", "--learning.updates-per-unroll", "4"], "a multiple of updates_per_unroll = 4"),
        (["--actors", "ray:2", "--task.curriculum", "0.9"], "actors='ray:2' is not allowed; allowed: local"),
        (["--actors", "ray:2", "--remote.ahead", "0"], "ahead=0 is not allowed; allowed: 1 or more"),
    ],
)
def test_wrong_settings(tmp_path, capsys, options, message):
    run = tmp_path / "run"
    assert main(["train", "box-world", "--preset", "smoke", "--run", str(run), *options]) == 2
    assert message in capsys.readouterr().err
    assert not run.exists()


def test_without_ray(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = replace(box_world.smoke(), actors="ray:2")
    with pytest.raises(ValueError, match=r"pip install 'relational-rnn\[distributed\]'"):
        box_world.make_problem(config, CPU)


def test_random_numbers_differ_between_actors_and_after_a_restart(monkeypatch):
    """The seeds of actors started by a new learner and by one resumed after 7 updates."""
    seeds = []
    problem = box_world.make_problem(replace(box_world.smoke(), actors="ray:2"), CPU)
    taken = partial(lambda *arguments: seeds.append(arguments[3]))
    monkeypatch.setattr(ray, "remote", lambda **_: lambda player: type("Launch", (), {"remote": taken}))
    for updates in (0, 7):
        problem.updates = updates
        for number in range(3):
            problem._launch(number)
    assert len(set(seeds)) == 6


@pytest.mark.parametrize(("gpus", "device"), [(0.0, "cpu"), (0.25, "cuda")])
def test_actors_act_where_they_are_told(monkeypatch, gpus, device):
    """Ray leaves CUDA_VISIBLE_DEVICES as the learner has it for actors that were given no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0" if not gpus else "")
    config = replace(box_world.smoke(), actors="ray:2", remote=Remote(gpus_per_actor=gpus))
    problem = box_world.make_problem(config, CPU)
    monkeypatch.setattr(ray, "remote", lambda **_: lambda player: type("Launch", (), {"remote": player}))
    asked = []

    def make_player(device):
        asked.append(device.type)
        return box_world.make_player(config, CPU)

    problem.make_player = make_player
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, device: module)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    assert isinstance(problem._launch(0), Player)
    assert asked == [device]
