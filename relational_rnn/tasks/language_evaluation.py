"""Perplexity of a language model on a split: every token counts once, predicted from all that came before it
in its unroll (A.4).

One unroll over the whole split is the paper's test. Shorter ones each begin with the initial state: several
of them can be read side by side, and the appendix's figure shows what they cost.

Shapes: T steps at a time, B unrolls side by side, V vocabulary, K kinds of words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relational_rnn.cores.base import map_state, require, zip_states
from relational_rnn.kernels.graphs import Repeated
from relational_rnn.tasks.language_model import LanguageModel
from relational_rnn.tasks.language_modeling import IGNORE, perplexity
from relational_rnn.tasks.text.vocabulary import EOS_ID

STEPS = 256  # read at a time
TOKENS = 1 << 16  # read at a time, at most
FREQUENCIES = (10_000, 1_000)  # the appendix's bounds between frequent, less frequent and rare words


Watch = Callable[[float], None]  # told how much of a text has been read, 0 to 1


class Score(NamedTuple):
    nats: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return perplexity(self.nats, self.tokens)


def score(
    model: LanguageModel,
    tokens: np.ndarray,
    *,
    device: torch.device,
    unroll: int | None = None,
    watch: Watch | None = None,
) -> Score:
    """Of unrolls of that many tokens without state transfer between them; None: one over all tokens."""
    one_kind = np.zeros(model.vocabulary_size, np.int64)
    (only,) = score_kinds(model, tokens, one_kind, device=device, unroll=unroll, watch=watch)
    return only


@torch.no_grad()
def score_kinds(
    model: LanguageModel,
    tokens: np.ndarray,
    kinds: np.ndarray,
    *,
    device: torch.device,
    unroll: int | None = None,
    watch: Watch | None = None,
) -> list[Score]:
    """The score split by the kind of the word predicted: `kinds[word]` [V], from 0 to K - 1.

    The model must be in eval mode. On a GPU what is read at a time is a CUDA graph.
    """
    n, count = len(tokens), int(kinds.max()) + 1
    require(n >= 1, "len(tokens)", n, "1 or more")
    unroll = n if unroll is None else min(unroll, n)
    require(unroll >= 1, "unroll", unroll, "1 or more")
    flat = torch.from_numpy(np.concatenate([[EOS_ID], tokens]).astype(np.int32)).to(device)
    kind_of = torch.from_numpy(kinds).to(device)
    nats = torch.zeros(count, dtype=torch.float64, device=device)
    starts = torch.arange(0, n, unroll, device=device)
    steps = min(STEPS, unroll)
    time = torch.arange(steps, device=device)
    groups = starts.split(max(1, TOKENS // steps))
    rounds = -(-unroll // steps)
    for number, group in enumerate(groups):
        state = map_state(torch.clone, model.initial_state(len(group)))
        position = torch.zeros((), dtype=torch.long, device=device)

        def read_on(group=group, state=state, position=position) -> None:
            """The next steps of the group's unrolls, from and back into the same memory."""
            now = position + time[:, None]  # [T, 1]
            at = group + now  # [T, B]
            real = (at < n) & (now < unroll)
            at = at.clamp(max=n - 1)
            targets = flat[at + 1].long()
            features, after = model.features(flat[at].long(), state)
            losses = model.cross_entropy(features, targets.where(real, IGNORE))
            nats.index_add_(0, kind_of[targets].flatten(), losses.double().flatten())
            zip_states(Tensor.copy_, state, after)
            position.add_(steps)

        repeated = Repeated(device, enabled=model.adaptive is None)
        for done in range(1, rounds + 1):
            repeated(read_on)
            if watch is not None:
                if device.type == "cuda":  # or it would be told what has been asked of the GPU
                    torch.cuda.synchronize(device)
                watch((number * rounds + done) / (len(groups) * rounds))
    tokens_of = np.bincount(kinds[tokens], minlength=count)
    return [Score(a, b) for a, b in zip(nats.tolist(), tokens_of.tolist(), strict=True)]


def score_unrolls(
    model: LanguageModel, tokens: np.ndarray, lengths: Sequence[int], *, device: torch.device
) -> dict[int, float]:
    """The appendix's figure: {unroll length: perplexity without state transfer}."""
    return {n: score(model, tokens, device=device, unroll=n).perplexity for n in lengths}


def frequency_kinds(training_tokens: np.ndarray, vocabulary_size: int) -> np.ndarray:
    """The appendix's table: 0, 1 or 2 for words that occur > 10K, 10K to 1K or < 1K times in training."""
    counts = np.bincount(training_tokens, minlength=vocabulary_size)
    often, seldom = FREQUENCIES
    return np.where(counts > often, 0, np.where(counts >= seldom, 1, 2))


def score_frequencies(
    model: LanguageModel,
    tokens: np.ndarray,
    training_tokens: np.ndarray,
    *,
    device: torch.device,
    watch: Watch | None = None,
) -> dict[str, dict[str, float]]:
    """{">10K", "10K-1K", "<1K", "all": perplexity and number of tokens}, one unroll over all tokens."""
    kinds = frequency_kinds(training_tokens, model.vocabulary_size)
    kinds_seen = np.append(kinds, 2)  # so that there are three, whatever the corpus
    scores = score_kinds(model, tokens, kinds_seen, device=device, watch=watch)
    scores.append(Score(sum(s.nats for s in scores), sum(s.tokens for s in scores)))
    named = zip((">10K", "10K-1K", "<1K", "all"), scores, strict=True)
    return {name: {"perplexity": s.perplexity if s.tokens else None, "tokens": s.tokens} for name, s in named}
