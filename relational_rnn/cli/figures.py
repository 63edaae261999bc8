"""rmc figures: pictures of runs and results, as PNG and SVG."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors, whole_number

RESULTS = "results"
HELP = """\
usage: rmc figures [RUN ...] --output FOLDER [--results FOLDER] [--level SEED]
                   [--language FILE,FILE]

Draws into FOLDER, each figure as .png and .svg:
  overview            of results: the runs of README's table beside the paper's
                      numbers
  curves-EXPERIMENT   learning curves, a panel a task, a line a core: the median
                      of its seeds and their range
  sweep               N-th farthest: accuracy against training time, by
                      memories, heads and gates
  box-world-level     with --level: a BoxWorld level and the graph it was made
                      from
  unroll-length       with --language: what a language model loses in short
                      unrolls without state transfer
  word-frequency      with --language: its perplexity by how frequent words are
RUN is a run folder; what is in --results is drawn too, or in results if nothing
else is given. --language takes what rmc eval RUN --unrolls 10,50,100
--frequencies --out FILE wrote. Only files are read, damaged ones as far as they
can be; what was left out is said.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, output = take_option(arguments, "--output")
    rest, results = take_option(rest, "--results")
    rest, level = take_option(rest, "--level")
    rest, language = take_option(rest, "--language")
    if output is None:
        raise UsageError("rmc figures needs --output FOLDER")
    if unknown := [argument for argument in rest if argument.startswith("--")]:
        raise UsageError(f"unknown option {unknown[0]!r}; allowed: --output, --results, --level, --language")
    seed = None if level is None else whole_number("--level", level)
    output = Path(output)
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file; allowed: a folder, or a name for a new one")
    with user_errors():
        wanted = rest or results is not None or (level is None and language is None)
        runs, kept = read(rest, None if results is None else Path(results)) if wanted else ([], {})
        texts = [Path(name) for name in language.split(",")] if language else []
    if not runs and seed is None and not texts:
        raise UsageError(f"nothing to draw: no RUN given and no results in {results or RESULTS}/runs")
    for run in runs:
        if notice := run.notice():
            print(f"note: {notice}", file=sys.stderr)
    with user_errors():
        for path in draw(runs, kept, output, seed, texts):
            print(path)
    return 0


def read(folders: list[str], results: Path | None) -> tuple[list, dict]:
    """Run folders and, where they are asked for or there is no folder, results; and the results apart."""
    from relational_rnn.analysis.results import as_run, load_all
    from relational_rnn.analysis.runs import read_run

    found = [read_run(Path(folder)) for folder in folders]
    kept = load_all(results or Path(RESULTS)) if not folders or results is not None else {}
    found += [as_run(result, Path(name).stem) for name, result in kept.items()]
    return found, kept


def draw(runs: list, kept: dict, output: Path, level: int | None, texts: list[Path]):
    """Draw what there is to draw; yields the pictures as they are made."""
    from relational_rnn.analysis import figures
    from relational_rnn.analysis.figures_overview import overview
    from relational_rnn.analysis.figures_sweep import sweep

    drawn = 0
    if (figure := overview(kept)) is not None:
        drawn += 1
        yield from figures.save(figure, output, "overview")
    for experiment in dict.fromkeys(run.experiment for run in runs):
        try:
            figure, left_out = figures.learning_curves([run for run in runs if run.experiment == experiment])
        except ValueError as error:  # one experiment without a point is no reason to draw no other
            print(f"note: {error}", file=sys.stderr)
            continue
        for reason in left_out:
            print(f"note: {reason}", file=sys.stderr)
        drawn += 1
        yield from figures.save(figure, output, f"curves-{safe(experiment)}")
    if (figure := sweep(runs)) is not None:
        yield from figures.save(figure, output, "sweep")
    if level is not None:
        from relational_rnn.analysis.figures_box_world import level_and_graph

        drawn += 1
        yield from figures.save(level_and_graph(level), output, "box-world-level")
    if texts:
        from relational_rnn.analysis import figures_language

        found = [figures_language.read_evaluation(path) for path in texts]
        for name in ("unroll_length", "word_frequency"):
            figure = getattr(figures_language, name)(found)
            if figure is not None:
                drawn += 1
                yield from figures.save(figure, output, name.replace("_", "-"))
    if not drawn:
        raise ValueError("nothing was drawn: there is no point in what was given")


def safe(name: str) -> str:
    """A run folder says what its experiment is called: never a path."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-") or "unnamed"
