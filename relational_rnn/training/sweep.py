"""A grid of runs as an Optuna study that any number of processes work on.

Every point of the grid is one run folder, named by the point. Optuna's storage knows what is finished,
running or given up; Optuna's GridSampler says what comes next. It may name one point to two processes that
ask at the same time, so a point is claimed here: under a lock file where processes share the output folder,
and by a look at the study's other running trials where they share only the storage.

A trial whose process died is noticed at once by processes that share its machine and output folder (the lock
on its point is free) and after GRACE seconds without a sign of life by all others; it is then queued again,
and whoever takes it resumes its run folder. A trial that was stopped by a signal is queued again too.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from relational_rnn.training.run_folder import RunFolder, RunFolderError

try:
    import fcntl
except ImportError:  # not a POSIX system: only the storage keeps processes apart
    fcntl = None

Point = dict[str, str]  # command line option without dashes -> value, as typed
HEARTBEAT, GRACE = 60, 180  # seconds between signs of life, and without one
DONE = (TrialState.COMPLETE, TrialState.PRUNED)  # pruned: diverged, and would again


class Taken(Exception):
    """Another process has that point."""


class Stopped(Exception):
    """A signal ended the training."""


def points(grid: dict[str, tuple[str, ...]]) -> list[Point]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def point_name(point: Point) -> str:
    """Its run folder's name: mem-slots-8_num-heads-1_gate-style-unit."""
    parts = (f"{option.rpartition('.')[2]}-{value}" for option, value in point.items())
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", "_".join(parts))


class Sweep:
    """`Sweep(folder, storage, name, grid, settings).run(train)`.

    `settings` is what all points share (JSON-ready); a study is continued only with the same.
    """

    def __init__(
        self, folder: Path, storage: str, name: str, grid: dict[str, tuple[str, ...]], settings: dict
    ):
        self.folder, self.grid, self.points = folder, grid, points(grid)
        names = [point_name(point) for point in self.points]
        if len(set(names)) < len(names):
            raise ValueError(f"two points of the grid have the same name: {sorted(names)}")
        self.locks = folder / ".locks"
        self.locks.mkdir(parents=True, exist_ok=True)
        self.claiming = FileLock(self.locks / "claiming.lock")
        self.place = f"{socket.gethostname()}:{folder.resolve()}"  # where a trial's lock can be looked at
        self.stop_code: int | None = None
        self._given_up = False
        self._point_lock: FileLock | None = None  # of the point being trained
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self.claiming:  # two processes must not make the same tables at once
            self.storage = open_storage(storage)
            sampler = optuna.samplers.GridSampler(grid)
            self.study = optuna.create_study(
                storage=self.storage,
                sampler=sampler,
                study_name=name,
                direction="maximize",
                load_if_exists=True,
            )
            wanted = json.loads(json.dumps({"grid": grid, **settings}))  # as the storage gives it back
            found = self.study.user_attrs.get("settings")
            if found is None:
                self.study.set_user_attr("settings", wanted)
            elif found != wanted:
                raise ValueError(
                    f"study {name!r} has other settings: {_difference(found, wanted)}; choose another "
                    f"--study (run folders that are finished and fit are taken over)"
                )

    # ------------------------------------------------------------------ working

    def run(self, train: Callable[[Point, Path], int]) -> int:
        """Train what nobody else has until nothing is left -> 0, or the exit code a signal asks for.

        `train(point, path)` makes or resumes the run folder and returns 0 if it is finished, 1 if it
        diverged, and more if a signal stopped it.
        """
        while True:
            with self.claiming:  # until a point is claimed
                self.bury_the_dead()
                self._queue_again()
                if not self.remaining():
                    return 0
                before = len(self.study.get_trials(deepcopy=False, states=DONE))
                self._given_up = False
                try:
                    self.study.optimize(
                        lambda trial: self._trial(trial, train), n_trials=1, catch=(Taken, Stopped)
                    )
                except ValueError:
                    if not self._given_up:  # else: Optuna refuses to end a trial that was ended already
                        raise
                finally:
                    if self._point_lock is not None:  # not before the storage knows how the trial ended
                        self._point_lock.release()
            if self.stop_code is not None:
                return self.stop_code
            if len(self.study.get_trials(deepcopy=False, states=DONE)) == before:
                time.sleep(random.uniform(0.5, 2.0))  # taken: do not meet the other one again

    def _trial(self, trial: optuna.Trial, train: Callable[[Point, Path], int]) -> float:
        point = {option: trial.suggest_categorical(option, values) for option, values in self.grid.items()}
        self._point_lock = FileLock(self.locks / f"{point_name(point)}.lock")
        if not self._point_lock.acquire(wait=False):
            raise Taken
        trial.set_user_attr("place", self.place)
        # Whoever's point is in the storage later sees the other's; both may, and both give way.
        others = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING, *DONE))
        if any(other.params == point and other.number != trial.number for other in others):
            raise Taken
        self.claiming.release()
        path = self.folder / point_name(point)
        code = train(point, path)
        if code > 1:
            self.stop_code = code
        if self.storage.get_trial(trial._trial_id).state != TrialState.RUNNING:
            # Another process took this one for dead, say while the machine slept, and queued the point again:
            # whoever takes it finds this run folder.
            self._given_up = True
            raise Taken
        if code == 1:
            raise optuna.TrialPruned("diverged")
        if code:
            raise Stopped
        return final_accuracy(path)

    def remaining(self) -> list[Point]:
        """Points that are neither finished nor being trained."""
        states = (TrialState.RUNNING, *DONE)
        taken = [trial.params for trial in self.study.get_trials(deepcopy=False, states=states)]
        return [point for point in self.points if point not in taken]

    def statuses(self) -> dict[str, str]:
        """What the study says of each point, by name: finished, diverged, running, or nothing."""
        said = {
            TrialState.COMPLETE: "finished",
            TrialState.PRUNED: "diverged",
            TrialState.RUNNING: "running",
        }
        trials = self.study.get_trials(deepcopy=False, states=tuple(said))
        return {self._name(trial): said[trial.state] for trial in trials if self._is_point(trial)}

    # ------------------------------------------------------------------ what others left behind

    def bury_the_dead(self) -> None:
        """Give up running trials whose process is gone."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get("place") != self.place or fcntl is None:
                continue
            lock = FileLock(self.locks / f"{self._name(trial)}.lock")
            if lock.path.exists() and lock.acquire(wait=False):  # a living process holds it to the end
                with lock:
                    if self.storage.get_trial(trial._trial_id).state == TrialState.RUNNING:
                        self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def _queue_again(self) -> None:
        """Points that were begun, given up and not taken up since."""
        by_point: dict[str, list[FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if self._is_point(trial):
                by_point.setdefault(self._name(trial), []).append(trial)
        for trials in by_point.values():
            if all(trial.state == TrialState.FAIL for trial in trials):
                self.storage.get_heartbeat_stale_trial_callback()(self.study, trials[-1])

    def _is_point(self, trial: FrozenTrial) -> bool:
        """A trial killed while it was set up has only some of its values."""
        return trial.params.keys() == self.grid.keys()

    def _name(self, trial: FrozenTrial) -> str:
        return point_name({option: trial.params[option] for option in self.grid})


def sqlite_url(path: Path) -> str:
    """The storage in a file. Of a path with ? or % SQLAlchemy would make another, and the file lie there."""
    for text in (quote(str(path)), str(path)):  # whether it reads %3F as ? depends on its version
        if make_url(f"sqlite:///{text}").database == str(path):
            return f"sqlite:///{text}"
    raise ValueError(f"{path} cannot be part of a storage URL; allowed: a path without ?, # and %")


def open_storage(url: str) -> RDBStorage:
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats, since 2021
        try:
            return RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
            )
        except (SQLAlchemyError, ImportError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"the storage cannot be opened: {reason}") from error


def final_accuracy(path: Path) -> float:
    record = RunFolder.open(path).metrics()[-1]
    if "eval_accuracy" not in record:
        raise RunFolderError(f"{path} ends without an evaluation")
    return record["eval_accuracy"]


def _difference(found: dict, wanted: dict, where: str = "") -> str:
    """`training.steps is 40, not 20`: the first that differs."""
    for name in {**wanted, **found}:
        mine, its = wanted.get(name), found.get(name)
        if mine != its and isinstance(mine, dict) and isinstance(its, dict):
            return _difference(its, mine, f"{where}{name}.")
        if mine != its:
            return f"{where}{name} is {its!r}, not {mine!r}"
    return ""


class FileLock:
    """An exclusive lock that ends with the process at the latest; `with lock:` waits for it."""

    def __init__(self, path: Path):
        self.path = path
        self._file: int | None = None

    def acquire(self, *, wait: bool = True) -> bool:
        if self._file is not None or fcntl is None:
            return True
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return False
        self._file = handle
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(self, *exception) -> None:
        self.release()
