"""Learning-to-execute samples read by a trained model: its attention and predictions, character by character.

Shapes: S input steps, T output steps, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.explorer import encoding
from relational_rnn.kernels.reference import Trace
from relational_rnn.tasks.learning_to_execute import Batch, LearningToExecute, Steps
from relational_rnn.tasks.lte_scratchpad import Scratchpad
from relational_rnn.tasks.lte_text import TOKENS, decode
from relational_rnn.tasks.seq2seq import Seq2Seq
from relational_rnn.training.config import EVAL_SEED

SEED = EVAL_SEED + 1  # samples that neither training nor evaluation draws
LIKELY = 3  # symbols kept of every prediction


# How a step stands on the page.
READ, NOTHING, RIGHT, WRONG = range(4)


@torch.no_grad()
def export_samples(
    name: str, task: LearningToExecute, model: Seq2Seq, *, samples: int = 6, seed: int = SEED
) -> dict:
    """Samples of maximum difficulty. Without a RelationalMemory there is no attention, only predictions."""
    batch = task.batch(samples, generator=torch.Generator().manual_seed(seed))
    read = [read_sample(model, one_of(batch, b), task.output_steps) for b in range(samples)]
    return {"name": name, "task": task.task, "length": task.length, "nest": task.nest, "samples": read}


def one_of(batch: Batch, b: int) -> Batch:
    """A sample as a batch of its own, without padding."""
    return Batch(
        batch.inputs[: batch.input_lengths[b], b : b + 1],
        batch.targets[: batch.target_lengths[b], b : b + 1],
        batch.input_lengths[b : b + 1],
        batch.target_lengths[b : b + 1],
        steps=None if batch.steps is None else Steps(*(part[b : b + 1] for part in batch.steps)),
    )


def read_sample(model: Seq2Seq, sample: Batch, steps: int) -> dict:
    """One sample, and how many symbols the decoder writes."""
    ids, target = sample.inputs[:, 0], decode(sample.targets)[0]
    written = len(target)
    # Every beginning of the text as a sample of its own: what would be answered if it ended there.
    beginnings = ids[:, None].expand(-1, len(ids))
    lengths = torch.arange(1, len(ids) + 1)
    chances = model(beginnings, lengths, steps)[:written].softmax(-1)  # [T, S, V]
    likely = chances[:, -1].topk(LIKELY)
    shown, x = _calculated(model, sample, steps) if isinstance(model, Scratchpad) else _read(model, ids)
    exported = {
        "text": decode(ids)[0],
        "target": target,
        "steps": shown,  # what is read: its symbol, how it stands on the page, characters read by then
        "soFar": ["".join(TOKENS[i] for i in column) for column in chances.argmax(-1).t().tolist()],
        "sureness": encoding.numbers(chances.amax(-1).t()),  # [S, T]
        "likely": [[TOKENS[i] for i in row] for row in likely.indices.tolist()],  # [T, LIKELY]
        "chances": encoding.numbers(likely.values),
    }
    if isinstance(model.encoder, RelationalMemory):
        exported["trace"] = _trace(model, x, chances[:, -1].argmax(-1))
    return exported


def _read(model: Seq2Seq, ids: Tensor) -> tuple[list, Tensor]:
    """-> the steps shown, and what the core reads [S, V]."""
    return [[TOKENS[i], READ, n + 1] for n, i in enumerate(ids.tolist())], model.one_hot(ids)


def _calculated(model: Scratchpad, sample: Batch, steps: int) -> tuple[list, Tensor]:
    """The same with what the model writes down and reads [S', V]."""
    text, seen, _ = model.calculate(sample.inputs, sample.input_lengths, steps)
    true, length = model.calculation.symbols(sample.steps, text)[:, 0].tolist(), int(text.lengths)
    seen, blank, reads = seen[:length, 0], text.blank[:length, 0], text.reads[:length, 0]
    shown, count = [], 0
    for t, (i, nothing, own) in enumerate(zip(seen.tolist(), blank.tolist(), reads.tolist(), strict=True)):
        count += not (nothing or own)
        kind = NOTHING if nothing else (RIGHT if i == true[t - 1] else WRONG) if own else READ
        shown.append(["" if nothing else TOKENS[i], kind, count])
    return shown, model.read(seen, blank)


def _trace(model: Seq2Seq, x: Tensor, answer: Tensor) -> dict:
    """The memory's inside while it reads x [S, V] and the answer's T symbols are written."""
    before = model.encoder.initial_state(1)
    reading, state, seen = model.encoder(x[:, None], before, need_weights=True)
    if model.regime == "non-auto-regressive":
        fed = torch.zeros(len(answer), model.vocabulary)
    else:
        fed = F.one_hot(torch.cat([torch.tensor([model.start]), answer[:-1]]), model.vocabulary).float()
    writing, _, done = model.decoder(fed[:, None], state, need_weights=True)
    memories = torch.cat([reading, writing])[:, 0].unflatten(-1, before.shape[1:])  # [S + T, N, F]
    joined = (None if a is None else torch.cat([a, b])[:, 0] for a, b in zip(seen, done, strict=True))
    return encoding.trace(Trace(*joined), memories, before[0])
