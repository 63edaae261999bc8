"""Figures: what is drawn is what was read, and damaged runs are drawn as far as they go."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib
import numpy as np
import pytest

from relational_rnn.analysis import figures, figures_box_world
from relational_rnn.analysis.figures_sweep import accuracy_against_time, sweep
from relational_rnn.analysis.labels import short
from relational_rnn.analysis.runs import read_run
from relational_rnn.environments.box_world_levels import BACKGROUND, BORDER, DECOY, GEM, KEY, LOCK
from relational_rnn.experiments.nth_farthest import Model
from tests.analysis.folders import STEPS, accuracies, write_run

PNG = b"\x89PNG\r\n\x1a\n"


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_the_median_and_range_of_seeds(tmp_path):
    for seed, values in enumerate(((0.1, 0.5, 0.9), (0.2, 0.7, 0.8), (0.3, 0.6, 1.0))):
        write_run(tmp_path / f"rmc-{seed}", accuracies(*values), seed=seed)
    write_run(tmp_path / "lstm", accuracies(0.2, 0.25), core="lstm")
    figure, left_out = figures.learning_curves([read_run(path) for path in sorted(tmp_path.iterdir())])
    (axes,) = figure.axes
    drawn = lines(axes)
    assert list(drawn) == ["RMC (3 seeds)", "LSTM", "in the paper"]
    assert left_out == []
    assert drawn["RMC (3 seeds)"].get_ydata() == pytest.approx([20, 60, 90])
    assert drawn["RMC (3 seeds)"].get_xdata()[-1] == STEPS
    assert drawn["LSTM"].get_ydata() == pytest.approx([20, 25])
    (shade,) = axes.collections
    heights = shade.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((10, 100))
    levels = {line.get_ydata()[0] for line in axes.get_lines() if line.get_label().startswith("_")}
    assert levels == {91, 30}  # the paper's RMC and LSTM
    assert axes.get_title() == "N-th farthest, 8x16"


def test_seeds_of_different_lengths_have_a_median_where_they_are():
    x, middle, low, high = figures.band([[(1, 1.0), (3, 3.0)], [(2, 4.0), (4, 6.0)]])
    assert x.tolist() == [1, 2, 3, 4]
    assert middle.tolist() == [1, 3, 4, 6]
    assert low.tolist() == [1, 2, 3, 6]
    assert high.tolist() == [1, 4, 5, 6]


def test_damaged_runs_are_drawn_as_far_as_they_go(tmp_path):
    path = write_run(tmp_path / "run", accuracies(0.1, 0.2, 0.3, 0.4, last=4000))
    good = (path / "metrics.jsonl").read_bytes().splitlines()
    bad = [b"", b"\xff\xfe", b"[1]", b'{"loss": 1}', b'{"step": 10, "loss": 1}', b'{"step": 1500, "eval']
    (path / "metrics.jsonl").write_bytes(b"\n".join([good[0], *bad, *good[2:]]) + b'\n{"step": 5000, "ev')
    run = read_run(path)
    assert run.curves["eval_accuracy"] == [(1000, 0.1), (3000, 0.3), (4000, 0.4)]
    assert run.skipped == [
        "line 2 is no JSON",
        "line 3 is no JSON",
        "line 4 has no step",
        "line 5 has no step",
        "line 6 goes back to step 10",
        "line 7 is no JSON",
    ]
    assert run.notice().startswith("run: skipped 6 lines of metrics.jsonl (line 2 is no JSON; ")
    figure, _ = figures.learning_curves([run])
    assert lines(figure.axes[0])["RMC"].get_ydata() == pytest.approx([10, 30, 40])


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    path = write_run(tmp_path / "run", accuracies(0.1, 0.2, last=2000))
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace('"eval_accuracy": 0.1', '"eval_accuracy": NaN'))
    assert read_run(path).curves["eval_accuracy"] == [(2000, 0.2)]
    huge = "9" * 400  # a number in JSON, but no float
    (path / "metrics.jsonl").write_text(
        text.replace('"eval_accuracy": 0.1', f'"eval_accuracy": {huge}') + f'{{"step": {huge}}}\n'
    )
    run = read_run(path)
    assert run.curves["eval_accuracy"] == [(2000, 0.2)]
    assert run.skipped == ["line 3 has no step"]


@pytest.mark.parametrize(
    "change",
    [
        {"config": 5},
        {"config": {"training": []}},
        {"config": {"core": ["rmc"]}},
        {"config": {"training": {"log_every": "often"}}},
        {"experiment": None},
    ],
)
def test_settings_that_are_none_are_refused(tmp_path, change):
    path = write_run(tmp_path / "run", accuracies(0.1)) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"config\.json is damaged: "):
        read_run(path.parent)


@pytest.mark.parametrize(("task", "named"), [({"vectors": 8, "dims": 4}, "8x4"), ({"vectors": 8}, "")])
def test_a_task_is_named_by_what_it_says(tmp_path, task, named):
    path = write_run(tmp_path / "run", accuracies(0.1))
    described = json.loads((path / "config.json").read_text())
    described["config"]["task"] = task
    (path / "config.json").write_text(json.dumps(described))
    assert read_run(path).task == named


def test_a_run_without_a_point_is_named_and_the_others_drawn(tmp_path):
    write_run(tmp_path / "empty", [])
    write_run(tmp_path / "whole", accuracies(0.5))
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    figure, left_out = figures.learning_curves(runs)
    assert left_out == ["empty: no eval_accuracy to draw"]
    assert list(lines(figure.axes[0])) == ["RMC", "in the paper"]
    with pytest.raises(ValueError, match="nothing to draw of nth-farthest: empty"):
        figures.learning_curves(runs[:1])


def test_runs_are_told_apart_by_what_differs(tmp_path):
    write_run(tmp_path / "a", accuracies(0.5))
    write_run(tmp_path / "b", accuracies(0.5), training={"learning_rate": 1e-3, "device": "cpu"})
    write_run(tmp_path / "c", accuracies(0.5), preset_name="paper")
    named = figures.labels([read_run(path) for path in sorted(tmp_path.iterdir())])
    rate = read_run(tmp_path / "a").config["training"]["learning_rate"]
    assert list(named) == [
        f"RMC, fast, learning rate {rate}",
        "RMC, fast, learning rate 0.001",
        "RMC, paper",
    ]


def test_a_setting_younger_than_a_run_is_no_difference_until_it_is_used(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, accuracies(0.5), training={"learning_rate": 1e-3, "optimizer": "adam"})
    path = tmp_path / "a" / "config.json"
    described = json.loads(path.read_text())
    assert described["config"]["training"].pop("optimizer") == "adam"  # as before there was another
    path.write_text(json.dumps(described))
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    assert list(figures.labels(runs)) == ["RMC (2 seeds)"]
    runs[1].config["training"]["optimizer"] = "muon"
    assert list(figures.labels(runs)) == ["RMC, optimizer adam", "RMC, optimizer muon"]


def test_a_long_legend_stands_beside_the_panel(tmp_path):
    rates = [1e-4 * (i + 1) for i in range(9)]
    for i, rate in enumerate(rates):
        write_run(tmp_path / f"run-{i}", accuracies(0.5), training={"learning_rate": rate})
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    few, _ = figures.learning_curves(runs[:2])
    many, _ = figures.learning_curves(runs)
    assert many.get_figwidth() > few.get_figwidth()
    colours = {
        line.get_color() if isinstance(line.get_color(), str) else tuple(line.get_color())
        for label, line in lines(many.axes[0]).items()
        if label.startswith("RMC") and "in the paper" not in label
    }
    assert len(colours) == len(rates)
    assert {label for label in lines(many.axes[0]) if "in the paper" in label} == {"RMC, in the paper"}
    (drawn,) = (line for label, line in lines(few.axes[0]).items() if label.endswith("0.0001"))
    assert drawn.get_marker() == "o"  # a single evaluation is seen
    assert len(short("x" * 200)) <= 120


def test_games_are_drawn_over_frames(tmp_path):
    records = [{"step": s, "frames": 1000 * s, "episode_return": 2.0 * s} for s in (100, 200)]
    write_run(tmp_path / "run", records, "mini-pacman")
    figure, _ = figures.learning_curves([read_run(tmp_path / "run")])
    line = lines(figure.axes[0])["RMC"]
    assert line.get_xdata().tolist() == [100_000, 200_000]
    assert line.get_ydata().tolist() == [200, 400]
    assert figure.axes[0].get_xlabel() == "frames"


def test_programs_of_other_lengths_are_another_task(tmp_path):
    for name, length in (("paper", 5), ("short", 3)):
        write_run(tmp_path / name, accuracies(0.5), "lte", task="reverse", length=length)
    write_run(tmp_path / "single", accuracies(0.5), "lte", task="control", nest=1)
    figure, _ = figures.learning_curves([read_run(path) for path in sorted(tmp_path.iterdir())])
    titles = [axes.get_title().removeprefix("learning to execute, ") for axes in figure.axes]
    assert titles == ["control, length 5, nest 1", "reverse", "reverse, length 3"]


def test_files_are_whole_and_names_are_text(tmp_path):
    path = write_run(tmp_path / "run", accuracies(0.5))
    config = path / "config.json"
    config.write_text(config.read_text().replace('"core": "rmc"', '"core": "<b>$x$</b>"'))
    figure, _ = figures.learning_curves([read_run(path)])
    before = dict(matplotlib.rcParams)
    png, svg = figures.save(figure, tmp_path / "out", "curves")
    assert dict(matplotlib.rcParams) == before
    assert png.read_bytes().startswith(PNG)
    text = "".join(ElementTree.parse(svg).getroot().itertext())
    assert "<b>$x$</b>" in text
    again = figures.save(figure, tmp_path / "again", "curves")[1]
    assert again.read_bytes() == svg.read_bytes()


def test_the_sweep_is_over_time(tmp_path):
    for slots, heads, gate, value in ((1, 1, "unit", 0.5), (8, 8, "unit", 0.9), (8, 8, "memory", 0.8)):
        model = Model(mem_slots=slots, num_heads=heads, gate_style=gate)
        write_run(tmp_path / f"{slots}-{heads}-{gate}", accuracies(0.1, value, last=72_000), model=model)
    for seed in range(2):  # of another recipe: no seeds of a point above
        write_run(tmp_path / f"adam-{seed}", accuracies(0.1), seed=seed, training={"optimizer": "adam"})
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    assert sweep(runs[:1]) is None
    for model in (None, "rmc", {"total_units": 2048}):  # a folder of another version
        other = replace(runs[0], config={**runs[0].config, "model": model})
        assert len(sweep([*runs, other]).axes) == 2
    one, eight = sweep(runs).axes
    assert [axes.get_title() for axes in (one, eight)] == ["memories 1", "memories 8"]
    assert list(lines(one)) == ["heads 1, gates unit"]
    drawn = lines(eight)
    assert list(drawn) == ["heads 8, gates memory", "heads 8, gates unit"]
    unit = drawn["heads 8, gates unit"]
    assert np.allclose(unit.get_xdata(), [60, 120])  # minutes of a tenth second a step
    assert np.allclose(unit.get_ydata(), [10, 90])
    assert unit.get_linestyle() != drawn["heads 8, gates memory"].get_linestyle()
    assert one.get_xlabel() == "training time (minutes)"


def test_the_seeds_of_a_point_are_a_line_and_a_band():
    curves = [({"heads": "1"}, [(0, 0.1), (60, value)]) for value in (0.3, 0.5, 0.9)]
    (axes,) = accuracy_against_time([*curves, ({"heads": "8"}, [])], "a sweep").axes
    drawn = lines(axes)
    assert np.allclose(drawn["heads 1 (3 seeds)"].get_ydata(), [10, 50])
    assert drawn["heads 8"].get_xdata().tolist() == []  # not begun
    (band,) = axes.collections
    assert np.allclose(sorted({y for _, y in band.get_paths()[0].vertices.tolist()}), [10, 30, 90])


def test_a_seed_that_was_trained_faster_keeps_its_last_accuracy():
    curves = [({"heads": "1"}, [(0, 0.1), (end, value)]) for end, value in ((30, 0.9), (60, 0.5), (60, 0.3))]
    (axes,) = accuracy_against_time(curves, "a sweep").axes
    line = lines(axes)["heads 1 (3 seeds)"]
    assert np.allclose(line.get_xdata(), [0, 30, 60])
    assert np.allclose(line.get_ydata(), [10, 30, 50])
    (band,) = axes.collections
    assert max(y for x, y in band.get_paths()[0].vertices.tolist() if x == 60) == pytest.approx(90)


# ------------------------------------------------------------------ BoxWorld


def room(*items):
    """A room of one row: items are codes; None is floor."""
    return [BORDER, *(BACKGROUND if code is None else code for code in items), BORDER]


def test_the_graph_of_a_level_is_read_from_its_room():
    cells = room(KEY + 4, None, KEY + 7, LOCK + 4, None, GEM, LOCK + 7, None, KEY + 9, DECOY + 7)
    found = figures_box_world.boxes(cells)
    Box = figures_box_world.Box
    assert found == [Box(None, 4, False), Box(4, 7, False), Box(7, None, False), Box(7, 9, True)]
    assert figures_box_world.solution(found) == found[:3]
    places = figures_box_world.layout(found)
    apart = figures_box_world.APART
    assert places == {0: (0, 0), 1: (apart, 0), 2: (2 * apart, 0), 3: (2 * apart, -1)}


@pytest.mark.parametrize("seed", range(5))
def test_levels_are_drawn_with_every_box(seed):
    figure = figures_box_world.level_and_graph(seed, length=3, branches=5)
    picture, graph = figure.axes
    assert graph.get_title() == "its graph: 3 boxes to the gem, 5 distractors"
    assert len(graph.patches) >= 1 + 2 * 8  # the loose key, and two cells a box
    assert np.asarray(picture.images[0].get_array()).std() > 10
