"""Several trainings at a time on one device, each a process of its own, and one display of them all.

Every process is an `rmc train` with its output in a log file. The signals that stop this one are passed on:
each training saves its checkpoint, and can be resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from relational_rnn.training.progress import duration, time_left, values
from relational_rnn.training.stopping import SAME_REQUEST, StopRequest

POLL = 0.1  # seconds between looks at the processes
PLAIN_SECONDS = 60.0  # between lines about a running training where there is no terminal
REFRESH = 0.25  # seconds between changes of the table on a terminal
PATIENCE = 10.0  # seconds for processes to end once this one has to, before they are killed
TAIL = 65536  # bytes of metrics.jsonl that are looked at
LOG_END = 10  # lines shown of a training that failed


@dataclass(frozen=True)
class Job:
    """One training."""

    name: str
    run: Path
    """Its run folder."""
    arguments: list[str]
    """What follows `rmc`."""
    steps: int
    after: str = ""
    """The name of a job that has to finish first, if it is one of those to run."""

    @property
    def log(self) -> Path:
        """Beside the run folder, which does not exist before it begins."""
        return self.run.with_name(self.run.name + ".log")


@dataclass
class Running:
    job: Job
    process: subprocess.Popen
    log_from: int
    """Where its part of the log begins: an earlier sitting may have written there too."""
    since: float = field(default_factory=time.monotonic)


@dataclass
class Outcome:
    """What became of the jobs, by name."""

    finished: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    """By a signal or when time was up."""
    failed: dict[str, int] = field(default_factory=dict)
    """With their exit status."""
    waiting: list[str] = field(default_factory=list)
    """Never begun."""
    signal: int | None = None


def run_many(
    jobs: list[Job], at_once: int = 1, minutes: float | None = None, console: Console | None = None
) -> Outcome:
    """Run all jobs, `at_once` at a time and in their order. One that fails stops only what comes after it.

    After `minutes` no more begin, and those that run are asked to stop, as by SIGINT and SIGTERM.
    """
    outcome, waiting, running = Outcome(), list(jobs), []
    names = {job.name for job in jobs}

    def ready() -> list[Job]:
        return [job for job in waiting if job.after not in names or job.after in outcome.finished]

    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    over, tell_at = False, float("inf")
    with StopRequest() as stop, Board(len(jobs), console or Console()) as board:
        try:
            while running or (ready() and not over):
                if not over and (stop() or time.monotonic() >= deadline):
                    # A terminal tells the whole group of processes: those that are still starting have ended
                    # a moment later, and the others take ours for the same request.
                    over, tell_at = True, time.monotonic() + SAME_REQUEST / 2
                    board.stopping(bool(running), "stopping" if stop() else "time is up")
                if time.monotonic() >= tell_at:
                    tell_at = float("inf")
                    for one in running:
                        one.process.send_signal(stop.signal or signal.SIGTERM)
                while len(running) < at_once and not over and (jobs_ready := ready()):
                    waiting.remove(jobs_ready[0])
                    running.append(begin(jobs_ready[0]))
                    board.begun(running[-1])
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    board.ended(one, note(one, outcome, over))
                board.update(running, len(waiting))
                time.sleep(POLL)
        finally:
            end(running)  # nothing is left of them, whatever happened
    outcome.waiting = [job.name for job in waiting]
    outcome.signal = stop.signal
    return outcome


def begin(job: Job) -> Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        log_from = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "relational_rnn.cli", *job.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    return Running(job, process, log_from)


def note(one: Running, outcome: Outcome, over: bool) -> str:
    """Sort an ended training into the outcome -> how it ended, in words."""
    name, code = one.job.name, one.process.returncode
    if code == 0:
        outcome.finished.append(name)
        return "finished"
    # A process that is still starting is ended by the signal itself, and has nothing to save.
    signals = {int(number) for number in StopRequest.signals}
    if over and (-code in signals or code - 128 in signals):
        outcome.stopped.append(name)
        return "stopped"
    outcome.failed[name] = code
    return f"failed with exit status {code}" if code > 0 else f"killed by signal {-code}"


def end(running: list[Running]) -> None:
    """End processes that were already asked to stop, or whose parent cannot go on."""
    for one in running:
        one.process.terminate()
    deadline = time.monotonic() + PATIENCE
    for one in running:
        try:
            one.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def newest(run: Path) -> dict | None:
    """The newest value of everything in a run's metrics.jsonl, which may be written to at this moment."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return None
    with path.open("rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - TAIL)
        file.seek(start)
        lines = file.read().split(b"\n")[bool(start) : -1]  # neither a line cut off nor one not yet whole
    found = {}
    for line in lines:
        with contextlib.suppress(ValueError, AttributeError):  # a damaged one: its run will say so
            record = json.loads(line)
            found |= {name: value for name, value in record.items() if isinstance(value, int | float)}
    return found if {"step", "steps_per_second"} <= found.keys() else None


def log_end(one: Running) -> list[str]:
    """The last lines a training wrote in this sitting."""
    with one.job.log.open("rb") as log:
        log.seek(one.log_from)
        lines = log.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-LOG_END:]


class Board:
    """On a terminal a live table of the trainings that run; anywhere else a line now and then."""

    def __init__(self, count: int, console: Console):
        self.count, self.console = count, console
        self.live = Live(console=console, transient=True, auto_refresh=False)
        self.over = ""  # why no more begin
        self.done = 0
        self.since = self._shown = time.monotonic()

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *exception) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begun(self, one: Running) -> None:
        if not self.console.is_terminal:
            self.say(f"{one.job.name}: begun, its output is in {one.job.log}")

    def ended(self, one: Running, how: str) -> None:
        self.done += 1
        self.say(f"{one.job.name}: {how} after {duration(time.monotonic() - one.since)}")
        if how not in ("finished", "stopped"):
            self.say(f"  the end of {one.job.log}:")
            for line in log_end(one):
                self.say(f"  | {line}")

    def stopping(self, some: bool, why: str) -> None:
        self.over = why
        if some and not self.console.is_terminal:
            self.say(f"{why}: waiting for checkpoints")

    def update(self, running: list[Running], waiting: int) -> None:
        now, terminal = time.monotonic(), self.console.is_terminal
        if now - self._shown < (REFRESH if terminal else PLAIN_SECONDS):
            return
        self._shown = now
        if terminal:
            self.live.update(self.table(running, waiting), refresh=True)
        else:
            for one in running:
                self.say(f"{one.job.name}: {'  '.join(filter(None, described(one.job)))}")

    def table(self, running: list[Running], waiting: int) -> Group:
        table = Table.grid(padding=(0, 2), expand=True)
        right = {"justify": "right"}
        for options in ({}, right, right, {"ratio": 1, "overflow": "ellipsis"}):
            table.add_column(no_wrap=True, **options)
        for one in running:
            table.add_row(one.job.name, *described(one.job))
        left = f"{waiting} waiting" if not self.over else f"{self.over}: waiting for checkpoints"
        since = duration(time.monotonic() - self.since)
        # Not a row, which would be as wide as the terminal: a ^C is written behind it.
        return Group(table, Text(f"{self.done} of {self.count} ended, {left}, {since}", "dim"))


def described(job: Job) -> tuple[str, str, str]:
    """`12,000 of 80,000`, the time left, and the newest scores."""
    record = newest(job.run)
    if record is None:
        return f"0 of {job.steps:,}", "", "starting"
    left = time_left(record, job.steps)
    return f"{record['step']:,} of {job.steps:,}", left and f"{left} left", values(record)
