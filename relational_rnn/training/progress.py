"""What a user sees of a run: a live line on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

SHOWN = (
    *("loss", "accuracy", "stage", "eval_accuracy", "frames", "episode_return", "episode_solved"),
    *("epoch", "perplexity", "eval_valid_perplexity"),
)
PERCENT = ("accuracy", "eval_accuracy", "episode_solved")
PLAIN_SECONDS = 2.0  # at most one plain line in so many seconds, so that a fast run does not flood a log
BAR_FROM = 132  # columns: a narrower terminal needs them for the text


class Display:
    """`with Display(steps) as display: trainer.run(report=display)`."""

    def __init__(self, steps: int, first_step: int = 0, console: Console | None = None):
        self.steps, self.first_step = steps, first_step
        self.console = console or Console()
        self.progress: Progress | None = None
        self._last_line = -PLAIN_SECONDS

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            step = TextColumn("{task.completed:,.0f} of {task.total:,.0f}")
            bar = [BarColumn(20)] if self.console.width >= BAR_FROM else []
            # What does not fit is cut off the text, never the step.
            text = TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, ratio=1))
            self.progress = Progress(step, *bar, text, console=self.console, expand=True)
            shown = dict(total=self.steps, completed=self.first_step, text="starting")
            self.task = self.progress.add_task("", **shown)
            self.progress.start()
        return self

    def __exit__(self, *exception) -> None:
        if self.progress is not None:
            self.progress.stop()

    def __call__(self, record: dict) -> None:
        text = summary(record, self.steps)
        if self.progress is not None:
            self.progress.update(self.task, completed=record["step"], text=text)
            return
        now = time.monotonic()
        last = record["step"] == self.steps or any(name.startswith("eval_") for name in record)
        if last or now - self._last_line >= PLAIN_SECONDS:
            self._last_line = now
            print(f"step {record['step']} of {self.steps}  {text}", flush=True)

    def note(self, text: str) -> None:
        """On a terminal, in place of the last record until the next one."""
        if self.progress is not None:
            self.progress.update(self.task, text=text)


def summary(record: dict, steps: int) -> str:
    """loss 0.532  accuracy 81.2 %  stage 3  142 steps/s  2:05 left"""
    left = time_left(record, steps)
    return "  ".join([values(record), *([f"{left} left"] if left else [])])


def values(record: dict) -> str:
    """loss 0.532  accuracy 81.2 %  stage 3  142 steps/s"""
    parts = []
    for name in SHOWN:
        if name in record:
            value = record[name]
            shown = f"{100 * value:.1f} %" if name in PERCENT else f"{value:.4g}"
            parts.append(f"{name.replace('_', ' ')} {shown}")
    if "frames_per_second" in record:
        parts.append(f"{record['frames_per_second']:,} frames/s")
    return "  ".join([*parts, f"{record['steps_per_second']:.3g} steps/s"])


def time_left(record: dict, steps: int) -> str:
    """2:05; nothing of a very slow run, whose speed is rounded to 0."""
    speed = record["steps_per_second"]
    return duration((steps - record["step"]) / speed) if speed else ""


def duration(seconds: float) -> str:
    """H:MM:SS or M:SS."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
