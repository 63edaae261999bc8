"""The explorer's data from run folders, results and the package's weights; and the page with it, as a folder.

The data is one JSON object in data.js, as a value assigned to a name: a page opened from disk may load a
script but no JSON file.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from relational_rnn import pretrained
from relational_rnn.analysis.runs import read_run
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.explorer.games import export_episodes
from relational_rnn.explorer.memory import export_model
from relational_rnn.explorer.programs import export_samples
from relational_rnn.explorer.results import export_results

PAGE = Path(__file__).parent / "page"
DATA = "data.js"
PREFIX = "window.explorerData = "
GAMES = ("box-world", "mini-pacman")
SHOWN = ("nth-farthest", "lte", *GAMES)
MAX_BYTES = 6_000_000  # that a page loads in a moment


def collect(runs: list[Path], results: Path | None = None, *, weights: Path = pretrained.WEIGHTS) -> dict:
    """Everything the page shows. What could not be used of a run is in `notices`."""
    data: dict = {"memory": [], "games": [], "programs": [], "notices": []}
    for name in pretrained.available(weights):
        loaded = pretrained.load_pretrained(name, folder=weights)
        if reason := add_model(data, name, loaded, loaded.about.get("accuracy")):
            data["notices"].append(f"{name}, in the package, is not shown: {reason}")
    read = [read_run(path) for path in runs]
    for path, run in zip(runs, read, strict=True):
        if notice := run.notice():
            data["notices"].append(notice)
        try:
            scores = run.curves.get("eval_accuracy", [])
            reason = no_section(run.experiment)
            if reason is None:
                loaded = pretrained.load_run(path)
                reason = add_model(data, run.name, loaded, scores[-1][1] if scores else None)
        except ValueError as error:  # a run just begun, or copied without its weights, still has a curve
            reason = str(error)
        if reason:
            data["notices"].append(f"{run.name}: only its curve is shown; {reason}")
    data["results"] = export_results(results, read)
    data["made"] = (
        "Made by rmc explore. The page is computed where you are: it sends nothing and asks for nothing."
    )
    return data


def no_section(experiment: str) -> str | None:
    """Why models of an experiment are not shown; None if they are."""
    return None if experiment in SHOWN else f"{experiment} has no section"


def add_model(data: dict, name: str, loaded: pretrained.Pretrained, accuracy: float | None) -> str | None:
    """A model into the section it belongs to -> None, or why it has no place there."""
    model, config, about = loaded
    experiment = about["experiment"]
    for module in model.modules():
        if isinstance(module, RelationalMemory):
            module.backend = "reference"  # the page's numbers are the specification's
    if experiment == "nth-farthest":
        if not isinstance(model.core, RelationalMemory):
            return f"core {config.core} has no slots to look into"
        try:
            data["memory"].append(export_model(name, config.task, model, accuracy))
        except ValueError as error:  # a kind of core that the page cannot compute
            return str(error)
    elif experiment == "lte":
        data["programs"].append(export_samples(name, config.samples, model))
    elif experiment in GAMES:
        data["games"].append(export_episodes(name, game_of(experiment, config), model))
    else:
        return no_section(experiment)
    return None


def game_of(experiment: str, config):
    """The games an agent was trained on, on the CPU."""
    import torch

    from relational_rnn.experiments import box_world, mini_pacman

    module = {box_world.NAME: box_world, mini_pacman.NAME: mini_pacman}[experiment]
    return module.make_env(config.task, torch.device("cpu"))


def script(data: dict) -> str:
    """data.js. ASCII only, so that no encoding can change it."""
    return PREFIX + json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False) + ";\n"


def write(data: dict, folder: Path) -> int:
    """The page and its data in a new folder, or in one that an earlier export made -> bytes of the data."""
    folder = Path(folder)
    if folder.exists() and not is_export(folder):
        raise ValueError(f"{folder} exists and is no earlier export; allowed: a new folder")
    text = script(data)  # before anything is made: it may be that it cannot be written
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA).write_text(text, encoding="ascii")  # before the page: whatever fails then can be repeated
    # One by one: shutil.copytree has many errors in one, which does not say what kind it is.
    for source in sorted(path for path in PAGE.rglob("*") if path.is_file()):
        target = folder / source.relative_to(PAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return len(text)


def is_export(folder: Path) -> bool:
    data = folder / DATA
    if not folder.is_dir() or not data.is_file():
        return False
    with data.open("rb") as file:
        return file.read(len(PREFIX)) == PREFIX.encode()
