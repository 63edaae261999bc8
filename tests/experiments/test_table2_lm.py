"""Presets of table 2, the problem they make, and that a stopped run goes on exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relational_rnn.experiments import table2_lm
from relational_rnn.experiments.language_problem import open_text
from relational_rnn.experiments.table2_lm import PRESETS, Config, build_core, make_problem, smoke
from relational_rnn.tasks.language_evaluation import score
from relational_rnn.tasks.language_model import Dropout
from relational_rnn.tasks.text import prepare as preparing
from relational_rnn.tasks.text.prepare import open_prepared
from relational_rnn.training import checkpoint
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.loop import Trainer
from relational_rnn.training.run_folder import RunFolder
from tests.tasks.text.files import make_books, make_gigaword, make_wikitext, write

CPU = torch.device("cpu")
TIMINGS = ("seconds", "steps_per_second")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_wikitext(tmp_path_factory.mktemp("text"), lines=60)


def config(data, core="rmc", dropout=None, **training) -> Config:
    base = smoke()
    base = replace(base, data=str(data), core=core, training=replace(base.training, **training))
    return base if dropout is None else replace(base, model=replace(base.model, dropout=dropout))


def trainer_of(settings) -> Trainer:
    return Trainer(make_problem(settings, CPU), settings.training, CPU)


# ------------------------------------------------------------------ presets


@pytest.mark.parametrize("preset", PRESETS)
def test_settings_survive_a_run_folder(preset):
    settings = PRESETS[preset]()
    assert from_dict(Config, to_dict(settings)) == settings


def parameters(settings: Config, words: int) -> int:
    with torch.device("meta"):
        core = build_core(settings)
    size = settings.model.embedding
    around = words * (size + 1) + (core.output_size + 1) * size
    return around + sum(p.numel() for p in core.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("preset", "words", "millions"),
    [
        ("wikitext2", 33_278, 10.92),
        ("wikitext2-large", 33_278, 32.3),
        ("gutenberg45", 65_536, 26.8),
        ("paper", 267_735, 215.0),
    ],
)
def test_both_cores_have_equally_many_parameters(preset, words, millions):
    rmc, lstm = (parameters(replace(PRESETS[preset](), core=core), words) for core in ("rmc", "lstm"))
    assert rmc / 1e6 == pytest.approx(millions, rel=2e-3)
    assert lstm == pytest.approx(rmc, rel=2e-3)


def test_paper_is_the_appendixs():
    settings = table2_lm.paper()
    training, rmc, model = settings.training, settings.rmc, settings.model
    assert (training.batch_size, settings.steps, training.clip_norm) == (384, 100, 0.1)
    assert (training.learning_rate, training.schedule, training.optimizer) == (1e-3, "constant", "adam")
    assert (rmc.total_units, rmc.mem_slots, rmc.num_heads) == (2500, 1, 4)
    assert (rmc.attention_mlp_layers, rmc.num_blocks) == (5, 1)
    assert (model.embedding, model.dropout) == (512, Dropout(input=0.5, locked=False))
    assert table2_lm.paper_gutenberg().max_words == table2_lm.paper_gigaword().max_words == 250_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(steps=0), "steps=0"),
        (dict(max_words=1), "max_words=1 is not allowed; allowed: None or 2 or more"),
        (dict(parts=3), "batch_size=4 is not allowed; allowed: a multiple of processes x parts = 3"),
        (dict(rmc=table2_lm.RMC(total_units=33)), "total_units=33.*mem_slots x num_heads = 4"),
        (dict(rmc=table2_lm.RMC(num_heads=0)), "^num_heads=0"),
        (dict(steps=1000), "has 691 tokens; allowed: training.batch_size 4 x steps 1000 x 2"),
        (dict(data=""), "data='' is not allowed; allowed: a folder of a corpus"),
        (dict(data="nowhere"), "nowhere is no folder"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_settings_are_named(data, change, message):
    with pytest.raises(ValueError, match=message):
        make_problem(replace(config(data), **change), CPU)


def test_an_adaptive_softmax_is_not_captured(data):
    model = table2_lm.Model(embedding=16, cutoffs=(10, 20))
    with pytest.raises(ValueError, match=r"cutoffs=\(10, 20\).*training.cuda_graph=False"):
        replace(table2_lm.wikitext2(), model=model)
    settings = replace(config(data, steps=5, log_every=5, checkpoint_every=5, eval_every=5), model=model)
    trainer_of(settings).run()


# ------------------------------------------------------------------ data


def test_every_corpus_is_found_by_its_files(tmp_path):
    splits = {"12": "train", "7": "train", "100": "valid", "31": "test"}
    folders = {
        "wikitext": make_wikitext(tmp_path / "a"),
        "gigaword": make_gigaword(tmp_path / "b"),
        "gutenberg": make_books(tmp_path / "c", splits),
    }
    for split in ("train", "valid", "test"):
        write(tmp_path / "d" / f"{split}.txt", "The cat sat.\n" * 9)
    folders["text"] = tmp_path / "d"
    for folder in folders.values():
        text = open_text(str(folder), "", 1000, 1)
        assert text.folder == folder / "prepared-1000-1"
        assert open_text(str(text.folder), "", None, 1).vocabulary.words == text.vocabulary.words
    assert open_text(str(tmp_path / "a"), str(tmp_path / "else"), None, 1).folder == tmp_path / "else"


def test_bad_data_is_named_and_leaves_nothing(tmp_path):
    make_wikitext(tmp_path / "missing")
    (tmp_path / "missing" / "wiki.valid.tokens").unlink()
    make_wikitext(tmp_path / "empty")
    write(tmp_path / "empty" / "wiki.test.tokens", "")
    make_wikitext(tmp_path / "latin")
    write(tmp_path / "latin" / "wiki.train.tokens", b"caf\xe9 \n")
    write(tmp_path / "nothing" / "notes.md", "no corpus")
    for name, message in (
        ("missing", "the split 'valid' is missing"),
        ("empty", "wiki.test.tokens is empty"),
        ("latin", "is not UTF-8: byte 0xe9 at position 3"),
        ("nothing", "holds no corpus; allowed: a folder with wiki"),
    ):
        with pytest.raises(ValueError, match=message):
            open_text(str(tmp_path / name), "", 1000, 1)
        assert not list((tmp_path / name).rglob("*.bin"))
        assert not list((tmp_path / name).rglob("prepared.json"))


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """NumPy says so in an OSError without a number and a file."""

    def full(*_):
        raise OSError("16740 requested and 5000 written")

    monkeypatch.setattr(preparing, "_scan", full)
    with pytest.raises(ValueError, match=r"cannot be written \(16740 requested and 5000 written\); choose"):
        open_text(str(make_wikitext(tmp_path)), "", 1000, 1)


def test_another_vocabulary_or_a_cut_off_token_file(tmp_path, data):
    settings = config(data)
    state = make_problem(settings, CPU).state()
    other = make_problem(replace(settings, max_words=10, prepared=str(tmp_path / "small")), CPU)
    with pytest.raises(ValueError, match=r"is of another vocabulary \(hash ........, 10 words\); allowed: "):
        other.load_state(state)
    file = tmp_path / "small" / "train.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"train.bin is damaged: it has .* bytes; its header promises"):
        make_problem(replace(settings, data=str(tmp_path / "small")), CPU)


def test_token_files_do_not_go_among_the_text(tmp_path):
    """There they would be taken for the text from then on, also when that has changed."""
    folder = make_wikitext(tmp_path / "text")
    with pytest.raises(ValueError, match=r"prepared='.*' is not allowed; allowed: another folder than data"):
        open_text(str(folder), str(tmp_path / "other" / ".." / "text"), 1000, 1)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"wiki.{split}.tokens" for split in ("test", "train", "valid")
    ]


def test_a_run_does_not_go_on_with_another_text_of_the_same_words(tmp_path):
    folder = make_wikitext(tmp_path, lines=30)
    text = (folder / "wiki.train.tokens").read_text()
    problem = make_problem(config(folder), CPU)
    state, tokens = problem.state(), len(problem.text.tokens["train"])
    problem.load_state(state)
    write(folder / "wiki.train.tokens", text + " \n" * 100)  # <eos> is the most frequent word already
    longer = make_problem(config(folder), CPU)
    assert longer.text.vocabulary.hash == problem.text.vocabulary.hash
    message = rf"has {tokens + 100} tokens, the checkpoint's {tokens}; allowed: {tokens}"
    with pytest.raises(ValueError, match=message):
        longer.load_state(state)
    del state["tokens"]  # checkpoints had none once
    longer.load_state(state)


# ------------------------------------------------------------------ the problem


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_the_state_is_carried_and_begins_anew_with_an_epoch(data, core):
    """Losses of the problem against those of a loop that does it plainly."""
    settings = replace(config(data, core, Dropout()), shift=False)
    problem = make_problem(settings, CPU)
    text = problem.text.tokens["train"]
    length = len(text) // 4
    for number in range(2 * (length // 8) + 3):
        at = number % (length // 8) * 8
        if at == 0:
            state = problem.model.initial_state(4)
        rows = [np.concatenate([[1], text])[b * length + at :][:9].astype(np.int64) for b in range(4)]
        window = torch.from_numpy(np.stack(rows, 1))  # [9, 4]
        losses = problem.model(window[:-1], window[1:], state)
        state = losses.state
        total, metrics = problem.loss()
        assert torch.equal(total, losses.total)
        assert torch.equal(metrics["nats"], losses.nats)


@pytest.mark.parametrize("core", ["rmc", "lstm"])
def test_parts_of_a_batch_are_the_batch(data, core):
    outcomes = []
    for parts in (1, 2, 4):
        every = dict(steps=12, log_every=12, eval_every=12, checkpoint_every=12)
        settings = config(data, core, Dropout(), **every)
        trainer, seen = trainer_of(replace(settings, parts=parts)), []
        trainer.run(report=seen.append)
        outcomes.append(seen[-1])
    for other in outcomes[1:]:
        assert other["epoch"] == outcomes[0]["epoch"]
        for name in ("loss", "nats", "gradient_norm", "eval_valid_perplexity"):
            assert other[name] == pytest.approx(outcomes[0][name], rel=1e-4)


def test_the_last_record_has_the_test_and_only_the_last(data):
    trainer, seen = trainer_of(config(data)), []
    trainer.run(report=seen.append)
    assert ["eval_test_perplexity" in record for record in seen] == [False, False, True]
    assert all("eval_valid_perplexity" in record for record in seen)
    problem, last = trainer.problem, seen[-1]
    with trainer.average.in_place():
        problem.model.eval()
        found = score(problem.model, problem.text.tokens["test"], device=CPU)
    assert last["eval_test_perplexity"] == found.perplexity
    assert found.tokens == len(problem.text.tokens["test"])


def test_a_model_learns_a_text_that_repeats_itself(tmp_path):
    sentence = "the cat sat on the mat and the dog ran to the old house\n"
    for split in ("train", "valid", "test"):
        write(tmp_path / f"{split}.txt", sentence * (200 if split == "train" else 10))
    quiet = dict(steps=150, log_every=150, eval_every=0, checkpoint_every=150, learning_rate=1e-2)
    for core in ("rmc", "lstm"):
        trainer, seen = trainer_of(config(tmp_path, core, Dropout(), **quiet)), []
        trainer.run(report=seen.append)
        assert seen[-1]["eval_test_perplexity"] < 3  # the words' frequencies alone give 10.4


# ------------------------------------------------------------------ runs


def fresh(settings, path):
    trainer = trainer_of(settings)
    trainer.run_folder = RunFolder.create(path, "lm", "smoke", to_dict(settings))
    trainer.problem.write_files(path)
    trainer.save()
    return trainer


def outcome(run: RunFolder):
    tensors, _ = checkpoint.load(run.latest_checkpoint())
    records = [{k: v for k, v in record.items() if k not in TIMINGS} for record in run.metrics()]
    return tensors, records


@pytest.mark.parametrize(("core", "stop"), [("rmc", 7), ("rmc", 20), ("lstm", 13)])
def test_a_stopped_run_goes_on_exactly(tmp_path, core, stop):
    """With every dropout, weight decay and averaging, through the end of an epoch."""
    settings = config(make_wikitext(tmp_path / "text", lines=12), core)
    whole = fresh(settings, tmp_path / "whole")
    whole.run()
    assert int(whole.problem.windows.epoch) >= 1
    trainer = fresh(settings, tmp_path / "run")
    trainer.run(until=stop)
    trainer.save()
    trainer.run_folder.close()
    torch.manual_seed(12345)  # a new process has another global random state
    again = trainer_of(settings)
    again.run_folder = RunFolder.open(tmp_path / "run")
    again.resume()
    assert again.step == stop
    again.run()
    (tensors, records), (wanted, wanted_records) = outcome(again.run_folder), outcome(whole.run_folder)
    assert records == wanted_records
    assert tensors.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(tensors[name], tensor), name


def test_a_run_folder_has_its_words(tmp_path, data):
    trainer = fresh(config(data), tmp_path / "run")
    prepared = open_prepared(trainer.problem.text.folder)
    lines = (tmp_path / "run" / "vocabulary.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == list(prepared.vocabulary.words)
    assert (tmp_path / "run" / "text.json").read_text() == '{"tokenizer": "whitespace"}\n'
