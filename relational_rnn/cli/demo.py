"""rmc demo: the RMC against an LSTM with as many units, side by side, in minutes on two CPU cores.

Each model trains in a process of its own (`rmc train nth-farthest --preset demo`), one core each; this
process only reads the two run folders and shows what is in them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from relational_rnn.analysis.curves import draw_curves, read_curve
from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors, whole_number
from relational_rnn.experiments import open_run
from relational_rnn.training.progress import duration
from relational_rnn.training.stopping import StopRequest

HELP = """\
usage: rmc demo [--seed N] [--seconds N] [--run FOLDER]

Trains a Relational Memory Core and an LSTM of the same number of units on a
small N-th farthest task, shows both learning curves, and ends with a picture of
them and each model's accuracy on fresh samples. --seconds (default 285) ends
the training wherever it is by then.
"""
MODELS = {"rmc": ("RMC", "cyan"), "lstm": ("LSTM", "magenta")}
WIDTH, HEIGHT = 70, 15  # of the plot, in characters
EVAL_SAMPLES = 20_000
NO_RELATIONS = 0.766  # accuracy of ranking by each vector's length, which relates nothing; simulated


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, seed = take_option(arguments, "--seed", default="0")
    rest, seconds = take_option(rest, "--seconds", default="285")
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    rest, folder = take_option(rest, "--run", default=f"runs/demo-{moment}")
    if rest:
        raise UsageError(f"unknown option {rest[0]!r}; allowed: --seed, --seconds, --run")
    seed, seconds = whole_number("--seed", seed), whole_number("--seconds", seconds, 1)
    folder = Path(folder)
    if folder.exists():
        raise UsageError(f"run folder {folder} exists already; choose another --run")
    folder.mkdir(parents=True)
    return demo(folder, seed, seconds)


def demo(folder: Path, seed: int, seconds: int, preset: str = "demo") -> int:
    console, started = Console(), time.monotonic()
    print(
        "Which of 3 vectors in the plane is the n-th farthest from vector m? They come\n"
        "one by one. Two answers in three can be had without looking at them, 77 % from\n"
        "the length of each (the dotted line); beyond that a model must relate the\n"
        "vectors to each other."
    )
    with StopRequest() as stop:
        processes = {core: start(core, folder, seed, preset) for core in MODELS}
        watch(console, folder, processes, started + seconds, stop)
        for process in processes.values():  # still running if the time is up or this process was interrupted
            process.terminate()
        for process in processes.values():
            process.wait()
    if stop():
        print(f"interrupted; the runs so far are in {folder}")
        return 128 + stop.signal
    for core, process in processes.items():
        if process.returncode == -signal.SIGTERM:  # later it would have saved a checkpoint
            print(
                f"the {MODELS[core][0]} had not begun after {seconds} s; give it more --seconds",
                file=sys.stderr,
            )
            return 1
        if process.returncode not in (0, 143):
            print(
                f"the {MODELS[core][0]} process failed:\n{(folder / f'{core}.log').read_text()}",
                file=sys.stderr,
            )
            return 1
    if any(process.returncode for process in processes.values()):
        print(f"stopped after {seconds} s, before the last update; scores are of the models then")
    report(folder, time.monotonic() - started)
    return 0


def start(core: str, folder: Path, seed: int, preset: str) -> subprocess.Popen:
    command = ["train", "nth-farthest", "--preset", preset, "--core", core, "--run", str(folder / core)]
    threads = str(max(1, (os.cpu_count() or 2) // 2))
    with (folder / f"{core}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "relational_rnn.cli", *command, "--training.seed", str(seed)],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )


def report(folder: Path, seconds: float) -> None:
    """Accuracy on fresh samples, the picture, and where they are."""
    import torch

    from relational_rnn.experiments import nth_farthest
    from relational_rnn.training import checkpoint

    scores = {}
    for core in MODELS:
        with user_errors():
            run, experiment, config = open_run(folder / core)
            path = run.latest_checkpoint()
            tensors, meta = checkpoint.load(path)
            problem = experiment.make_problem(config, torch.device("cpu"))
            checkpoint.load_model(problem.model, checkpoint.without_prefix("model", tensors), path)
        problem.load_state(checkpoint.without_prefix("problem", tensors))
        score = nth_farthest.accuracy(
            problem.model, problem.task, EVAL_SAMPLES, problem.device, seed=nth_farthest.EVAL_SEED + 1
        )
        vectors, dims = problem.stages[problem.stage]
        scores[core] = {"accuracy": score, "step": meta["step"], "stage": f"{vectors} x {dims}"}
        print(
            f"{MODELS[core][0]:<5}{100 * score:5.1f} % of {EVAL_SAMPLES:,} fresh samples "
            f"({config.model.total_units} units, {meta['step']:,} updates, the last on {vectors} x {dims})"
        )
    picture = folder / "curves.png"
    runs = {label: folder / core for core, (label, _) in MODELS.items()}
    plateau = (NO_RELATIONS, "length of each vector alone")
    draw_curves(
        runs, "eval_accuracy", picture, title="N-th farthest, 3 vectors x 2 dimensions", level=plateau
    )
    (folder / "scores.json").write_text(json.dumps({"seconds": round(seconds, 1), **scores}, indent=1) + "\n")
    print(f"picture of both curves: {picture}")


# ------------------------------------------------------------------ showing


def watch(console: Console, folder: Path, processes: dict, deadline: float, stop: StopRequest) -> None:
    """Show both curves until both processes end, the time is up or a signal asks to stop."""
    steps, next_line = None, 0.0

    def running() -> bool:
        alive = any(process.poll() is None for process in processes.values())
        return alive and time.monotonic() < deadline and not stop()

    if not console.is_terminal:
        while running():
            time.sleep(0.5)
            if time.monotonic() >= next_line:
                left = f"{duration(deadline - time.monotonic())} left at most"
                print("  ".join([left, *states(folder).values()]), flush=True)
                next_line = time.monotonic() + 10
        return
    with Live(console=console, auto_refresh=False) as live:
        while running():
            time.sleep(0.5)
            steps = steps or total_steps(folder)
            if steps:
                left = f"{duration(deadline - time.monotonic())} left at most"
                lines = [Text(state, MODELS[core][1]) for core, state in states(folder).items()]
                live.update(Group(plot(folder, steps), *lines, Text(left)), refresh=True)


def states(folder: Path) -> dict[str, str]:
    """One line a model: where it is."""
    said = {}
    for core, (label, _) in MODELS.items():
        score = read_curve(folder / core, "eval_accuracy")
        vectors, dims = read_curve(folder / core, "vectors"), read_curve(folder / core, "dims")
        if not score:
            said[core] = f"{label} starting"
            continue
        stage = f"{vectors[-1][1]} x {dims[-1][1]}"
        said[core] = (
            f"{label:<5}{100 * score[-1][1]:5.1f} %  update {vectors[-1][0]:>6,}  training on {stage}"
        )
    return said


def total_steps(folder: Path) -> int | None:
    path = folder / "rmc" / "config.json"
    return json.loads(path.read_text())["config"]["training"]["steps"] if path.exists() else None


def plot(folder: Path, steps: int) -> Text:
    """Both curves as letters on a grid: accuracy on the full task over updates."""
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    grid[row(NO_RELATIONS)] = list("·" * WIDTH)
    styles = {}
    for core, (label, style) in MODELS.items():
        for step, value in read_curve(folder / core, "eval_accuracy"):
            x, y = min(WIDTH - 1, step * WIDTH // steps), row(value)
            grid[y][x] = label[0]
            styles[y, x] = style
    text = Text()
    for y, letters in enumerate(grid):
        percent = round(100 * (HEIGHT - 1 - y) / (HEIGHT - 1))
        line = Text("".join(letters), "dim")
        for x in range(WIDTH):
            if (y, x) in styles:
                line.stylize(styles[y, x], x, x + 1)
        text.append(f"{percent:4d} %│" if y % 7 == 0 else "      │").append_text(line).append("\n")
    text.append("      └" + "─" * WIDTH + f"\n       accuracy on the full task over {steps:,} updates")
    return text


def row(accuracy: float) -> int:
    return round((1 - accuracy) * (HEIGHT - 1))
