"""The claims, what is shown of them, and that the generated pages are those of the files in results/."""

import json
import shlex

import pytest

from relational_rnn.analysis import report, report_rows, results
from relational_rnn.analysis.claims import CLAIMS, LTE_TASKS, TABLE_1
from relational_rnn.analysis.results_make import CORE_NAMES, completed, file_name, flat, make_result
from relational_rnn.cli.train import parse
from relational_rnn.experiments import load_experiment, table1_lte
from relational_rnn.experiments.nth_farthest import Model
from relational_rnn.training.config import to_dict
from tests.analysis.folders import STEPS, accuracies, preset, write_run
from tests.markdown import ROOT

BY_KEY = {claim.key: claim for claim in CLAIMS}


def add(folder, records, experiment="nth-farthest", preset_name="fast", **fields):
    """A result in `folder`, of a run folder made for it."""
    number = len(list(folder.glob("run-*")))
    run = write_run(folder / f"run-{number}", records, experiment, preset_name, **fields)
    result, _ = make_result(run, to_dict(preset(experiment, preset_name)))
    path = folder / "results" / "runs" / file_name(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(results.dumps(result))
    return result


def cells(page, start):
    """The cells of the only line that starts so."""
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_pages_are_up_to_date():
    texts = report.build(ROOT / "results")
    assert set(texts) == {ROOT / "results" / "REPRODUCTION.md", ROOT / "README.md"}
    old = [path.name for path, text in texts.items() if path.read_text() != text]
    assert old == [], "run: rmc results build"


def test_all_kept_results_are_whole():
    for path in (ROOT / "results").glob("*.json"):
        results.check_other(path)
    results.load_all(ROOT / "results")


def test_the_commands_of_kept_results_make_their_settings():
    for name, result in results.load_all(ROOT / "results").items():
        words = shlex.split(result["command"])
        presets = load_experiment(result["experiment"]).PRESETS
        assert words[:5] == ["rmc", "train", result["experiment"], "--preset", result["preset"]]
        made = flat(to_dict(parse(presets[result["preset"]], words[5:], "rmc train")))
        kept = flat(completed(result["experiment"], result["config"]))
        idle = tuple(f"{core}." for core in CORE_NAMES if core != result["core"])
        apart = [key for key in kept if kept[key] != made[key] and not key.startswith(idle)]
        assert apart == [], f"{name}: run: rmc results build"


def test_claims_are_the_papers():
    assert len(BY_KEY) == len(CLAIMS)
    assert LTE_TASKS == table1_lte.TASKS
    assert {core: tuple(round(100 * x, 1) for x in row) for core, row in table1_lte.PAPER.items()} == TABLE_1
    assert [
        BY_KEY[f"pacman-{view}-{core}"].paper for view in ("viewport", "full") for core in ("rmc", "lstm")
    ] == [
        *(677, 550),
        *(1159, 598),
    ]


def test_every_claim_is_a_row_and_what_was_not_run_says_so(tmp_path):
    page = report.reproduction(tmp_path, {})
    for claim in CLAIMS:
        if claim.paper is not None:
            assert f"| {claim.what} | {claim.model} | {report_rows.paper_number(claim)} | not run |" in page
            assert f"`{claim.command}`" in page
        else:
            assert claim.what in page
    assert "| RMC | 91 % | not run |" in page


def test_several_seeds_are_one_row(tmp_path):
    for seed, last in enumerate((0.93, 0.95, 0.90)):
        add(tmp_path, accuracies(0.5, 0.91, last), seed=seed)
    page = report.reproduction(tmp_path / "results", results.load_all(tmp_path / "results"))
    row = cells(page, "8 vectors of 16 dimensions | RMC")
    assert row[3] == "93.0 % (90.0 % to 95.0 %, 3 seeds)"
    assert row[4] == "93.0 % (91.0 % to 95.0 %, 3 seeds)"
    assert row[5].endswith("(3 of 3 seeds)")
    assert row[6] == f"{STEPS:,}"
    assert row[9] == "A GPU"
    assert row[10] == "`rmc train nth-farthest --preset fast --training.seed SEED`"
    assert row[11].count("runs/nth-farthest-8x16-fast-rmc-seed") == 3


def test_the_papers_number_not_reached_and_a_run_stopped(tmp_path):
    add(tmp_path, accuracies(0.3, 0.909, last=1000))
    page = report.reproduction(tmp_path / "results", results.load_all(tmp_path / "results"))
    row = cells(page, "8 vectors of 16 dimensions | RMC")
    assert (row[3], row[5], row[6]) == ("90.9 %, stopped", "not reached", f"1,000 of {STEPS:,}")


def test_time_to_the_papers_number_is_that_of_the_first_evaluation_there(tmp_path):
    add(tmp_path, accuracies(0.3, 0.9096, 0.9, last=3000))
    results_ = results.load_all(tmp_path / "results")
    (outcome,) = report_rows.outcomes(BY_KEY["nth-16-rmc"], results_)
    assert outcome.reached() == ([200.0], 1)  # 91.0 % as shown, at step 2,000 of ten steps a second


def test_another_way_of_training_is_another_row(tmp_path):
    add(tmp_path, accuracies(0.9, last=1000), preset_name="paper")
    add(tmp_path, accuracies(0.95))
    add(tmp_path, accuracies(0.6), model=Model(mem_slots=1, num_heads=8))  # belongs to the sweep
    found = results.load_all(tmp_path / "results")
    rows = report_rows.outcomes(BY_KEY["nth-16-rmc"], found)
    assert [outcome.first["preset"] for outcome in rows] == ["fast", "paper"]
    (cell,) = report_rows.outcomes(BY_KEY["sweep-1-8-unit"], found)
    assert cell.values("eval_accuracy") == [0.6]
    assert report_rows.unclaimed(found) == []
    assert "1 memory, 8 heads, unit gates | RMC | a curve, no number | 60.0 %" in report.reproduction(
        tmp_path, found
    )


def test_of_other_ways_the_newest_comes_first_and_not_the_best(tmp_path):
    for beta2, score in ((0.9, 0.97), (0.95, 0.5), (0.99, 0.7)):
        add(tmp_path, accuracies(score), training={"adam_beta2": beta2})
    found = results.load_all(tmp_path / "results")
    days = {0.9: "2026-01-02", 0.95: "2026-01-03", 0.99: "2026-01-01"}
    for result in found.values():
        result["started"] = days[result["overrides"]["training.adam_beta2"]]
    rows = report_rows.outcomes(BY_KEY["nth-16-rmc"], found)
    assert [outcome.values("eval_accuracy") for outcome in rows] == [[0.5], [0.97], [0.7]]


def test_another_difficulty_is_no_row_of_table_1(tmp_path):
    records = [{"step": preset("lte", "fast").training.steps, "eval_accuracy": 0.999, "eval_solved": 0.99}]
    add(tmp_path, records, "lte", task="copy")
    add(tmp_path, records, "lte", task="copy", length=4)
    found = results.load_all(tmp_path / "results")
    (outcome,) = report_rows.outcomes(BY_KEY["lte-copy-rmc"], found)
    assert report_rows.ours(outcome) == "99.9 %; whole answers 99.0 %"
    assert [o.first["config"]["length"] for o in report_rows.unclaimed(found)] == [4]
    page = report.reproduction(tmp_path, found)
    assert "## Other runs" in page
    assert "accuracy 0.999, solved 0.99 |" in page
    add(tmp_path, [records[0] | {"eval_accuracy": 0.5}], "lte", task="copy", length=4, seed=1)
    page = report.reproduction(tmp_path, results.load_all(tmp_path / "results"))
    assert "accuracy 0.7495 (0.5 to 0.999, 2 seeds), solved 0.99 (0.99 to 0.99, 2 seeds)" in page


def test_games_are_matched_by_what_is_seen(tmp_path):
    score = {"eval_sampled_return": 700.0, "eval_greedy_return": 650.4, "eval_sampled_length": 9.0}
    records = [{"step": 100, "frames": 8_192_000, **score}]
    add(tmp_path, records, "mini-pacman")
    found = results.load_all(tmp_path / "results")
    (outcome,) = report_rows.outcomes(BY_KEY["pacman-viewport-rmc"], found)
    assert report_rows.outcomes(BY_KEY["pacman-full-rmc"], found) == []
    assert report_rows.ours(outcome) == "700; greedy 650, stopped"
    assert report_rows.amount_seen(outcome) == "8,192,000 frames"
    solved = {"eval_sampled_solved": 0.98, "eval_greedy_solved": 0.99}
    add(tmp_path, [{"step": 100, "frames": 10, **solved}], "box-world")
    found = results.load_all(tmp_path / "results")
    (outcome,) = report_rows.outcomes(BY_KEY["box-world-rmc"], found)
    assert report_rows.ours(outcome) == "98.0 %; greedy 99.0 %, stopped"


def test_the_readme_table(tmp_path):
    add(tmp_path, accuracies(0.95))
    add(tmp_path, accuracies(0.25, last=1000), preset_name="paper", core="lstm")
    folder = tmp_path / "results"
    demo = json.loads((ROOT / "results" / "demo.json").read_text())
    demo["runs"] = [{"rmc_accuracy": a, "lstm_accuracy": 0.7} for a in (0.95, 0.941, 0.96)]
    (folder / "demo.json").write_text(json.dumps(demo))
    table = report.readme_table(folder, results.load_all(folder))
    row = cells(table, "N-th farthest, 8 vectors x 16")
    assert row[1] == "95.0 %"
    assert row[2].startswith("25.0 %, stopped at 1,000 of ")
    assert row[2].endswith("updates (preset paper)")
    assert "(results/runs/nth-farthest-8x16-fast-rmc-seed0.json)" in row[4]
    assert cells(table, "Programs: control")[1:3] == ["not run", "not run"]
    assert cells(table, "N-th farthest, 3 x 2 (the demo)")[1] == "94.1 to 96.0 %"


def test_only_what_is_between_the_markers_changes(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert report.with_table(readme, "new") == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    readme.write_text(f"before\n{report.BEGIN}\nold\n")
    with pytest.raises(results.ResultError, match="each once"):
        report.with_table(readme, "new")


def test_cells_cannot_break_the_table():
    assert report.markdown([["a", "b"], ["x|y", "<script>\nz\x1b[2J"]]).splitlines() == [
        "| a | b |",
        "|---|---|",
        "| x\\|y | &lt;script> z\\x1b[2J |",
    ]


def test_the_table_as_data_is_json(tmp_path):
    add(tmp_path, accuracies(0.5, 0.95))
    rows = json.loads(json.dumps(report_rows.table(results.load_all(tmp_path / "results"))))
    by_key = {row["key"]: row for row in rows}
    (outcome,) = by_key["nth-16-rmc"]["outcomes"]
    assert outcome["values"] == [0.95]
    assert outcome["curves"][0]["value"] == [0.5, 0.95]
    assert by_key["nth-32-rmc"]["outcomes"] == []


def test_what_shows_a_statement_is_linked(tmp_path):
    assert report.reproduction(tmp_path, {}).count("| not checked |") == 2
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "attention.png").touch()
    page = report.reproduction(tmp_path, {})
    assert page.count("| not checked |") == 1
    assert "| [analysis/attention.png](analysis/attention.png) |" in page
