"""Programs with digits missing: as many as asked, still right, in training alone."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments import table1_lte
from relational_rnn.tasks.learning_to_execute import LearningToExecute
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.lte_text import answer, decode
from relational_rnn.tasks.lte_thinning import thin
from relational_rnn.training.config import from_dict, to_dict


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def thinned(share, samples=20_000):
    return thin(torch.full((samples, 4, 5), 7), torch.full((samples, 2), 7), share, seeded())


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_half_of_the_digits_of_that_share_of_samples(share):
    """A chance that is uniform in 0 to 1 is a half in the mean."""
    literals, counts = thinned(share)
    for numbers, least in ((literals[..., 1:], 0), (literals[..., 0], 1), (counts, 1)):
        assert set(numbers.unique().tolist()) == {least, 7}
        assert (numbers == least).float().mean().item() == pytest.approx(share / 2, abs=0.01)


def test_samples_are_thinned_more_and_less():
    """With a chance that is uniform in 0 to 1 any number of 16 digits is as likely to be missing (with a half
    for all, hardly ever none or all); a loop's count shares its sample's chance."""
    literals, counts = thinned(1.0)
    gone = (literals[..., 1:] == 0).flatten(1).sum(1)  # [samples], of 16
    shares = torch.bincount(gone, minlength=17).div(len(gone)).tolist()
    assert shares == pytest.approx([1 / 17] * 17, abs=0.01)
    assert gone[counts[:, 0] == 1].float().mean() > 1.6 * gone[counts[:, 0] == 7].float().mean()


@pytest.mark.parametrize(
    ("name", "length", "nest"),
    [("program", 5, 2), ("control", 1, 1), ("addition", 8, 3), ("reverse", 5, 1), ("double", 1, 1)],
)
def test_thinned_programs_are_programs_and_right(name, length, nest):
    task = LearningToExecute(name, length, nest, thinned=0.7)
    for curriculum in (None, Curriculum(length, nest)):
        batch = task.batch(2000, generator=seeded(1), curriculum=curriculum)
        texts = decode(batch.inputs)
        assert [answer(name, text) for text in texts] == decode(batch.targets)
        assert [len(text) for text in texts] == batch.input_lengths.tolist()


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("program", ["x=(79303if77373<66698else96843)for[3]x+=99144", "(52918*73691)+23667"]),
        ("reverse", ["39303", "17373"]),
    ],
)
def test_without_it_samples_are_what_they_were(name, texts):
    """These were drawn before there was such an option: runs and evaluations stay what they were."""
    assert decode(LearningToExecute(name).batch(3, generator=seeded()).inputs)[:2] == texts


@pytest.mark.parametrize(
    ("task", "share", "message"),
    [
        ("control", 1.01, "thinned=1.01 is not allowed; allowed: 0 to 1"),
        ("control", -0.5, "thinned=-0.5 is not allowed; allowed: 0 to 1"),
        ("control", float("nan"), "thinned=nan is not allowed; allowed: 0 to 1"),
        ("copy", 2, "thinned=2 is not allowed; allowed: 0 to 1"),
    ],
)
def test_bad_shares(task, share, message):
    with pytest.raises(ValueError, match=message):
        LearningToExecute(task, 3, thinned=share)
    smoke = table1_lte.smoke()
    with pytest.raises(ValueError, match=message):
        replace(smoke, task=task, length=3, curriculum=replace(smoke.curriculum, thinned=share))


def test_training_is_thinned_and_the_evaluation_is_not():
    smoke = table1_lte.smoke()
    curriculum = table1_lte.Difficulty("baseline", thinned=1.0)
    config = replace(smoke, task="control", length=5, curriculum=curriculum)
    assert from_dict(table1_lte.Config, to_dict(config)) == config
    problem = table1_lte.make_problem(config, torch.device("cpu"))
    zeros = {}
    for task in (problem.task, problem.training_task):
        text = "".join(decode(task.batch(2000, generator=seeded()).inputs))
        zeros[task.thinned] = text.count("0") / sum(map(str.isdigit, text))
    assert set(zeros) == {0.0, 1.0}
    assert zeros[0.0] < 0.1 < 0.4 < zeros[1.0]
