"""rmc generate: text from a trained language model, or the likeliest next words."""

from __future__ import annotations

import sys
from itertools import chain

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors, whole_number
from relational_rnn.experiments import open_run

HELP = """\
usage: rmc generate RUN [--prompt TEXT] [--length N] [--temperature X]
                    [--top-k K] [--seed N] [--keep-unknown]
                    [--device auto|cpu|cuda]
       rmc generate RUN [--prompt TEXT] --suggest K

RUN is a run folder of `rmc train lm`. Prints the prompt and --length (50) words
after it, drawn from the --top-k likeliest (all) at --temperature (1.0; lower
prefers likely words, 0 always takes the likeliest). The same --seed (0) gives
the same text. <unk> is not drawn unless --keep-unknown is given. The prompt is
cut into words as the training text was. --suggest prints the K likeliest next
words instead, with probabilities.
"""
OF_DRAWING = ("--length", "--temperature", "--top-k", "--seed", "--keep-unknown")


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    given = [word.partition("=")[0] for word in arguments]
    useless = [word for word in given if word in OF_DRAWING] if "--suggest" in given else []
    if useless:
        raise UsageError(f"{useless[0]} is not allowed with --suggest, which draws no words")
    keep_unknown = "--keep-unknown" in arguments
    arguments = [argument for argument in arguments if argument != "--keep-unknown"]
    arguments, prompt = take_option(arguments, "--prompt", default="")
    arguments, length = take_option(arguments, "--length", default="50")
    arguments, temperature = take_option(arguments, "--temperature", default="1.0")
    arguments, top_k = take_option(arguments, "--top-k")
    arguments, seed = take_option(arguments, "--seed", default="0")
    arguments, suggestions = take_option(arguments, "--suggest")
    arguments, device = take_option(arguments, "--device", default="auto")
    if unknown := next((argument for argument in arguments if argument.startswith("-")), None):
        raise UsageError(f"unknown option {unknown!r}; see rmc generate --help")
    if len(arguments) != 1:
        raise UsageError(f"rmc generate takes one run folder, got {arguments}")
    length, seed = whole_number("--length", length), whole_number("--seed", seed)
    top_k = None if top_k is None else whole_number("--top-k", top_k, 1)
    suggestions = None if suggestions is None else whole_number("--suggest", suggestions, 1)
    temperature = number("--temperature", temperature)

    import torch

    from relational_rnn.experiments import language_runs
    from relational_rnn.tasks.language_generation import generate, suggest
    from relational_rnn.tasks.text.tokenizers import EOS, tokenize
    from relational_rnn.tasks.text.vocabulary import UNK_ID
    from relational_rnn.training.device import pick_device

    with user_errors():
        run, experiment, config = open_run(arguments[0])
        if experiment.NAME != "lm":
            raise UsageError(f"{arguments[0]} is of {experiment.NAME!r}; allowed: a run of 'lm'")
        device = pick_device(device)
        model, vocabulary, tokenizer, _ = language_runs.load_model(run, config, device)
        words = tokenize(prompt, tokenizer)
        unknown = dict.fromkeys(word for word in words if word not in vocabulary.ids)  # each once
        if unknown:
            print(f"not in the vocabulary, read as <unk>: {' '.join(map(shown, unknown))}", file=sys.stderr)
        ids = vocabulary.encode(words)
        if suggestions is not None:
            for word, chance in suggest(model, ids, suggestions):
                print(f"{100 * chance:6.2f} %  {shown(vocabulary.words[word])}")
            return 0
        drawn = generate(
            model,
            ids,
            length=length,
            temperature=temperature,
            top_k=top_k,
            never=() if keep_unknown else (UNK_ID,),
            generator=torch.Generator().manual_seed(seed),
        )
        before = "\n"
        for word in chain(words, (vocabulary.words[word] for word in drawn)):
            text = "\n" if word == EOS else shown(word)
            print(text if "\n" in (before, text) else f" {text}", end="", flush=True)
            before = text
        print()
    return 0


def number(option: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise UsageError(f"{option} {value!r} is not allowed; allowed: a number from 0")
    return found


def shown(word: str) -> str:
    """Words come from texts nobody has checked: nothing that a terminal would act on is printed, and ? for
    what it has no letters for."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in word)
    encoding = sys.stdout.encoding or "utf-8"
    return printable.encode(encoding, "replace").decode(encoding)
