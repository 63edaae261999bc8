"""What the memory of an N-th farthest model attends to: chosen sequences, and averages over many.

Shapes: V vectors (= time steps), B batch, D dimensions, N slots, H heads (those of all blocks one after the
other), K = N + 1 keys: the slots, then the input.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from relational_rnn.cores.base import require
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.tasks.nth_farthest import NthFarthest
from relational_rnn.training.config import EVAL_SEED

SEED = EVAL_SEED + 2**30  # neither training nor evaluation draws from it
POSITIONS = ("last", "first", "middle")  # of the reference vector m; the order of the paper's figure
CHUNK = 500  # sequences at a time: their attention is kept while they are averaged


class Samples(NamedTuple):
    """A batch of the full task and what its one-hots say."""

    x: Tensor  # [V, B, input_size]
    answer: Tensor  # [B] a label
    vectors: Tensor  # [V, B, D]
    labels: Tensor  # [V, B]
    n: Tensor  # [B] from 0; what it means is the task's convention
    m: Tensor  # [B] the label of the reference vector
    m_step: Tensor  # [B] when it is shown


class Seen(NamedTuple):
    """What a model made of a batch."""

    logits: Tensor  # [B, V]
    attention: Tensor  # [V, B, H, N, K] of each slot
    input_gate: Tensor | None  # [V, B, N] means over a slot's units
    forget_gate: Tensor | None  # [V, B, N]


def draw(task: NthFarthest, count: int, generator: torch.Generator) -> Samples:
    x, answer = task.batch(count, generator=generator)
    d, v = task.dims, task.vectors
    first, second, third = (x[..., d + i * v : d + (i + 1) * v].argmax(-1) for i in range(3))  # [V, B] each
    n, m = (third[0], second[0]) if task.order == "sonnet" else (second[0], third[0])
    return Samples(x, answer, x[..., :d], first, n, m, (first == m).int().argmax(0))


def memory_core(model: nn.Module) -> RelationalMemory:
    """The model's core, which must be one with attention to look at."""
    core = model.core
    name = type(core).__name__
    require(isinstance(core, RelationalMemory), "the model's core", name, "RelationalMemory (core rmc)")
    return core


@torch.no_grad()
def look(model: nn.Module, samples: Samples) -> Seen:
    core = memory_core(model)
    output, _, trace = core(samples.x, need_weights=True)
    slots = core.mem_slots
    attention = trace.attention.flatten(2, 3)[..., :slots, :]  # the input's own query is not read
    gates = (None if gate is None else gate.mean(-1) for gate in (trace.input_gate, trace.forget_gate))
    return Seen(model.head(output[-1]), attention, *gates)


def step_of(position: str, steps: int) -> int:
    return {"first": 0, "middle": steps // 2, "last": steps - 1}[position]


def analyse(
    model: nn.Module, task: NthFarthest, *, sequences: int = 1, samples: int = 2000, seed: int = 0
) -> dict:
    """`sequences` of each position of m, and averages over `samples`, as JSON-ready values.

    Chosen are the first ones drawn that the model answers rightly and whose answer is not m itself. Averages
    are by the step at which m is shown and the step looked at: attention[m_step][step][slot][key]. By label:
    what each slot attends to the input that shows a vector of this label, attention[label][slot], of vectors
    that are neither m nor the first, when all slots are still empty.
    """
    require(sequences >= 1, "sequences", sequences, "1 or more")
    require(samples >= 1, "samples", samples, "1 or more")
    core, device = memory_core(model), next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(SEED + seed)
    steps, slots = task.vectors, core.mem_slots
    total = torch.zeros(steps, steps, slots, slots + 1, dtype=torch.float64, device=device)
    count = torch.zeros(steps, dtype=torch.float64, device=device)
    by_label = torch.zeros(steps, slots, dtype=torch.float64, device=device)
    shown = torch.zeros(steps, dtype=torch.float64, device=device)
    right = 0
    chosen: dict[str, list[dict]] = {position: [] for position in POSITIONS}
    for start in range(0, samples, CHUNK):
        batch = draw(task, min(CHUNK, samples - start), generator)
        seen = look(model, batch)
        correct = seen.logits.argmax(-1) == batch.answer
        right += int(correct.sum())
        means = seen.attention.double().mean(2)  # [V, B, N, K] over heads
        total.index_add_(0, batch.m_step, means.transpose(0, 1))
        count.index_add_(0, batch.m_step, torch.ones_like(batch.m_step, dtype=torch.float64))
        labels, other = batch.labels[1:], (batch.labels != batch.m)[1:]
        by_label.index_add_(0, labels[other], means[1:, ..., -1][other])
        shown += labels[other].bincount(minlength=steps)
        for position, found in chosen.items():
            fits = (batch.m_step == step_of(position, steps)) & correct & (batch.answer != batch.m)
            for index in fits.nonzero().flatten().tolist()[: sequences - len(found)]:
                found.append({"position_of_m": position, **describe(task, batch, seen, index)})
    of_labels = rounded(by_label / shown.clamp(min=1)[:, None])
    of_labels = [row if count else [None] * slots for row, count in zip(of_labels, shown, strict=True)]
    average = total / count.clamp(min=1)[:, None, None, None]
    return {
        "task": {"vectors": steps, "dims": task.dims, "convention": task.convention},
        "model": {"slots": slots, "heads": core.spec.num_heads, "blocks": len(core.blocks)},
        "accuracy": right / samples,
        "samples": samples,
        "seed": seed,
        "sequences": [sequence for position in POSITIONS for sequence in chosen[position]],
        "average": {"samples": count.long().tolist(), "attention": rounded(average)},
        "by_label": {
            "samples": shown.long().tolist(),
            "attention": of_labels,
        },
    }


def describe(task: NthFarthest, batch: Samples, seen: Seen, index: int) -> dict:
    """One sequence: the question, the vectors, the answer, and attention [step][head][slot][key]."""
    vectors, m_step = batch.vectors[:, index], int(batch.m_step[index])
    gates = {
        name: None if gate is None else rounded(gate[:, index])
        for name, gate in (("input_gate", seen.input_gate), ("forget_gate", seen.forget_gate))
    }
    return {
        "m_step": m_step,
        "m": int(batch.m[index]),
        "n": int(batch.n[index]),
        "question": question(task, int(batch.n[index]), int(batch.m[index])),
        "labels": batch.labels[:, index].tolist(),
        "vectors": rounded(vectors),
        "distances": rounded((vectors - vectors[m_step]).norm(dim=-1)),
        "answer": int(batch.answer[index]),
        "predicted": int(seen.logits[index].argmax()),
        "probabilities": rounded(seen.logits[index].softmax(-1)),
        "attention": rounded(seen.attention[:, index]),
        **gates,
    }


def question(task: NthFarthest, n: int, m: int) -> str:
    """In words; labels are numbered from 0, as in the data."""
    rank = n if task.convention == "farthest" else task.vectors - 1 - n  # from the farthest, counted from 0
    if rank == task.vectors - 1:
        return f"Which vector is nearest to vector {m}, itself included?"
    name = "" if rank == 0 else f"{ordinal(rank + 1)} "
    return f"Which vector is the {name}farthest from vector {m}?"


def ordinal(number: int) -> str:
    teens = 10 < number % 100 < 14
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def rounded(values: Tensor) -> list:
    """Four decimals: what a figure can show, and a file of a readable size."""
    return _round(values.tolist())


def _round(value):
    return [_round(item) for item in value] if isinstance(value, list) else round(value, 4)
