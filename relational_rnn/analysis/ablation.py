"""Which attention an N-th farthest model needs: its accuracy when some is blocked from a step on.

Blocked means: the logit is -inf before the softmax, so that a slot's other keys share what this one had. The
steps before are as they were. A slot's gates still read the input.

Shapes: V vectors (= time steps), B batch, N slots, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from relational_rnn.analysis.attention import SEED, draw, memory_core
from relational_rnn.cores.base import require
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.tasks.nth_farthest import NthFarthest

CHUNK = 1000  # sequences at a time: their memories at every step are kept
KINDS = {
    "input": "slots to the input",
    "others": "slots to other slots",
    "memory": "slots to any slot, their own too",
    "read": "other slots to one slot",
    "pair": "one slot to one slot",
}


@dataclass(frozen=True)
class Cut:
    """What is blocked: a kind, perhaps for one slot only, perhaps in one head only."""

    kind: str
    slot: int | None = None
    """input: the slot that attends, None for all; read: the slot attended to; pair: the one that attends."""
    key: int | None = None
    """pair: the slot attended to."""
    head: int | None = None
    """None for all."""

    def bias(self, core: RelationalMemory) -> Tensor:
        """For `attention_bias`: [1, 1, 1, H, N + 1, N + 1], any step, sequence and block."""
        slots, heads = core.mem_slots, core.spec.num_heads
        cut = torch.zeros(slots + 1, slots + 1, dtype=torch.bool)  # query x key, the input last
        if self.kind == "input":
            cut[slice(0, slots) if self.slot is None else self.slot, slots] = True
        elif self.kind == "others":
            cut[:slots, :slots] = ~torch.eye(slots, dtype=torch.bool)
        elif self.kind == "memory":
            cut[:slots, :slots] = True
        elif self.kind == "read":
            cut[:slots, self.slot] = True
            cut[self.slot, self.slot] = False
        elif self.kind == "pair":
            cut[self.slot, self.key] = True
        else:
            raise ValueError(f"kind={self.kind!r} is not allowed; allowed: {', '.join(KINDS)}")
        here = torch.zeros(heads, dtype=torch.bool)
        here[slice(None) if self.head is None else self.head] = True
        logits = torch.zeros(1, 1, 1, heads, slots + 1, slots + 1)
        return logits.masked_fill_(here[:, None, None] & cut, float("-inf"))


def all_cuts(slots: int, heads: int) -> list[Cut]:
    whole = ["input", "memory"] if slots == 1 else ["input", "others", "memory"]
    cuts = [Cut(kind) for kind in whole]
    if slots > 1:
        cuts += [Cut("input", slot) for slot in range(slots)]
        cuts += [Cut("read", slot) for slot in range(slots)]
        cuts += [Cut("pair", slot, key) for slot in range(slots) for key in range(slots)]
    if heads > 1:
        cuts += [Cut(kind, head=head) for kind in whole for head in range(heads)]
    return cuts


@torch.no_grad()
def measure(
    model: nn.Module,
    task: NthFarthest,
    *,
    samples: int = 2000,
    seed: int = 0,
    progress: Callable[[float], None] = lambda done: None,
) -> dict:
    """Accuracy for every cut and every step it may begin at, on the same sequences, as JSON-ready values.

    accuracy[t]: blocked from step t on; accuracy_by_m_step[t][s]: of the sequences that show m at step s.
    accuracy_by_answer[l] and accuracy_by_m[l]: blocked from the first step on, of the sequences whose answer,
    or whose m, has the label l. `progress` is told the share that is done.
    """
    require(samples >= 1, "samples", samples, "1 or more")
    core, device = memory_core(model), next(model.parameters()).device
    cuts, steps = all_cuts(core.mem_slots, core.spec.num_heads), task.vectors
    biases = [cut.bias(core).to(device) for cut in cuts]
    generator = torch.Generator(device).manual_seed(SEED + seed)
    right = torch.zeros(len(cuts), steps, steps, dtype=torch.float64, device=device)
    by_answer, by_m = (torch.zeros(len(cuts), steps, dtype=torch.float64, device=device) for _ in range(2))
    free, count, answers, ms = (torch.zeros(steps, dtype=torch.float64, device=device) for _ in range(4))

    for start in range(0, samples, CHUNK):
        batch = draw(task, min(CHUNK, samples - start), generator)
        outputs, _ = core(batch.x)

        def answered(output: Tensor, batch=batch) -> Tensor:
            return (model.head(output).argmax(-1) == batch.answer).double()

        for where, what in ((count, batch.m_step), (answers, batch.answer), (ms, batch.m)):
            where += what.bincount(minlength=steps)
        free.index_add_(0, batch.m_step, answered(outputs[-1]))
        memories = [core.initial_state(batch.x.shape[1]), *outputs.unflatten(-1, (core.mem_slots, -1))]
        for i, bias in enumerate(biases):
            for t in range(steps):
                still = answered(core(batch.x[t:], memories[t], attention_bias=bias)[0][-1])
                right[i, t].index_add_(0, batch.m_step, still)
                if t == 0:
                    by_answer[i].index_add_(0, batch.answer, still)
                    by_m[i].index_add_(0, batch.m, still)
            progress((start + batch.x.shape[1] * (i + 1) / len(cuts)) / samples)
    accuracy = float(free.sum() / samples)
    return {
        "task": {"vectors": steps, "dims": task.dims, "convention": task.convention},
        "model": {"slots": core.mem_slots, "heads": core.spec.num_heads, "blocks": len(core.blocks)},
        "samples": samples,
        "seed": seed,
        "samples_by_m_step": count.long().tolist(),
        "accuracy": accuracy,
        "standard_error": (accuracy * (1 - accuracy) / samples) ** 0.5,
        "accuracy_by_m_step": _share(free, count),
        "cuts": [
            {
                **vars(cut),
                "accuracy": [round(float(t.sum()) / samples, 5) for t in right[i]],
                "accuracy_by_m_step": [_share(t, count) for t in right[i]],
                "accuracy_by_answer": _share(by_answer[i], answers),
                "accuracy_by_m": _share(by_m[i], ms),
            }
            for i, cut in enumerate(cuts)
        ],
    }


def _share(right: Tensor, count: Tensor) -> list[float | None]:
    pairs = zip(right.tolist(), count.tolist(), strict=True)
    return [round(r / c, 5) if c else None for r, c in pairs]


def select(found: dict, kind: str, **fixed) -> list[dict]:
    """The cuts of a kind whose slot, key and head are those given; ... stands for any but None."""
    return [
        cut
        for cut in found["cuts"]
        if cut["kind"] == kind
        and all((cut[k] is not None) if v is ... else cut[k] == v for k, v in fixed.items())
    ]


def table(found: dict) -> list[list[str]]:
    """A head, then rows of accuracies in percent, one column for each step that blocking begins at."""
    steps = found["task"]["vectors"]
    lines = [["blocked attention", *(f"from {t + 1}" for t in range(steps))]]

    def add(name: str, cuts: list[dict]) -> None:
        for cut in cuts:
            lines.append([name.format(**cut), *(f"{100 * value:.1f}" for value in cut["accuracy"])])

    add("none", [{"accuracy": [found["accuracy"]] * steps}])
    for kind in ("input", "others", "memory"):
        add(KINDS[kind], select(found, kind, slot=None, head=None))
    add("slot {slot} to the input", select(found, "input", slot=..., head=None))
    add("other slots to slot {slot}", select(found, "read", slot=...))
    return lines
