"""Sequence to sequence around any recurrent core: the model of the program evaluation tasks (appendix A.2).

Shapes: S input steps, T output steps, B batch, V vocabulary.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relational_rnn.cores.base import RecurrentCore, State, map_state, require
from relational_rnn.tasks.heads import Head, make_head
from relational_rnn.tasks.lte_text import START, VOCABULARY, check_ids

Regime = Literal["teacher", "scheduled", "non-auto-regressive"]


class Seq2Seq(nn.Module):
    """Encoder, decoder that starts from the encoder's state, and an MLP from its outputs to logits.

    The decoder's inputs in training, by regime:
      teacher:              the target of the step before (teacher forcing).
      scheduled:            that, or with probability `feedback` the model's own prediction of it.
      non-auto-regressive:  zeros, so neither; all steps are one call of the core (the paper's best).
    Without targets, and in eval mode, the first two read their own predictions.

    Args:
        encoder: a core with `vocabulary` input features.
        decoder: another core with a state of the same shapes; None shares the encoder, as Sonnet does.
        regime: one of the three.
        hidden: units of the MLP's layers.
        head: what these are (tasks/heads.py).
        core_autocast: False has the cores compute in their own dtype under autocast too.
    """

    def __init__(
        self,
        encoder: RecurrentCore,
        decoder: RecurrentCore | None = None,
        regime: Regime = "non-auto-regressive",
        *,
        hidden: tuple[int, ...] = (256, 256, 256, 256),
        head: Head = "relu",
        vocabulary: int = VOCABULARY,
        start: int = START,
        core_autocast: bool = True,
    ):
        super().__init__()
        require(regime in get_args(Regime), "regime", regime, ", ".join(get_args(Regime)))
        for name, core in (("encoder", encoder), ("decoder", decoder)):
            if core is not None:
                require(
                    core.input_shape == (vocabulary,), f"{name} input", core.input_shape, f"({vocabulary},)"
                )
                require(not core.batch_first, f"{name} batch_first", True, "False: ids come time first")
        self.encoder, self.own_decoder, self.regime = encoder, decoder, regime
        self.vocabulary, self.start, self.core_autocast = vocabulary, start, core_autocast
        if decoder is not None:
            wanted, given = (_shapes(core.initial_state(1, device="meta")) for core in (encoder, decoder))
            require(wanted == given, "decoder state", given, f"the encoder's, {wanted}")
        self.head = make_head(head, self.decoder.output_size, hidden, vocabulary)

    @property
    def decoder(self) -> RecurrentCore:
        return self.encoder if self.own_decoder is None else self.own_decoder

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor,
        steps: int,
        *,
        targets: Tensor | None = None,
        feedback: float | Tensor = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Ids [S, B] of which the first `lengths` [B] count -> logits [T, B, V] of `steps` = T outputs.

        Targets [T, B] are for training alone, and not read in eval mode; `feedback` and `generator` only for
        the scheduled regime.
        """
        check_steps(steps)
        x, begins = self._aligned(inputs, lengths)
        batch_size = inputs.shape[1]
        if targets is not None and tuple(targets.shape) != (steps, batch_size):
            raise ValueError(f"targets have shape {list(targets.shape)}; allowed: {[steps, batch_size]}")
        if targets is not None and targets.device.type == "cpu":
            check_ids(targets, self.vocabulary)
        if self.regime == "non-auto-regressive":
            if self.own_decoder is None:
                return self.logits(self.one_sequence(x, begins, steps)[-steps:])
            nothing = x.new_zeros(steps, batch_size, self.vocabulary)
            return self.logits(self._decoded(nothing, self._encoded(x, begins)))
        targets = targets if self.training else None
        state = self._encoded(x, begins)
        first = torch.full_like(inputs[0], self.start)  # [B]
        if targets is not None and self.regime == "teacher":
            late = torch.cat([first[None], targets[:-1]])
            return self.logits(self._decoded(self.one_hot(late), state))
        return self._fed_back(first, state, steps, targets, feedback, generator)

    def one_sequence(self, x: Tensor, begins: Tensor, steps: int) -> Tensor:
        """Where one core reads and then, without inputs, writes: its outputs of all S + T steps."""
        nothing = x.new_zeros(steps, *x.shape[1:])
        with self._cores_precision():
            return self.encoder.scan_late(torch.cat([x, nothing]), begins)[0]

    def encode(self, inputs: Tensor, lengths: Tensor) -> State:
        """The state after each sample's own last symbol, whatever padding follows it.

        Samples are moved to end together. This needs no lengths on the host, and cores that have one call for
        a whole sequence stay in it.
        """
        return self._encoded(*self._aligned(inputs, lengths))

    def _encoded(self, x: Tensor, begins: Tensor) -> State:
        with self._cores_precision():
            return self.encoder.scan_late(x, begins)[1]

    def _decoded(self, x: Tensor, state: State) -> Tensor:
        with self._cores_precision():
            return self.decoder(x, state)[0]

    def _cores_precision(self):
        return (
            nullcontext() if self.core_autocast else torch.autocast(self._features.device.type, enabled=False)
        )

    def _aligned(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """-> one-hot inputs that end together [S, B, V], and where each begins [B]."""
        self.check(inputs, lengths)
        source, begins = ending_together(len(inputs), lengths)
        return self.one_hot(inputs.gather(0, source)), begins

    def check(self, inputs: Tensor, lengths: Tensor) -> None:
        if inputs.dim() != 2 or lengths.shape != inputs.shape[1:]:
            shapes = f"{list(inputs.shape)} and {list(lengths.shape)}"
            raise ValueError(f"inputs and lengths have shapes {shapes}; allowed: [S, B] and [B]")
        if inputs.device.type == "cpu":  # on a GPU these checks would wait for it
            check_ids(inputs, self.vocabulary)
            whole = not lengths.is_floating_point()
            require(whole, "lengths dtype", lengths.dtype, "an integer dtype")
            short = lengths[(lengths < 1) | (lengths > len(inputs))]
            require(not short.numel(), "lengths", short.tolist()[:5], f"1 to {len(inputs)}")

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., *output_shape of the core] -> [..., V]."""
        return self.head(outputs.flatten(-len(self.decoder.output_shape)))

    def one_hot(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids.long(), self.vocabulary).to(self._features.dtype)

    def _fed_back(self, symbol, state, steps, targets, feedback, generator):
        outputs = []
        for t in range(steps):
            with self._cores_precision():
                output, state = self.decoder.step(self.one_hot(symbol), state)
            outputs.append(self.logits(output))  # [B, V]
            symbol = outputs[-1].argmax(-1)
            if targets is not None:
                chance = torch.rand(symbol.shape, generator=generator, device=symbol.device)
                symbol = torch.where(chance < feedback, symbol, targets[t])
        return torch.stack(outputs)

    @property
    def _features(self) -> Tensor:
        return self.head[-1].weight


def ending_together(steps: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Samples of these lengths [B] moved to end at the same step -> which of its steps each one then has
    [steps, B], its first before it begins, and where it begins [B]."""
    begins = steps - lengths
    return (torch.arange(steps, device=lengths.device)[:, None] - begins).clamp(min=0), begins


def check_steps(steps: int) -> None:
    require(isinstance(steps, int) and steps >= 1, "steps", steps, "1 or more")


def _shapes(state: State) -> list:
    shapes: list = []
    map_state(lambda part: shapes.append(list(part.shape)), state)
    return shapes
