"""What every saved table says of itself: when, by which command, of which commit, with what and on what."""

from __future__ import annotations

import json
import os
import sys
from datetime import date
from pathlib import Path

import torch

from relational_rnn.training.run_folder import environment


def provenance(device: str = "cpu", **hardware) -> dict:
    """`hardware`: more to be said of it. Where there is no git, RELATIONAL_RNN_COMMIT tells the commit."""
    script, *words = sys.argv
    # Files and folders by their names alone: where they lay on this machine is of no use to others.
    words = [Path(word).name if Path(word).is_absolute() or Path(word).is_dir() else word for word in words]
    made, gpu = environment(), device == "cuda"
    versions = dict(python=made["python"], torch=made["torch"])
    return dict(
        date=date.today().isoformat(),
        command=" ".join(["python", f"benchmarks/{Path(script).name}", *words]),
        commit=made["commit"],
        uncommitted_changes=made["uncommitted_changes"],
        versions=versions | (dict(cuda=torch.version.cuda) if gpu else {}),
        hardware=dict(
            device=made["gpu"] if gpu else made["cpu"],
            cpu_cores=made["cpu_cores"],
            cpu_threads=made["cpu_threads"],
            load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # others may share it
        )
        | hardware,
    )


def save(result: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
