"""Blocked attention: exactly what is named, from exactly that step, and scored on the same sequences."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from relational_rnn.analysis import ablation, ablation_figure, attention
from relational_rnn.analysis.ablation import Cut
from relational_rnn.cli.__main__ import main
from relational_rnn.experiments.nth_farthest import NthFarthestProblem, smoke

CPU = torch.device("cpu")


def make(**model):
    config = smoke()
    config = replace(config, model=replace(config.model, **model))
    return NthFarthestProblem(config, CPU).model.eval(), config.task


@pytest.mark.parametrize(
    ("cut", "blocked"),
    [  # (head, query, key) with 2 slots; the input is row 2
        (Cut("input"), {(h, q, 2) for h in (0, 1) for q in (0, 1)}),
        (Cut("input", 1), {(0, 1, 2), (1, 1, 2)}),
        (Cut("input", head=1), {(1, 0, 2), (1, 1, 2)}),
        (Cut("others"), {(h, q, 1 - q) for h in (0, 1) for q in (0, 1)}),
        (Cut("others", head=0), {(0, 0, 1), (0, 1, 0)}),
        (Cut("memory", head=1), {(1, q, k) for q in (0, 1) for k in (0, 1)}),
        (Cut("read", 1), {(0, 0, 1), (1, 0, 1)}),
        (Cut("pair", 0, 0), {(0, 0, 0), (1, 0, 0)}),
        (Cut("pair", 1, 0), {(0, 1, 0), (1, 1, 0)}),
    ],
    ids=str,
)
def test_what_each_cut_blocks(cut, blocked):
    model, _ = make()
    bias = cut.bias(model.core)
    assert bias.shape == (1, 1, 1, 2, 3, 3)
    assert {tuple(index) for index in (bias[0, 0, 0] == float("-inf")).nonzero().tolist()} == blocked
    assert (bias[bias != float("-inf")] == 0).all()


def test_every_step_slot_pair_and_head_is_there():
    cuts = ablation.all_cuts(8, 8)
    assert len(set(cuts)) == len(cuts) == 3 + 8 + 8 + 64 + 3 * 8
    assert len(ablation.all_cuts(1, 4)) == 2 + 2 * 4  # one slot has no others
    with pytest.raises(ValueError, match="kind='all' is not allowed; allowed: input, others"):
        Cut("all").bias(make()[0].core)


def test_measured_is_what_blocking_from_a_step_on_does(monkeypatch):
    """Against one call over the whole sequence with a bias that begins at step t."""
    monkeypatch.setattr(ablation, "CHUNK", 100)  # several chunks, the last one short
    model, task = make()
    found = ablation.measure(model, task, samples=250)
    generator = torch.Generator().manual_seed(attention.SEED)
    batches = [attention.draw(task, count, generator) for count in (100, 100, 50)]
    x = torch.cat([batch.x for batch in batches], dim=1)
    answer, m, m_step = (
        torch.cat([getattr(batch, name) for batch in batches]) for name in ("answer", "m", "m_step")
    )
    right = model(x).argmax(-1) == answer
    assert found["accuracy"] == pytest.approx(right.float().mean().item())
    changed = 0
    for cut in found["cuts"]:
        what = Cut(*(cut[name] for name in ("kind", "slot", "key", "head")))
        for t in range(3):
            bias = what.bias(model.core).repeat(3, 1, 1, 1, 1, 1)
            bias[:t] = 0
            with torch.no_grad():
                output, _ = model.core(x, attention_bias=bias)
                blocked_right = model.head(output[-1]).argmax(-1) == answer
            assert cut["accuracy"][t] == pytest.approx(blocked_right.float().mean().item(), abs=1e-4)
            for s in range(3):
                here = blocked_right[m_step == s].float().mean().item()
                assert cut["accuracy_by_m_step"][t][s] == pytest.approx(here, abs=1e-4)
            if t == 0:
                for key, labels in (("accuracy_by_answer", answer), ("accuracy_by_m", m)):
                    expected = [blocked_right[labels == label].float().mean().item() for label in range(3)]
                    assert cut[key] == pytest.approx(expected, abs=1e-4)
            changed += cut["accuracy"][t] != found["accuracy"]
    assert changed > 10  # an untrained model, but not an indifferent one


def test_a_memory_without_gates_that_never_attends_to_the_input_gives_one_answer():
    model, task = make(gate_style=None)
    found = ablation.measure(model, task, samples=300)
    (cut,) = ablation.select(found, "input", slot=None, head=None)
    batch = attention.draw(task, 300, torch.Generator().manual_seed(attention.SEED))
    shares = [(batch.answer == label).float().mean().item() for label in range(3)]
    assert min(abs(cut["accuracy"][0] - share) for share in shares) < 1e-4


@pytest.mark.parametrize("model", [{}, {"mem_slots": 1, "num_heads": 1}, {"mem_slots": 1, "num_heads": 2}])
def test_figure_and_table(model):
    model, task = make(**model)
    found = ablation.measure(model, task, samples=100)
    assert json.loads(json.dumps(found)) == found
    head, none, *lines = ablation.table(found)
    assert head == ["blocked attention", "from 1", "from 2", "from 3"]
    assert none == ["none", *[f"{100 * found['accuracy']:.1f}"] * 3]
    assert len(lines) == (2 if found["model"]["slots"] == 1 else 3 + 2 * 2)
    figure = ablation_figure.draw(found)
    figure.canvas.draw()
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) >= 2
    (cut,) = ablation.select(found, "input", slot=None, head=None)
    if found["model"]["slots"] > 1:
        by_m = next(axes for axes in shown if axes.get_title().endswith("by the label of m"))
        values = [cut["accuracy_by_m"] for cut in ablation.select(found, "input", slot=..., head=None)]
        np.testing.assert_allclose(by_m.images[0].get_array(), 100 * np.asarray(values))
    line = figure.axes[0].lines[0]
    assert list(line.get_ydata()) == [100 * value for value in cut["accuracy"]]


def test_the_command(tmp_path, capsys):
    run, folder = tmp_path / "run", tmp_path / "blocked"
    smoke_run = ["train", "nth-farthest", "--preset", "smoke", "--training.steps", "10"]
    assert main([*smoke_run, "--run", str(run)]) == 0
    assert main(["ablate", str(run), "--output", str(folder), "--samples", "100"]) == 0
    said = capsys.readouterr().out
    assert "slots to other slots" in said
    assert "slot 1 to the input" in said
    assert {path.name for path in folder.iterdir()} == {"ablation.json", "ablation.png", "ablation.svg"}
    assert json.loads((folder / "ablation.json").read_text())["samples"] == 100
    assert main(["ablate", str(run), "--output", str(folder)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["ablate", "--help"]) == 0
    assert "usage: rmc ablate" in capsys.readouterr().out
