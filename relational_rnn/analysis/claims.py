"""What the paper claims, number by number, and which of our results speak to each.

A claim without a number in the paper's text (a curve in a figure) has `paper=None`. Sections BEYOND and the
LSTM's rows of language modelling quote other work, as `paper_text` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from relational_rnn.analysis.runs import plural

NAMES = {
    "rmc": "RMC",
    "lstm": "LSTM",
    "entnet": "EntNet",
    "dnc": "DNC",
    "conv-lstm": "ConvLSTM",
}
PERCENT, POINTS, PERPLEXITY = "%", "points", "perplexity"


@dataclass(frozen=True)
class Claim:
    key: str
    section: str
    what: str
    experiment: str
    core: str
    metric: str
    """Of a result's `final` and `best`."""
    unit: str
    paper: float | None
    """In the unit; None: a curve without a number."""
    command: str
    """What makes such a run."""
    paper_text: str | None = None
    """How the paper says it, where that is not just the number."""
    beside: str | None = None
    """A second metric worth showing."""
    needs: dict[str, Any] = field(default_factory=dict)
    """Settings (`task.dims`: 16) a result must have; a tuple lists the values allowed."""
    presets: tuple[str, ...] = ()
    """Only results of these presets; none given: of any."""
    without: tuple[str, ...] = ()
    """Settings that a result must have as in its preset: others are a claim of their own."""
    beyond: tuple[str, ...] = ()
    """Settings that a result must not have as in its preset."""
    to_reach: bool = True
    """Whether the paper's number is one to reach, not one that a weak model stayed under."""

    @property
    def model(self) -> str:
        return NAMES[self.core]

    def fits(self, result: dict) -> bool:
        """Whether a result is a run of what is claimed, whatever its preset."""
        if (result["experiment"], result["core"]) != (self.experiment, self.core):
            return False
        if self.presets and result["preset"] not in self.presets:
            return False
        changed = result["overrides"].keys()
        if not changed.isdisjoint(self.without) or not changed >= set(self.beyond):
            return False
        return all(_setting(result["config"], name) in _allowed(v) for name, v in self.needs.items())


def _allowed(value) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def _setting(config: dict, name: str):
    for part in name.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


# ------------------------------------------------------------------ sections of the report

NTH = "N-th farthest (sections 4.1 and 5.1)"
SWEEP = "N-th farthest: memories, heads and gates (appendix A.1)"
LTE = "Program evaluation and memorisation (table 1)"
LTE_WRITTEN = "Programs with a calculation that is written down (ours), beside table 1, which has none"
LTE_HARD = "Program evaluation, nesting 3 and length 6 (appendix A.2)"
PACMAN = "Mini Pacman (section 5.3)"
BOX_WORLD = "BoxWorld with viewport (appendix A.3)"
LANGUAGE = "Language modelling (table 2)"
FREQUENCY = "Language modelling by word frequency, GigaWord (appendix A.4)"
BEYOND = "Not of the paper: smaller texts, beside the closest published numbers"

# ------------------------------------------------------------------ section 4.1: N-th farthest

EIGHT = {"task.vectors": 8, "task.dims": 16}


def _nth_farthest() -> Iterator[Claim]:
    common = dict(section=NTH, experiment="nth-farthest", metric="eval_accuracy", unit=PERCENT)
    train = "rmc train nth-farthest --preset fast"
    what = "8 vectors of 16 dimensions"
    common["without"] = ("model.mem_slots", "model.num_heads", "model.gate_style")  # the sweep's
    yield Claim("nth-16-rmc", what=what, core="rmc", paper=91, command=train, needs=EIGHT, **common)
    for core in ("lstm", "dnc"):
        yield Claim(
            f"nth-16-{core}",
            what=what,
            core=core,
            paper=30,
            paper_text="under 30 % (best batch)",
            to_reach=False,
            command=f"{train} --core {core}",
            needs=EIGHT,
            **common,
        )
    yield Claim(
        "nth-32-rmc",
        what="8 vectors of 32 dimensions",
        core="rmc",
        paper=91,
        paper_text="similar to 91 %, for few seeds",
        command="rmc train nth-farthest --preset dims32",
        needs={"task.vectors": 8, "task.dims": 32},
        **common,
    )


def _sweep() -> Iterator[Claim]:
    for gate in ("unit", "memory"):
        for slots in (1, 8, 16):
            memories = "memory" if slots == 1 else "memories"
            for heads in (1, 8, 16):
                options = f"--model.mem-slots {slots} --model.num-heads {heads} --model.gate-style {gate}"
                yield Claim(
                    f"sweep-{slots}-{heads}-{gate}",
                    section=SWEEP,
                    what=f"{slots} {memories}, {plural(heads, 'head')}, {gate} gates",
                    experiment="nth-farthest",
                    core="rmc",
                    metric="eval_accuracy",
                    unit=PERCENT,
                    paper=None,
                    command=f"rmc train nth-farthest --preset fast {options}",
                    needs={
                        **EIGHT,
                        "model.total_units": 2048,
                        "model.mem_slots": slots,
                        "model.num_heads": heads,
                        "model.gate_style": gate,
                    },
                )


# ------------------------------------------------------------------ section 4.1: programs

PROGRAMS = ("addition", "control", "program")
LTE_TASKS = (*PROGRAMS, "copy", "reverse", "double")
TABLE_1 = {
    "rmc": (99.9, 99.6, 79.0, 100.0, 100.0, 99.8),
    "lstm": (99.8, 97.4, 66.1, 99.8, 99.7, 99.7),
    "entnet": (98.4, 98.0, 73.4, 91.8, 100.0, 62.3),
    "dnc": (99.4, 83.8, 69.5, 100.0, 100.0, 100.0),
}


def _programs() -> Iterator[Claim]:
    plain = {"model.scratchpad": (None, False)}  # None: older than that option
    parts = (  # section, key, preset, tasks, needs, whether the paper gives numbers
        (LTE, "lte", "fast", LTE_TASKS, {"length": 5, **plain}, True),
        (
            LTE_WRITTEN,
            "lte-scratchpad",
            "scratchpad",
            PROGRAMS,
            {"length": 5, "model.scratchpad": True},
            True,
        ),
        (LTE_HARD, "lte-hard", "nest3", PROGRAMS, {"length": 6, "nest": 3, **plain}, False),
    )
    for section, key, preset, tasks, needs, numbers in parts:
        for place, task in enumerate(tasks):
            nest = (None, 2 if task in PROGRAMS else 1)
            for core, row in TABLE_1.items():
                yield Claim(
                    f"{key}-{task}-{core}",
                    section=section,
                    what=task,
                    experiment="lte",
                    core=core,
                    metric="eval_accuracy",
                    beside="eval_solved",
                    unit=PERCENT,
                    paper=row[place] if numbers else None,
                    command=f"rmc train lte --preset {preset} --task {task} --core {core}",
                    needs={"task": task, "nest": nest, **needs},
                )


# ------------------------------------------------------------------ section 4.2 and A.3: games


def _games() -> Iterator[Claim]:
    scores = {
        ("viewport", "rmc"): 677,
        ("viewport", "lstm"): 550,
        ("full", "rmc"): 1159,
        ("full", "lstm"): 598,
    }
    for (view, core), score in scores.items():
        what = "viewport of 5 x 5" if view == "viewport" else "full view"
        yield Claim(
            f"pacman-{view}-{core}",
            section=PACMAN,
            what=what,
            experiment="mini-pacman",
            core=core,
            metric="eval_sampled_return",
            beside="eval_greedy_return",
            unit=POINTS,
            paper=score,
            command=f"rmc train mini-pacman --preset fast --task.view {view} --core {core}",
            needs={"task.view": view, "task.mode": "regular"},
        )
    mix = {
        "task.view": "viewport",
        "task.grid_size": 12,
        "task.solution_lengths": ([1, 2, 3, 4, 5],),
        "task.num_forward": ([0, 1, 2, 3, 4, 5],),
        "task.branch_length": 1,
    }
    solved, weights = "levels solved, 1 to 5 boxes, 0 to 5 distractors", ("training.weights",)
    fast = "rmc train box-world --preset fast"
    for key, core, score, what, command, rest in (
        ("rmc", "rmc", 98, solved, f"{fast} --core rmc", dict(without=weights)),
        (
            "rmc-further",
            "rmc",
            98,
            f"{solved}; weights trained further",
            f"{fast} --training.weights RUN",
            dict(beyond=weights),
        ),
        ("conv-lstm", "conv-lstm", 73, solved, f"{fast} --core conv-lstm", {}),
    ):
        yield Claim(
            f"box-world-{key}",
            section=BOX_WORLD,
            what=what,
            experiment="box-world",
            core=core,
            metric="eval_sampled_solved",
            beside="eval_greedy_solved",
            unit=PERCENT,
            paper=score,
            paper_text=f"{score} % after 1e9 steps",
            command=command,
            needs=mix,
            **rest,
        )


# ------------------------------------------------------------------ section 4.3: language

TABLE_2 = {  # validation and test perplexity; the LSTM's are of Rae et al. (2018), quoted by the paper
    "paper": ("WikiText-103", {"rmc": (30.8, 31.6), "lstm": (34.1, 34.3)}),
    "paper-gutenberg": ("Project Gutenberg", {"rmc": (39.2, 42.0), "lstm": (41.8, 45.5)}),
    "paper-gigaword": ("GigaWord v5", {"rmc": (None, 38.3), "lstm": (None, 43.7)}),
}
TABLE_3 = {  # test perplexity of words by their count in the training text
    "over_10k": ("words seen more than 10,000 times", {"rmc": 28.3, "lstm": 39.4}),
    "1k_to_10k": ("words seen 1,000 to 10,000 times", {"rmc": 3100, "lstm": 6500}),
    "under_1k": ("words seen less than 1,000 times", {"rmc": 69000, "lstm": 37000}),
}
LM_KEYS = {"paper": "lm-wikitext103", "paper-gutenberg": "lm-gutenberg", "paper-gigaword": "lm-gigaword"}
QUOTED = " (Rae et al.)"


def _language() -> Iterator[Claim]:
    common = dict(experiment="lm", unit=PERPLEXITY)
    for preset, (corpus, models) in TABLE_2.items():
        for core, numbers in models.items():
            for split, number in zip(("validation", "test"), numbers, strict=True):
                if number is not None:
                    yield Claim(
                        f"{LM_KEYS[preset]}-{split}-{core}",
                        section=LANGUAGE,
                        what=f"{corpus}, {split}",
                        core=core,
                        metric="eval_full_valid_perplexity"
                        if split == "validation"
                        else "eval_test_perplexity",
                        paper=number,
                        paper_text=f"{number}{QUOTED}" if core == "lstm" else None,
                        command=f"rmc train lm --preset {preset} --core {core} --data FOLDER",
                        presets=(preset,),
                        **common,
                    )
    for bucket, (what, models) in TABLE_3.items():
        for core, number in models.items():
            yield Claim(
                f"lm-frequency-{bucket}-{core}",
                section=FREQUENCY,
                what=what,
                core=core,
                metric=f"eval_perplexity_{bucket}",
                paper=number,
                paper_text=f"{number:,}{QUOTED}" if core == "lstm" else None,
                command=f"rmc train lm --preset paper-gigaword --core {core} --data FOLDER",
                presets=("paper-gigaword",),
                **common,
            )
    published = {"rmc": (107.2, "107.2 (L0SG's port)"), "lstm": (105.6, "105.6 (L0SG's port)")}
    for core, (number, text) in published.items():
        yield Claim(
            f"lm-wikitext2-{core}",
            section=BEYOND,
            what="WikiText-2, about 11 million parameters, test",
            core=core,
            metric="eval_test_perplexity",
            paper=number,
            paper_text=text,
            command=f"rmc train lm --preset wikitext2 --core {core} --data FOLDER",
            presets=("wikitext2",),
            **common,
        )
    yield Claim(
        "lm-wikitext2-large-rmc",
        section=BEYOND,
        what="WikiText-2, about 33 million parameters, test",
        core="rmc",
        metric="eval_test_perplexity",
        paper=65.8,
        paper_text="65.8 (AWD-LSTM, Merity et al.)",
        command="rmc train lm --preset wikitext2-large --data FOLDER",
        presets=("wikitext2-large",),
        **common,
    )
    for core in ("rmc", "lstm"):
        yield Claim(
            f"lm-gutenberg45-{core}",
            section=BEYOND,
            what="Project Gutenberg, 45 million tokens, test",
            core=core,
            metric="eval_test_perplexity",
            paper=None,
            paper_text="none",
            command=f"rmc train lm --preset gutenberg45 --core {core} --data FOLDER",
            presets=("gutenberg45",),
            **common,
        )


CLAIMS: tuple[Claim, ...] = (*_nth_farthest(), *_sweep(), *_programs(), *_games(), *_language())

# Statements that are no score of a run: (statement, which files in the results folder show it).
STATEMENTS = (
    (
        "N-th farthest (5.1): before vector m is seen one or two slots attend to the input; after, the slots "
        "attend to those it was written to",
        "analysis/attention*",
    ),
    (
        "Language modelling (5.4, A.4): unrolled for 100 words without state the perplexity rises by 1 (RMC) "
        "and 5 (LSTM); beyond 500 words little is gained",
        "analysis/language*",
    ),
)
