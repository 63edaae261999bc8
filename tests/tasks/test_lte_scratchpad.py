"""A model that writes its calculation down: what it reads, what it is asked to write, and a training."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.experiments import table1_lte
from relational_rnn.tasks.learning_to_execute import Batch, LearningToExecute, Steps, loss
from relational_rnn.tasks.lte_calculation import WAYS
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_scratchpad import Scratchpad, Written
from relational_rnn.tasks.lte_text import IDS, VOCABULARY, ZERO, encode
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.loop import Trainer
from tests.tasks.lte_samples import draw

TASK = LearningToExecute("program", 2, 3)


def model(task=TASK, core=None):
    torch.manual_seed(0)
    return Scratchpad(core or LSTM(VOCABULARY, 8), task, hidden=(16,)).eval()


CORES = {
    "lstm": lambda: LSTM(VOCABULARY, 8),
    "rmc": lambda: RelationalMemory(VOCABULARY, 2, 4, 2),
    "dnc": lambda: DNC(VOCABULARY, 8, memory_size=4, word_size=4, num_reads=1, hidden_size=8),
}


@pytest.mark.parametrize("core", CORES)
def test_true_digits_are_read_in_training(core):
    """Sample by sample, each text by itself through the same core."""
    network = model(core=CORES[core]())
    batch = draw(TASK, 12, curriculum=Curriculum(2, 3, "mix"))
    logits, written = network.read_and_write(batch, TASK.output_steps)
    text = network.calculation.text(batch.inputs, batch.input_lengths)
    for b in range(12):
        length = int(text.lengths[b])
        x = torch.zeros(length + TASK.output_steps, VOCABULARY)
        for t in range(length):
            if not text.blank[t, b]:
                x[t, written.symbols[t - 1, b] if text.reads[t, b] else text.ids[t, b]] = 1.0
        expected = network.logits(network.encoder(x)[0])
        torch.testing.assert_close(logits[:, b], expected[length:])
        torch.testing.assert_close(written.logits[:length, b], expected[:length])


@pytest.mark.parametrize("core", CORES)
def test_an_evaluation_reads_what_it_wrote(core):
    """As if it were true: with the digits that it writes as the ones to be read, it writes these."""
    network = model(core=CORES[core]())
    batch = draw(TASK, 20)
    asked = (batch.inputs, batch.input_lengths, TASK.output_steps)
    text = network.calculation.text(*asked[:2])
    own = torch.full_like(text.ids, ZERO)
    network.calculation.symbols = lambda steps, text: own
    for t in range(len(own)):
        written = network.read_and_write(batch, TASK.output_steps)[1].logits[t]
        own[t] = ZERO + written[:, ZERO : ZERO + 10].argmax(-1)
    torch.testing.assert_close(network(*asked), network.read_and_write(batch, TASK.output_steps)[0])
    del network.calculation.symbols
    truth = network.read_and_write(batch, TASK.output_steps)[0]
    assert not torch.allclose(network(*asked), truth)


def test_it_needs_nothing_but_the_program():
    network, batch = model(), draw(TASK, 9)
    asked = (batch.inputs, batch.input_lengths, TASK.output_steps)
    behind = torch.arange(len(batch.inputs))[:, None] >= batch.input_lengths
    for symbol in (")", "*", "["):  # whatever stands behind it
        padded = batch.inputs.masked_fill(behind, IDS[symbol])
        torch.testing.assert_close(network(*asked), network(padded, *asked[1:]))
    alone = network(batch.inputs[: batch.input_lengths[4], 4:5], batch.input_lengths[4:5], TASK.output_steps)
    torch.testing.assert_close(network(*asked)[:, 4:5], alone)


def test_a_training_step_waits_for_no_number_and_copies_none_from_the_host():
    """On the meta device, whose tensors have no numbers: so a CUDA graph can have it."""
    network = model(core=RelationalMemory(VOCABULARY, 2, 4, 2)).to("meta")
    batch = draw(TASK, 5)
    steps = Steps(*(part.to("meta") for part in batch.steps))
    batch = Batch(*(part.to("meta") for part in batch[:-1]), steps)
    logits, written = network.read_and_write(batch, TASK.output_steps)
    (loss(logits, batch) + written.entropy).backward()
    assert {parameter.grad.device.type for parameter in network.parameters()} == {"meta"}
    with torch.no_grad():
        answers = network(batch.inputs, batch.input_lengths, TASK.output_steps)
    assert answers.shape == (TASK.output_steps, 5, VOCABULARY)


def test_the_loss_by_hand():
    symbols = ZERO + torch.tensor([[4, 7], [1, 9]])
    mask = torch.tensor([[True, True], [False, True]])
    logits = torch.zeros(2, 2, VOCABULARY)
    logits[0, 0, ZERO + 4] = 100.0  # surely right; of the other two nothing is known
    logits[1, 0, ZERO + 8] = 100.0  # wrong, where nothing is to be written
    written = Written(logits, symbols, mask, torch.zeros_like(symbols))
    assert written.entropy.item() == pytest.approx(2 * torch.tensor(float(VOCABULARY)).log().item())
    assert written.accuracy.item() == pytest.approx(1 / 3)


def test_no_steps_to_answer_in():
    with pytest.raises(ValueError, match="steps=0 is not allowed; allowed: 1 or more"):
        model()(encode(["(1+2)+4"]), torch.tensor([7]), 0)


def test_a_program_of_too_many_levels():
    with pytest.raises(ValueError, match="levels of a program=4 is not allowed; allowed: at most 3"):
        model()(encode(["(((1+2)+3)+4)+5"]), torch.tensor([15]), 2)


def test_a_program_that_is_too_long():
    text = "1" * 40 + "+1"
    with pytest.raises(ValueError, match="steps with calculation=52 is not allowed; allowed: at most 30"):
        model(LearningToExecute("addition", 2, 2))(encode([text]), torch.tensor([42]), 2)


def test_no_calculation_in_memorisation():
    with pytest.raises(ValueError, match="task='copy' is not allowed; allowed: one with programs"):
        model(LearningToExecute("copy", 3))


def config(**model):
    smoke = table1_lte.smoke()
    mixed = replace(smoke.curriculum, strategy="mix")  # brackets from the first update on
    return replace(smoke, task="control", nest=2, model=replace(smoke.model, **model), curriculum=mixed)


def test_a_training_learns_to_calculate():
    """Sums of one digit: what it writes is learned, and answers with what it wrote itself."""
    asked = config(scratchpad=True)
    assert from_dict(table1_lte.Config, to_dict(asked)) == asked
    asked = replace(
        asked,
        task="addition",
        length=1,
        rmc=replace(asked.rmc, total_units=128, gate_style="unit"),
        model=replace(asked.model, head_units=64, head="bilinear"),
        training=replace(asked.training, steps=250, log_every=10, batch_size=64, learning_rate=3e-3),
    )
    problem, records = table1_lte.make_problem(asked, torch.device("cpu")), []
    Trainer(problem, asked.training, torch.device("cpu")).run(report=records.append)
    shares = [record["written_accuracy"] for record in records]
    assert shares[0] < 0.6
    assert shares[-1] > 0.8
    assert records[-1]["eval_accuracy"] > 0.4


def test_levels_are_mastered_when_the_calculation_is():
    """The answer is copied from it, and would be right long before."""
    asked = config(scratchpad=True)
    curriculum = replace(asked.curriculum, strategy="mastery", mastery=0.9)
    problem = table1_lte.make_problem(replace(asked, curriculum=curriculum), torch.device("cpu"))
    problem.after_interval({"loss": 1.0, "accuracy": 1.0, "written_accuracy": 0.5})
    assert problem.curriculum.level.tolist() == [1, 1]
    problem.after_interval({"loss": 1.0, "accuracy": 0.5, "written_accuracy": 0.95})
    assert problem.curriculum.level.tolist() == [2, 1]


def test_operations_trained_on_besides_have_their_steps():
    asked = config(scratchpad=True)
    asked = replace(asked, curriculum=replace(asked.curriculum, also=("products",)))
    problem = table1_lte.make_problem(asked, torch.device("cpu"))
    assert problem.model.calculation.counts[-1] == 12  # digits of a product
    loss, metrics = problem.loss()
    assert loss.isfinite()
    assert metrics.keys() == {"accuracy", "written_loss", "written_accuracy"}


def test_the_paper_writes_nothing_down():
    problem = table1_lte.make_problem(config(), torch.device("cpu"))
    assert not isinstance(problem.model, Scratchpad)
    assert problem.loss()[1].keys() == {"accuracy"}


ONE_CORE = "unless model.regime is non-auto-regressive and model.decoder shared"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (dict(task="copy", nest=None), "for copy has no calculation"),
        (dict(model=replace(config().model, scratchpad=True, regime="teacher")), ONE_CORE),
        (dict(model=replace(config().model, scratchpad=True, decoder="separate")), ONE_CORE),
    ],
)
def test_where_nothing_can_be_written_down(change, why):
    with pytest.raises(ValueError, match=f"scratchpad=True is not allowed; allowed: False, {why}"):
        replace(config(scratchpad=True), **change)


def test_a_digit_that_is_written_counts_for_the_operation_of_its_level():
    """Answers are copied; what is practised goes by the digits that are calculated."""
    asked = config(scratchpad=True)
    asked = replace(asked, curriculum=replace(asked.curriculum, balance=True))
    problem = table1_lte.make_problem(asked, torch.device("cpu"))
    batch = draw(problem.task, 200)
    (operations, right, mask), calculation = problem._answers(batch)[3], problem.model.calculation
    found = problem.practice.count(operations, right, mask)
    loops, comparisons = (batch.operations == 6), (batch.operations == 4) | (batch.operations == 5)
    assert found["loops_asked"] == loops.sum() * calculation.counts[WAYS.index("loop")]
    assert found["comparisons_asked"] == comparisons.sum() * calculation.counts[WAYS.index("comparison")]
    assert found["loops_right"] + found["comparisons_right"] == (right & mask).sum()
