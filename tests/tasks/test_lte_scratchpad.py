"""What stands in brackets, written down and read again: the text, the digits, and a training with it."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.cores.lstm import LSTM
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.experiments import table1_lte
from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_scratchpad import Scratchpad
from relational_rnn.tasks.lte_text import IDS, PAD, VOCABULARY, ZERO, answer, decode
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.loop import Trainer
from tests.tasks.lte_samples import draw


def brackets(text):
    """What stands in them, the innermost first: a nested term is always the first operand."""
    closed = [i for i, letter in enumerate(text) if letter == ")"]
    opened = [i for i, letter in enumerate(text) if letter == "("][::-1]
    return [text[first + 1 : last] for first, last in zip(opened, closed, strict=True)]


def model(brackets=1, digits=2, core=None):
    torch.manual_seed(0)
    return Scratchpad(core or LSTM(VOCABULARY, 8), brackets=brackets, digits=digits, hidden=(16,)).eval()


@pytest.mark.parametrize(
    ("task", "length", "nest"), [("control", 3, 2), ("program", 4, 3), ("addition", 2, 4)]
)
def test_values_are_those_of_the_text(task, length, nest):
    batch = draw(LearningToExecute(task, length, nest), 400, curriculum=Curriculum(length, nest, "mix"))
    seen = set()
    for text, inner in zip(decode(batch.inputs), batch.inner.tolist(), strict=True):
        expected = [int(answer("program", program)) for program in brackets(text)]
        assert inner[: len(expected)] == expected
        seen.add(len(expected))
    assert seen == set(range(nest))


def test_programs_without_brackets_have_no_values():
    assert draw(LearningToExecute("control", 2, 1), 3).inner.shape == (3, 0)


def spelled(text, sample):
    """What the core reads of a sample: _ where there is nothing to be read."""
    letters = {number: letter for letter, number in IDS.items()}
    pairs = zip(text.ids[:, sample].tolist(), text.blank[:, sample].tolist(), strict=True)
    return "".join("_" if blank else letters[number] for number, blank in pairs)[: text.lengths[sample]]


def ids(*texts):
    longest = max(map(len, texts))
    rows = [[IDS[letter] for letter in text] + [PAD] * (longest - len(text)) for text in texts]
    return torch.tensor(rows).t(), torch.tensor([len(text) for text in texts])


def test_the_text_with_values_by_hand():
    inputs, lengths = ids("((1+2)+3)+4", "x=(1+2)for[2]x+=8", "5+6")
    text = model(brackets=2).text(inputs, lengths, torch.tensor([[3, 6], [3, 99], [99, 99]]))
    assert spelled(text, 0) == "((1+2)__03+3)__06+4"
    assert spelled(text, 1) == "x=(1+2)__03for[2]x+=8"
    assert spelled(text, 2) == "5+6"
    assert text.there.tolist() == [[True, True], [True, False], [False, False]]
    assert text.begins[0].tolist() == [6, 13]
    assert text.begins[1, 0] == 7


def test_what_is_written_comes_from_the_steps_without_input():
    """Sample by sample, with the same core step by step."""
    network = model(brackets=2, digits=3, core=RelationalMemory(VOCABULARY, 2, 4, 2))
    task = LearningToExecute("program", 2, 3)
    batch = draw(task, 12, curriculum=Curriculum(2, 3, "mix"))
    values = torch.randint(0, 1000, (12, 2), generator=torch.Generator().manual_seed(3))
    logits, written = network.read_and_write(batch.inputs, batch.input_lengths, task.output_steps, values)
    text = network.text(batch.inputs, batch.input_lengths, values)
    for b in range(12):
        length = int(text.lengths[b])
        x = network.one_hot(text.ids[:length, b]) * ~text.blank[:length, b, None]
        outputs, _ = network.encoder(torch.cat([x, torch.zeros(task.output_steps, VOCABULARY)]))
        torch.testing.assert_close(logits[:, b], network.logits(outputs[length:]))
        for k in range(2):
            if text.there[b, k]:
                first = int(text.begins[b, k])
                torch.testing.assert_close(written[b, k], network.logits(outputs[first : first + 3]))


def test_an_evaluation_reads_what_it_wrote():
    network = model(brackets=2, digits=3)
    task = LearningToExecute("program", 2, 3)
    batch = draw(task, 20)
    run = (batch.inputs, batch.input_lengths, task.output_steps)
    values = torch.zeros(20, 2, dtype=torch.long)
    for k in range(2):  # the second one is written behind the first
        own = network.read_and_write(*run, values)[1][:, k, :, ZERO : ZERO + 10].argmax(-1)
        values[:, k] = torch.tensor([int("".join(map(str, digits))) for digits in own.tolist()])
    torch.testing.assert_close(network(*run), network.read_and_write(*run, values)[0])
    assert not torch.allclose(network(*run), network.read_and_write(*run, batch.inner)[0])  # not the truth


def test_the_loss_by_hand():
    network = model(brackets=2)
    inputs, _ = ids("(1+2)+4", "5+6")
    batch = draw(LearningToExecute("program", 1, 3), 2)._replace(
        inputs=inputs, inner=torch.tensor([[47, 99], [99, 99]])
    )
    logits = torch.zeros(2, 2, 2, VOCABULARY)
    logits[0, 0, 0, ZERO + 4] = 100.0  # the first digit, surely; of the second nothing is known
    loss, right = network.loss(logits, batch)
    unknown = torch.tensor(float(VOCABULARY)).log().item()
    assert loss.item() == pytest.approx(unknown / 8)  # of 2 x 2 x 2 digits
    assert right.item() == 0.5


def test_no_steps_to_answer_in():
    inputs, lengths = ids("(1+2)+4")
    with pytest.raises(ValueError, match="steps=0 is not allowed; allowed: 1 or more"):
        model()(inputs, lengths, 0)


def test_a_program_of_too_many_brackets():
    inputs, lengths = ids("((1+2)+3)+4")
    with pytest.raises(ValueError, match="brackets of a program=2 is not allowed; allowed: at most 1"):
        model(brackets=1)(inputs, lengths, 2)


def config(**model):
    smoke = table1_lte.smoke()
    mixed = replace(smoke.curriculum, strategy="mix")  # brackets from the first update on
    return replace(smoke, task="control", nest=2, model=replace(smoke.model, **model), curriculum=mixed)


def test_a_training_learns_to_write_them():
    """Sums of one digit: what is in brackets is learned, and answers with it."""
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
    assert records[-1]["eval_accuracy"] > 0.4  # read with its own


def test_the_paper_writes_nothing_down():
    problem = table1_lte.make_problem(config(), torch.device("cpu"))
    assert not isinstance(problem.model, Scratchpad)
    assert problem.loss()[1].keys() == {"accuracy"}


@pytest.mark.parametrize(
    "change",
    [
        dict(nest=1),
        dict(task="copy", nest=None),
        dict(model=replace(config().model, scratchpad=True, regime="teacher")),
        dict(model=replace(config().model, scratchpad=True, decoder="separate")),
    ],
)
def test_where_nothing_can_be_written_down(change):
    with pytest.raises(ValueError, match="scratchpad=True is not allowed; allowed: False, unless programs"):
        replace(config(scratchpad=True), **change)
