"""Learning to execute as a problem for training/loop.py: batches of a curriculum, the loss, scores.

Shapes: B batch, T output steps.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from relational_rnn.tasks import learning_to_execute as lte
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_practice import Practice
from relational_rnn.tasks.lte_scratchpad import Scratchpad
from relational_rnn.tasks.lte_text import decode
from relational_rnn.tasks.seq2seq import Seq2Seq
from relational_rnn.training.config import EVAL_SEED
from relational_rnn.training.loop import Problem

EVAL_BATCH = 1600  # divides the paper's 12,800


class LearningToExecuteProblem(Problem):
    """Batches of the curriculum's difficulties, cross entropy of the answer's characters. Scores are of
    `task`; `training_task` has the same steps, and may have more operations. `balance`: it draws those most
    that are got wrong most (tasks/lte_practice.py)."""

    def __init__(
        self,
        model: Seq2Seq,
        task: lte.LearningToExecute,
        training_task: lte.LearningToExecute,
        curriculum: Curriculum,
        *,
        device: torch.device,
        batch_size: int,
        feedback: float = 1.0,
        feedback_steps: int = 0,
        eval_samples: int = 12_800,
        balance: bool = False,
        seed: int = 0,
    ):
        self.practice = Practice(training_task, device) if balance else None
        self.model, self.curriculum, self.device = model.to(device), curriculum, device
        self.task, self.training_task = task, training_task
        self.batch_size, self.eval_samples = batch_size, eval_samples
        self.feedback, self.feedback_steps = feedback, feedback_steps
        self.generators = {"data": torch.Generator(device).manual_seed(seed)}
        self.updates = torch.zeros((), device=device)  # on the device: a CUDA graph counts there

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        generator, practice = self.generators["data"], self.practice
        batch = self.training_task.batch(
            self.batch_size,
            generator=generator,
            curriculum=self.curriculum,
            odds=None if practice is None else practice.odds,
        )
        logits, more, metrics, practised = self._answers(batch)
        self.updates += 1
        metrics = {"accuracy": lte.accuracy(logits, batch), **metrics}
        if practice is not None:
            metrics |= practice.count(*practised)
        return lte.loss(logits, batch) + more, metrics

    def _answers(
        self, batch: lte.Batch
    ) -> tuple[Tensor, Tensor | float, dict[str, Tensor], tuple[Tensor, ...]]:
        """-> (logits, what else is part of the loss, metrics of that, what Practice counts: the digits of a
        calculation, which depend on one operation each, or else the answers', which depend on all)."""
        model, asked = self.model, (batch.inputs, batch.input_lengths, self.task.output_steps)
        if isinstance(model, Scratchpad):
            logits, written = model.read_and_write(batch, self.task.output_steps)
            loss = written.entropy / batch.mask.numel()  # as much for a digit as for one of the answer
            metrics = {"written_loss": loss.detach(), "written_accuracy": written.accuracy}
            operations = batch.operations.t().gather(0, written.level)[..., None]
            return logits.float(), loss, metrics, (operations, written.right, written.mask)
        feeding = {}
        if model.regime != "non-auto-regressive":
            generator = self.generators["data"]
            feeding = dict(targets=batch.targets, feedback=self._feedback(), generator=generator)
        logits = model(*asked, **feeding).float()
        right = logits.argmax(-1) == batch.targets
        operations = None if batch.operations is None else batch.operations[None]
        return logits, 0.0, {}, (operations, right, batch.mask)

    def _feedback(self) -> Tensor | float:
        """Chance that the decoder reads its own prediction."""
        rising = (self.updates / self.feedback_steps).clamp(max=1) if self.feedback_steps else 1.0
        return self.feedback * rising

    def after_interval(self, metrics: dict[str, float]) -> dict[str, int | float]:
        length, nest = self.curriculum.level.tolist()
        # On a scratchpad it is the calculation that has to be mastered: the answer is copied from it.
        self.curriculum.update(metrics["loss"], metrics.get("written_accuracy", metrics["accuracy"]))
        shares = {} if self.practice is None else self.practice.update(metrics)
        return {"length": length, "nest": nest} | shares

    def evaluate(self) -> dict[str, float]:
        return score(self.model, self.task, self.eval_samples, self.device)

    def state(self) -> dict[str, Tensor]:
        odds = {} if self.practice is None else {"odds": self.practice.odds}
        return {"updates": self.updates, **self.curriculum.state(), **odds}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.updates.copy_(state["updates"])
        self.curriculum.load_state(state)
        if self.practice is not None:
            self.practice.odds.copy_(state["odds"])


@torch.no_grad()
def score(
    model: Seq2Seq, task: lte.LearningToExecute, samples: int, device: torch.device, seed: int = EVAL_SEED
) -> dict[str, float]:
    """On fresh samples of maximum difficulty: right characters / characters, and whole answers right."""
    generator = torch.Generator(device).manual_seed(seed)
    counts = torch.zeros(3, dtype=torch.long, device=device)  # right characters, characters, right answers
    for start in range(0, samples, EVAL_BATCH):
        batch = task.batch(min(EVAL_BATCH, samples - start), generator=generator)
        logits = model(batch.inputs, batch.input_lengths, task.output_steps)
        right = (logits.argmax(-1) == batch.targets) | ~batch.mask  # [T, B]
        counts += torch.stack([(right & batch.mask).sum(), batch.mask.sum(), right.all(0).sum()])
    right, characters, answers = counts.tolist()
    return {"accuracy": right / characters, "solved": answers / samples}


@torch.no_grad()
def score_operations(
    model: Seq2Seq, task: lte.LearningToExecute, samples: int, device: torch.device, seed: int = EVAL_SEED
) -> dict[str, dict]:
    """The same samples as `score`'s by their operations, the innermost first ("loops, sums").

    Of each: `samples`, `accuracy` and `solved` as in `score`, and `digits`, the share right of the answers'
    last digits, of those before them, and so on.
    """
    generator = torch.Generator(device).manual_seed(seed)
    found = defaultdict(list)  # of every sample, which digits are right from the last one on
    for start in range(0, samples, EVAL_BATCH):
        batch = task.batch(min(EVAL_BATCH, samples - start), generator=generator)
        right = model(batch.inputs, batch.input_lengths, task.output_steps).argmax(-1) == batch.targets
        columns = zip(right.t().tolist(), batch.target_lengths.tolist(), strict=True)
        for text, (column, length) in zip(decode(batch.inputs), columns, strict=True):
            found[operations(text)].append(column[:length][::-1])
    return {name: _digits(rows) for name, rows in sorted(found.items())}


def _digits(rows: list[list[bool]]) -> dict:
    places = [[row[i] for row in rows if i < len(row)] for i in range(max(map(len, rows)))]
    return {
        "samples": len(rows),
        "accuracy": sum(map(sum, rows)) / sum(map(len, rows)),
        "solved": sum(map(all, rows)) / len(rows),
        "digits": [sum(place) / len(place) for place in places],
    }


def operations(text: str) -> str:
    """Of a program, the innermost first: a nested term is always the first operand."""
    words = {"for": "loops", "if": "comparisons", "*": "products", "-": "differences", "+": "sums"}
    levels = text.split(")")  # a loop has a + as well
    return ", ".join(next(name for word, name in words.items() if word in level) for level in levels)
