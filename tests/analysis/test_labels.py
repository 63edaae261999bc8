"""What the lines of a figure are called, and that there is room for it."""

from dataclasses import replace
from itertools import pairwise

import pytest

from relational_rnn.analysis import figures
from relational_rnn.analysis.labels import SAID, labels, short, shortened, wrapped
from relational_rnn.analysis.runs import read_run
from relational_rnn.experiments.nth_farthest import Curriculum
from tests.analysis.folders import accuracies, write_run

# Three kinds of runs that differ in more settings than a label says.
MANY_SETTINGS = (
    {},
    dict(learning_rate=1e-3, batch_size=7, steps=11, optimizer="rmsprop", precision="fp32"),
    dict(learning_rate=1e-2, batch_size=8, steps=12, optimizer="rmsprop", precision="tf32"),
)


def runs_of_many_settings(folder, name):
    for kind, training in enumerate(MANY_SETTINGS):
        for seed in range(2):
            path = folder / name.format(kind=kind, seed=seed)
            write_run(path, accuracies(0.5, last=2000), seed=seed, training=training)
    return [read_run(path) for path in sorted(folder.iterdir())]


def boxes(texts):
    return [text.get_window_extent() for text in texts if text.get_text() and text.get_visible()]


def test_seeds_of_runs_that_differ_in_many_settings_are_one_line(tmp_path):
    assert len(MANY_SETTINGS[1]) > SAID
    found = labels(runs_of_many_settings(tmp_path, "kind{kind}-seed{seed}"))
    assert list(found) == [f"RMC, run kind{kind}-seed0 (2 seeds)" for kind in range(3)]
    assert [[run.name for run in group] for group in found.values()] == [
        [f"kind{kind}-seed{seed}" for seed in range(2)] for kind in range(3)
    ]


def test_runs_of_one_name_and_other_settings_are_two_lines(tmp_path):
    """As a/run and b/run are."""
    runs = [replace(run, name="run") for run in runs_of_many_settings(tmp_path, "{kind}-{seed}")]
    assert list(labels(runs)) == [f"RMC, run run (2 seeds){number}" for number in ("", " [2]", " [3]")]


def test_settings_of_a_core_that_did_not_run_are_no_difference(tmp_path):
    for number in range(2):
        write_run(tmp_path / str(number), accuracies(0.5), "lte", core="lstm")
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    assert "rmc" in runs[1].config
    runs[1].config["rmc"] = {key: 1 for key in runs[1].config["rmc"]}
    assert list(labels(runs)) == ["LSTM (2 seeds)"]


def test_of_lists_it_says_how_many(tmp_path):
    for name, stages in (("a", ()), ("b", ((4, 4), (8, 16))), ("c", ((5, 4), (8, 16)))):
        write_run(tmp_path / name, accuracies(0.5), curriculum=Curriculum(stages))
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    assert list(labels(runs)) == ["RMC, no stages", "RMC, 2 stages", "RMC, 2 stages [2]"]


LONG = "lte-control-fast-rmc-steps{}-batch-size60-muon-ratio6.0-strategymix-patience0-seed0"


@pytest.mark.parametrize(
    "names",
    [
        [LONG.format(125_000), LONG.format(170_000), "short"],
        [f"{'a' * 90}{letter}{'b' * 90}" for letter in "xyz"],
        ["a" * 90, "a" * 91, "a" * 92],
        ["same" * 20, "same" * 20],
    ],
)
def test_names_stay_different_when_they_are_shortened(names):
    found = shortened(names, 60)
    assert len(set(found)) == len(names)
    assert all(len(text) <= 64 for text in found)  # with a number at its end
    assert found[-1] == "short" or names[-1] != "short"


def test_what_tells_long_names_apart_is_shown():
    assert short(LONG.format(125_000), 60) == short(LONG.format(170_000), 60)
    both = (125_000, 170_000)
    for number, text in zip(both, shortened([LONG.format(n) for n in both], 60), strict=True):
        assert f"steps{number}" in text
    x, y = shortened([f"{'a' * 90}{letter}{'b' * 90}" for letter in "xy"], 60)
    assert "x" in x
    assert "y" in y


def test_lines_of_a_label_are_no_wider_than_a_panel():
    text = wrapped("RMC, run " + LONG.format(1))
    assert max(map(len, text.split("\n"))) <= 60
    assert text.replace("\n", "").replace(" ", "") == f"RMC,run{LONG.format(1)}"


@pytest.mark.parametrize("kinds", [2, 20])
def test_a_legend_outside_leaves_room_for_axis_and_lines(tmp_path, kinds):
    """Below the panel with few lines, beside it with many."""
    for kind in range(kinds):
        training = dict(
            learning_rate=1e-3 + kind, batch_size=7 + kind, steps=2000 + kind, muon_ratio=1.0 + kind
        )
        training["final_learning_rate"] = kind / 100
        path = tmp_path / f"{kind:02}{'-a-long-name' * 10}"
        write_run(path, accuracies(0.1, 0.3, last=2000), training=training)
    figure, _ = figures.learning_curves([read_run(path) for path in sorted(tmp_path.iterdir())])
    figure.canvas.draw()
    (axes,) = figure.axes
    legend, name = axes.get_legend().get_window_extent(), axes.xaxis.label.get_window_extent()
    assert len(axes.get_legend().get_texts()) == kinds + 1  # and the paper's
    assert not legend.overlaps(name)
    assert not any(legend.overlaps(box) for box in boxes(axes.get_xticklabels()))
    assert all(map(figure.bbox.containsx, (legend.x0, legend.x1)))
    assert all(map(figure.bbox.containsy, (legend.y0, legend.y1)))
    assert axes.get_window_extent().height > 0.5 * figure.dpi * 3.2


@pytest.mark.parametrize(
    "values", [(500.0, 90.0, 60.0), (300.0, 200.0, 84.0), (90.0, 85.0), (30_000.0, 40.0), (1e9, 2.0), (9.0,)]
)
def test_the_numbers_of_a_perplexity_have_room(tmp_path, values):
    records = [
        {"step": 100 * (i + 1), "eval_valid_perplexity": value, "perplexity": value}
        for i, value in enumerate(values)
    ]
    write_run(tmp_path / "run", records, "lm", "wikitext2", data="/text/wikitext-2")
    figure, _ = figures.learning_curves([read_run(tmp_path / "run")])
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(ticks) >= 2
    shown = boxes(
        text for text in axes.get_yticklabels(which="both") if low <= text.get_position()[1] <= high
    )
    assert len(shown) >= 2
    for below, above in pairwise(sorted(shown, key=lambda box: box.y0)):
        assert below.y1 <= above.y0
