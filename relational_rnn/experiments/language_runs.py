"""A run folder of language modelling: its model without its data, and its data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from relational_rnn.experiments import table2_lm
from relational_rnn.experiments.language_problem import TEXT, VOCABULARY, check_vocabulary, open_text
from relational_rnn.tasks.language_model import LanguageModel
from relational_rnn.tasks.text.prepare import Prepared
from relational_rnn.tasks.text.tokenizers import TOKENIZERS
from relational_rnn.tasks.text.vocabulary import Vocabulary
from relational_rnn.training.run_folder import RunFolder, RunFolderError
from relational_rnn.training.weights import load_weights


class TrainedModel(NamedTuple):
    model: LanguageModel  # in eval mode, with averaged weights where the run averages
    vocabulary: Vocabulary
    tokenizer: str
    step: int


def load_model(run: RunFolder, config: table2_lm.Config, device: torch.device) -> TrainedModel:
    """The newest weights of a run. Nothing but the run folder is read."""
    for name in (VOCABULARY, TEXT):
        if not (run.path / name).is_file():
            raise RunFolderError(f"{run.path} is not a whole run folder of language modelling: no {name}")
    vocabulary = Vocabulary.load(run.path / VOCABULARY)
    tokenizer, model = _tokenizer(run.path / TEXT), model_of(run, config)
    step = load_weights(run, model)["step"]
    return TrainedModel(model.to(device).eval(), vocabulary, tokenizer, step)


def model_of(run: RunFolder, config: table2_lm.Config) -> LanguageModel:
    """As large as the run's, with weights that do not matter. Nothing but the run folder is read."""
    if not (run.path / VOCABULARY).is_file():
        raise RunFolderError(f"{run.path} is not a whole run folder of language modelling: no {VOCABULARY}")
    return table2_lm.build_model(config, len(Vocabulary.load(run.path / VOCABULARY)))


def _tokenizer(path: Path) -> str:
    try:
        name = json.loads(path.read_text())["tokenizer"]
    except (ValueError, KeyError, TypeError):
        name = None
    if name not in tuple(TOKENIZERS):
        raise RunFolderError(f"{path} is damaged: tokenizer is {name!r}; allowed: {', '.join(TOKENIZERS)}")
    return name


def load_text(config: table2_lm.Config, vocabulary: Vocabulary, data: str | None = None) -> Prepared:
    """The text a run was trained on, or another folder of it; its vocabulary must be the run's."""
    if data is not None:
        config = replace(config, data=str(Path(data)))
    text = open_text(config.data, config.prepared, config.max_words, config.min_count)
    check_vocabulary(text, vocabulary.hash)
    return text
