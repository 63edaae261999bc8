"""Several processes, one model: what the ranks of a job started with torchrun tell each other.

    torchrun --nproc-per-node 6 --max-restarts 3 -m -- relational_rnn.cli train lm ... --run FOLDER

Every rank reads its share of the batch; DistributedDataParallel averages the gradients. Rank 0 alone writes
the run folder. If a rank dies, torchrun starts all of them again, and they go on from the last checkpoint.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from relational_rnn.training.checkpoint import write_text
from relational_rnn.training.run_folder import discard_unborn

JOB = "job.txt"


@dataclass(frozen=True)
class Ranks:
    """This process among those of its job; alone, nothing here communicates."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Ranks:
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()

    def wrap(self, model: nn.Module, device: torch.device, *, some_unused: bool = False) -> nn.Module:
        """The model with its gradients averaged over the ranks; `some_unused`: not every update uses all."""
        if self.count == 1:
            return model
        devices = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, devices, find_unused_parameters=some_unused)

    def gather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors, one after the other along the first axis, on every rank."""
        if self.count == 1:
            return tensor
        # NCCL has only what is on a GPU.
        local = tensor.cuda() if dist.get_backend() == "nccl" else tensor
        parts = [torch.empty_like(local) for _ in range(self.count)]
        dist.all_gather(parts, local.contiguous())
        return torch.cat(parts).to(tensor.device)

    def own(self, tensor: Tensor) -> Tensor:
        """This rank's share of what `gather` gave."""
        return tensor.chunk(self.count)[self.rank].clone() if self.count > 1 else tensor

    def mean(self, tensor: Tensor) -> Tensor:
        return self.gather(tensor[None]).mean(0) if self.count > 1 else tensor

    def any(self, flag: bool) -> bool:
        return bool(self.gather(torch.tensor([flag])).any())

    def wait(self) -> None:
        """Until all ranks are here."""
        self.any(False)


def join(device: str) -> str:
    """Join the job torchrun started -> the device of this rank. Without torchrun nothing happens."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        return device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    return device


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


# ------------------------------------------------------------------ torchrun starts a job again


def note_job(run: Path) -> None:
    """Write into a new run folder which job it is of."""
    if dist.is_initialized():
        write_text(run / JOB, _job())


def restarted(run: Path, ranks: Ranks) -> bool:
    """Whether torchrun had to start this very job again, after it had made that run folder."""
    again = ranks.rank == 0 and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if again:
        discard_unborn(run)  # of a job that was ended before its first checkpoint
    known = again and (run / JOB).is_file() and (run / JOB).read_text() == _job()
    return ranks.any(known)


def _job() -> str:
    """torchrun itself is the parent of rank 0 and outlives it."""
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {os.getppid()}\n"
