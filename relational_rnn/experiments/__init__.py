"""The experiments by name. Nothing here imports torch: commands ask for names before anything else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

EXPERIMENTS = {
    "nth-farthest": "relational_rnn.experiments.nth_farthest",
    "lte": "relational_rnn.experiments.table1_lte",
    "mini-pacman": "relational_rnn.experiments.mini_pacman",
    "box-world": "relational_rnn.experiments.box_world",
    "lm": "relational_rnn.experiments.table2_lm",
}


def load_experiment(name: str) -> ModuleType:
    """Its module, which has Config, PRESETS and make_problem."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; allowed: {', '.join(EXPERIMENTS)}")
    return import_module(EXPERIMENTS[name])


def open_run(folder: str | Path):
    """The run folder, its experiment's module and its settings."""
    from relational_rnn.training.config import from_dict
    from relational_rnn.training.run_folder import RunFolder, RunFolderError

    run = RunFolder.open(Path(folder))
    described = run.config()
    if described["experiment"] not in tuple(EXPERIMENTS):  # whatever it is, a list say
        allowed = ", ".join(EXPERIMENTS)
        raise RunFolderError(f"{folder} is of experiment {described['experiment']!r}; allowed: {allowed}")
    experiment = load_experiment(described["experiment"])
    try:
        config = from_dict(experiment.Config, described["config"])
    except ValueError as error:
        raise RunFolderError(f"{run.path / 'config.json'} is damaged: {error}") from error
    return run, experiment, config
