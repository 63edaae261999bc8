"""Trained models: those in the package by name, those of run folders, and how the one is made of the other.

A model in the package is two files in weights/: NAME.safetensors, the weights in 16 bits, and NAME.json, what
they are and how they were made.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relational_rnn.analysis.results_make import command, differences, portable
from relational_rnn.cores.base import require
from relational_rnn.experiments import load_experiment, open_run
from relational_rnn.training import checkpoint
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.device import pick_device
from relational_rnn.training.run_folder import RunFolder
from relational_rnn.training.weights import free_backends, load_weights, newest_weights

WEIGHTS = Path(__file__).parent / "weights"
NAMES = re.compile(r"[a-z0-9][a-z0-9-]*")
MAX_BYTES = 4_000_000  # of a file in the package


class Score(NamedTuple):
    metric: str  # of the experiment's evaluation
    name: str  # in the card
    max_loss: float  # by rounding to 16 bits

    def text(self, value: float) -> str:
        return f"{100 * value:.2f} %" if self.name == "accuracy" else f"{value:.1f} points"


SCORED = {
    "nth-farthest": Score("accuracy", "accuracy", 0.005),
    "lte": Score("accuracy", "accuracy", 0.005),
    "box-world": Score("sampled_solved", "accuracy", 0.005),
    "mini-pacman": Score("sampled_return", "points", 10.0),  # two standard errors, of 5,000 episodes each
}


class Pretrained(NamedTuple):
    model: nn.Module  # in eval mode, float32
    config: Any  # the experiment's Config it was trained with
    about: dict  # how it was made: of a packaged model its JSON file, of a run what is known of the run


def available(folder: Path | None = None) -> list[str]:
    """Names that `load_pretrained` takes."""
    return sorted(path.stem for path in (folder or WEIGHTS).glob("*.json"))


def load_pretrained(name: str, *, device: str = "cpu", folder: Path | None = None) -> Pretrained:
    """A model of the package, ready to use: `model, config, about = load_pretrained("nth-farthest-8x16")`."""
    if not NAMES.fullmatch(name) or name not in available(folder):
        raise ValueError(f"there are no weights named {name!r}; allowed: {', '.join(available(folder))}")
    folder = folder or WEIGHTS
    card, path = folder / f"{name}.json", folder / f"{name}.safetensors"
    try:
        about = json.loads(card.read_text())
        wanted, experiment = about["sha256"], load_experiment(str(about["experiment"]))
        config = from_dict(experiment.Config, about["config"])
    except KeyError as error:
        raise ValueError(f"{card} is damaged: it lacks {error}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{card} is damaged: {error}") from error
    if not path.is_file():
        raise ValueError(f"{path} is missing; allowed: the weights that {card.name} describes")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wanted:
        raise ValueError(f"{path} is damaged: its SHA-256 is {found}, that of {name} is {wanted}")
    model, (tensors, _) = _empty(experiment, config), checkpoint.load(path)
    checkpoint.load_model(model, tensors, path)
    return Pretrained(model.to(pick_device(device)).eval(), config, about)


def load_run(folder: str | Path, *, device: str = "cpu") -> Pretrained:
    """The model of a run folder with its newest weights."""
    run, experiment, config = open_run(folder)
    described = run.config()
    model = _empty(experiment, config, run)
    meta = load_weights(run, model)
    sessions = run.sessions()
    first, last = (sessions[0], sessions[-1]) if sessions else ({}, {})
    about = {
        "experiment": described["experiment"],
        "preset": described["preset"],
        "config": described["config"],
        "seed": config.training.seed,
        "step": meta["step"],
        "training_seconds": round(meta["seconds"], 1),
        "command": first.get("command"),
        "commit": last.get("commit"),
        "uncommitted_changes": any(s.get("uncommitted_changes") for s in sessions) if sessions else None,
        "torch": last.get("torch"),
        "gpu": last.get("gpu"),
    }
    return Pretrained(model.to(pick_device(device)).eval(), config, about)


def packaged(source: str) -> bool:
    """Whether this names a model in the package; a folder of that name comes first."""
    return not Path(source).exists() and source in available()


def load(source: str, *, device: str = "cpu") -> Pretrained:
    """A run folder, or the name of a model in the package."""
    if packaged(source):
        return load_pretrained(source, device=device)
    if not Path(source).exists():
        allowed = f"a folder `rmc train` made, {', '.join(available())}"
        raise ValueError(f"{source} does not exist, as a folder or in the package; allowed: {allowed}")
    return load_run(source, device=device)


def begin_with(source: str, experiment: str, model: nn.Module) -> None:
    """Put the weights of a run folder, or of a model in the package, into one that is to be trained."""
    inside = load_pretrained(source) if packaged(source) else None
    name = inside.about["experiment"] if inside else open_run(source)[1].NAME
    if name != experiment or experiment == "lm":
        allowed = "none for lm, whose words may be others" if experiment == "lm" else f"a run of {experiment}"
        raise ValueError(f"weights are of a run of {name}; allowed: {allowed}")
    if inside:
        checkpoint.load_model(model, inside.model.state_dict(), Path(source))
    else:
        newest_weights(open_run(source)[0], model)


def _empty(experiment: ModuleType, config: Any, run: RunFolder | None = None) -> nn.Module:
    """The model of these settings, on the CPU, with weights that do not matter. Of a run no data is read."""
    with torch.random.fork_rng(devices=[]):  # a problem seeds the global generator; a caller's is not ours
        if run is not None and experiment.NAME == "lm":  # how many words there are is the run's
            from relational_rnn.experiments.language_runs import model_of

            model = model_of(run, config)
        else:
            model = experiment.make_problem(config, torch.device("cpu")).model
    free_backends(model)
    return model


# ------------------------------------------------------------------ making the packaged files


def release(
    run: str | Path,
    name: str,
    *,
    samples: int = 100_000,
    folder: Path = WEIGHTS,
    overwrite: bool = False,
    device: str = "auto",
) -> dict:
    """Write NAME.safetensors and NAME.json from a run's newest weights -> the JSON's content.

    The accuracy of a BoxWorld agent is the share of levels, `samples` of them, that it solves with drawn
    actions; Mini Pacman's has points, its mean over so many episodes. Nothing is written if the rounded
    weights lose more than half a percentage point, or 10 points.
    """
    require(bool(NAMES.fullmatch(name)), "name", name, "lower-case letters, digits and hyphens")
    require(samples >= 1, "samples", samples, "1 or more")
    path, card = folder / f"{name}.safetensors", folder / f"{name}.json"
    if (path.exists() or card.exists()) and not overwrite:
        raise ValueError(f"{card} exists already; choose another name, or replace it")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; allowed: a folder, or a name for a new one")
    model, config, about = load_run(run, device=device)
    experiment = load_experiment(about["experiment"])
    if experiment.NAME not in SCORED:
        known = ", ".join(SCORED)
        raise ValueError(f"{run} is of {experiment.NAME!r}, which has no such score; allowed: {known}")
    preset = about["preset"]
    require(preset in experiment.PRESETS, "preset", preset, ", ".join(experiment.PRESETS))
    # As in a result: where the run and what it began with lay is of no use to others.
    settings = portable(about["config"])
    changed = differences(portable(to_dict(config)), portable(to_dict(experiment.PRESETS[preset]())))
    rounded = {name: _half(name, tensor) for name, tensor in model.state_dict().items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in rounded.values())
    if size > MAX_BYTES:
        raise ValueError(f"the weights of {run} take {size:,} bytes in 16 bits; allowed: {MAX_BYTES:,}")

    score = SCORED[experiment.NAME]
    before = _evaluated(experiment, config, model, samples)
    checkpoint.load_model(model, rounded, path)
    after = _evaluated(experiment, config, model, samples)
    if round(before - after - score.max_loss, 9) > 0:  # 0.57 and 0.565 are half a point apart, not more
        raise ValueError(
            f"in 16 bits it scores {score.text(after)}, not {score.text(before)}; allowed: a loss of "
            f"{score.text(score.max_loss)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, rounded, {"name": name})
    path.chmod(0o644)  # safetensors makes files only their owner can read
    about = {
        "name": name,
        **about,
        "config": settings,
        "command": command(experiment.NAME, preset, changed),
        "samples": samples,
        score.name: after,
        f"{score.name}_32_bits": before,
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    checkpoint.write_text(card, json.dumps(about, indent=1) + "\n")
    return about


def _half(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not half.isfinite().all():
        raise ValueError(f"{name} has values of up to {tensor.abs().max():g}, which 16 bits cannot hold")
    return half


def _evaluated(experiment: ModuleType, config: Any, model: nn.Module, samples: int) -> float:
    """By the experiment's own evaluation, on that many fresh samples or levels, in float32."""
    device = next(model.parameters()).device
    if hasattr(config, "evaluation"):  # a game's
        games = min(samples, config.evaluation.games)
        config = replace(config, evaluation=replace(config.evaluation, episodes=samples, games=games))
    else:
        config = replace(config, eval_samples=samples)
    with torch.random.fork_rng(devices=[]):
        problem = experiment.make_problem(config, device)
    problem.model = model
    with torch.no_grad():
        return problem.evaluate()[SCORED[experiment.NAME].metric]
