"""Training speed of language models: tokens a second of whole updates, and peak memory.

    python benchmarks/language_model.py [--only paper] [--updates 30]
                                        [--out benchmarks/results/language_model.json]

An update is what `rmc train lm` does: the window cut from the text on the device, embedding, core, softmax
over all words, backward pass, clipping, Adam; bf16 autocast; on a GPU one CUDA graph. `paper` is the model of
appendix A.4 (250,000 words, 384 streams of 100 words) beside a cuDNN LSTM of equal parameters, in bf16 and in
TF32, as the presets have it for its cell's sake; the others are presets of that name. Words are random with
Zipf's frequencies. `--small` shrinks all sizes, for a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from provenance import provenance, save

from relational_rnn.experiments import table2_lm
from relational_rnn.experiments.language_problem import LanguageModelProblem
from relational_rnn.tasks.text.prepare import Prepared
from relational_rnn.tasks.text.vocabulary import Vocabulary
from relational_rnn.training.device import pick_device
from relational_rnn.training.loop import Trainer

WARM_UP = 6  # updates: some eager ones, the capture and some replays
ROWS = [  # preset, words
    ("paper", 250_000),
    ("wikitext2", 33_278),
    ("wikitext2-large", 33_278),
    ("gutenberg45", 65_536),
]
CORES = [("rmc", "rmc", True), ("lstm", "lstm", True), ("lstm tf32", "lstm", False)]  # name, core, lstm.bf16


def random_text(words: int, tokens: int) -> Prepared:
    """Frequencies as in real text: the r-th most frequent word has a share of about 1 / r."""
    chances = 1 / np.arange(1, words + 1)
    ids = np.random.default_rng(0).choice(words, tokens, p=chances / chances.sum()).astype(np.uint32)
    vocabulary = Vocabulary(["<unk>", "<eos>", *(f"word{i}" for i in range(words - 2))], [1] * words)
    return Prepared(Path("random"), vocabulary, {"train": ids, "valid": ids, "test": ids}, "whitespace")


def settings(preset: str, core: str, bf16: bool, small: bool) -> table2_lm.Config:
    config = table2_lm.PRESETS[preset]()
    config = replace(config, core=core, lstm=replace(config.lstm, bf16=bf16))
    if small:
        config = replace(
            config,
            steps=5,
            training=replace(config.training, batch_size=4),
            model=replace(config.model, embedding=16),
            rmc=replace(config.rmc, total_units=32),
            lstm=replace(config.lstm, units=24),
        )
    return config


def measure(config: table2_lm.Config, words: int, updates: int, device: torch.device, small: bool) -> dict:
    words = min(words, 1000) if small else words
    batch, steps = config.training.batch_size, config.steps
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    problem = LanguageModelProblem(
        table2_lm.build_model(config, words),
        random_text(words, batch * steps * 4),
        device=device,
        batch_size=batch,
        steps=steps,
        shift=config.shift,
    )
    total = WARM_UP + updates
    quiet = dict(steps=total, log_every=total, eval_every=0, checkpoint_every=total)
    trainer = Trainer(problem, replace(config.training, **quiet), device)
    trainer.run(until=WARM_UP)
    began = time.perf_counter()  # run() has waited for the device
    while trainer.step < total:
        trainer._update()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / updates
    loss = trainer.sums[trainer.names.index("nats")].item() / trainer.summed
    row = dict(
        parameters=sum(p.numel() for p in problem.model.parameters() if p.requires_grad),
        words=words,
        batch=f"{batch} x {steps}",
        ms_per_update=round(1000 * seconds, 3),
        tokens_per_second=round(batch * steps / seconds),
        mean_nats=round(loss, 3),
    )
    if device.type == "cuda":
        row["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="rows whose name has this text; others of the file are kept"
    )
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--small", action="store_true", help="tiny sizes: that it runs, not how fast")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/language_model.json"))
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    if device.type != "cuda" and not arguments.small:
        raise SystemExit("this benchmark needs a CUDA GPU; with --small it runs anywhere, and says nothing")

    kept = json.loads(arguments.out.read_text())["rows"] if arguments.only and arguments.out.exists() else []
    rows = [row for row in kept if arguments.only not in row["row"]]
    for (preset, words), (title, core, bf16) in itertools.product(ROWS, CORES):
        name = f"{preset} {title}"
        if arguments.only in name:
            config = settings(preset, core, bf16, arguments.small)
            rows.append({"row": name} | measure(config, words, arguments.updates, device, arguments.small))
            print(rows[-1], flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    save(provenance(device.type) | dict(small=arguments.small, rows=rows), arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
