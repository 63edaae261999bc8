"""On a GPU: the captured update is the eager one, goes through the text, drops out anew; scores are equal."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments.table2_lm import make_problem, smoke
from relational_rnn.tasks.language_evaluation import score
from relational_rnn.tasks.language_model import Dropout
from relational_rnn.training.config import to_dict
from relational_rnn.training.device import autocast, pick_device
from relational_rnn.training.loop import Trainer
from relational_rnn.training.run_folder import RunFolder
from tests.tasks.text.files import make_wikitext

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_wikitext(tmp_path_factory.mktemp("text"), lines=30)


def make(data, core="rmc", dropout=None, **training):
    base = smoke()
    training = replace(base.training, device="cuda", **training)
    config = replace(base, data=str(data), core=core, training=training)
    if dropout is not None:
        config = replace(config, model=replace(config.model, dropout=dropout))
    device = pick_device("cuda")
    return config, Trainer(make_problem(config, device), config.training, device)


@pytest.mark.parametrize("core", ["rmc", "lstm"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_update_is_the_eager_one(data, core, precision):
    """Same windows, state, epochs, rates and weights, up to the order of floating point sums."""
    records = []
    for cuda_graph in (False, True):
        _, trainer = make(data, core, Dropout(), cuda_graph=cuda_graph, precision=precision, steps=60)
        seen = []
        trainer.run(report=seen.append)
        assert (trainer._updates.graph is not None) == cuda_graph
        assert int(trainer.problem.windows.epoch) >= 1
        records.append(seen)
    for eager, captured in zip(*records, strict=True):
        assert eager["epoch"] == captured["epoch"]
        assert captured["loss"] == pytest.approx(eager["loss"], rel=1e-3 if precision == "fp32" else 1e-2)
    assert records[1][-1]["eval_test_perplexity"] == pytest.approx(
        records[0][-1]["eval_test_perplexity"], rel=1e-2 if precision == "fp32" else 5e-2
    )


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_every_replay_drops_out_something_else(data, core):
    """With a rate of nothing and the window held in place, only dropout changes the loss."""
    dropout = Dropout(word=0.1, input=0.1, output=0.1, recurrent=0.1)
    every = dict(log_every=1, checkpoint_every=1, eval_every=0, learning_rate=1e-12)
    _, trainer = make(data, core, dropout, schedule="constant", steps=30, **every)
    losses = []
    for _ in range(30):
        trainer.problem.windows.position.zero_()
        trainer.run(until=trainer.step + 1, report=lambda record: losses.append(record["loss"]))
    assert len(set(losses)) == 30


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_the_score_in_a_graph_is_that_of_the_cpu(data, core):
    _, trainer = make(data, core, steps=20, eval_every=0)
    trainer.run()
    model, tokens = trainer.problem.model.eval(), trainer.problem.text.tokens["valid"]
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    for unroll in (None, 7):
        with torch.no_grad(), autocast(gpu, "fp32"):
            found = score(model.to(gpu), tokens, device=gpu, unroll=unroll)
        wanted = score(model.to(cpu), tokens, device=cpu, unroll=unroll)
        assert found.perplexity == pytest.approx(wanted.perplexity, rel=1e-4)


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_stop_and_resume(tmp_path, data, core):
    config, whole = make(data, core)
    whole.run()
    config, trainer = make(data, core)
    trainer.run_folder = RunFolder.create(tmp_path / "run", "lm", "smoke", to_dict(config))
    trainer.run(until=17)  # captured, inside an interval
    trainer.save()
    trainer.run_folder.close()
    _, again = make(data, core)
    again.run_folder = RunFolder.open(tmp_path / "run")
    again.resume()
    again.run()
    assert torch.equal(again.problem.windows.position, whole.problem.windows.position)
    for (name, a), b in zip(
        again.problem.model.named_parameters(), whole.problem.model.parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
