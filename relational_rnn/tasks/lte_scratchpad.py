"""A model that writes its calculation down, digit by digit, and reads it (ours; after Nye et al., 2021).

The value of a loop of loops is a + k b + m c, whose last digit is hardly learned at once, not even from the
digits themselves, and a product of numbers of five digits is not learned at all (results/LOG.md). A single
step of a calculation on paper is (lte_calculation.py), for a loop k, and by place the digits of b, k b, a and
the value:

    program                x=(31if24<17else86)for[3]x+=25
    what the core reads    x=(31if24<17else86)_020680for[3]x+=25_3556127860001     _ is a step without input
    what the head writes                      020680            3556127860001      then the answer, 161

In training the digits that it reads are the true ones. Otherwise they are its own: then the program is all
that it gets. The answer is written without inputs, as it is without a scratchpad.

Shapes: S input steps, S' those with the calculation, T output steps, B batch, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.cores.base import RecurrentCore, require
from relational_rnn.tasks.learning_to_execute import Batch, LearningToExecute
from relational_rnn.tasks.lte_calculation import CLOSE, Calculation, Text, until
from relational_rnn.tasks.lte_text import ZERO
from relational_rnn.tasks.seq2seq import Seq2Seq, check_steps


class Written(NamedTuple):
    """What a model wrote down of a batch, reading the true digits, and what it should have."""

    logits: Tensor  # [S', B, V]
    symbols: Tensor  # [S', B]
    mask: Tensor  # [S', B], where there is something to be written
    level: Tensor  # [S', B], of the program, that it belongs to

    @property
    def right(self) -> Tensor:
        """[S', B]."""
        return self.logits.argmax(-1) == self.symbols

    @property
    def entropy(self) -> Tensor:
        """Cross entropy, summed."""
        entropy = F.cross_entropy(self.logits.flatten(0, 1).float(), self.symbols.flatten(), reduction="none")
        return (entropy * self.mask.flatten()).sum()

    @property
    def accuracy(self) -> Tensor:
        return (self.right & self.mask).sum() / self.mask.sum().clamp(min=1)


class Scratchpad(Seq2Seq):
    """Seq2Seq with one core and no feedback in the answer.

    Args:
        core: reads and writes.
        task: whose programs it reads; those it is trained on, if they have more operations.
        options: of Seq2Seq.
    """

    def __init__(self, core: RecurrentCore, task: LearningToExecute, **options):
        super().__init__(core, **options)
        require(not task.memorisation, "task", task.task, "one with programs")
        self.calculation = Calculation(task)

    def forward(self, inputs: Tensor, lengths: Tensor, steps: int) -> Tensor:
        """As Seq2Seq's."""
        text, _, logits = self.calculate(inputs, lengths, steps)
        return _answer(logits, text, steps)

    def calculate(self, inputs: Tensor, lengths: Tensor, steps: int) -> tuple[Text, Tensor, Tensor]:
        """It reads what it wrote itself, hence one step after the other -> the text without digits, and of
        all S' + T steps the ids that were read, and logits [S' + T, B, V]."""
        text = self._text(inputs, lengths, steps)
        ids, blank, reads = (F.pad(part, (0, 0, 0, steps)) for part in (text.ids, text.blank, text.reads))
        blank[len(text.ids) :] = True
        state = self.encoder.initial_state(len(lengths), device=inputs.device)
        own, seen, logits = ids[0], [], []
        for t in range(len(ids)):
            seen.append(torch.where(reads[t], own, ids[t]))
            with self._cores_precision():
                output, state = self.encoder.step(self.read(seen[-1], blank[t]), state)
            logits.append(self.logits(output))  # [B, V]
            own = ZERO + logits[-1][:, ZERO : ZERO + 10].argmax(-1)
        return text, torch.stack(seen), torch.stack(logits)

    def read_and_write(self, batch: Batch, steps: int) -> tuple[Tensor, Written]:
        """With the true digits to read -> logits of the answer [T, B, V], and what was written."""
        text = self._text(batch.inputs, batch.input_lengths, steps)
        symbols = self.calculation.symbols(batch.steps, text)  # [S', B]
        before = F.pad(symbols, (0, 0, 1, 0))[:-1]
        x = self.read(torch.where(text.reads, before, text.ids), text.blank)
        with self._cores_precision():
            outputs = self.encoder(F.pad(x, (0, 0, 0, 0, 0, steps)))[0]
        logits = self.logits(outputs)
        written = Written(logits[: len(symbols)], symbols, text.writes, text.level)
        return _answer(logits, text, steps), written

    def _text(self, inputs: Tensor, lengths: Tensor, steps: int) -> Text:
        check_steps(steps)
        self.check(inputs, lengths)
        text = self.calculation.text(inputs, lengths)
        if inputs.device.type == "cpu" and inputs.numel():  # as in check
            levels = 1 + int((until(inputs, lengths) == CLOSE).sum(0).max())
            longest, most = int(text.lengths.max()), self.calculation
            require(levels <= most.levels, "levels of a program", levels, f"at most {most.levels}")
            require(longest <= most.longest, "steps with calculation", longest, f"at most {most.longest}")
        return text

    def read(self, ids: Tensor, blank: Tensor) -> Tensor:
        """Ids [..., B] -> inputs of the core [..., B, V], zero where there are none."""
        return self.one_hot(ids) * ~blank[..., None]


def _answer(logits: Tensor, text: Text, steps: int) -> Tensor:
    """The logits of all steps [S' + T, B, V] -> of the first T behind each text."""
    places = text.lengths + torch.arange(steps, device=logits.device)[:, None]  # [T, B]
    return logits.gather(0, places[..., None].expand(-1, -1, logits.shape[-1]))
