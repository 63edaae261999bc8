"""rmc eval of a language model: perplexity in one unroll, and what the appendix shows beyond it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors, whole_number
from relational_rnn.experiments import open_run

HELP = """\
usage: rmc eval RUN [--splits valid,test] [--data FOLDER] [--unrolls 10,50,100]
                [--frequencies] [--dynamic] [--precision fp32|tf32|bf16]
                [--device auto|cpu|cuda] [--out FILE]

RUN is of language modelling. Prints one JSON object with the perplexity over
every token of each split, in one unroll over all of it; the weights are the
averaged ones where the run averages.
--data         another folder of the text than the one the run names; its
               vocabulary must be the same
--unrolls      also in unrolls of these lengths without state transfer between
               them (the appendix's figure)
--frequencies  also by how often a word occurs in the training text (the
               appendix's table)
--dynamic      also while the model goes on learning from the split; not to be
               compared with the others
--out          writes the JSON to a new file as well; rmc figures --language
               draws from these
"""
SWITCHES = ("--frequencies", "--dynamic")


def main(arguments: list[str]) -> int:
    switches = {name for name in SWITCHES if name in arguments}
    arguments = [argument for argument in arguments if argument not in SWITCHES]
    arguments, splits = take_option(arguments, "--splits", default="valid,test")
    arguments, data = take_option(arguments, "--data")
    arguments, unrolls = take_option(arguments, "--unrolls")
    arguments, precision = take_option(arguments, "--precision", default="fp32")
    arguments, device = take_option(arguments, "--device", default="auto")
    arguments, out = take_option(arguments, "--out")
    if len(arguments) != 1:
        raise UsageError(f"rmc eval takes one run folder and options of --help, got {arguments}")
    splits = splits.split(",")
    for split in splits:
        if split not in ("train", "valid", "test"):
            raise UsageError(f"--splits {split!r} is not allowed; allowed: train, valid, test, with commas")
    lengths = [whole_number("--unrolls", part, 1) for part in unrolls.split(",")] if unrolls else []
    if precision not in ("fp32", "tf32", "bf16"):
        raise UsageError(f"--precision {precision!r} is not allowed; allowed: fp32, tf32, bf16")
    if out is not None and not Path(out).parent.is_dir():
        raise UsageError(f"--out {out} is not allowed: {Path(out).parent} is no folder")
    if out is not None and Path(out).exists():
        raise UsageError(f"--out {out} exists already; choose another file")

    found = evaluate(arguments[0], splits, data, lengths, switches, precision, device)
    text = json.dumps(found)
    print(text)  # first: it is not lost if the file cannot be written
    if out is not None:
        Path(out).write_text(text + "\n")
    return 0


def evaluate(run_folder, splits, data, lengths, switches, precision, device) -> dict:
    import torch

    from relational_rnn.experiments import language_runs
    from relational_rnn.tasks import language_evaluation as evaluation
    from relational_rnn.tasks.language_dynamic import Dynamic, dynamic_score
    from relational_rnn.training.device import autocast, pick_device, set_float32_precision

    with user_errors():
        device = pick_device(device)
        run, _, config = open_run(run_folder)
        model, vocabulary, _, step = language_runs.load_model(run, config, device)
        if data is not None:  # the token files of another text must not replace the run's own
            config = replace(config, prepared="")
        text = language_runs.load_text(config, vocabulary, data)
    set_float32_precision(precision)
    found = {"run": str(run.path), "core": config.core, "step": step, "precision": precision}
    with torch.no_grad(), autocast(device, precision), status() as shown:
        for split in splits:
            tokens = text.tokens[split]
            watch = lambda share, split=split: shown(f"{split} in one unroll, {100 * share:.0f} %")  # noqa: E731
            found[f"{split}_tokens"] = len(tokens)
            if "--frequencies" in switches:  # has the sum of all words too, from the same unroll
                rows = evaluation.score_frequencies(
                    model, tokens, text.tokens["train"], device=device, watch=watch
                )
                found[f"{split}_perplexity"] = rows["all"]["perplexity"]
                found[f"{split}_frequencies"] = rows
            else:
                found[f"{split}_perplexity"] = evaluation.score(
                    model, tokens, device=device, watch=watch
                ).perplexity
            if lengths:
                shown(f"{split} in shorter unrolls")
                found[f"{split}_unrolls"] = evaluation.score_unrolls(model, tokens, lengths, device=device)
            if "--dynamic" in switches:
                shown(f"{split} while learning from it")
                dynamic = dynamic_score(model, tokens, text.tokens["train"], Dynamic(), device=device)
                found[f"{split}_dynamic_perplexity"] = dynamic.perplexity
    return found


@contextlib.contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A line about what is being read, where standard error is a terminal; output has the scores alone."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as line:
        yield line.update
