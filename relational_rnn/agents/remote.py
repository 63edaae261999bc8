"""Acting in many processes, on one machine or on many, and learning in this one: the paper's form, on Ray.

Every actor plays its share of the games on its own, by the newest weights it was given, and sends what it
has played: T steps, the core's state before them and the logits its actions were drawn from. The learner
takes the unrolls as they come, and V-trace corrects for the updates made since. An actor that dies is
replaced; all that is lost is the unroll it was at.

Ray's processes trust each other: whoever can reach a cluster's ports can run code on it.
Shapes: T steps of an unroll, B games of an update, A actions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relational_rnn.agents import rollout
from relational_rnn.agents.learner import Agent, AgentProblem, Learning
from relational_rnn.agents.network import AgentNetwork
from relational_rnn.agents.rollout import Unroll
from relational_rnn.cores.base import require
from relational_rnn.training.loop import CannotGoOn
from relational_rnn.training.stopping import StopRequest

MakePlayer = Callable[[torch.device], tuple[Any, AgentNetwork]]
"""The games and a network, on a device. It travels to the actors, so it must be picklable."""


@dataclass(frozen=True)
class Remote:
    """Where the actors of `--actors ray:N` are, and how they are kept busy."""

    address: str = "local"
    """Of a Ray cluster: auto (the one running on this machine) or HOST:PORT; local starts one for this run,
    which nobody outside this machine can reach."""
    gpus_per_actor: float = 0.0
    """GPUs, or the share of one, for each actor; 0: they act on CPUs."""
    ahead: int = 2
    """Unrolls asked of an actor at a time: it acts one while the learner learns from another."""
    patience: float = 300.0
    """Seconds without an unroll from anyone after which the run gives up."""

    def __post_init__(self):
        require(self.gpus_per_actor >= 0, "gpus_per_actor", self.gpus_per_actor, "0 or more")
        require(self.ahead >= 1, "ahead", self.ahead, "1 or more")
        require(self.patience > 0, "patience", self.patience, "more than 0")


def actor_count(actors: str) -> int:
    """Of "local" (0: the learner acts itself) or "ray:N"."""
    kind, _, count = actors.partition(":")
    if actors == "local":
        return 0
    valid = kind == "ray" and count.isascii() and count.isdigit() and int(count) >= 1
    require(valid, "actors", actors, "local, or ray:N with N at least 1")
    return int(count)


class RemoteAgent(Agent):
    """Learns from what N actors play, each of them B / N games. An update takes the next N unrolls, whoever
    sends them; with `learning.updates_per_unroll` U > 1 the next N / U, so that it has B / U games as always.

    Nothing starts before the first update. A checkpoint holds weights and counts but no games: when a run is
    resumed its actors begin new ones, with random numbers that no actor of the run has had.
    """

    def __init__(
        self,
        make_player: MakePlayer,
        network: AgentNetwork,
        learning: Learning,
        *,
        actors: int,
        games: int,
        remote: Remote | None = None,
        seed: int = 0,
        stagger: int = 0,
        **options,
    ):
        if importlib.util.find_spec("ray") is None:
            raise ValueError("actors='ray:N' needs Ray: pip install 'relational-rnn[distributed]'")
        require(games % actors == 0, "batch_size", games, f"a multiple of the {actors} actors")
        shares = learning.updates_per_unroll
        require(actors % shares == 0, "actors", actors, f"a multiple of updates_per_unroll = {shares}")
        super().__init__(network, learning, **options)
        self.actors, self.games, self.seed, self.stagger = actors, games, seed, stagger
        self.make_player, self.remote = make_player, remote or Remote()
        self.generators = {}  # chance is the actors'
        self.unrolls = actors // shares  # of an update
        self.frames_per_update = games * learning.unroll / shares
        self.updates = 0
        self.batch: Unroll | None = None  # at fixed addresses, for a CUDA graph
        self.staleness = torch.zeros((), device=self.frames.device)
        self._fleet: Fleet | None = None
        self._started_ray = False

    def feed(self) -> None:
        if self._fleet is None:
            self._started_ray = connect(self.remote, self.actors)
            self._fleet = Fleet(self._launch, self.actors, self.remote)
        weights = {name: tensor.detach().cpu().numpy() for name, tensor in self.model.state_dict().items()}
        self._fleet.publish(self.updates, weights)
        updates, unrolls = zip(*self._fleet.collect(self.unrolls), strict=True)
        unroll = rollout.join([rollout.map_unrolls(lambda _, array: as_tensor(array), u) for u in unrolls])
        if self.batch is None:
            self.batch = rollout.map_unrolls(lambda _, tensor: tensor.to(self.frames.device), unroll)
        else:
            rollout.map_unrolls(lambda _, into, tensor: into.copy_(tensor), self.batch, unroll)
        self.staleness.fill_(self.updates - sum(updates) / len(updates))
        self.frames += unroll.actions.numel()
        self.updates += 1

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = self.loss_of(self.batch)
        # Updates made between the weights that acted and those that learn.
        return loss, metrics | {"staleness": self.staleness}

    def after_interval(self, metrics: dict[str, float]) -> dict[str, int | float]:
        replaced = 0 if self._fleet is None else self._fleet.replaced
        return super().after_interval(metrics) | {"actors_replaced": replaced}

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"updates": torch.tensor(self.updates)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.updates = int(state["updates"])

    def close(self) -> None:
        """End the actors, and Ray where this run has started it."""
        if self._fleet is not None:
            self._fleet.close()
            self._fleet = None
            if self._started_ray:
                import ray

                ray.shutdown()

    def _launch(self, number: int):
        """The actor that is the `number`-th this process starts."""
        import ray

        # With the updates so far, a resumed run does not repeat the games it has played.
        seed = int(
            np.random.SeedSequence((self.seed, self.updates, number)).generate_state(1, np.uint64)[0] >> 1
        )
        options = dict(num_cpus=1, num_gpus=self.remote.gpus_per_actor)
        learning = replace(self.learning, updates_per_unroll=1)  # is the learner's
        device = "cuda" if self.remote.gpus_per_actor else "cpu"
        arguments = (self.make_player, learning, self.games // self.actors, seed, self.stagger, device)
        return ray.remote(**options)(Player).remote(*arguments)


def as_tensor(array: np.ndarray) -> Tensor:
    """A copy: what Ray hands out is read-only memory shared with other processes."""
    return torch.from_numpy(array.copy())


def last_line(error: Exception) -> str:
    """What a traceback ends with, where an error brings one along."""
    return str(error).strip().splitlines()[-1]


class Player:
    """An actor: some games, which stand where they were between two unrolls."""

    def __init__(
        self, make_player: MakePlayer, learning: Learning, games: int, seed: int, stagger: int, device: str
    ):
        torch.set_num_threads(1)  # one core each; games are many small operations
        # Told, not seen: an actor without a GPU inherits CUDA_VISIBLE_DEVICES where the learner's is set.
        device = torch.device(device)
        env, network = make_player(device)
        self.agent = AgentProblem(env, network.to(device), learning, games=games, seed=seed, stagger=stagger)
        self.update = -1  # whose weights these are

    def started(self) -> None:
        """The answer says that the actor is there."""

    def act(self, update: int, weights: dict[str, np.ndarray]) -> tuple[int, Unroll]:
        """Play on for an unroll with the weights after so many updates; arrays travel without a copy."""
        if update != self.update:
            self.agent.model.load_state_dict({name: as_tensor(array) for name, array in weights.items()})
            self.update = update
        return update, rollout.map_unrolls(lambda _, tensor: tensor.cpu().numpy(), self.agent.act())


class Fleet:
    """N actors, all of them asked for unrolls all the time, and replaced when they die."""

    def __init__(self, launch: Callable[[int], Any], count: int, remote: Remote):
        self.launch, self.count, self.remote = launch, count, remote
        self.actors: list[Any] = []
        self.ready: set[Any] = set()  # those of them that have started
        self.pending: dict[Any, Any] = {}  # what was asked, oldest first -> the actor asked
        self.started, self.replaced = 0, 0
        self._in_a_row = 0  # actors that died since the last unroll

    def publish(self, update: int, weights: dict[str, np.ndarray]) -> None:
        """Unrolls asked for from now on are acted by these weights."""
        import ray

        self.newest = update, ray.put(weights)

    def collect(self, count: int) -> list[tuple[int, Unroll]]:
        """The next `count` unrolls of anyone, each with the update its weights were of."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        found = []
        while len(found) < count:
            self._ask()
            ready, _ = ray.wait(list(self.pending), timeout=self.remote.patience)
            if not ready:
                there = {name: n for name, n in ray.cluster_resources().items() if name in ("CPU", "GPU")}
                raise CannotGoOn(
                    f"none of {self.count} actors sent an unroll in {self.remote.patience:g} s; each needs "
                    f"1 CPU and {self.remote.gpus_per_actor:g} GPUs, the cluster has {there}"
                )
            actor = self.pending.pop(ready[0])
            try:
                sent = ray.get(ready[0])
                if sent is None:
                    self.ready.add(actor)
                else:
                    found.append(sent)
                    self._in_a_row = 0
            except RayTaskError:
                raise  # an error of the game or the network, which another actor would meet too
            except RayError as error:  # the actor, its machine or what it had sent is gone
                self._replace(actor, error)
        return found

    def _ask(self) -> None:
        while len(self.actors) < self.count:
            actor = self.launch(self.started)
            self.actors.append(actor)
            self.pending[actor.started.remote()] = actor
            self.started += 1
        busy = list(self.pending.values())
        for actor in self.ready:  # to others the newest weights would be old ones when they come to act
            for _ in range(self.remote.ahead - busy.count(actor)):
                self.pending[actor.act.remote(*self.newest)] = actor

    def _replace(self, actor, error: Exception) -> None:
        if actor not in self.actors:
            return
        self._in_a_row += 1
        never = getattr(error, "actor_init_failed", False)  # what it is made of is wrong: so will the next be
        if never or self._in_a_row > self.count + 3:
            deaths = "an actor could not start" if never else f"{self._in_a_row} actors died in a row"
            raise CannotGoOn(f"{deaths} and sent no unroll: {last_line(error)}") from error
        self.actors.remove(actor)
        self.ready.discard(actor)
        self.pending = {asked: of for asked, of in self.pending.items() if of is not actor}
        self.replaced += 1

    def close(self) -> None:
        import ray

        for actor in self.actors:
            ray.kill(actor)
        self.actors, self.pending, self.ready = [], {}, set()


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Who handles a signal before handles it after: Ray takes SIGTERM for a crash, and a run that is asked to
    stop would end without its checkpoint. Python lets only the main thread say so."""
    kept = {number: signal.getsignal(number) for number in StopRequest.signals}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if callable(handler) and threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)


def connect(remote: Remote, actors: int) -> bool:
    """Join the cluster at the address, or start one on this machine. False: this program had before."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # tell nobody
    if remote.address == "local":
        # Ray's own switch for "this machine only", read when it is first imported: without it Ray's ports
        # are open to the network.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    if ray.is_initialized():
        return False
    options = dict(address=remote.address, logging_level="ERROR", log_to_driver=False)
    if remote.address == "local":
        options |= dict(include_dashboard=False, num_cpus=max(actors, os.cpu_count() or 1))
    try:
        with signals_kept():
            ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CannotGoOn(f"no Ray cluster at address={remote.address!r}: {error}") from error
    if remote.address == "local" and not ray.util.get_node_ip_address().startswith("127."):
        ray.shutdown()
        raise CannotGoOn(
            "Ray was imported before it could be kept to this machine; set "
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before importing it, or give the address of a cluster"
        )
    return True
