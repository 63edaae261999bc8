"""The scripts under examples/ run, and do what they say."""

import importlib.util
import subprocess
import sys

import pytest

from relational_rnn import pretrained
from relational_rnn.cli.__main__ import main
from relational_rnn.experiments.nth_farthest import demo
from tests.markdown import ROOT


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested_here():
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert names == {
        "sequence_classification",
        "reinforcement_loop",
        "pretrained",
        "blocked_attention",
        "onnx_export",
    }


def test_sequence_classification_learns(capsys):
    accuracy = load("sequence_classification").main(steps=200)
    assert accuracy > 0.85
    assert f"accuracy on fresh sequences: {100 * accuracy:.1f} %" in capsys.readouterr().out


def test_sequence_classification_marks_two_vectors_of_each_sequence():
    import torch

    x, lengths, alike = load("sequence_classification").batch(500, torch.Generator().manual_seed(1))
    there = torch.arange(x.shape[1]) < lengths[:, None]
    assert (x[~there] == 0).all()
    assert (x[..., -1].sum(1) == 2).all()
    marked = x[..., 0][x[..., -1] == 1].view(-1, 2)
    assert torch.equal(alike.bool(), marked[:, 0].sign() == marked[:, 1].sign())
    assert 0.4 < alike.float().mean() < 0.6


def test_reinforcement_loop_learns(capsys):
    assert load("reinforcement_loop").main(updates=40) > 0.8
    assert "mean reward of an answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("weights", "said"),
    [("nope", "nope does not exist"), ("box-world-viewport", "is of box-world; allowed: nth-farthest")],
)
def test_pretrained_says_what_it_takes(weights, said):
    with pytest.raises(SystemExit, match=said):
        load("pretrained").main(weights)


def test_pretrained_answers_questions(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "nth-farthest", "--preset", "smoke", "--run", str(run)]) == 0
    capsys.readouterr()
    accuracy = load("pretrained").main(str(run), samples=500)
    assert 0 <= accuracy <= 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{run}: 3 vectors of 2 dimensions, seed 0, 60 updates"
    assert len(said) == 5
    assert "of the farthest from vector" in said[1]
    assert said[4] == f"accuracy on 500 fresh questions: {100 * accuracy:.1f} %"


def test_pretrained_by_name_or_what_to_do_without(capsys):
    if any(name.startswith("nth-farthest") for name in pretrained.available()):
        accuracy = load("pretrained").main(samples=500)
        assert accuracy > 0.8
    else:
        with pytest.raises(SystemExit, match="give --weights RUN"):
            load("pretrained").main()


@pytest.mark.parametrize(
    ("blocked", "slots_moved", "sees_input"),
    [("nothing", 4, True), ("others", 1, True), ("memory", 1, True), ("input", 4, False)],
)
def test_blocked_attention_blocks_what_it_names(blocked, slots_moved, sees_input):
    """Without gates, which see the input anyway: what moves when one slot or the input is another."""
    import torch

    example = load("blocked_attention")
    core = example.problem_with(blocked, demo().training, slots=4, units=32).model.core
    core.spec = core.spec._replace(gate_style=None)
    x, state = torch.randn(1, 1, core.input_shape[0]), core.initial_state(1)
    other = state.clone()
    other[:, 2] += torch.randn_like(other[:, 2])
    with torch.no_grad():
        next_state, from_other, of_other_input = (
            core(*each)[1] for each in ((x, state), (x, other), (x + 1, state))
        )
    assert ((next_state - from_other).abs().amax(-1) > 1e-5).sum() == slots_moved
    assert ((next_state - of_other_input).abs().max() > 1e-5) == sees_input


def test_blocked_attention_trains_and_scores(capsys):
    score = load("blocked_attention").main("memory", steps=30, units=32)
    assert 0.2 < score < 0.8
    said = capsys.readouterr().out
    assert f"attention to memory blocked: {100 * score:.1f} % of 20,000 fresh samples" in said


def test_onnx_export_gives_the_same_numbers():
    """As a reader runs it: in a process of its own, from another folder."""
    pytest.importorskip("onnxscript", reason="needs the extra export: pip install -e '.[export]'")
    pytest.importorskip("onnxruntime", reason="needs the extra export: pip install -e '.[export]'")
    script = ROOT / "examples" / "onnx_export.py"
    said = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=120)
    difference = float(said.stdout.split("differ by ")[1].split()[0])
    assert difference < 1e-5
    assert said.stderr == ""
