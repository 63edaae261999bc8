"""A model that writes down what stands in brackets, and reads on with that (ours; Nye et al., 2021).

The value of a loop of loops is a + k b + m c, whose last digit is hardly learned at once, not even from the
digits themselves (results/LOG.md). Written down in between, it is two loops, one after the other:

    program             x=(x=3for[4]x+=5)for[2]x+=8
    what the core reads x=(x=3for[4]x+=5)__23for[2]x+=8      _ is a step without input

At each _ the head writes a digit of the value, leading zeros included, and then the core reads them: in
training the true ones, else its own. Everything else is as without: the answer is written without inputs.

Shapes: S input steps, T output steps, B batch, V vocabulary, K brackets at most, W digits of a value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from relational_rnn.cores.base import RecurrentCore, require
from relational_rnn.tasks.learning_to_execute import Batch
from relational_rnn.tasks.lte_text import IDS, ZERO
from relational_rnn.tasks.seq2seq import Seq2Seq, check_steps, ending_together

CLOSE = IDS[")"]


class Text(NamedTuple):
    """What the core reads, and where it writes in between; S' = S + 2 W K."""

    ids: Tensor  # [S', B]
    blank: Tensor  # [S', B], true where there is no input
    lengths: Tensor  # [B]
    begins: Tensor  # [B, K], the first of the steps without input
    there: Tensor  # [B, K], whether there is such a bracket


class Scratchpad(Seq2Seq):
    """Seq2Seq with one core and no feedback in the answer.

    Args:
        core: reads and writes.
        brackets: that a program has at most.
        digits: of what stands in one, leading zeros included.
        options: of Seq2Seq.
    """

    def __init__(self, core: RecurrentCore, *, brackets: int, digits: int, **options):
        super().__init__(core, **options)
        require(brackets >= 1, "brackets", brackets, "1 or more")
        require(digits >= 1, "digits", digits, "1 or more")
        self.brackets, self.digits = brackets, digits

    def forward(self, inputs: Tensor, lengths: Tensor, steps: int) -> Tensor:
        """As Seq2Seq's. It reads what it writes itself, hence from the start again for every bracket."""
        values = torch.zeros(inputs.shape[1], self.brackets, dtype=torch.long, device=inputs.device)
        for k in range(self.brackets):
            written = self.read_and_write(inputs, lengths, steps, values)[1]
            own = written[:, k, :, ZERO : ZERO + 10].argmax(-1)  # [B, W]
            values[:, k] = (own * self.tens(own.device)).sum(-1)
        return self.read_and_write(inputs, lengths, steps, values)[0]

    def loss(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of what was written in between, [B, K, W, V] -> (cross entropy, share of digits right).

        The mean over B K W digits; those of brackets that a sample lacks count as 0."""
        targets = ZERO + self.digits_of(batch.inner)
        there = (self.closed(batch.inputs) >= 0)[..., None].expand_as(targets)
        entropy = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        right = (logits.argmax(-1) == targets) & there
        return (entropy * there.flatten()).mean(), right.sum() / there.sum().clamp(min=1)

    def read_and_write(
        self, inputs: Tensor, lengths: Tensor, steps: int, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Reading these values [B, K] -> logits of the answer [T, B, V], and those written [B, K, W, V]."""
        check_steps(steps)
        self.check(inputs, lengths)
        text = self.text(inputs, lengths, values)
        source, begins = ending_together(len(text.ids), text.lengths)
        x = self.one_hot(text.ids.gather(0, source)) * ~text.blank.gather(0, source)[..., None]
        outputs = self.one_sequence(x, begins, steps)
        places = (begins[:, None] + text.begins)[..., None] + torch.arange(self.digits, device=inputs.device)
        samples = torch.arange(len(begins), device=inputs.device)[:, None, None]
        written = outputs[places.clamp(max=len(outputs) - 1), samples]  # [B, K, W, features]
        return self.logits(outputs[-steps:]), self.logits(written)

    def text(self, inputs: Tensor, lengths: Tensor, values: Tensor) -> Text:
        """Programs [S, B] with W steps without input, then one of values [B, K], behind closing brackets."""
        width, device, batch = 2 * self.digits, inputs.device, inputs.shape[1]
        closed = self.closed(inputs)  # [B, K]
        there = closed >= 0
        begins = closed + 1 + width * torch.arange(self.brackets, device=device)
        step = torch.arange(len(inputs) + width * self.brackets, device=device)[:, None]  # [S', 1]
        behind = (step[..., None] >= begins) & there  # [S', B, K]
        count = behind.sum(-1)  # brackets closed before
        since = step - torch.where(behind, begins, -width).amax(-1)  # the last of them
        inside = (count > 0) & (since < width)
        digit = (since - self.digits).clamp(0, self.digits - 1)
        samples = torch.arange(batch, device=device)
        read = self.digits_of(values)[samples, (count - 1).clamp(min=0), digit]
        program = inputs.gather(0, (step - width * count).clamp(0, len(inputs) - 1))
        ids = torch.where(inside, ZERO + read, program)
        return Text(ids, inside & (since < self.digits), lengths + width * there.sum(1), begins, there)

    def closed(self, inputs: Tensor) -> Tensor:
        """[B, K]: the steps of closing brackets, innermost first; -1 where there are fewer."""
        brackets = inputs == CLOSE  # [S, B]
        number = brackets.cumsum(0)[..., None] == 1 + torch.arange(self.brackets, device=inputs.device)
        found = brackets[..., None] & number  # [S, B, K]
        return torch.where(found.any(0), found.int().argmax(0), -1)

    def digits_of(self, values: Tensor) -> Tensor:
        """[...] -> [..., W], the first digit first."""
        return (values[..., None] // self.tens(values.device)).remainder(10)

    def tens(self, device: torch.device) -> Tensor:
        return 10 ** torch.arange(self.digits - 1, -1, -1, device=device)

    def check(self, inputs: Tensor, lengths: Tensor) -> None:
        super().check(inputs, lengths)
        if not inputs.is_cuda:
            most = int((inputs == CLOSE).sum(0).max()) if inputs.numel() else 0
            require(most <= self.brackets, "brackets of a program", most, f"at most {self.brackets}")
