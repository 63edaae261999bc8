"""Language modelling as a problem for training/loop.py: truncated back-propagation with the state carried on.

The text, the place in it and the carried state live on the device at fixed addresses, so that on a GPU a
whole update is one CUDA graph. All of it goes into the checkpoint.

Shapes: T steps of a window, B streams of this process, V vocabulary.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relational_rnn.cores.base import State, map_state, require, zip_states
from relational_rnn.tasks.language_evaluation import Watch, score, score_frequencies
from relational_rnn.tasks.language_model import LanguageModel
from relational_rnn.tasks.language_modeling import DeviceWindows
from relational_rnn.tasks.text.corpora import Corpus, find_corpus
from relational_rnn.tasks.text.prepare import RECORD, Prepared, open_prepared, prepare
from relational_rnn.training.checkpoint import write_text
from relational_rnn.training.distributed import Ranks
from relational_rnn.training.loop import Problem

VOCABULARY, TEXT = "vocabulary.tsv", "text.json"  # in the run folder: words, and what makes them of text
FREQUENCY_METRICS = {
    ">10K": "perplexity_over_10k",
    "10K-1K": "perplexity_1k_to_10k",
    "<1K": "perplexity_under_1k",
    "all": "test_perplexity",
}
EVAL_STREAMS = 64  # unrolls side by side in the evaluations during training


def find_text(data: str) -> Corpus | None:
    """The corpus in a folder; None if its token files are there."""
    require(bool(data), "data", data, "a folder of a corpus or of its token files, with --data FOLDER")
    return None if (Path(data) / RECORD).is_file() else find_corpus(Path(data))


def open_text(data: str, prepared: str, max_words: int | None, min_count: int) -> Prepared:
    """The token files in a folder, or those of the corpus in it, made now if they are not there yet."""
    corpus, folder = find_text(data), Path(data)
    if corpus is None:
        return open_prepared(folder)
    target = Path(prepared) if prepared else folder / f"prepared-{max_words or 'all'}-{min_count}"
    require(target.resolve() != folder.resolve(), "prepared", prepared, "another folder than data")
    try:
        return prepare(corpus, target, max_size=max_words, min_count=min_count)
    except OSError as error:
        # NumPy's of a full disk has a text alone.
        reason = f"{error.strerror}: {error.filename}" if error.strerror else str(error)
        raise ValueError(f"token files cannot be written ({reason}); choose another --prepared") from error


class LanguageModelProblem(Problem):
    """Windows of the training text in order, cross entropy of the next word, perplexity of the others."""

    scored_on = "valid and test"

    def __init__(
        self,
        model: LanguageModel,
        text: Prepared,
        *,
        device: torch.device,
        batch_size: int,
        steps: int,
        parts: int = 1,
        shift: bool = False,
        seed: int = 0,
    ):
        ranks = self.ranks = Ranks.current()
        shares = ranks.count * parts
        divides = batch_size % shares == 0
        require(divides, "batch_size", batch_size, f"a multiple of processes x parts = {shares}")
        least, found = batch_size * steps * (2 if shift else 1), len(text.tokens["train"])
        if found < least:
            product = f"training.batch_size {batch_size} x steps {steps}{' x 2 (shift)' if shift else ''}"
            allowed = f"{product} = {least} or more, or smaller ones of these"
            raise ValueError(f"the training text in {text.folder} has {found} tokens; allowed: {allowed}")
        self.model, self.text, self.device, self.parts = model.to(device), text, device, parts
        self.generators = {}  # dropout draws from torch's own
        self.windows = DeviceWindows(
            text.tokens["train"],
            batch_size,
            steps,
            device=device,
            rank=ranks.rank,
            ranks=ranks.count,
            shift=shift,
        )
        self.network = ranks.wrap(model, device, some_unused=model.adaptive is not None)
        self.initial = model.initial_state(self.windows.streams)
        self.carried = map_state(torch.clone, self.initial)  # what the window before left
        self.part = 0
        if ranks.count > 1:
            torch.manual_seed(seed + ranks.rank)  # every rank drops out something else

    def describe(self, updates: int) -> str:
        train, valid = self.text.tokens["train"], self.text.tokens["valid"]
        # <unk> is 0: to count the others takes no memory, however long the text.
        unknown = [f"{100 * (1 - np.count_nonzero(tokens) / len(tokens)):.1f} %" for tokens in (train, valid)]
        size = f"{len(train):,} tokens to train on, {len(self.text.vocabulary):,} words"
        epochs = f"{updates:,} updates are {self.windows.epochs(updates):.3g} epochs"
        return f"text: {size}, <unk> is {unknown[0]} of train and {unknown[1]} of valid; {epochs}"

    def overruled(self, config) -> dict[str, str]:
        """Token files that were there already have the words they have."""
        text, found = self.text, {}
        words = len(text.vocabulary)
        uncut = text.max_size is None or words < text.max_size  # any limit as high gives the same words
        same = uncut and (config.max_words is None or words <= config.max_words)
        if config.max_words != text.max_size and not same:
            found["max_words"] = text.max_size
        if config.min_count != text.min_count:
            found["min_count"] = text.min_count
        made = f"the token files in {text.folder} were made with"
        other = "allowed: that, or the folder of their text"
        overruled = {name: f"{made} {value}; {other}" for name, value in found.items()}
        if config.prepared and Path(config.data) == text.folder:
            overruled["prepared"] = (
                f"{text.folder} holds token files already; allowed: the folder of their text as --data"
            )
        return overruled

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        (inputs, targets), first = self.windows.take(self.part, self.parts)
        size = self.windows.streams // self.parts
        rows = slice(self.part * size, (self.part + 1) * size)
        # New tensors, as backward still needs them when the carried state has moved on.
        start = zip_states(lambda a, b: torch.where(first, a[rows], b[rows]), self.initial, self.carried)
        losses = self.network(inputs, targets, start)
        zip_states(lambda kept, new: kept[rows].copy_(new), self.carried, losses.state)
        self.part = (self.part + 1) % self.parts
        if self.part == 0:
            self.windows.advance()
        return losses.total, {"nats": losses.nats.detach()}

    def after_interval(self, metrics: dict[str, float]) -> dict[str, int | float]:
        read = int(self.windows.epoch) + int(self.windows.position) / self.windows.length
        return {"perplexity": math.exp(min(metrics["nats"], 700)), "epoch": round(read, 4)}

    def evaluate(self) -> dict[str, float]:
        valid = self.text.tokens["valid"]
        unroll = -(-len(valid) // EVAL_STREAMS)
        found = score(self.model, valid, device=self.device, unroll=unroll, watch=self._reads("valid"))
        return {"valid_perplexity": found.perplexity}

    def evaluate_at_end(self) -> dict[str, float]:
        """In one unroll over all tokens; that of the test also by the words' frequency in training."""
        tokens, device = self.text.tokens, self.device
        valid = score(self.model, tokens["valid"], device=device, watch=self._reads("valid in one unroll"))
        found = {"full_valid_perplexity": valid.perplexity}
        watch = self._reads("test in one unroll")
        by_frequency = score_frequencies(
            self.model, tokens["test"], tokens["train"], device=device, watch=watch
        )
        for kind, row in by_frequency.items():
            if row["tokens"]:
                found[FREQUENCY_METRICS[kind]] = row["perplexity"]
        return found

    def _reads(self, what: str) -> Watch:
        return lambda share: self.watch(f"evaluating: {what}, {100 * share:.0f} %")

    def state(self) -> dict[str, Tensor]:
        state = {"position": self.windows.position, "epoch": self.windows.epoch}
        state["tokens"] = torch.tensor(len(self.text.tokens["train"]))
        state["vocabulary"] = torch.tensor(list(self.text.vocabulary.hash), dtype=torch.uint8)
        for number, tensor in enumerate(_tensors(self.carried)):
            state[f"carried.{number}"] = self.ranks.gather(tensor)
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        check_vocabulary(self.text, bytes(state["vocabulary"].tolist()))
        tokens = len(self.text.tokens["train"])
        if (known := int(state.get("tokens", tokens))) != tokens:  # checkpoints had none once
            said = f"has {tokens} tokens, the checkpoint's {known}; allowed: {known}"
            raise ValueError(f"the training text in {self.text.folder} {said}")
        streams, found = self.windows.streams * self.ranks.count, len(state["carried.0"])
        if streams != found:
            raise ValueError(f"training.batch_size is {streams}, the checkpoint's {found}; allowed: {found}")
        self.windows.position.copy_(state["position"])
        self.windows.epoch.copy_(state["epoch"])
        for number, tensor in enumerate(_tensors(self.carried)):
            tensor.copy_(self.ranks.own(state[f"carried.{number}"]))

    def write_files(self, folder: Path) -> None:
        self.text.vocabulary.save(folder / VOCABULARY)
        write_text(folder / TEXT, json.dumps({"tokenizer": self.text.tokenizer}) + "\n")


def check_vocabulary(text: Prepared, wanted: bytes) -> None:
    if text.vocabulary.hash != wanted:
        found = f"hash {text.vocabulary.hash.hex()[:8]}, {len(text.vocabulary)} words"
        raise ValueError(f"{text.folder} is of another vocabulary ({found}); allowed: {wanted.hex()[:8]}")


def _tensors(state: State) -> list[Tensor]:
    return [t for part in state for t in _tensors(part)] if isinstance(state, tuple) else [state]
