"""The overview: the runs of README's table and no others, in the panel of their row."""

from statistics import median

import pytest

from relational_rnn.analysis.figures_overview import FURTHER, overview
from relational_rnn.analysis.report import HEADLINES
from relational_rnn.analysis.results import load_all
from relational_rnn.analysis.results_make import file_name, make_result
from relational_rnn.training.config import to_dict
from tests.analysis.folders import accuracies, preset, write_run
from tests.analysis.test_figures import lines
from tests.markdown import ROOT


def results(folder, *runs):
    """Results of runs made for them: (records, experiment, settings) each."""
    found = {}
    for number, (records, experiment, settings) in enumerate(runs):
        run = write_run(folder / str(number), records, experiment, **settings)
        result, _ = make_result(run, to_dict(preset(experiment, settings.get("preset_name", "fast"))))
        found[f"runs/{file_name(result)}"] = result
    return found


def test_a_panel_has_the_runs_that_the_table_has(tmp_path):
    nth = "nth-farthest"
    kept = results(
        tmp_path,
        (accuracies(0.2, 0.8), nth, {}),
        (accuracies(0.4, 1.0), nth, {"seed": 1}),
        (accuracies(0.3, 0.3), nth, {"training": {"learning_rate": 1e-3}}),  # another way: not in the table
        (accuracies(0.1, 0.2), nth, {"core": "lstm"}),
    )
    (axes,) = overview(kept).axes
    assert axes.get_title() == "N-th farthest, 8 x 16"
    drawn = lines(axes)
    assert list(drawn) == ["RMC (2 seeds)", "LSTM", "in the paper"]
    assert drawn["RMC (2 seeds)"].get_ydata() == pytest.approx([30, 90])
    assert drawn["LSTM"].get_ydata() == pytest.approx([10, 20])


def test_a_run_without_what_the_others_show_is_left_out(tmp_path):
    scored = [{"step": 100, "eval_valid_perplexity": 80.0, "perplexity": 70.0}]
    kept = results(
        tmp_path,
        (scored, "lm", {"preset_name": "wikitext2"}),
        ([{"step": 100, "eval_test_perplexity": 60.0}], "lm", {"preset_name": "wikitext2", "core": "lstm"}),
    )
    (axes,) = overview(kept).axes
    assert list(lines(axes)) == ["RMC"]


def test_nothing_to_show():
    assert overview({}) is None


def test_what_is_kept():
    """Of the results in the repository: every panel is a row of README, and ends where its number is."""
    kept = load_all(ROOT / "results")
    panels = {axes.get_title(): lines(axes) for axes in overview(kept).axes}
    rows = [
        what.partition(" (")[0].replace("vectors x", "x").replace(" dimensions", "") for what, *_ in HEADLINES
    ]
    for title in panels:
        assert any(row.startswith(title.partition(",")[0]) for row in rows)
    fast = [r for name, r in kept.items() if "nth-farthest-8x16-fast-rmc-seed" in name]
    last = 100 * median(result["final"]["eval_accuracy"] for result in fast)
    assert panels["N-th farthest, 8 x 16"]["RMC (3 seeds)"].get_ydata()[-1] == pytest.approx(last)
    assert FURTHER in panels["BoxWorld, viewport"]
