"""Program evaluation and memorisation (section 4.1, table 1, appendix A.2): settings, cores and presets.

Presets are the functions at the end; `rmc train lte --preset NAME --task TASK --core CORE` runs one cell of
the table, `rmc reproduce table1` all of them. docs/learning-to-execute.md describes the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch

from relational_rnn.cores.base import RecurrentCore, require
from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.entnet import EntNet
from relational_rnn.experiments.lte_cores import LSTM, RMC, Computer, CoreName, Entities
from relational_rnn.experiments.lte_problem import LearningToExecuteProblem, score_operations
from relational_rnn.experiments.rmc_settings import build_rmc
from relational_rnn.tasks import learning_to_execute as lte
from relational_rnn.tasks.heads import Head
from relational_rnn.tasks.lte_curriculum import Curriculum, Strategy
from relational_rnn.tasks.lte_scratchpad import Scratchpad
from relational_rnn.tasks.lte_text import VOCABULARY
from relational_rnn.tasks.seq2seq import Regime, Seq2Seq
from relational_rnn.training.config import ADDED, Training

NAME = "lte"

TASKS, CORES = get_args(lte.TaskName), get_args(CoreName)

PAPER = {  # table 1: accuracy per character at nest 2, length 5, in TASKS' order
    "rmc": (0.999, 0.996, 0.790, 1.000, 1.000, 0.998),
    "lstm": (0.998, 0.974, 0.661, 0.998, 0.997, 0.997),
    "entnet": (0.984, 0.980, 0.734, 0.918, 1.000, 0.623),
    "dnc": (0.994, 0.838, 0.695, 1.000, 1.000, 1.000),
}


@dataclass(frozen=True)
class Model:
    """What is around the core."""

    regime: Regime = "non-auto-regressive"
    """What the decoder reads in training (tasks/seq2seq.py); the default is the paper's best."""
    feedback: float = 1.0
    """Regime scheduled: chance that the decoder reads its own prediction rather than the target."""
    feedback_steps: int = 0
    """Regime scheduled: updates over which that chance rises from 0."""
    decoder: Literal["shared", "separate"] = "shared"
    """The encoder's core again, as in Sonnet, or one with its own weights."""
    head: Head = field(default="relu", metadata=ADDED)
    """Layers between the core's output and the logits: of ReLUs, or of products (tasks/heads.py)."""
    head_layers: int = 4
    """How many of them."""
    head_units: int = 256
    """Units in each of them."""
    scratchpad: bool = field(default=False, metadata=ADDED)
    """Write the calculation down, digit by digit, and read it, in training the true one, else what was
    written (tasks/lte_scratchpad.py). Not the paper's."""


@dataclass(frozen=True)
class Difficulty:
    """How long and nested the samples trained on are; those of the evaluation are always of the maximum."""

    strategy: Strategy = "mix"
    """Uniform up to the maximum (the paper's), or another of docs/learning-to-execute.md."""
    threshold: float = 0.1
    """naive, combined: move on when the loss no longer grows by this fraction from interval to interval."""
    min_reports: int = 10
    """naive, combined: logging intervals a level gets at least."""
    mastery: float = field(default=0.95, metadata=ADDED)
    """mastery: move on when this share of an interval's characters is right."""
    patience: int = field(default=0, metadata=ADDED)
    """mastery: move on after so many logging intervals whatever the share; 0: never."""
    also: tuple[lte.OperationName, ...] = field(default=(), metadata=ADDED)
    """Operations to train on besides the task's own, or more often where they are its own or named again; the
    evaluation has the task's only, as the paper."""
    balance: bool = field(default=False, metadata=ADDED)
    """Draw operations as often as they are got wrong, instead of equally often, in training. With a
    scratchpad the digits that are written there count."""
    thinned: float = field(default=0.0, metadata=ADDED)
    """Share of samples to train on in which some digits are zero and some loops run once, so that what has to
    be remembered can be learned piece by piece (tasks/lte_thinning.py)."""


@dataclass(frozen=True)
class Config:
    training: Training
    core: CoreName = "rmc"
    """The recurrent core; its settings are those of its name."""
    task: lte.TaskName = "program"
    """What is read and written."""
    length: int = 5
    """Digits of the longest literal."""
    nest: int | None = None
    """Deepest nesting of a program; None is 2 for programs, and 1, all there is, for memorisation."""
    rmc: RMC = field(default_factory=RMC)
    lstm: LSTM = field(default_factory=LSTM)
    entnet: Entities = field(default_factory=Entities)
    dnc: Computer = field(default_factory=Computer)
    model: Model = field(default_factory=Model)
    curriculum: Difficulty = field(default_factory=Difficulty)
    eval_samples: int = 12_800
    """Fresh samples of maximum difficulty behind each eval_accuracy."""

    def __post_init__(self):
        _ = self.training_samples  # checks task, length, nest, also and thinned
        require(self.eval_samples >= 1, "eval_samples", self.eval_samples, "1 or more")
        model = self.model
        require(0 <= model.feedback <= 1, "feedback", model.feedback, "0 to 1")
        require(model.feedback_steps >= 0, "feedback_steps", model.feedback_steps, "0 or more")
        require(model.head_layers >= 0, "head_layers", model.head_layers, "0 or more")
        require(model.head_units >= 1, "head_units", model.head_units, "1 or more")
        memorisation, balance = self.samples.memorisation, self.curriculum.balance
        pad = model.scratchpad
        require(not (pad and memorisation), "scratchpad", pad, f"False, for {self.task} has no calculation")
        one_core = model.regime == "non-auto-regressive" and model.decoder == "shared"
        allowed = "False, unless model.regime is non-auto-regressive and model.decoder shared"
        require(not pad or one_core, "scratchpad", pad, allowed)
        allowed = f"False, for {self.task} has no operations"
        require(not (balance and memorisation), "curriculum.balance", balance, allowed)

    @property
    def samples(self) -> lte.LearningToExecute:
        return lte.LearningToExecute(self.task, self.length, self.nest)

    @property
    def training_samples(self) -> lte.LearningToExecute:
        return replace(self.samples, also=self.curriculum.also, thinned=self.curriculum.thinned)


def build_core(config: Config, device: torch.device) -> RecurrentCore:
    """The core of the name in the settings, on the CPU; `device` is where it is going to run."""
    if config.core == "lstm":
        return DeepLSTM(VOCABULARY, config.lstm.units, config.lstm.layers)
    if config.core == "entnet":
        cells, total = config.entnet.cells, config.entnet.total_units
        require(cells >= 1, "cells", cells, "1 or more")
        require(total >= cells, "total_units", total, f"as many as cells={cells}, or more")
        return EntNet(VOCABULARY, cells, total // cells, config.entnet.style)
    if config.core == "dnc":
        dnc, memorisation = config.dnc, config.samples.memorisation
        automatic = "feedforward" if memorisation else "lstm"
        return DNC(
            VOCABULARY,
            dnc.output_units,
            dnc.memory_size,
            dnc.word_size,
            dnc.read_heads,
            dnc.write_heads,
            automatic if dnc.controller == "auto" else dnc.controller,
            dnc.controller_units,
            dnc.controller_layers,
            compile=dnc.compile and device.type == "cuda",
            fused=dnc.fused,
        )
    return build_rmc(config.rmc, VOCABULARY)


def make_problem(config: Config, device: torch.device) -> LearningToExecuteProblem:
    model, task, curriculum = config.model, config.samples, config.curriculum
    torch.manual_seed(config.training.seed)  # on the CPU, so that weights are the same on any device
    encoder = build_core(config, device)
    decoder = build_core(config, device) if model.decoder == "separate" else None
    around = dict(
        hidden=(model.head_units,) * model.head_layers,
        head=model.head,
        core_autocast=config.core == "rmc",  # bf16 would round an LSTM's cell at every step
    )
    if model.scratchpad:
        whole = Scratchpad(encoder, config.training_samples, **around)
    else:
        whole = Seq2Seq(encoder, decoder, model.regime, **around)
    return LearningToExecuteProblem(
        whole,
        task,
        config.training_samples,
        Curriculum(
            task.length,
            task.nest,
            curriculum.strategy,
            threshold=curriculum.threshold,
            min_reports=curriculum.min_reports,
            mastery=curriculum.mastery,
            patience=curriculum.patience,
            device=device,
        ),
        device=device,
        batch_size=config.training.batch_size,
        feedback=model.feedback,
        feedback_steps=model.feedback_steps,
        eval_samples=config.eval_samples,
        balance=curriculum.balance,
        seed=config.training.seed,
    )


def detail(config: Config, model: Seq2Seq, device: torch.device) -> dict[str, dict]:
    """Scores by the operations of a program and by digit."""
    require(not config.samples.memorisation, "task", config.task, "addition, control, program")
    return {"operations": score_operations(model, config.samples, config.eval_samples, device)}


# ------------------------------------------------------------------ presets


def paper() -> Config:
    """Appendix A.2 to the letter: 200,000 updates of 128 samples, Adam at 1e-3, the Mix curriculum.

    rmc train lte --preset paper --task program --core rmc
    The paper's scores: table 1 (PAPER), each the best of a sweep (--help names its values). Ours: not run.
    """
    training = Training(
        steps=200_000,
        batch_size=128,
        learning_rate=1e-3,
        log_every=500,
        eval_every=5_000,
        checkpoint_every=5_000,
    )
    return Config(training=training)


def fast() -> Config:
    """The paper's tasks with Muon, a decaying rate, a head of products, programs of the maximum alone, half
    of them with digits missing (tasks/lte_thinning.py), and batches so small that two tasks share a GPU. The
    RMC has 4 slots of 256: a sequence is one launch; and unit gates, with which it learns addition sooner.

    rmc train lte --preset fast --task program --core rmc
    Ours: not run on a GPU as it stands; half as wide, an hour of one CPU thread, control 85.6 % (the paper:
    99.6), full programs 61.7 % (79.0). Before digits were missing, on an H200, 9 minutes, two tasks at once:
    control 75.7 %, full programs 65.4 %, addition 99.8 % (99.9), memorisation 100 %, each with settings of
    its own (results/REPRODUCTION.md, LOG.md).
    bf16 for the RMC, TF32 for others.
    """
    training = Training(
        steps=135_000,
        batch_size=84,
        learning_rate=1e-3,
        schedule="cosine",
        final_learning_rate=1e-5,
        warmup_steps=500,
        clip_norm=1.0,
        optimizer="muon",
        muon_ratio=4.0,
        precision="bf16",
        log_every=250,
        eval_every=10_000,
        checkpoint_every=2_500,
    )
    return Config(
        training=training,
        rmc=RMC(total_units=1024, gate_style="unit"),
        model=Model(head="bilinear"),
        curriculum=Difficulty("baseline", thinned=0.5),
    )


def scratchpad() -> Config:
    """`fast` with a calculation that is written down (tasks/lte_scratchpad.py) and a head of products; not as
    the paper, which has programs and their values alone. There is none for memorisation. It trains on
    programs of the maximum alone: digits in the middle of a number then always stand in the same place.

    rmc train lte --preset scratchpad --task program --core rmc
    Ours: not run on a GPU as it stands. With half of the features, 82.8 % of full programs after 7,000
    updates of 64 on a CPU. What it was before had 100 % of control (results/LOG.md).
    """
    config = fast()
    return replace(
        config,
        training=replace(config.training, steps=80_000, muon_ratio=6.0),
        model=replace(config.model, scratchpad=True),
        curriculum=Difficulty("baseline"),
    )


def nest3() -> Config:
    """`fast` at the difficulty of the lower row of the appendix's figure: nest 3, length 6 (programs only).

    rmc train lte --preset nest3 --task control --core rmc
    The paper gives a figure and no numbers; `--preset paper --length 6 --nest 3` is its own setting.
    Ours: not run yet.
    """
    return replace(fast(), length=6, nest=3)


def smoke() -> Config:
    """Seconds on two CPU cores: that everything runs, not that anything is learned.

    rmc train lte --preset smoke --task copy --core rmc
    """
    training = Training(
        steps=40, batch_size=16, log_every=5, eval_every=20, checkpoint_every=20, clip_norm=1.0, device="cpu"
    )
    return Config(
        training=training,
        task="copy",
        length=2,
        rmc=RMC(total_units=32, mem_slots=2, num_heads=2),
        lstm=LSTM(units=16),
        entnet=Entities(total_units=32, cells=2),
        dnc=Computer(controller_units=16, memory_size=6, word_size=4, read_heads=2, output_units=16),
        model=Model(head_layers=1, head_units=16),
        curriculum=Difficulty("combined", min_reports=2),
        eval_samples=200,
    )


PRESETS = {preset.__name__: preset for preset in (paper, fast, scratchpad, nest3, smoke)}
