"""A grid of runs: every point once whoever works on it, and what was left behind is taken up."""

import random
import time

import pytest
from optuna.trial import TrialState

from relational_rnn.training import sweep as module
from relational_rnn.training.run_folder import RunFolder
from relational_rnn.training.sweep import FileLock, Sweep, point_name, points

GRID = {"model.mem-slots": ("1", "2"), "model.gate-style": ("unit", "memory")}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.01)  # the pause after a point was taken


def make(folder, *, grid=GRID, storage=None, name="study", **settings):
    return Sweep(folder, storage or f"sqlite:///{folder / 'study.db'}", name, grid, settings)


def finish(path, accuracy=0.5):
    """A run folder as a finished run leaves it, as far as a sweep reads it."""
    run = RunFolder.create(path, "nth-farthest", "smoke", {})
    run.append({"step": 1, "eval_accuracy": accuracy})
    run.close()
    return 0


class Worker:
    """A `train` that remembers what it was given."""

    def __init__(self, outcome=finish):
        self.outcome, self.trained = outcome, []

    def __call__(self, point, path):
        self.trained.append(path.name)
        return self.outcome(path)


def states(sweep):
    return sorted(trial.state.name for trial in sweep.study.get_trials())


def test_points_and_their_names():
    assert points(GRID)[1] == {"model.mem-slots": "1", "model.gate-style": "memory"}
    assert [point_name(point) for point in points(GRID)] == [
        "mem-slots-1_gate-style-unit",
        "mem-slots-1_gate-style-memory",
        "mem-slots-2_gate-style-unit",
        "mem-slots-2_gate-style-memory",
    ]
    assert point_name({"a": "../x y"}) == "a-..-x-y"


def test_every_point_once_and_never_again(tmp_path):
    worker = Worker()
    sweep = make(tmp_path)
    assert sweep.run(worker) == 0
    assert sorted(worker.trained) == sorted(point_name(point) for point in sweep.points)
    assert states(sweep) == ["COMPLETE"] * 4
    assert set(sweep.statuses().values()) == {"finished"}
    again = Worker()
    assert make(tmp_path).run(again) == 0
    assert again.trained == []


def test_processes_that_share_only_the_storage(tmp_path):
    """While one trains its first point, another, with an output folder of its own, does all the rest."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    first, second = (make(tmp_path / name, storage=storage) for name in ("a", "b"))
    elsewhere = Worker()

    def train_while_the_other_works(path):
        if not elsewhere.trained:
            assert second.run(elsewhere) == 0
        return finish(path)

    here = Worker(train_while_the_other_works)
    assert first.run(here) == 0
    assert len(here.trained) == 1
    assert len(elsewhere.trained) == 3
    assert set(here.trained).isdisjoint(elsewhere.trained)


def test_a_point_both_were_given_is_trained_by_one(tmp_path, monkeypatch):
    """The sampler names the same point to a second process, as it may where only the storage is shared."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    first, second = (make(tmp_path / name, storage=storage) for name in ("a", "b"))
    elsewhere, met = Worker(), []

    def train(path):
        if not met:
            met.append(path.name)
            running = first.study.get_trials(states=(TrialState.RUNNING,))[0]
            retry = second.storage.get_heartbeat_stale_trial_callback()
            retry(second.study, running)  # the same point, waiting for whoever asks next
            second.run(elsewhere)
        return finish(path)

    here = Worker(train)
    assert first.run(here) == 0
    assert met[0] not in elsewhere.trained
    assert sorted(here.trained + elsewhere.trained) == sorted(point_name(p) for p in first.points)
    assert states(first).count("FAIL") == 1  # the second's claim


def test_a_stopped_trial_ends_the_command_and_is_taken_up_by_the_next(tmp_path):
    stopped = Worker(lambda path: 143)
    sweep = make(tmp_path)
    assert sweep.run(stopped) == 143
    assert len(stopped.trained) == 1
    assert len(sweep.remaining()) == 4
    worker = Worker()
    assert make(tmp_path).run(worker) == 0
    assert worker.trained[0] == stopped.trained[0]
    assert sorted(worker.trained) == sorted(point_name(point) for point in sweep.points)


def test_a_diverged_point_is_not_tried_again(tmp_path):
    def diverge_once(path):
        return 1 if path.name == "mem-slots-2_gate-style-unit" else finish(path)

    worker = Worker(diverge_once)
    sweep = make(tmp_path)
    assert sweep.run(worker) == 0
    assert len(worker.trained) == 4
    assert sweep.statuses()["mem-slots-2_gate-style-unit"] == "diverged"
    again = Worker()
    assert make(tmp_path).run(again) == 0
    assert again.trained == []


def test_an_error_is_not_hidden_and_its_point_comes_again(tmp_path):
    def fail(path):
        raise RuntimeError("out of memory")

    broken = Worker(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        make(tmp_path).run(broken)
    worker = Worker()
    assert make(tmp_path).run(worker) == 0
    assert worker.trained[0] == broken.trained[0]
    assert len(worker.trained) == 4


def abandoned(sweep, place):
    """A trial that is running in the storage, of a process that is gone."""
    with pytest.warns(UserWarning, match="Heartbeat of storage"):
        trial = sweep.study.ask()
    for option, values in sweep.grid.items():
        trial.suggest_categorical(option, values)
    name = point_name({option: trial.params[option] for option in sweep.grid})
    trial.set_user_attr("place", place)
    sweep.storage.record_heartbeat(trial._trial_id)
    return name


def test_a_dead_trial_of_this_machine_is_taken_up_at_once(tmp_path):
    sweep = make(tmp_path)
    name = abandoned(sweep, sweep.place)
    lock = FileLock(sweep.locks / f"{name}.lock")
    lock.acquire()  # as long as its process lives, it holds this
    worker = Worker()
    assert sweep.run(worker) == 0
    assert name not in worker.trained
    lock.release()
    assert sweep.run(worker) == 0
    assert worker.trained[-1] == name
    assert states(sweep) == ["COMPLETE"] * 4 + ["FAIL"]


def test_a_trial_that_ends_between_two_looks_is_not_taken_for_dead(tmp_path, monkeypatch):
    sweep = make(tmp_path)
    sweep.run(Worker())
    seen = sweep.study.get_trials()  # as a process saw them that looked a moment earlier
    for trial in seen:
        trial.state = TrialState.RUNNING
    monkeypatch.setattr(sweep.study, "get_trials", lambda **options: seen)
    sweep.bury_the_dead()
    monkeypatch.undo()
    assert states(sweep) == ["COMPLETE"] * 4


def test_a_dead_trial_of_another_machine_is_taken_up_when_its_heart_stopped(tmp_path, monkeypatch):
    sweep = make(tmp_path)
    name = abandoned(sweep, "elsewhere:/runs")
    worker = Worker()
    assert sweep.run(worker) == 0
    assert name not in worker.trained
    monkeypatch.setattr(module, "HEARTBEAT", 1)
    monkeypatch.setattr(module, "GRACE", 1)
    time.sleep(2.5)  # the storage counts whole seconds
    assert make(tmp_path).run(worker) == 0
    assert worker.trained[-1] == name


def test_a_living_trial_that_was_taken_for_dead_is_finished_by_its_next_one(tmp_path):
    sweep = make(tmp_path)
    worker = Worker()

    def train(path):
        if len(worker.trained) == 1:
            (trial,) = sweep.study.get_trials(states=(TrialState.RUNNING,))
            sweep.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        return 0 if path.exists() else finish(path)

    worker.outcome = train
    assert sweep.run(worker) == 0
    assert len(worker.trained) == 5
    assert worker.trained[0] == worker.trained[1]
    assert set(sweep.statuses().values()) == {"finished"}


def test_other_settings_need_another_study_and_finished_folders_are_kept(tmp_path):
    make(tmp_path, config={"training": {"steps": 10}}).run(Worker())
    with pytest.raises(ValueError, match=r"config.training.steps is 10, not 20; choose another --study"):
        make(tmp_path, config={"training": {"steps": 20}})
    wider = {**GRID, "model.mem-slots": ("1", "2", "4")}
    with pytest.raises(ValueError, match=r"grid.model.mem-slots is \['1', '2'\], not \['1', '2', '4'\]"):
        make(tmp_path, grid=wider, config={"training": {"steps": 10}})


def test_names_must_differ(tmp_path):
    with pytest.raises(ValueError, match="the same name"):
        make(tmp_path, grid={"a": ("x/y", "x y")})


def test_a_storage_that_cannot_be_opened_is_named(tmp_path):
    for url in ("sqlite:////no/such/folder/study.db", "nonsense", "oracle://nowhere"):
        with pytest.raises(ValueError, match="the storage cannot be opened"):
            make(tmp_path, storage=url)


def test_a_lock_is_exclusive_and_can_be_released_twice(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    with first:
        assert not second.acquire(wait=False)
        first.release()
        assert second.acquire(wait=False)
    assert not first.acquire(wait=False)
    second.release()
    second.release()
