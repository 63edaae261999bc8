"""What the attention analysis says is what the model does; the figures mark the right step."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from relational_rnn import pretrained
from relational_rnn.analysis import attention, attention_figures
from relational_rnn.cli.__main__ import main
from relational_rnn.cli.attention import load_nth_farthest
from relational_rnn.experiments.nth_farthest import NthFarthestProblem, smoke
from relational_rnn.tasks.nth_farthest import NthFarthest

CPU = torch.device("cpu")
SMOKE = ["train", "nth-farthest", "--preset", "smoke", "--training.steps", "20"]


def make(core="rmc", **model):
    config = smoke()
    config = replace(config, core=core, model=replace(config.model, **model))
    return NthFarthestProblem(config, CPU).model.eval(), config.task


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("attention") / "run"
    assert main([*SMOKE, "--run", str(path)]) == 0
    return path


@pytest.mark.parametrize("order", ["paper", "sonnet"])
@pytest.mark.parametrize("convention", ["farthest", "nearest"])
def test_samples_are_decoded(order, convention):
    task = NthFarthest(5, 3, convention, order)
    batch = attention.draw(task, 200, generator())
    for b in range(200):
        labels, m_step = batch.labels[:, b].tolist(), int(batch.m_step[b])
        assert sorted(labels) == [0, 1, 2, 3, 4]
        assert labels[m_step] == batch.m[b]
        distances = (batch.vectors[:, b] - batch.vectors[m_step, b]).norm(dim=-1)
        order_of_steps = distances.argsort(descending=convention == "farthest").tolist()
        assert labels[order_of_steps[int(batch.n[b])]] == batch.answer[b]


@pytest.mark.parametrize("model", [{}, {"num_blocks": 2}, {"gate_style": None}, {"gate_style": "memory"}])
def test_looking_changes_nothing(model):
    model, task = make(**model)
    batch = attention.draw(task, 20, generator())
    seen = attention.look(model, batch)
    torch.testing.assert_close(seen.logits, model(batch.x))
    blocks = len(model.core.blocks)
    assert seen.attention.shape == (3, 20, 2 * blocks, 2, 3)  # steps, batch, heads, slots, slots + input
    torch.testing.assert_close(seen.attention.sum(-1), torch.ones(3, 20, 2 * blocks, 2))
    assert (seen.input_gate is None) == (model.core.spec.gate_style is None)


def test_what_is_found(monkeypatch):
    monkeypatch.setattr(attention, "CHUNK", 128)  # several chunks
    model, task = make()
    found = attention.analyse(model, task, sequences=2, samples=300)
    assert [s["position_of_m"] for s in found["sequences"]] == ["last"] * 2 + ["first"] * 2 + ["middle"] * 2
    assert [s["m_step"] for s in found["sequences"]] == [2, 2, 0, 0, 1, 1]
    for sequence in found["sequences"]:
        assert sequence["answer"] == sequence["predicted"] != sequence["m"]
        assert sequence["labels"][sequence["m_step"]] == sequence["m"]
        assert sequence["distances"][sequence["m_step"]] == 0
        by_distance = np.argsort(sequence["distances"])[::-1]
        assert sequence["labels"][by_distance[sequence["n"]]] == sequence["answer"]
        np.testing.assert_allclose(np.asarray(sequence["attention"]).sum(-1), 1, atol=3e-4)
        assert np.asarray(sequence["input_gate"]).shape == (3, 2)
    assert sum(found["average"]["samples"]) == 300
    assert json.loads(json.dumps(found)) == found


def test_averages_are_means_over_sequences_and_heads():
    model, task = make()
    found = attention.analyse(model, task, samples=200)
    batch = attention.draw(task, 200, generator(attention.SEED))
    seen = attention.look(model, batch)
    for m_step in range(3):
        chosen = seen.attention[:, batch.m_step == m_step]
        assert chosen.shape[1] == found["average"]["samples"][m_step]
        expected = chosen.mean(dim=(1, 2))
        np.testing.assert_allclose(found["average"]["attention"][m_step], expected, atol=1e-4)
    for label in range(3):
        expected = [
            seen.attention[t, b, :, :, 2].mean(0)  # over heads, to the input, which is the last key
            for t in (1, 2)
            for b in range(200)
            if batch.labels[t, b] == label != batch.m[b]
        ]
        assert found["by_label"]["samples"][label] == len(expected)
        np.testing.assert_allclose(
            found["by_label"]["attention"][label], torch.stack(expected).mean(0), atol=1e-4
        )
    right = (model(batch.x).argmax(-1) == batch.answer).float().mean().item()
    assert found["accuracy"] == pytest.approx(right)


def test_a_label_that_was_never_shown_has_no_attention(monkeypatch):
    model, task = make()
    found = attention.analyse(model, task, samples=1)
    counts = found["by_label"]["samples"]
    assert 0 in counts
    for count, row in zip(counts, found["by_label"]["attention"], strict=True):
        assert (row == [None, None]) == (count == 0)
    (axes, _) = attention_figures.labels_figure(found).axes
    assert len(axes.texts) == 2 * sum(count > 0 for count in counts)


@pytest.mark.parametrize(
    ("convention", "n", "words"),
    [
        ("farthest", 0, "Which vector is the farthest from vector 4?"),
        ("farthest", 1, "Which vector is the 2nd farthest from vector 4?"),
        ("farthest", 6, "Which vector is the 7th farthest from vector 4?"),
        ("farthest", 7, "Which vector is nearest to vector 4, itself included?"),
        ("nearest", 0, "Which vector is nearest to vector 4, itself included?"),
        ("nearest", 7, "Which vector is the farthest from vector 4?"),
        ("nearest", 5, "Which vector is the 3rd farthest from vector 4?"),
    ],
)
def test_the_question_in_words(convention, n, words):
    assert attention.question(NthFarthest(8, 16, convention), n, 4) == words


def test_the_figure_marks_the_step_of_m_and_sets_the_input_apart():
    model, task = make()
    found = attention.analyse(model, task, samples=300)
    figure = attention_figures.sequences_figure(found)
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 3 * 3
    for row, sequence in enumerate(found["sequences"]):
        for step in range(3):
            axes = panels[3 * row + step]
            marked = axes.spines["left"].get_linewidth() == 2
            assert marked == (step == sequence["m_step"])
            shown = np.asarray(axes.images[0].get_array().filled(np.nan))
            expected = np.asarray(sequence["attention"])[step].mean(0)
            np.testing.assert_allclose(shown[:, :2], expected[:, :2])
            np.testing.assert_allclose(shown[:, 3], expected[:, 2])
            assert np.isnan(shown[:, 2]).all()


def test_the_command(run, tmp_path, capsys):
    folder = tmp_path / "figures"
    arguments = ["attention", str(run), "--output", str(folder), "--samples", "300"]
    assert main(arguments) == 0
    assert "300 sequences answered rightly" in capsys.readouterr().out
    names = {path.name for path in folder.iterdir()}
    stems = ("attention", "average", "labels", "heads-first", "heads-middle", "heads-last")
    assert names == {"attention.json"} | {stem + end for stem in stems for end in (".png", ".svg")}
    assert json.loads((folder / "attention.json").read_text())["step"] == 20
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_packaged_model_by_name(run, tmp_path, monkeypatch):
    pretrained.release(run, "tiny", samples=100, folder=tmp_path / "weights", device="cpu")
    monkeypatch.setattr(pretrained, "WEIGHTS", tmp_path / "weights")
    model, config, about = load_nth_farthest("tiny", "cpu")
    assert (about["name"], about["step"]) == ("tiny", 20)
    assert attention.analyse(model, config.task, samples=50)["samples"] == 50


def test_what_is_refused(run, tmp_path, capsys):
    lstm = tmp_path / "lstm"
    assert main([*SMOKE, "--core", "lstm", "--run", str(lstm)]) == 0
    folder = tmp_path / "figures"
    for arguments, part in (
        ([str(lstm), "--output", str(folder)], "'LSTM' is not allowed; allowed: RelationalMemory (core rmc)"),
        ([str(run)], "--output is missing"),
        (["missing", "--output", str(folder)], "missing does not exist"),
        ([str(run), str(lstm), "--output", str(folder)], "takes one run folder"),
        ([str(run), "--fast", "--output", str(folder)], "takes one run folder"),
        ([str(run), "--output", str(folder), "--samples", "-1"], "a whole number"),
        ([str(run), "--output", str(folder), "--samples", "²"], "a whole number"),
        ([str(run), "--output", str(folder), "--samples", "0"], "samples=0 is not allowed"),
        ([str(run), "--output", str(folder), "--sequences", "0"], "sequences=0 is not allowed"),
        (
            [str(run), "--output", str(folder), "--samples", "1", "--seed", "1"],
            "of 1 sequences none is answered",
        ),
    ):
        assert main(["attention", *arguments]) == 2
        assert part in capsys.readouterr().err
    assert not folder.exists()


def test_ordinals():
    numbers = [attention.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 33, 111)]
    assert numbers == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "33rd", "111th"]
