"""What `rmc reproduce` trains: the paper's sections as lists of cells, each one run of `rmc train`.

A cell's options are those of the command line, so that what is reproduced can also be typed. Sizes are only
named where a cell differs from its preset: the same cells of `smoke` are small, and run in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    name: str
    """Of its run folder."""
    preset: str
    options: tuple[str, ...] = ()
    """As `rmc train` takes them."""
    begins_with: str = ""
    """Another cell of the section, with whose weights it begins once that one is finished."""


@dataclass(frozen=True)
class Section:
    experiment: str
    presets: tuple[str, ...]
    """Those it can be run with, the usual one first."""
    metric: str
    """What its cells are scored by."""
    cells: Callable[[str], list[Cell]]
    """The cells with a preset."""


def _nth_farthest(preset: str) -> list[Cell]:
    """Section 4.1 and appendix A.1. All cores see as many samples, with stages and without; of the sweep the
    corner {1, 8} memories x {1, 8} heads, whose fourth is rmc-seed0."""
    seeds = [(f"seed{seed}", ("--training.seed", str(seed))) for seed in range(3)]
    one_memory, one_head = ("--model.mem-slots", "1"), ("--model.num-heads", "1")
    small = preset == "smoke"
    # Presets of their own, and what stands for them in small.
    dims32, paper = ("smoke", "smoke") if small else ("dims32", "paper")
    more_dims = ("--task.dims", "4", "--curriculum.stages", "2", "1", "3", "2", "3", "4") if small else ()
    plain = ("--curriculum.stages", "--training.schedule", "constant") if small else ()
    return [
        *(Cell(f"rmc-{name}", preset, seed) for name, seed in seeds),
        Cell("rmc-no-stages", preset, ("--curriculum.stages",)),
        *(
            Cell(f"{core}{ending}", preset, ("--core", core, *stages))
            for core in ("lstm", "dnc")
            for ending, stages in (("", ()), ("-no-stages", ("--curriculum.stages",)))
        ),
        Cell("dnc-512", preset, ("--core", "dnc", "--dnc.memory-size", "16" if small else "512")),
        Cell("rmc-1-memory", preset, one_memory),
        Cell("rmc-1-head", preset, one_head),
        Cell("rmc-1-memory-1-head", preset, one_memory + one_head),
        *(Cell(f"dims32-{name}", dims32, more_dims + seed) for name, seed in seeds),
        Cell("paper", paper, plain),
    ]


def _table1(preset: str) -> list[Cell]:
    """Table 1: every task with every core; nest3 and scratchpad there are for programs only."""
    from relational_rnn.experiments.table1_lte import CORES, TASKS

    tasks = TASKS[:3] if preset in ("nest3", "scratchpad") else TASKS
    return [Cell(f"{t}-{c}", preset, ("--task", t, "--core", c)) for t in tasks for c in CORES]


def _box_world(preset: str) -> list[Cell]:
    """With `fast` the RMC goes on twice. The ConvLSTM grows sooner: at 85 % one stayed with easy levels."""
    rmc, conv_lstm = (Cell(core, preset, ("--core", core)) for core in ("rmc", "conv-lstm"))
    if preset == "paper":
        return [rmc, conv_lstm]

    def further(name: str, after: str, rate: str, steps: str, *more: str) -> Cell:
        steps = "4" if preset == "smoke" else steps
        options = ("--task.curriculum", "0", "--training.learning-rate", rate, "--training.steps", steps)
        return Cell(name, preset, ("--core", "rmc", *options, *more), begins_with=after)

    return [
        rmc,
        further("rmc-2", "rmc", "5e-4", "160000"),
        further("rmc-3", "rmc-2", "4e-4", "200000", "--task.harder", "2"),
        Cell("conv-lstm", preset, (*conv_lstm.options, "--task.curriculum", "0.6")),
    ]


def _mini_pacman(preset: str) -> list[Cell]:
    return [
        Cell(f"{view}-{core}", preset, ("--task.view", view, "--core", core))
        for view in ("viewport", "full")
        for core in ("rmc", "lstm")
    ]


def _table2(preset: str) -> list[Cell]:
    """Table 2, one text at a time: each has a preset of its own."""
    return [Cell(core, preset, ("--core", core)) for core in ("rmc", "lstm")]


TEXTS = ("wikitext2", "wikitext2-large", "gutenberg45", "paper", "paper-gutenberg", "paper-gigaword", "smoke")

SECTIONS = {
    "nth-farthest": Section("nth-farthest", ("fast", "smoke"), "eval_accuracy", _nth_farthest),
    "table1": Section("lte", ("fast", "paper", "scratchpad", "nest3", "smoke"), "eval_accuracy", _table1),
    "box-world": Section("box-world", ("fast", "paper", "smoke"), "eval_sampled_solved", _box_world),
    "mini-pacman": Section("mini-pacman", ("fast", "paper", "smoke"), "eval_sampled_return", _mini_pacman),
    "table2": Section("lm", TEXTS, "eval_test_perplexity", _table2),
}
