"""Figures of language models, from the files `rmc eval --out` writes."""

import json

import pytest

from relational_rnn.analysis.figures_language import read_evaluation, unroll_length, word_frequency
from relational_rnn.cli.__main__ import main

RMC = {
    "run": "/somewhere/runs/lm/first",
    "core": "rmc",
    "step": 10,
    "valid_perplexity": 40.0,
    "test_perplexity": 30.0,
    "test_unrolls": {"100": 31.0, "10": 45.0},
    "test_frequencies": {
        ">10K": {"perplexity": 20.0, "tokens": 5},
        "<1K": {"perplexity": None, "tokens": 0},
        "all": {"perplexity": 30.0, "tokens": 5},
    },
}
LSTM = {**RMC, "core": "lstm", "test_perplexity": 32.0, "test_unrolls": {"10": 50.0, "100": 37.0}}


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "rmc.json", tmp_path / "lstm.json"]
    for path, content in zip(paths, (RMC, LSTM), strict=True):
        path.write_text(json.dumps(content))
    return paths


def test_the_rise_over_one_unroll(files):
    figure = unroll_length([read_evaluation(path) for path in files])
    drawn = {line.get_label(): line for line in figure.axes[0].get_lines()}
    rmc, lstm = drawn["RMC (30.0 in one unroll)"], drawn["LSTM (32.0 in one unroll)"]
    assert list(rmc.get_xdata()) == [10, 100]
    assert list(rmc.get_ydata()) == [15, 1]
    assert list(lstm.get_ydata()) == [18, 5]
    assert rmc.get_color() != lstm.get_color()


def test_bars_of_word_frequencies(files):
    figure = word_frequency([read_evaluation(path) for path in files])
    (axes,) = figure.axes
    heights = [bar.get_height() for bar in axes.containers[0]]
    assert (heights[0], heights[2]) == (20, 30)
    assert heights[1] != heights[1]  # no such word: nothing to draw
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["> 10,000", "< 1,000", "all words"]


def test_two_runs_of_a_core_have_their_names_and_colours(tmp_path):
    found = []
    for name in ("first", "second"):
        (tmp_path / name).write_text(json.dumps({**RMC, "run": name}))
        found.append(read_evaluation(tmp_path / name))
    first, second = unroll_length(found).axes[0].get_lines()[:2]
    assert (first.get_label()[:10], second.get_label()[:11]) == ("RMC, first", "RMC, second")
    assert first.get_color() != second.get_color()


def test_runs_of_one_name_and_other_splits_are_told_apart(tmp_path):
    """Seeds in folders of their own may have one name; the split is not the same in every file."""
    found = []
    valid = {name.replace("test", "valid"): value for name, value in RMC.items() if "valid" not in name}
    for name, content in (("a.json", RMC), ("b.json", RMC), ("c.json", valid)):
        (tmp_path / name).write_text(json.dumps(content))
        found.append(read_evaluation(tmp_path / name))
    figure = unroll_length(found)
    labels = [text.get_text().partition(" (")[0] for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["RMC, test, first, a.json", "RMC, test, first, b.json", "RMC, valid"]
    assert figure.axes[0].get_title() == "test and valid perplexity by unroll length"
    assert len(word_frequency(found).axes[0].containers) >= 3


@pytest.mark.parametrize(
    "change",
    [
        {"test_perplexity": None},
        {"test_unrolls": {"ten": 3.0}},
        {"test_unrolls": {"10": None}},
        {"test_frequencies": [1]},
        {"test_frequencies": {"all": 30.0}},
    ],
)
def test_a_damaged_evaluation_is_named(tmp_path, change):
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(RMC | change))
    with pytest.raises(ValueError, match=r"damaged\.json is damaged: "):
        read_evaluation(path)


def test_what_was_not_measured_is_not_drawn(tmp_path):
    path = tmp_path / "bare.json"
    path.write_text(json.dumps({"core": "rmc", "valid_perplexity": 9.0}))
    found = [read_evaluation(path)]
    assert found[0]["split"] == "valid"
    assert unroll_length(found) is None
    assert word_frequency(found) is None
    for content, message in (
        ("[]", "no evaluation"),
        ('{"core": "rmc"}', "no perplexity"),
        ("{", "cannot be read"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_evaluation(path)


def test_the_command(files, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["figures", "--language", ",".join(map(str, files)), "--output", str(out)]) == 0
    names = {"unroll-length.png", "unroll-length.svg", "word-frequency.png", "word-frequency.svg"}
    assert {path.name for path in out.iterdir()} == names
    assert len(capsys.readouterr().out.splitlines()) == 4
