"""N-th farthest: the baselines' settings reach their cores, and older run folders stay readable."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from relational_rnn.cli.__main__ import main
from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.dnc import DNC
from relational_rnn.experiments import open_run
from relational_rnn.experiments.nth_farthest import Computer, Config, NthFarthestProblem, paper, smoke
from relational_rnn.tasks.heads import Bilinear
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.run_folder import RunFolder

CPU = torch.device("cpu")
SMOKE = ["train", "nth-farthest", "--preset", "smoke"]


@pytest.mark.parametrize(("memories", "size", "heads"), [(1, 8, 1), (8, 16, 2), (16, 12, 4)])
def test_the_dnc_is_the_appendixs(memories, size, heads):
    """Memory size tied to a two-layer LSTM controller, as many write heads as read heads."""
    config = replace(smoke(), core="dnc", dnc=Computer(memories, size, heads))
    core = NthFarthestProblem(config, CPU).model.core
    assert isinstance(core, DNC)
    assert (core.memory_size, core.word_size, core.num_reads, core.num_writes) == (
        memories,
        size,
        heads,
        heads,
    )
    assert isinstance(core.controller, DeepLSTM)
    assert core.controller.output_size == 2 * size
    assert core.output_size == config.model.head_units


def test_every_weight_of_the_papers_dnc_gets_a_gradient():
    """One batch at the full input size: finite, and not zero."""
    config = replace(paper(), core="dnc", dnc=Computer(8, 16, 2))
    config = replace(config, training=replace(config.training, batch_size=16))
    problem = NthFarthestProblem(config, CPU)
    loss, _ = problem.loss()
    loss.backward()
    trained = {name: p.grad for name, p in problem.model.named_parameters() if p.requires_grad}
    assert [name for name, grad in trained.items() if not (grad.isfinite().all() and grad.any())] == []


@pytest.mark.parametrize("core", ["rmc", "lstm", "dnc"])
def test_one_flag_leaves_the_curriculum_out(tmp_path, core):
    run = tmp_path / "run"
    assert main([*SMOKE, "--core", core, "--curriculum.stages", "--run", str(run)]) == 0
    assert RunFolder.open(run).config()["config"]["curriculum"]["stages"] == []
    assert {(r["vectors"], r["dims"]) for r in RunFolder.open(run).metrics()} == {(3, 2)}


def test_a_run_folder_from_before_the_dnc():
    config = smoke()
    values = json.loads(json.dumps(to_dict(config)))
    del values["dnc"]
    assert from_dict(Config, values) == replace(config, dnc=Computer())


@pytest.mark.parametrize("name", ["memories", "memory_size", "heads"])
def test_a_dnc_of_size_zero_is_refused(name):
    with pytest.raises(ValueError, match=f"dnc.{name}=0 is not allowed; allowed: 1 or more"):
        Computer(**{name: 0})


def test_a_head_of_products_is_trained_and_scored(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main([*SMOKE, "--model.head", "bilinear", "--model.head-layers", "2", "--run", run]) == 0
    assert main(["eval", run]) == 0
    model = NthFarthestProblem(open_run(run)[2], CPU).model
    assert [type(layer) for layer in model.head] == [Bilinear, Bilinear, torch.nn.Linear]
    model.load_state_dict(load_file(tmp_path / "run" / "weights.safetensors"))


def test_an_unknown_head_is_refused():
    config = smoke()
    config = replace(config, model=replace(config.model, head="cubic"))
    with pytest.raises(ValueError, match="head='cubic' is not allowed; allowed: relu, bilinear"):
        NthFarthestProblem(config, CPU)
