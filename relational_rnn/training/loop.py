"""The training loop: any problem that gives a loss, on a CPU step by step or on a GPU as one CUDA graph.

The loop owns the optimiser, the step counter and the sums behind the metrics. All of it, with the weights,
the random generators and whatever the problem adds, goes into a checkpoint, so that a run stopped at any
step and resumed goes on as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from relational_rnn.kernels.graphs import Repeated
from relational_rnn.training import checkpoint
from relational_rnn.training.averaging import WeightAverage
from relational_rnn.training.config import Training
from relational_rnn.training.device import autocast, set_float32_precision
from relational_rnn.training.distributed import Ranks
from relational_rnn.training.optimizers import kind_of, kind_with_memory_of, make_optimizer
from relational_rnn.training.run_folder import RunFolder, RunFolderError
from relational_rnn.training.schedules import learning_rate

KEPT = {"step": int, "seconds": int | float, "names": list, "summed": int, "device": str}  # in a checkpoint
GRAPH_WARMUP = 3  # updates before a capture: lazy initialisation (cuBLAS, optimiser state) must be over


class Problem:
    """What is trained. A subclass sets the attributes and overrides what it needs."""

    model: nn.Module
    generators: dict[str, torch.Generator]  # everything random in `loss` and `prepare`, by name
    prepare_every: int = 0  # updates between two calls of `prepare`; 0: never
    parts: int = 1  # calls of `loss` for one update, which follows the mean of their gradients
    scored_on: str = "fresh samples"  # what `evaluate` reads
    frames_per_update: float = 0  # steps of games behind an update, recorded as frames_per_second; 0: no game

    def feed(self) -> None:
        """Take in what comes from outside the device, before every update; never captured."""

    def prepare(self) -> None:
        """Work that several updates share, into memory that `loss` reads; captured too, in its own graph."""

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        """One batch's loss and other scalars to average. On a GPU this is captured: no host syncs."""
        raise NotImplementedError

    def after_interval(self, metrics: dict[str, float]) -> dict[str, int | float]:
        """Look at the means of an interval (a curriculum moves on here); returns more values to record."""
        return {}

    def evaluate(self) -> dict[str, float]:
        """Scores on fresh data, without touching the training's random generators."""
        return {}

    def evaluate_at_end(self) -> dict[str, float]:
        """More scores, for the finished model only: what nothing may be chosen by."""
        return {}

    def describe(self, updates: int) -> str:
        """A line about the data for whoever starts a training of so many updates."""
        return ""

    def overruled(self, config) -> dict[str, str]:
        """Settings that the data does not follow, each with the reason and what is allowed."""
        return {}

    def watch(self, text: str) -> None:
        """Told what a long evaluation is at; who wants to know puts a function here."""

    def state(self) -> dict[str, Tensor]:
        """What else a checkpoint must hold."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave."""

    def close(self) -> None:
        """End what `feed` has begun outside this process; `feed` may be called again."""

    def write_files(self, folder: Path) -> None:
        """What else a new run folder must hold to be used without the training data."""


class CannotGoOn(RuntimeError):
    """Training has to stop; the message says why in one line. The last checkpoint is good."""


class Diverged(CannotGoOn):
    """The loss, or a weight, is no longer a number."""


class Trainer:
    """Trains a problem. Without a run folder nothing is written and `resume` cannot be called.

    Of several processes (training/distributed.py) each has a trainer, and the first one the run folder.
    """

    def __init__(self, problem: Problem, config: Training, device: torch.device):
        self.problem, self.config, self.device = problem, config, device
        self.ranks = Ranks.current()
        self.run_folder: RunFolder | None = None
        self.step, self.seconds = 0, 0.0
        self.names: list[str] = []  # of the sums
        self.sums: Tensor | None = None  # metrics added up since the last record, on the device
        self.summed = 0  # updates in them
        # Updates with communication between processes are not captured: nobody has tested that.
        captured = config.cuda_graph and self.ranks.count == 1
        generators = problem.generators.values()
        self._updates = Repeated(device, generators, warmup=GRAPH_WARMUP, enabled=captured)
        self._preparations = Repeated(device, generators, enabled=captured)
        self.optimizer = make_optimizer(problem.model, config, device)
        averaging = config.average_decay is not None
        self.average = WeightAverage(problem.model, config, device) if averaging else None
        set_float32_precision(config.precision)

    # ------------------------------------------------------------------ running

    def run(
        self,
        until: int | None = None,
        *,
        report: Callable[[dict], None] = lambda record: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to step `until` (all of them by default) or until `stop()`; `report` gets every record.

        Records, curriculum moves, evaluations and checkpoints happen at multiples of `log_every` and at the
        last step, wherever a run was stopped in between. Several processes stop only there, together.
        """
        config, alone = self.config, self.ranks.count == 1
        until = config.steps if until is None else min(until, config.steps)
        with closing(self.problem):  # whatever happens, nothing it began is left running
            while self.step < until and not self.ranks.any(stop()):
                boundary = min(until, (self.step // config.log_every + 1) * config.log_every)
                started, before = time.perf_counter(), self.step
                while self.step < boundary and not (alone and stop()):
                    self._update()
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                elapsed = time.perf_counter() - started
                self.seconds += elapsed
                finished = self.step == config.steps
                # A stop may come before the interval's first update: then there is nothing to record.
                if self.step > before and (self.step % config.log_every == 0 or finished):
                    self._interval_ends((self.step - before) / elapsed, finished, report)

    def _interval_ends(self, speed: float, finished: bool, report: Callable[[dict], None]) -> None:
        config = self.config
        means = self.ranks.mean(self.sums / self.summed).tolist()
        means = dict(zip(self.names, means, strict=True))
        if not math.isfinite(means["loss"]):
            raise Diverged(f"the loss is {means['loss']} at step {self.step}; a lower learning rate may help")
        kept = finished or self.step % config.checkpoint_every == 0
        if kept:
            self._check_weights()
        self.sums.zero_()
        self.summed = 0
        record = {"step": self.step, **means, "learning_rate": learning_rate(config, self.step - 1)}
        record |= self.problem.after_interval(means)
        record |= {"seconds": round(self.seconds, 3), "steps_per_second": round(speed, 2)}
        if self.problem.frames_per_update:
            record["frames_per_second"] = round(speed * self.problem.frames_per_update)
        if finished or (config.eval_every and self.step % config.eval_every == 0):
            record |= {f"eval_{name}": value for name, value in self.evaluate(finished).items()}
        if self.run_folder is not None:
            self.run_folder.append(record)
            if finished:  # before the checkpoint: a run with a last checkpoint is a complete one
                with self._averaged():
                    weights = self.problem.model.state_dict()
                    checkpoint.save(self.run_folder.weights_path, weights, {"step": self.step})
        if kept:
            self.save()
        report(record)

    def _check_weights(self) -> None:
        """The last update may have broken them, or one since the loss was last looked at."""
        parameters = self.problem.model.parameters()
        if not torch.stack([p.detach().isfinite().all() for p in parameters]).all():
            raise Diverged(f"weights are not finite at step {self.step}; a lower learning rate may help")

    def evaluate(self, finished: bool = False) -> dict[str, float]:
        model = self.problem.model
        model.eval()
        with self._averaged(), torch.no_grad(), autocast(self.device, self.config.precision):
            scores = self.problem.evaluate()
            if finished:
                scores |= self.problem.evaluate_at_end()
        model.train()
        return scores

    def _averaged(self):
        """A context in which the model has the weights to evaluate and keep."""
        return nullcontext() if self.average is None else self.average.in_place()

    # ------------------------------------------------------------------ one update

    def _update(self) -> None:
        rate = learning_rate(self.config, self.step)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.average is not None:
            self.average.set_share(self.step)
        self.problem.feed()
        if self.problem.prepare_every and self.step % self.problem.prepare_every == 0:
            self._preparations(self._prepare)
        # Gradients left from the warm-up must go, so that the graph makes its own in its memory pool.
        self._updates(self._compute, before_capture=self.optimizer.zero_grad)
        self.step += 1
        self.summed += 1

    def _compute(self) -> None:
        """The whole update. Captured as it stands: it must not read anything back to the host."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.problem.parts
        means = 0
        for _ in range(parts):
            with autocast(self.device, self.config.precision):
                loss, metrics = self.problem.loss()
            (loss / parts).backward()
            means += torch.stack([loss.detach(), *metrics.values()]) / parts
        names = ["loss", *metrics]
        if self.config.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(self.problem.model.parameters(), self.config.clip_norm)
            means, names = torch.cat((means, norm[None])), [*names, "gradient_norm"]
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        if self.sums is None:  # the first update, never a captured one
            self.names = names
            self.sums = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        self.sums += means

    def _prepare(self) -> None:
        with autocast(self.device, self.config.precision):
            self.problem.prepare()

    # ------------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Write a checkpoint of this very step, unless its weights are broken: those before it are better.
        All ranks must call this; rank 0 writes."""
        if self.step:
            self._check_weights()
        model, generators, ranks = self.problem.model, self.problem.generators, self.ranks
        tensors = {
            **checkpoint.with_prefix("model", model.state_dict()),
            **checkpoint.with_prefix("optimizer", checkpoint.optimizer_tensors(self.optimizer, model)),
            **checkpoint.with_prefix("problem", self.problem.state()),
            **checkpoint.with_prefix(
                "generator", {k: ranks.gather(g.get_state()) for k, g in generators.items()}
            ),
            "random/cpu": ranks.gather(torch.get_rng_state()),
        }
        if self.average is not None:
            tensors |= checkpoint.with_prefix("average", self.average.tensors())
        if self.device.type == "cuda":
            tensors["random/cuda"] = ranks.gather(torch.cuda.get_rng_state(self.device))
        if self.sums is not None:
            tensors["sums"] = ranks.mean(self.sums)
        meta = {"step": self.step, "seconds": self.seconds, "names": self.names, "summed": self.summed}
        meta |= {"device": self.device.type, "ranks": ranks.count}
        if self.run_folder is None:
            return
        checkpoint.save(self.run_folder.checkpoint_path(self.step), tensors, meta)
        self.run_folder.prune(self.config.keep_checkpoints)

    def resume(self) -> None:
        """Take up the newest checkpoint of the run folder."""
        ranks = self.ranks
        if ranks.rank == 0:
            self.run_folder.lock()  # first: another process may be about to write a newer checkpoint
        path = self.run_folder.latest_checkpoint()
        tensors, meta = load_checkpoint(path)
        if meta.get("ranks", 1) != ranks.count:
            found = f"{meta.get('ranks', 1)} processes, this is one of {ranks.count}"
            raise RunFolderError(f"{path} was written by {found}; allowed: resuming with as many")
        if meta["device"] != self.device.type:
            raise RunFolderError(
                f"{path} was written on {meta['device']}, this is {self.device.type}, whose random numbers "
                f"differ; allowed: resuming on {meta['device']}"
            )
        remembered = checkpoint.without_prefix("optimizer", tensors)
        averaged = bool(checkpoint.without_prefix("average", tensors))
        optimizer = kind_with_memory_of(name.partition("/")[0] for name in remembered)
        self._check_settings(path, meta, optimizer, averaged)
        checkpoint.load_model(self.problem.model, checkpoint.without_prefix("model", tensors), path)
        checkpoint.load_optimizer(self.optimizer, self.problem.model, remembered)
        try:
            self._take_up(tensors)
        except KeyError as error:
            raise RunFolderError(f"checkpoint {path} lacks {error}; it is not of these settings") from error
        self.sums = tensors["sums"].to(self.device) if "sums" in tensors else None
        self.step, self.seconds = meta["step"], meta["seconds"]
        self.names, self.summed = meta["names"], meta["summed"]
        ranks.wait()  # until all have read the checkpoint; then the folder is rank 0's
        if ranks.rank == 0:
            self.run_folder.resume(self.step)
        else:
            self.run_folder = None

    def _check_settings(self, path: Path, meta: dict, optimizer: str | None, averaged: bool) -> None:
        """Somebody may have edited config.json since the checkpoint was written."""
        config, step, names = self.config, meta["step"], meta["names"]
        clipped = "gradient_norm" in names
        for name, fits, was, allowed in (
            ("steps", config.steps >= step, f"at step {step}", f"{step} or more"),
            ("optimizer", optimizer in (None, kind_of(self.optimizer)), f"of {optimizer!r}", repr(optimizer)),
            (
                "clip_norm",
                not names or clipped == (config.clip_norm is not None),
                "with clipping" if clipped else "without clipping",
                "a number" if clipped else "None",
            ),
            (
                "average_decay",
                averaged == (config.average_decay is not None),
                "with a mean of the weights" if averaged else "without a mean of the weights",
                "a number" if averaged else "None",
            ),
        ):
            if not fits:
                value = f"training.{name} is {getattr(config, name)!r}"
                raise RunFolderError(f"{value}, and checkpoint {path} is {was}; allowed: {allowed}")

    def _take_up(self, tensors: dict[str, Tensor]) -> None:
        """What a checkpoint has beside the model and the optimiser."""
        if self.average is not None:
            self.average.load(checkpoint.without_prefix("average", tensors))
        self.problem.load_state(checkpoint.without_prefix("problem", tensors))
        for name, generator in self.problem.generators.items():
            generator.set_state(self.ranks.own(tensors[f"generator/{name}"]))
        torch.set_rng_state(self.ranks.own(tensors["random/cpu"]))
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(self.ranks.own(tensors["random/cuda"]), self.device)


def load_checkpoint(path) -> tuple[dict[str, Tensor], dict]:
    """A checkpoint of a run; if it is damaged, the error says so and names the file."""
    try:
        tensors, meta = checkpoint.load(path)
        missing = [name for name, kind in KEPT.items() if not isinstance(meta.get(name), kind)]
        if missing:
            raise ValueError(f"checkpoint {path} lacks {sorted(missing)}")
    except ValueError as error:
        raise RunFolderError(f"{error}; without that file the checkpoint before it is used") from error
    return tensors, meta
