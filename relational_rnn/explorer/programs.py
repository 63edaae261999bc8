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
from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.tasks.lte_scratchpad import Scratchpad
from relational_rnn.tasks.lte_text import TOKENS, decode
from relational_rnn.tasks.seq2seq import Seq2Seq
from relational_rnn.training.config import EVAL_SEED

SEED = EVAL_SEED + 1  # samples that neither training nor evaluation draws
LIKELY = 3  # symbols kept of every prediction


@torch.no_grad()
def export_samples(
    name: str, task: LearningToExecute, model: Seq2Seq, *, samples: int = 6, seed: int = SEED
) -> dict:
    """Samples of maximum difficulty. Without a RelationalMemory there is no attention, only predictions; nor
    is there of a Scratchpad, which reads more than the text that is shown."""
    batch = task.batch(samples, generator=torch.Generator().manual_seed(seed))
    read = []
    for b in range(samples):
        ids = batch.inputs[: batch.input_lengths[b], b]
        target = decode(batch.targets[: batch.target_lengths[b], b])[0]
        read.append(read_sample(model, ids, target, task.output_steps))
    return {"name": name, "task": task.task, "length": task.length, "nest": task.nest, "samples": read}


def read_sample(model: Seq2Seq, ids: Tensor, target: str, steps: int) -> dict:
    """ids `[S]`, the right answer, and how many symbols the decoder writes."""
    written = len(target)
    # Every beginning of the text as a sample of its own: what would be answered if it ended there.
    beginnings = ids[:, None].expand(-1, len(ids))
    lengths = torch.arange(1, len(ids) + 1)
    chances = model(beginnings, lengths, steps)[:written].softmax(-1)  # [T, S, V]
    likely = chances[:, -1].topk(LIKELY)
    sample = {
        "text": decode(ids)[0],
        "target": target,
        "soFar": ["".join(TOKENS[i] for i in column) for column in chances.argmax(-1).t().tolist()],
        "sureness": encoding.numbers(chances.amax(-1).t()),  # [S, T]
        "likely": [[TOKENS[i] for i in row] for row in likely.indices.tolist()],  # [T, LIKELY]
        "chances": encoding.numbers(likely.values),
    }
    if isinstance(model.encoder, RelationalMemory) and not isinstance(model, Scratchpad):
        sample["trace"] = _trace(model, ids, chances[:, -1].argmax(-1))
    return sample


def _trace(model: Seq2Seq, ids: Tensor, answer: Tensor) -> dict:
    """The memory's inside while S symbols are read and the answer's T written."""
    before = model.encoder.initial_state(1)
    reading, state, seen = model.encoder(model.one_hot(ids)[:, None], before, need_weights=True)
    if model.regime == "non-auto-regressive":
        fed = torch.zeros(len(answer), model.vocabulary)
    else:
        fed = F.one_hot(torch.cat([torch.tensor([model.start]), answer[:-1]]), model.vocabulary).float()
    writing, _, done = model.decoder(fed[:, None], state, need_weights=True)
    memories = torch.cat([reading, writing])[:, 0].unflatten(-1, before.shape[1:])  # [S + T, N, F]
    joined = (None if a is None else torch.cat([a, b])[:, 0] for a, b in zip(seen, done, strict=True))
    return encoding.trace(Trace(*joined), memories, before[0])
