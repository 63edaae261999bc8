"""The cells of `rmc reproduce`: what they are called is what they train."""

from pathlib import Path

import pytest

from relational_rnn.cli.reproduce import settings
from relational_rnn.experiments import load_experiment
from relational_rnn.experiments.nth_farthest import FAST_STAGES
from relational_rnn.experiments.sections import SECTIONS


def configs(name, preset):
    section = SECTIONS[name]
    cells = section.cells(preset)
    assert len({cell.name for cell in cells}) == len(cells)
    return {cell.name: settings(section.experiment, cell, [], Path("runs")) for cell in cells}


@pytest.mark.parametrize("name", SECTIONS)
def test_cells_are_runs_of_their_own(name):
    section = SECTIONS[name]
    for preset in section.presets:
        found = list(configs(name, preset).values())
        assert all(config != other for i, config in enumerate(found) for other in found[:i])
        assert {cell.preset for cell in section.cells(preset)} <= load_experiment(
            section.experiment
        ).PRESETS.keys()
    assert section.presets[0] == getattr(load_experiment(section.experiment), "DEFAULT_PRESET", "fast")
    steps = {config.training.steps for config in configs(name, "smoke").values()}
    assert max(steps) <= 60  # the small ones are small


def test_nth_farthest():
    found = configs("nth-farthest", "fast")
    fast, dims32, paper = (load_experiment("nth-farthest").PRESETS[p]() for p in ("fast", "dims32", "paper"))
    assert [found[f"rmc-seed{seed}"].training.seed for seed in range(3)] == [0, 1, 2]
    assert found["rmc-seed0"] == fast
    assert [found[f"dims32-seed{seed}"].training.seed for seed in range(3)] == [0, 1, 2]
    assert found["dims32-seed0"] == dims32
    assert found["paper"] == paper
    for core, name in (("rmc", "rmc-seed0"), ("lstm", "lstm"), ("dnc", "dnc")):
        with_stages, without = found[name], found[f"{core}-no-stages"]
        assert with_stages.core == without.core == core
        assert with_stages.curriculum.stages == FAST_STAGES
        assert without.curriculum.stages == ()
        assert with_stages.training == without.training == fast.training  # as many samples as the RMC
    assert (found["dnc"].dnc.memory_size, found["dnc-512"].dnc.memory_size) == (128, 512)
    corner = ("rmc-1-memory-1-head", "rmc-1-memory", "rmc-1-head", "rmc-seed0")
    models = [found[name].model for name in corner]
    assert [(m.mem_slots, m.num_heads) for m in models] == [(1, 1), (1, 8), (8, 1), (8, 8)]
    assert {(m.total_units, m.gate_style) for m in models} == {(2048, "unit")}


def test_nth_farthest_in_small():
    found = configs("nth-farthest", "smoke")
    assert found["paper"].curriculum.stages == found["lstm-no-stages"].curriculum.stages == ()
    assert found["dims32-seed1"].task.dims > found["rmc-seed1"].task.dims
    assert found["rmc-1-head"].model.num_heads == found["rmc-1-memory"].model.mem_slots == 1


def test_table1():
    found = configs("table1", "fast")
    assert len(found) == 24
    assert {name: f"{config.task}-{config.core}" for name, config in found.items()} == {n: n for n in found}
    for preset in ("nest3", "scratchpad"):
        tasks = {config.task for config in configs("table1", preset).values()}
        assert tasks == {"addition", "control", "program"}


def test_games():
    found = configs("box-world", "paper")
    assert {name: config.core for name, config in found.items()} == {"rmc": "rmc", "conv-lstm": "conv-lstm"}
    assert {config.task.view for config in found.values()} == {"viewport"}
    found = configs("box-world", "fast")
    beginnings = [Path(found[name].training.weights).name for name in ("rmc", "rmc-2", "rmc-3")]
    assert beginnings == ["", "rmc", "rmc-2"]
    assert found["rmc"] == load_experiment("box-world").PRESETS["fast"]()
    assert [found[name].task.harder for name in ("rmc", "rmc-2", "rmc-3")] == [1, 1, 2]
    found = configs("mini-pacman", "fast")
    assert {name: f"{c.task.view}-{c.core}" for name, c in found.items()} == {name: name for name in found}
    assert len(found) == 4
