import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relational_rnn.tasks.learning_to_execute import Batch, LearningToExecute, accuracy, loss, solved
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_text import MEMORISATION, PAD, START, TASKS, TOKENS, answer, decode, encode
from tests.tasks.lte_samples import chi_square_p, draw, recorded

DATA = Path(__file__).parent.parent / "data"


def mix(task):
    return Curriculum(task.length, task.nest)


# ------------------------------------------------------------------ vocabulary and checker


def test_vocabulary_is_sonnets():
    index = json.loads((DATA / "lte_index.json").read_text())["vocab_id_to_token"]
    assert TOKENS[0] == "_unk_"
    assert len(TOKENS) == 45
    assert {int(i): token for i, token in index.items()} == dict(list(enumerate(TOKENS))[1:])


@pytest.mark.parametrize("name", ["copy_nest1", "double_nest1", "program_nest2"])
def test_ids_of_sonnets_batches(name):
    task = LearningToExecute(name.split("_")[0])
    with np.load(DATA / f"lte_batch_{name}_len5.npz") as file:
        data = {key: file[key] for key in file.files}
    inputs, targets = (torch.from_numpy(data[key]).long() for key in ("obs_ids", "target_ids"))
    assert (task.input_steps, task.output_steps) == (len(inputs), len(targets))
    assert decode(inputs, keep_padding=True) == data["text"].tolist()
    assert decode(targets, keep_padding=True) == data["text_out"].tolist()
    assert torch.equal(encode(decode(inputs), task.input_steps), inputs)
    assert torch.equal(encode(decode(targets), task.output_steps), targets)
    lengths = (torch.from_numpy(data[key]) for key in ("len_in", "len_out"))
    batch = Batch(inputs, targets, *lengths)
    assert batch.decoder_inputs.tolist() == data["target_in_ids"].tolist()
    assert ((batch.targets != PAD) == batch.mask).all()
    assert [len(text) for text in decode(inputs)] == batch.input_lengths.tolist()
    assert all(answer(task.task, i) == o for i, o in zip(decode(inputs), decode(targets), strict=True))


@pytest.mark.parametrize("task", TASKS)
def test_checker_agrees_with_sonnets_samples(task):
    samples = recorded(task)
    assert len(samples) == 2000
    assert all(answer(task, program) == value for program, value in samples)


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("12+34", "46"),
        ("(10-99)*10", str(-890 % 1000)),
        ("99*99", str(9801 % 1000)),
        ("(11if20>10else33)if40<30else50", "50"),
        ("x=(12for", None),
        ("x=12for[3]x+=20", "72"),
        ("(x=1for[9]x+=9)-5", "77"),
        ("012+345", None),
        ("12+34)", None),
        ("12+345", None),
        ("", None),
    ],
)
def test_checker_by_hand(program, value):
    if value is None:
        with pytest.raises(ValueError, match=r"."):
            answer("program", program)
    else:
        assert answer("program", program) == value


@pytest.mark.parametrize(
    ("task", "program", "message"),
    [
        ("addition", "1*2", r"operations=\['\*'\] is not allowed; allowed: \+ in addition"),
        ("control", "1+2", r"operations=\['\+'\] is not allowed; allowed: if, for in control"),
        ("program", "12", "text='12' is not allowed; allowed: a program with an operation"),
        ("program", "12+3", r"literal lengths=\[1, 2\] is not allowed"),
        ("program", "x=1for[12]x+=3", r"'\]x\+=' must stand at 8"),
        ("program", "\u0663+\u0663", "must stand at 0"),
        ("program", "(" * 3000, "at most 100 brackets"),
        ("copy", "\u00b2", "allowed: digits"),
    ],
)
def test_the_checker_refuses_what_is_not_of_the_task(task, program, message):
    with pytest.raises(ValueError, match=message):
        answer(task, program)


def test_no_steps_and_no_samples_decode_to_nothing():
    assert decode(torch.zeros(0, 3, dtype=torch.long)) == ["", "", ""]
    assert decode(torch.zeros(4, 0, dtype=torch.long)) == []


# ------------------------------------------------------------------ the generator


def check_samples(task, samples, seed, curriculum=None):
    batch = draw(task, samples, seed, curriculum)
    programs, values = decode(batch.inputs), decode(batch.targets)
    assert [answer(task.task, program) for program in programs] == values
    assert [len(text) for text in programs] == batch.input_lengths.tolist()
    assert [len(text) for text in values] == batch.target_lengths.tolist()
    assert ((batch.targets != PAD) == batch.mask).all()
    assert batch.inputs.shape == (task.input_steps, samples)
    assert batch.targets.shape == (task.output_steps, samples)
    return programs


@pytest.mark.parametrize("name", TASKS)
def test_samples_evaluate_to_their_value(name):
    check_samples(LearningToExecute(name), 5_000, seed=1)
    check_samples(LearningToExecute(name), 1_000, seed=2, curriculum=mix(LearningToExecute(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_100_000_samples_evaluate_to_their_value(name):
    check_samples(LearningToExecute(name), 100_000, seed=3)
    hard = LearningToExecute(name, 6, None if name in MEMORISATION else 3)
    check_samples(hard, 100_000, seed=4, curriculum=mix(hard))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(TASKS), st.integers(1, 8), st.integers(1, 3), st.integers(0, 1000))
def test_any_size(name, length, nest, seed):
    task = LearningToExecute(name, length, 1 if name in MEMORISATION else nest)
    curriculum = mix(task) if seed % 2 else None
    for program in check_samples(task, 50, seed, curriculum):
        literals = [len(number) for number in re.findall(r"(?<!\[)\b\d+|(?<=[a-z])\d+", program)]
        assert max(literals) <= length
        depth = program.count("(") + 1
        assert depth <= task.nest
        if curriculum is None:
            assert depth == task.nest


def test_nest_4_length_8_is_exact():
    check_samples(LearningToExecute("program", 8, 4), 2_000, seed=5)


def test_mix_is_uniform():
    task = LearningToExecute("program", 5, 2)
    programs = decode(draw(task, 20_000, seed=7, curriculum=mix(task)).inputs)
    sizes = Counter((len(re.search(r"\d+", program).group()), program.count("(") + 1) for program in programs)
    assert len(sizes) == 10
    assert chi_square_p(sizes, Counter({size: 20_000 for size in sizes})) > 0.001


def test_same_seed_same_batch():
    task = LearningToExecute()
    first, second = (draw(task, 9, seed=8) for _ in range(2))
    tensors = zip((*first[:-1], *first.steps), (*second[:-1], *second.steps), strict=True)
    assert all(torch.equal(a, b) for a, b in tensors)
    assert not torch.equal(draw(task, 9, seed=8).inputs, draw(task, 9, seed=9).inputs)


def test_empty_batch():
    assert draw(LearningToExecute(), 0).inputs.shape == (57, 0)


def test_steps_are_sonnets():
    assert LearningToExecute("program", 5, 2).input_steps == 57
    assert LearningToExecute("program", 6, 3).input_steps == 94
    assert LearningToExecute("program", 6, 3).output_steps == 12
    assert (LearningToExecute("copy").input_steps, LearningToExecute("copy").output_steps) == (6, 6)
    assert LearningToExecute("double").output_steps == 11


# ------------------------------------------------------------------ loss and metrics


def certain(ids):
    """Logits that are 100 for one id; the loss of a right one is then 0 and of a wrong one 100."""
    return 100 * torch.nn.functional.one_hot(ids, 45).float()


def test_loss_and_metrics_by_hand():
    targets = encode(["12", "3"], 4)
    batch = Batch(targets, targets, torch.tensor([2, 1]), torch.tensor([2, 1]))
    assert loss(certain(targets), batch).item() == 0
    assert accuracy(certain(targets), batch).item() == 1
    wrong = encode(["14", "39"], 4)  # the 9 stands behind the end of "3" and does not count
    assert loss(certain(wrong), batch).item() == pytest.approx(100 / (4 * 2))
    assert accuracy(certain(wrong), batch).item() == pytest.approx(2 / 3)
    assert solved(certain(wrong), batch).item() == 0.5
    assert batch.decoder_inputs[0].tolist() == [START, START]


# ------------------------------------------------------------------ curricula


def test_fixed_curricula():
    generator = torch.Generator().manual_seed(0)
    lengths, nests = Curriculum(5, 2, "baseline").draw(100, generator)
    assert set(lengths.tolist()) == {5}
    assert set(nests.tolist()) == {2}
    for strategy in ("baseline", "mix"):
        assert not any(Curriculum(5, 2, strategy).update(1.0, accuracy=0.0) for _ in range(50))


@pytest.mark.parametrize("strategy", ["naive", "combined"])
def test_growing_curricula(strategy):
    curriculum = Curriculum(3, 2, strategy, min_reports=2)
    generator = torch.Generator().manual_seed(0)
    levels = []
    for _ in range(12):
        lengths, nests = curriculum.draw(500, generator)
        levels.append((lengths.max().item(), nests.max().item()))
        assert (lengths.min().item() == 1) == (strategy == "combined" or levels[-1][0] == 1)
        curriculum.update(1.0, accuracy=0.0)
    assert sorted(set(levels), key=levels.index) == [(1, 1), (2, 1), (3, 1), (3, 2)]


def test_a_growing_loss_holds_the_level_and_state_is_kept():
    curriculum = Curriculum(3, 2, "naive", threshold=0.1, min_reports=3)
    assert not any(curriculum.update(value, accuracy=0.0) for value in (1.0, 2.0, 4.0, 8.0))
    copy = Curriculum(3, 2, "naive", threshold=0.1, min_reports=3)
    copy.load_state(curriculum.state())
    assert copy.update(8.0, accuracy=0.0) == curriculum.update(8.0, accuracy=0.0)
    assert copy.update(8.0, accuracy=0.0)
    assert curriculum.update(8.0, accuracy=0.0)
    assert copy.level.tolist() == curriculum.level.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("length", "nest", "strategy", "allowed"),
    [
        (2, 2, "naive", r"\(1, 1\) to \(2, 2\)"),  # would ask for longer literals than there are
        (3, 2, "mix", r"\(3, 2\) to \(3, 2\)"),  # would never go beyond the level
    ],
)
def test_a_level_of_other_settings_is_refused(length, nest, strategy, allowed):
    curriculum = Curriculum(3, 2, "naive", min_reports=2)
    for _ in range(4):
        curriculum.update(1.0, accuracy=0.0)
    assert curriculum.level.tolist() == [3, 1]
    with pytest.raises(ValueError, match=rf"level of the checkpoint=\(3, 1\) .* allowed: {allowed}"):
        Curriculum(length, nest, strategy).load_state(curriculum.state())


def test_a_level_without_any_loss_is_done():
    curriculum = Curriculum(3, 1, "naive", min_reports=2)
    assert [curriculum.update(0.0, accuracy=1.0) for _ in range(3)] == [False, True, False]


def test_mastery_advances_with_the_accuracy_and_keeps_what_was_easy():
    curriculum = Curriculum(4, 2, "mastery", mastery=0.9)
    assert not any(curriculum.update(loss, accuracy=0.89) for loss in (1.0, 0.5, 0.1) * 20)
    assert [curriculum.update(1.0, accuracy=0.9) for _ in range(5)] == [True] * 4 + [False]  # 2, 3, 4, nest 2
    lengths, nests = curriculum.draw(100_000, torch.Generator().manual_seed(0))
    counts = torch.bincount(lengths)[1:] / 100_000
    assert torch.allclose(counts, torch.tensor([0.125, 0.125, 0.125, 0.625]), atol=0.01)
    hardest = ((lengths == 4) & (nests == 2)).float().mean().item()
    assert hardest == pytest.approx(0.5 + 0.5 / 8, abs=0.01)  # length and nest of half the samples together


def test_mastery_loses_its_patience_and_a_checkpoint_knows_how_much_is_left():
    curriculum = Curriculum(3, 1, "mastery", mastery=0.9, patience=3)
    assert [curriculum.update(1.0, accuracy=0.5) for _ in range(4)] == [False, False, True, False]
    copy = Curriculum(3, 1, "mastery", mastery=0.9, patience=3)
    copy.load_state(curriculum.state())
    assert copy.level.tolist() == [2, 1]
    assert [copy.update(1.0, accuracy=0.5) for _ in range(3)] == [False, True, False]
    assert copy.level.tolist() == [3, 1]


def test_naive_samples_follow_the_level():
    task = LearningToExecute("program", 3, 2)
    curriculum = Curriculum(3, 2, "naive", min_reports=2)
    easy = decode(draw(task, 100, curriculum=curriculum).inputs)
    assert not any(re.search(r"\d\d|\(", program) for program in easy)
    for _ in range(20):
        curriculum.update(1.0, accuracy=0.0)
    hard = decode(draw(task, 100, curriculum=curriculum).inputs)
    assert all(re.search(r"\(.*\d\d\d", program) for program in hard)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("division",), "task='division'"),
        (("program", 0), "length=0"),
        (("program", 9), "length=9"),
        (("program", 5, 0), "nest=0"),
        (("program", 5, 5), "nest=5"),
        (("copy", 5, 2), "nest=2 is not allowed; allowed: 1"),
        (("copy", 0), "length=0"),
        (("copy", True), "length=True"),
        (("copy", 5, 1.0), "nest=1.0"),
    ],
)
def test_bad_task(arguments, message):
    with pytest.raises(ValueError, match=message):
        LearningToExecute(*arguments)


def test_bad_values():
    with pytest.raises(ValueError, match=r"ids=\[45, 99\] is not allowed; allowed: 0 to 44"):
        decode(torch.tensor([[1, 99], [45, 3]]))
    with pytest.raises(ValueError, match=r"ids=\[-1\]"):
        decode(torch.tensor([-1]))
    with pytest.raises(ValueError, match=r"dtype torch\.float32"):
        decode(torch.zeros(3))
    with pytest.raises(ValueError, match=r"mixed lengths \[1, 2\]"):
        encode(["1", "12"])
    with pytest.raises(ValueError, match=r"row lengths=\[1, 2\]"):
        decode([[1], [1, 2]])
    with pytest.raises(ValueError, match=r"row lengths=\[0, 1\]"):
        decode([1, torch.tensor([1])])
    with pytest.raises(ValueError, match="steps=1"):
        encode(["12"], 1)
    with pytest.raises(ValueError, match=r"batch_size=2\.5"):
        draw(LearningToExecute(), 2.5)
    with pytest.raises(ValueError, match=r"characters=\['y'\]"):
        encode(["y=1"])
    with pytest.raises(ValueError, match="strategy='hard'"):
        Curriculum(5, 2, "hard")
    with pytest.raises(ValueError, match=r"length=2\.5 is not allowed; allowed: an integer"):
        Curriculum(2.5, 1)
    with pytest.raises(ValueError, match=r"mastery=0 is not allowed"):
        Curriculum(5, 2, "mastery", mastery=0)
    with pytest.raises(ValueError, match=r"threshold=nan is not allowed"):
        Curriculum(5, 2, "naive", threshold=float("nan"))
    with pytest.raises(ValueError, match=r"patience=-1 is not allowed; allowed: 0 or more"):
        Curriculum(5, 2, "mastery", patience=-1)
    with pytest.raises(ValueError, match=r"curriculum=\(4, 2\)"):
        draw(LearningToExecute(), 3, curriculum=Curriculum(4, 2))
    with pytest.raises(ValueError, match=r"logits shape=\[9, 3, 45\]"):
        loss(torch.zeros(9, 3, 45), draw(LearningToExecute(), 3))
