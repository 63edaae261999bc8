"""A run folder: everything about one run, enough to resume, evaluate and plot it without the command.

config.json            {"experiment", "preset", "config"}: what was asked for
environment.json       a list, one entry for the start and one for each resumption: versions, hardware,
                       commit, the model's parameters, and when and at which step it ended
metrics.jsonl          one JSON object a line; docs/metrics.md explains the keys
checkpoints/           step-000001000.safetensors, the newest few
weights.safetensors    the model alone, once the run is finished
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from relational_rnn import __version__
from relational_rnn.training.checkpoint import TEMPORARY, write_text

try:
    import fcntl
except ImportError:  # not a POSIX system: two processes on one run are then not noticed
    fcntl = None


class RunFolderError(ValueError):
    """A run folder that cannot be used as asked; the message says why in one line."""


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics_path = path / "metrics.jsonl"
        self.weights_path = path / "weights.safetensors"
        self._lock = None

    @classmethod
    def create(
        cls, path: Path, experiment: str, preset: str, config: dict, *, parameters: int | None = None
    ) -> RunFolder:
        """A new folder. What exists already is left alone, whatever it is."""
        run = cls(Path(path))
        try:
            run.path.mkdir(parents=True)
        except FileExistsError as error:
            raise RunFolderError(
                f"run folder {run.path} exists already; choose another --run, or continue it with "
                f"`rmc train --resume {run.path}`"
            ) from error
        except OSError as error:
            raise RunFolderError(f"run folder {run.path} cannot be made: {error.strerror}") from error
        run.lock()
        run.checkpoints.mkdir()
        run.metrics_path.touch()
        write_text(run.path / "environment.json", json.dumps([environment(parameters)], indent=1) + "\n")
        described = {"experiment": experiment, "preset": preset, "config": config}
        write_text(run.path / "config.json", json.dumps(described, indent=1) + "\n")
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        run = cls(Path(path))
        if not run.path.is_dir():
            raise RunFolderError(f"run folder {run.path} does not exist; allowed: a folder `rmc train` made")
        for needed in (run.path / "config.json", run.metrics_path):
            if not needed.exists():
                raise RunFolderError(f"{run.path} is not a whole run folder: {needed.name} is missing")
        return run

    def lock(self) -> None:
        """Hold the folder until this process ends, so that no second one trains in it."""
        if fcntl is None or self._lock is not None:
            return
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunFolderError(f"run folder {self.path} is in use by another process") from None

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def config(self) -> dict:
        """{"experiment", "preset", "config"} of config.json."""
        path = self.path / "config.json"
        try:
            described = json.loads(path.read_text())
        except (ValueError, OSError) as error:
            raise RunFolderError(f"{path} is damaged: {error}") from error
        if not isinstance(described, dict) or described.keys() != {"experiment", "preset", "config"}:
            raise RunFolderError(f"{path} is damaged: it must have experiment, preset and config")
        preset = described["preset"]
        if not isinstance(preset, str) or not re.fullmatch(r"[\w.-]+", preset):  # tables and pages show it
            allowed = "letters, digits, hyphens"
            raise RunFolderError(f"{path} is damaged: preset is {preset!r}; allowed: {allowed}")
        return described

    # ------------------------------------------------------------------ metrics

    def append(self, record: dict) -> None:
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict]:
        """The records of metrics.jsonl; a last line cut off by a kill is left out."""
        records = []
        lines = self.metrics_path.read_text(errors="replace").splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                    raise ValueError("it has no step")
                for name, value in record.items():
                    if not isinstance(value, int | float):
                        raise ValueError(f"{name!r} is no number")
                records.append(record)
            except ValueError as error:
                if number == len(lines) and not line.endswith("\n"):
                    break
                raise RunFolderError(f"{self.metrics_path} is damaged in line {number}: {error}") from error
        return records

    def resume(self, step: int) -> None:
        """Take the folder over at a checkpoint: drop records after it, they come again; note where we are."""
        self.lock()
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_text(self.metrics_path, "".join(json.dumps(record) + "\n" for record in kept))
        sessions = self.sessions()
        parameters = sessions[0].get("parameters") if sessions else None
        self._write_sessions([*sessions, {**environment(parameters), "resumed_at_step": step}])

    # ------------------------------------------------------------------ environment.json

    def sessions(self) -> list[dict]:
        """What is noted of each start; nothing where the file is missing or damaged: no run needs it."""
        sessions = None
        with contextlib.suppress(FileNotFoundError, ValueError):
            sessions = json.loads((self.path / "environment.json").read_text())
        whole = isinstance(sessions, list) and all(isinstance(session, dict) for session in sessions)
        return sessions if whole else []

    def session_ends(self, step: int) -> None:
        """Note when and where this session ended; a killed one has no such note."""
        if sessions := self.sessions():
            sessions[-1] |= {"ended": _now(), "ended_at_step": step}
            self._write_sessions(sessions)

    def _write_sessions(self, sessions: list[dict]) -> None:
        write_text(self.path / "environment.json", json.dumps(sessions, indent=1) + "\n")

    # ------------------------------------------------------------------ checkpoints

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:09d}.safetensors"

    def checkpoint_steps(self) -> list[int]:
        """Of the checkpoints there are, the newest last."""
        names = sorted(path.stem for path in self.checkpoints.glob("step-*.safetensors"))
        return [int(name.removeprefix("step-")) for name in names]

    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("step-*.safetensors"))

    def latest_checkpoint(self) -> Path:
        found = sorted(self.checkpoints.glob("step-*.safetensors"))
        if not found:
            raise RunFolderError(f"run folder {self.path} has no checkpoint; start the run anew elsewhere")
        return found[-1]

    def is_finished(self, steps: int) -> bool:
        """Whether it has so many steps; somebody may have kept the final weights and no checkpoint."""
        kept_alone = self.weights_path.exists() and not self.has_checkpoint()
        return self.checkpoint_path(steps).exists() or kept_alone

    def prune(self, keep: int) -> None:
        """Remove all but the newest checkpoints, and what a killed process left half written."""
        for old in sorted(self.checkpoints.glob("step-*.safetensors"))[:-keep]:
            old.unlink()
        for pattern in (f"*{TEMPORARY}", ".tmp*"):  # ours, and what safetensors (0.8) writes to in turn
            for partial in self.checkpoints.glob(pattern):
                partial.unlink()


def environment(parameters: int | None = None) -> dict:
    """Where and by what a run was made; `parameters` is the model's count."""
    return {
        "started": _now(),
        "command": " ".join([Path(sys.argv[0]).name.replace("__main__.py", "rmc"), *sys.argv[1:]]),
        # a container or a copy of a clone, whose history is missing or old, says what it was made from
        "commit": os.environ.get("RELATIONAL_RNN_COMMIT") or _git("rev-parse", "HEAD") or None,
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "relational_rnn": __version__,
        "parameters": parameters,
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cpu_cores": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu_name() -> str | None:
    """The processor's own name where the system tells it (Linux), else what Python knows."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None


def _git(*arguments: str) -> str:
    """What git says about the checkout this code is in; nothing without git or a checkout."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def discard_unborn(path: Path) -> None:
    """Remove a run folder whose process was killed before its first checkpoint: there is nothing in it."""
    made_at_the_start = {"config.json", "environment.json", "metrics.jsonl", "checkpoints", "job.txt"}
    made_at_the_start |= {"vocabulary.tsv", "text.json"}  # of language modelling
    if not path.is_dir() or any(path.glob("checkpoints/*.safetensors")):
        return
    names = {item.name.removesuffix(".partial") for item in path.iterdir()}
    metrics = path / "metrics.jsonl"
    if names <= made_at_the_start and not (metrics.exists() and metrics.stat().st_size):
        run = RunFolder(path)
        run.lock()  # or another process has only just begun it
        shutil.rmtree(path)
        run.close()
