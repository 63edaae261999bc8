"""Words drawn from a language model, and the likeliest next ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from relational_rnn.cores.base import require
from relational_rnn.tasks.language_model import LanguageModel
from relational_rnn.tasks.text.vocabulary import EOS_ID


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    never: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """`length` words after the prompt, one by one; the model must be in eval mode.

    A temperature below 1 prefers likely words, 0 always takes the likeliest; `top_k` draws from the k
    likeliest only; words in `never` are not drawn. Random numbers are the CPU's, the same for any device.
    """
    require(length >= 0, "length", length, "0 or more")
    require(0 <= temperature < math.inf, "temperature", temperature, "0 or more, and finite")
    require(top_k is None or top_k >= 1, "top_k", top_k, "None or 1 or more")
    _check_ids(model, prompt=prompt, never=never)
    words = model.vocabulary_size
    require(len(set(never)) < words, "never", f"{len(set(never))} words", f"fewer than all {words}")
    scores, state = _read(model, [EOS_ID, *prompt], model.initial_state(1))
    for _ in range(length):
        scores = scores.index_fill(0, torch.tensor(list(never), dtype=torch.long), -torch.inf)
        if temperature == 0:
            word = int(scores.argmax())
        else:
            if top_k is not None:
                best = scores.topk(min(top_k, len(scores)))  # no more than k, also where several are equal
                scores = torch.full_like(scores, -torch.inf).scatter(0, best.indices, best.values)
            # In float64 and from the likeliest down: no temperature above 0 then overflows all of them.
            chances = ((scores - scores.max()).double() / temperature).softmax(0).float()
            word = int(torch.multinomial(chances, 1, generator=generator))
        yield word
        scores, state = _read(model, [word], state)


@torch.no_grad()
def suggest(model: LanguageModel, prefix: Sequence[int], count: int) -> list[tuple[int, float]]:
    """The likeliest next words after a prefix, with their probabilities; the model must be in eval mode."""
    require(1 <= count <= model.vocabulary_size, "count", count, f"1 to {model.vocabulary_size}")
    _check_ids(model, prefix=prefix)
    scores, _ = _read(model, [EOS_ID, *prefix], model.initial_state(1))
    best = scores.topk(count)
    return list(zip(best.indices.tolist(), best.values.exp().tolist(), strict=True))


def _check_ids(model: LanguageModel, **named: Sequence[int]) -> None:
    for name, ids in named.items():
        wrong = [word for word in ids if not 0 <= word < model.vocabulary_size]
        require(not wrong, name, wrong[:5], f"ids from 0 to {model.vocabulary_size - 1}")


def _read(model: LanguageModel, words: list[int], state) -> tuple[Tensor, object]:
    """Log probabilities [V] of the word after these, on the CPU, and the state."""
    device = model.embedding.weight.device
    features, state = model.features(torch.tensor(words, device=device)[:, None], state)
    return model.log_probabilities(features[-1, 0]).double().cpu(), state
