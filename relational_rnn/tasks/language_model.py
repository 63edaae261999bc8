"""A word-level language model around any core (section 4.3, A.4), with the regularisers of recurrent models.

    words -> embedding -> dropout -> core -> dropout -> projection -> dropout -> softmax over all words

The softmax's weights are the embedding's (tied). The paper drops out half of the embedding; the other
dropouts and the two penalties are those of AWD-LSTM (Merity et al., 2017), off by default.

Shapes: T steps of a window, B streams, V vocabulary, D embedding size, O output size of the core.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from relational_rnn.cores.base import RecurrentCore, State, map_state, require
from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.tasks.language_modeling import IGNORE, linear_cross_entropy
from relational_rnn.training.config import ADDED


@dataclass(frozen=True)
class Dropout:
    """What is left out of each window in training; chances from 0 to below 1."""

    word: float = 0.0
    """Whole words: all occurrences of a word in the window, as inputs."""
    input: float = 0.0
    """Features of the embedded inputs."""
    output: float = 0.0
    """Features of the core's output."""
    recurrent: float = 0.0
    """Weights that act on the core's state, the same ones for the whole window."""
    locked: bool = True
    """Inputs, outputs and what the softmax reads: the same features for the whole window, or others at every
    step."""
    softmax: float = field(default=0.0, metadata=ADDED)
    """Features the softmax reads. AWD-LSTM's output dropout is here: its last layer has the embedding's size,
    and a projection of a wide output averages the gaps in it away."""

    def __post_init__(self):
        for name in ("word", "input", "output", "recurrent", "softmax"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "0 or more, less than 1")


class Losses(NamedTuple):
    """Of a window: the mean cross entropy in nats, what is to be minimised, and the state it ends in."""

    nats: Tensor
    total: Tensor  # nats and the penalties
    state: State


class LanguageModel(nn.Module):
    """A core that reads words and predicts the next ones.

    Args:
        core: reads `[T, B, D]`; its `input_size` is the embedding size D.
        vocabulary_size: V.
        dropout: chances; nothing is dropped in eval mode.
        activation_penalty: weight of the mean square of the core's outputs, after dropout (AR).
        change_penalty: weight of the mean square of their change from step to step, before dropout (TAR).
        cutoffs: for an adaptive softmax (Grave et al., 2017): words from each cutoff on, which are the rarer
            ones, share a smaller product. It is another model than the paper's, its weights are its own, and
            it reads sizes back to the host, so that it cannot be captured in a CUDA graph. Empty: the full
            softmax.
        core_autocast: False has the core compute in its own dtype under autocast too.
    """

    def __init__(
        self,
        core: RecurrentCore,
        vocabulary_size: int,
        *,
        dropout: Dropout | None = None,
        activation_penalty: float = 0.0,
        change_penalty: float = 0.0,
        cutoffs: tuple[int, ...] = (),
        core_autocast: bool = True,
    ):
        super().__init__()
        require(vocabulary_size >= 2, "vocabulary_size", vocabulary_size, "2 or more")
        for name, value in (("activation_penalty", activation_penalty), ("change_penalty", change_penalty)):
            require(value >= 0, name, value, "0 or more")
        self.core, self.dropout, self.core_autocast = core, dropout or Dropout(), core_autocast
        self.activation_penalty, self.change_penalty = activation_penalty, change_penalty
        self.recurrent_names = recurrent_weights(core) if self.dropout.recurrent else ()
        size = core.input_size
        self.embedding = nn.Embedding(vocabulary_size, size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.projection = nn.Linear(core.output_size, size) if core.output_size != size else nn.Identity()
        self.softmax_bias = self.adaptive = None
        if cutoffs:
            rising = all(a < b for a, b in zip((0, *cutoffs), (*cutoffs, vocabulary_size), strict=True))
            require(rising, "cutoffs", cutoffs, f"rising numbers from 1 to {vocabulary_size - 1}")
            # torch reads the n-th cluster from 4^n times fewer features: none is left beyond these.
            most = next(n for n in count() if size < 4 ** (n + 1))
            require(len(cutoffs) <= most, "cutoffs", cutoffs, f"at most {most} of an embedding of {size}")
            self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(size, vocabulary_size, list(cutoffs))
        else:
            self.softmax_bias = nn.Parameter(torch.zeros(vocabulary_size))

    @property
    def vocabulary_size(self) -> int:
        return self.embedding.num_embeddings

    def initial_state(self, batch_size: int) -> State:
        return self.core.initial_state(batch_size)

    def forward(self, inputs: Tensor, targets: Tensor, state: State) -> Losses:
        """One window of training: inputs and targets [T, B], the state the window before left."""
        outputs, state = self.read(inputs, state)
        dropped = self._drop(outputs, self.dropout.output)
        features = self._drop(self.projection(dropped), self.dropout.softmax)
        nats = self.cross_entropy(features, targets, reduction="mean")
        total = nats
        if self.activation_penalty:
            total = total + self.activation_penalty * dropped.float().square().mean()
        if self.change_penalty and len(outputs) > 1:  # of one step nothing changes
            total = total + self.change_penalty * outputs.float().diff(dim=0).square().mean()
        return Losses(nats, total, map_state(Tensor.detach, state))

    def features(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """What the softmax reads after each of the inputs [T, B]: [T, B, D], and the last state."""
        outputs, state = self.read(inputs, state)
        features = self.projection(self._drop(outputs, self.dropout.output))
        return self._drop(features, self.dropout.softmax), state

    def read(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The core's outputs [T, B, O] and its last state."""
        x = self._drop(self._embed(inputs), self.dropout.input)
        with nullcontext() if self.core_autocast else torch.autocast(x.device.type, enabled=False):
            if not (self.training and self.recurrent_names):
                return self.core(x, state)
            weights = dict(self.core.named_parameters())
            chance = self.dropout.recurrent
            dropped = {name: F.dropout(weights[name], chance) for name in self.recurrent_names}
            return functional_call(self.core, dropped, (x, state))

    def cross_entropy(self, features: Tensor, targets: Tensor, reduction: str = "none") -> Tensor:
        """Nats of the targets [...], IGNORE where there is none, from features [..., D]."""
        if self.adaptive is None:
            return linear_cross_entropy(
                features, self.embedding.weight, targets, self.softmax_bias, reduction=reduction
            )
        counts = targets != IGNORE
        flat = targets.where(counts, 0).flatten()
        with torch.autocast(features.device.type, enabled=False):
            nats = -self.adaptive(features.float().flatten(0, -2), flat).output
        nats = nats.view_as(targets) * counts
        return nats if reduction == "none" else nats.sum() / (counts.sum() if reduction == "mean" else 1)

    def log_probabilities(self, features: Tensor) -> Tensor:
        """Of every word, [..., V], from features [..., D]."""
        if self.adaptive is not None:
            flat = self.adaptive.log_prob(features.float().reshape(-1, features.shape[-1]))
            return flat.view(*features.shape[:-1], -1)
        logits = F.linear(features, self.embedding.weight.to(features.dtype))
        return (logits.float() + self.softmax_bias).log_softmax(-1)

    def _embed(self, inputs: Tensor) -> Tensor:
        x = self.embedding(inputs)  # [T, B, D]
        if self.training and self.dropout.word:
            kept = F.dropout(x.new_ones(self.vocabulary_size), self.dropout.word)  # [V]
            x = x * kept[inputs].unsqueeze(-1)
        return x

    def _drop(self, x: Tensor, chance: float) -> Tensor:
        """x [T, B, ...]; the same features at every step if the dropout is locked."""
        if not (self.training and chance):
            return x
        if not self.dropout.locked:
            return F.dropout(x, chance)
        return x * F.dropout(torch.ones_like(x[:1]), chance)


def recurrent_weights(core: RecurrentCore) -> tuple[str, ...]:
    """Names of the matrices that act on the state. The RMC's queries, keys and values read the input too."""
    if isinstance(core, RelationalMemory):
        last = (".qkv.weight", "gate_from_memory.weight")
        names = [n for n, p in core.named_parameters() if n.endswith(last) or n.startswith("mlp.")]
        return tuple(n for n in names if n.endswith("weight"))
    if isinstance(core, LSTM | DeepLSTM):
        return tuple(n for n, _ in core.named_parameters() if n.endswith("weight_hh_l0"))
    kinds = "RelationalMemory, LSTM and DeepLSTM"
    raise ValueError(f"recurrent dropout of a {type(core).__name__} is not allowed; allowed: of {kinds}")
