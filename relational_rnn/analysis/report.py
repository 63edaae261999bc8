"""results/REPRODUCTION.md and the results table of README.md, written from the files under results/ alone."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from relational_rnn.analysis import report_rows as rows
from relational_rnn.analysis.claims import CLAIMS, STATEMENTS, Claim
from relational_rnn.analysis.report_rows import Outcome
from relational_rnn.analysis.results import ResultError, check_other, load_all
from relational_rnn.analysis.results_make import variant
from relational_rnn.analysis.runs import visible

BEGIN = "<!-- results: written by `rmc results build`, not by hand -->"
END = "<!-- end of results -->"
REPORT = "REPRODUCTION.md"
INTRODUCTION = """\
# The paper's claims and what came of them

Written by `rmc results build` from the files in runs/, one a run; [docs/results.md](../docs/results.md)
explains them. [LOG.md](LOG.md) has what failed on the way.

"Ours" is the last evaluation on fresh data, of several seeds the median with the range in brackets; "best"
is the best evaluation of a run, which is what the paper reports for programs. Presets other than `paper` are
ours: same task and metric, another way of training. A command makes a run's settings with today's presets;
the code that made the run is that of the commit in its file, and what was not committed then, where the
file says so. Training time leaves out evaluations and checkpoints, wall time does not. What was not run
says so.
"""
HEAD = (
    *("what", "model", "the paper", "ours", "best", "the paper's number after", "updates"),
    *("seen", "training time", "hardware", "command", "runs"),
)
# README: a row, the RMC's claim and the one beside it.
HEADLINES = (
    ("N-th farthest, 8 vectors x 16 dimensions (5.1)", "nth-16-rmc", "nth-16-lstm"),
    ("the same, beside it the DNC", None, "nth-16-dnc"),
    ("N-th farthest, 8 x 32", "nth-32-rmc", None),
    ("Programs: addition (table 1)", "lte-addition-rmc", "lte-addition-lstm"),
    ("Programs: control", "lte-control-rmc", "lte-control-lstm"),
    ("Programs: full program", "lte-program-rmc", "lte-program-lstm"),
    ("Memorisation: copy", "lte-copy-rmc", "lte-copy-lstm"),
    ("Memorisation: reverse", "lte-reverse-rmc", "lte-reverse-lstm"),
    ("Memorisation: double", "lte-double-rmc", "lte-double-lstm"),
    ("Mini Pacman, viewport (5.3), points", "pacman-viewport-rmc", "pacman-viewport-lstm"),
    ("Mini Pacman, full view, points", "pacman-full-rmc", "pacman-full-lstm"),
    ("BoxWorld, viewport (A.3); beside it the ConvLSTM", "box-world-rmc", "box-world-conv-lstm"),
    ("the same, its weights trained further", "box-world-rmc-further", None),
    ("WikiText-103, test perplexity (table 2)", "lm-wikitext103-test-rmc", "lm-wikitext103-test-lstm"),
    ("Project Gutenberg, test perplexity", "lm-gutenberg-test-rmc", "lm-gutenberg-test-lstm"),
    ("GigaWord, test perplexity", "lm-gigaword-test-rmc", "lm-gigaword-test-lstm"),
    ("Gutenberg, 45M tokens, perplexity (not in the paper)", "lm-gutenberg45-rmc", "lm-gutenberg45-lstm"),
    ("WikiText-2, 11M parameters, perplexity (likewise)", "lm-wikitext2-rmc", "lm-wikitext2-lstm"),
)


def build(folder: Path) -> dict[Path, str]:
    """The text each generated file must have: the report, and README.md beside the folder if it is marked."""
    folder = Path(folder)
    results = load_all(folder)
    texts = {folder / REPORT: reproduction(folder, results)}
    readme = folder.parent / "README.md"
    if readme.exists() and BEGIN in readme.read_text():
        texts[readme] = with_table(readme, readme_table(folder, results))
    return texts


def with_table(readme: Path, table: str) -> str:
    """The page with the table between its markers replaced."""
    before, _, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end or BEGIN in after:
        raise ResultError(f"{readme} must have {BEGIN!r} and, after it, {END!r}, each once")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


# ------------------------------------------------------------------ the report


def reproduction(folder: Path, results: dict[str, dict]) -> str:
    parts = [INTRODUCTION.strip()]
    for section in dict.fromkeys(claim.section for claim in CLAIMS):
        claims = [claim for claim in CLAIMS if claim.section == section]
        lines = [line for claim in claims for line in claim_lines(claim, results)]
        parts.append(f"## {section}")
        if lines:
            parts.append(markdown([list(HEAD), *lines]))
        if silent := [c for c in claims if c.paper is None and not rows.outcomes(c, results)]:
            names = ", ".join(f"{claim.what} ({claim.model})" for claim in silent)
            parts.append(f"Not run, and without a number to compare with: {names}.")
            parts.append(f"For example: `{silent[0].command}`")
    statements = [["statement", "shown in"]]
    for statement, pattern in STATEMENTS:
        names = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
        statements.append([statement, " ".join(f"[{name}]({name})" for name in names) or "not checked"])
    parts += ["## Statements without a table", markdown(statements)]
    others = [other_line(outcome) for outcome in rows.unclaimed(results)]
    if others:
        head = ["what", "model", "last evaluation", *HEAD[6:]]
        parts += ["## Other runs", markdown([head, *others])]
    summaries = [["file", "what", "hardware", "command"]]
    for path in sorted(folder.glob("*.json")):
        content = check_other(path)
        what = content.get("what") or content.get("experiment") or ""
        summaries.append(
            [f"[{path.name}]({path.name})", what, content["hardware"], f"`{content['command']}`"]
        )
    if summaries[1:]:
        parts += ["## Files that are no single run", markdown(summaries)]
    return "\n\n".join(parts) + "\n"


def claim_lines(claim: Claim, results: dict[str, dict]) -> list[list[str]]:
    """One line for each kind of run we have of a claim; one that says "not run" if there is none."""
    found = rows.outcomes(claim, results)
    start = [claim.what, claim.model, rows.paper_number(claim)]
    if not found:
        blank = [""] * (len(HEAD) - len(start) - 3)
        return [] if claim.paper is None else [[*start, "not run", *blank, f"`{claim.command}`", ""]]
    lines = []
    for outcome in found:
        best = outcome.best(claim.metric)
        scores = [
            rows.ours(outcome),
            rows.spread(claim.unit, best) if best else "",
            rows.time_to_paper(outcome),
        ]
        lines.append([*start, *scores, *costs(outcome)])
    return lines


def other_line(outcome: Outcome) -> list[str]:
    first = outcome.first
    keys = [key for key in first["final"] if key.startswith("eval_")]
    scores = ", ".join(f"{key.removeprefix('eval_')} {plain_spread(outcome.values(key))}" for key in keys)
    what = f"{first['experiment']} {first['task']}, preset {first['preset']}"
    return [what, first["core"], scores, *costs(outcome)]


def plain_spread(values: list[float]) -> str:
    """Of several seeds the median and the range, as rows.spread has it."""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g}, {len(values)} seeds)"


def costs(outcome: Outcome) -> list[str]:
    return [
        rows.updates(outcome),
        rows.amount_seen(outcome),
        rows.time_taken(outcome),
        rows.hardware(outcome),
        f"`{outcome.command()}`",
        links(outcome, ""),
    ]


def links(outcome: Outcome, prefix: str) -> str:
    return " ".join(f"[seed {result['seed']}]({prefix}{name})" for name, result in outcome.results.items())


# ------------------------------------------------------------------ README


def readme_table(folder: Path, results: dict[str, dict]) -> str:
    by_key = {claim.key: claim for claim in CLAIMS}
    lines = [["what", "RMC", "LSTM", "the paper: RMC; LSTM", "files"]]
    if (folder / "demo.json").exists():
        lines.append(demo_line(folder))
    for what, *keys in HEADLINES:
        cells, papers, files = [], [], []
        for key in keys:
            if key is None:
                cells.append("")
                continue
            claim = by_key[key]
            papers.append(rows.paper_number(claim))
            found = rows.outcomes(claim, results)
            if not found:
                cells.append("not run")
                continue
            first = found[0]
            cells.append(headline(first))
            files.append(f"{claim.model} {links(first, f'{folder.name}/')}")
        lines.append([what, *cells, "; ".join(papers) if set(papers) != {"none"} else "", "; ".join(files)])
    return markdown(lines)


def headline(outcome: Outcome) -> str:
    """A number short enough for README, with how it was got where that is not by the claim's command."""
    claim = outcome.claim
    values = outcome.values(claim.metric)
    text = rows.spread(claim.unit, values) if values else "not measured"
    if not outcome.finished:
        text += f", stopped at {rows.updates(outcome)} updates"
    if variant(outcome.first) or outcome.first["preset"] not in claim.command.split():
        text += f" (preset {outcome.first['preset']}{', changed' if variant(outcome.first) else ''})"
    return text


def demo_line(folder: Path) -> list[str]:
    """results/demo.json: lowest and highest score of its seeds."""
    content = check_other(folder / "demo.json")
    cells = []
    for core in ("rmc", "lstm"):
        scores = [100 * run[f"{core}_accuracy"] for run in content["runs"]]
        cells.append(f"{min(scores):.1f} to {max(scores):.1f} %")
    what = f"N-th farthest, 3 x 2 (the demo), {len(content['runs'])} seeds, 128 units"
    return [what, *cells, "not in the paper", f"[demo.json]({folder.name}/demo.json)"]


def markdown(lines: list[list[str]]) -> str:
    """A table; a | in a cell would end it."""
    head, *body = ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def _cell(text: str) -> str:
    return visible(text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " "))
