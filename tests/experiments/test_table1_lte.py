"""Table 1's experiment: presets as in the appendix, the problem, exact resumption with its curriculum."""

from dataclasses import replace

import pytest
import torch

from relational_rnn.experiments import lte_problem, table1_lte
from relational_rnn.experiments.table1_lte import CORES, TASKS, build_core, make_problem, smoke
from relational_rnn.tasks import learning_to_execute as lte
from relational_rnn.training import checkpoint
from relational_rnn.training.config import from_dict, to_dict
from relational_rnn.training.device import pick_device
from relational_rnn.training.loop import Trainer
from relational_rnn.training.run_folder import RunFolder

CPU = torch.device("cpu")
TIMINGS = ("seconds", "steps_per_second")


def config(core="rmc", task="copy", model=None, **training):
    base = smoke()
    model = replace(base.model, **(model or {}))
    return replace(base, core=core, task=task, model=model, training=replace(base.training, **training))


# ------------------------------------------------------------------ presets


def on_meta(settings):
    with torch.device("meta"):  # shapes only: the largest has 51 million parameters
        return build_core(settings, CPU)


def parameters(core):
    return sum(p.numel() for p in core.parameters() if p.requires_grad)


def test_paper_preset_is_the_appendix():
    paper = table1_lte.paper()
    training = paper.training
    assert (training.steps, training.batch_size, training.learning_rate) == (200_000, 128, 1e-3)
    assert (training.schedule, training.clip_norm) == ("constant", None)
    assert (paper.samples.length, paper.samples.nest, paper.eval_samples) == (5, 2, 12_800)
    assert (paper.curriculum.strategy, paper.model.regime) == ("mix", "non-auto-regressive")
    assert (paper.model.head_layers, paper.model.head_units) == (4, 256)
    rmc = on_meta(paper)
    assert (rmc.mem_slots, rmc.slot_size, rmc.spec.num_heads) == (4, 512, 4)
    assert (rmc.spec.gate_style, len(rmc.blocks)) == ("memory", 1)
    lstm = on_meta(replace(paper, core="lstm"))
    assert (lstm.num_layers, lstm.hidden_size, lstm.output_size) == (2, 1024, 2048)
    entnet = on_meta(replace(paper, core="entnet"))
    assert (entnet.num_cells, entnet.cell_size, entnet.output) == (4, 512, "sum")
    dnc = on_meta(replace(paper, core="dnc"))
    assert (dnc.memory_size, dnc.word_size, dnc.num_reads, dnc.num_writes) == (80, 64, 4, 1)
    assert (dnc.controller.num_layers, dnc.controller.hidden_size) == (2, 256)


def test_every_value_of_the_papers_sweeps_builds():
    paper = table1_lte.paper()
    for total in (1024, 2048):
        for slots in (2, 4):
            for heads in (2, 4):
                rmc = replace(paper.rmc, total_units=total, mem_slots=slots, num_heads=heads)
                assert on_meta(replace(paper, rmc=rmc)).output_size == total
        for cells in (2, 4, 6, 8):
            entnet = replace(paper.entnet, total_units=total, cells=cells)
            assert on_meta(replace(paper, core="entnet", entnet=entnet)).cell_size == total // cells
        lstm = on_meta(replace(paper, core="lstm", lstm=replace(paper.lstm, units=total)))
        assert lstm.hidden_size == total
    for units in (128, 256, 512):
        dnc = replace(paper.dnc, controller_units=units)
        assert on_meta(replace(paper, core="dnc", dnc=dnc)).controller.hidden_size == units


@pytest.mark.parametrize("task", TASKS)
def test_dnc_controller_is_feed_forward_for_memorisation(task):
    core = on_meta(replace(table1_lte.paper(), core="dnc", task=task))
    assert isinstance(core.controller, torch.nn.ModuleList) == (task in ("copy", "reverse", "double"))


def test_fast_sees_fewer_samples_than_the_paper():
    fast, paper = table1_lte.fast().training, table1_lte.paper().training
    assert fast.steps * fast.batch_size < paper.steps * paper.batch_size


def test_nest3_is_the_figures_difficulty():
    samples = table1_lte.nest3().samples
    assert (samples.nest, samples.length) == (3, 6)


def test_scratchpad_trains_as_fast():
    config, fast = table1_lte.scratchpad(), table1_lte.fast()
    assert config.model.scratchpad
    own = {"steps": fast.training.steps, "muon_ratio": fast.training.muon_ratio}
    assert replace(config.training, **own) == fast.training
    assert (config.rmc, config.task, config.samples) == (fast.rmc, fast.task, fast.samples)
    # Were no level mastered, the last would still have most of the updates.
    levels = config.samples.length + config.samples.nest - 2
    assert levels * config.curriculum.patience * config.training.log_every < config.training.steps / 2


def test_papers_numbers_have_a_cell_each():
    assert set(table1_lte.PAPER) == set(CORES)
    assert all(len(row) == len(TASKS) for row in table1_lte.PAPER.values())
    assert table1_lte.PAPER["rmc"][TASKS.index("program")] == 0.79


@pytest.mark.parametrize("preset", table1_lte.PRESETS)
def test_settings_survive_a_run_folder(preset):
    settings = table1_lte.PRESETS[preset]()
    assert from_dict(table1_lte.Config, to_dict(settings)) == settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(task="sort"), "task='sort'.*addition, control, program, copy, reverse, double"),
        (dict(length=0), "length=0.*1 or more"),
        (dict(nest=2), "nest=2.*copy has no programs to nest"),
        (dict(task="program", nest=9), "nest=9.*1 to 4"),
        (dict(eval_samples=0), "eval_samples=0"),
        (dict(rmc=table1_lte.RMC(mem_slots=3)), "total_units=2048.*mem_slots x num_heads = 12"),
        (dict(rmc=table1_lte.RMC(mem_slots=0)), "mem_slots=0"),
        (dict(core="entnet", entnet=table1_lte.Entities(cells=0)), "cells=0"),
        (dict(core="entnet", entnet=table1_lte.Entities(1, 2)), "total_units=1.*cells=2"),
        (dict(core="lstm", lstm=table1_lte.LSTM(units=0)), "hidden_size=0"),
        (dict(core="dnc", dnc=table1_lte.Computer(read_heads=0)), "num_reads=0"),
        (dict(model=table1_lte.Model(feedback=2)), "feedback=2"),
        (dict(model=table1_lte.Model(head="cubic")), "head='cubic'.*relu, bilinear"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        make_problem(replace(smoke(), **change), CPU)


# ------------------------------------------------------------------ the problem


@pytest.mark.parametrize("task", TASKS)
def test_every_task_gives_a_loss_and_scores(task):
    problem = make_problem(config(task=task), CPU)
    loss, metrics = problem.loss()
    assert loss.isfinite()
    assert 0 <= metrics["accuracy"] <= 1
    before = problem.generators["data"].get_state()
    scores = problem.evaluate()
    assert scores.keys() == {"accuracy", "solved"}
    assert torch.equal(problem.generators["data"].get_state(), before)


def test_score_is_the_accuracy_of_maximum_difficulty(monkeypatch):
    problem = make_problem(config(task="program"), CPU)
    with torch.no_grad():
        problem.model.head[-1].bias[13:23] += 10  # answers with digits, so that some are right
    generator = torch.Generator().manual_seed(lte_problem.EVAL_SEED)
    batch = problem.task.batch(50, generator=generator)
    assert batch.input_lengths.min() >= len("(dd+dd)+dd")
    logits = problem.model(batch.inputs, batch.input_lengths, problem.task.output_steps)
    scores = lte_problem.score(problem.model, problem.task, 50, CPU)
    assert 0.02 < scores["accuracy"] < 0.3
    assert scores["accuracy"] == pytest.approx(lte.accuracy(logits, batch).item())
    assert scores["solved"] == pytest.approx(lte.solved(logits, batch).item())
    monkeypatch.setattr(lte_problem, "EVAL_BATCH", 16)  # 50 in parts: other samples, but as many
    assert 0.02 < lte_problem.score(problem.model, problem.task, 50, CPU)["accuracy"] < 0.3


def test_the_loss_draws_from_its_own_generator_only():
    """Otherwise neither a CUDA graph nor a resumption would draw the right samples."""
    settings = config(task="program", model=dict(regime="scheduled", feedback=0.5))
    losses = []
    for seed in (1, 2):
        problem = make_problem(settings, CPU)
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        losses.append(problem.loss()[0].item())
        assert torch.equal(torch.get_rng_state(), state)
    assert losses[0] == losses[1]


def test_a_separate_decoder_has_its_own_weights():
    shared, separate = (
        make_problem(config(model=dict(decoder=decoder)), CPU).model for decoder in ("shared", "separate")
    )
    assert shared.decoder is shared.encoder
    assert separate.decoder is not separate.encoder
    assert parameters(separate) == parameters(shared) + parameters(shared.encoder)


def test_feedback_rises_with_the_updates():
    problem = make_problem(config(model=dict(regime="scheduled", feedback=0.5, feedback_steps=4)), CPU)
    seen = []
    for _ in range(6):
        seen.append(float(problem._feedback()))
        problem.loss()
    assert seen == [0, 0.125, 0.25, 0.375, 0.5, 0.5]


def test_it_learns():
    """The pieces fit together: copying one or two digits is learned in a few hundred updates."""
    often = dict(log_every=400, eval_every=0, checkpoint_every=400)
    settings = config(steps=400, batch_size=64, learning_rate=5e-3, **often)
    settings = replace(settings, curriculum=table1_lte.Difficulty())
    trainer = Trainer(make_problem(settings, CPU), settings.training, CPU)
    trainer.run()
    assert trainer.evaluate()["accuracy"] > 0.9


# ------------------------------------------------------------------ resumption


def fresh(settings, path):
    trainer = Trainer(make_problem(settings, CPU), settings.training, CPU)
    trainer.run_folder = RunFolder.create(path, "lte", "smoke", to_dict(settings))
    trainer.save()
    return trainer


def stopped_and_resumed(settings, path, stop):
    trainer = fresh(settings, path)
    trainer.run(until=stop)
    trainer.save()
    trainer.run_folder.close()
    torch.manual_seed(12345)  # a new process has another global random state
    trainer = Trainer(make_problem(settings, CPU), settings.training, CPU)
    trainer.run_folder = RunFolder.open(path)
    trainer.resume()
    assert trainer.step == stop
    trainer.run()
    return trainer.run_folder


def outcome(run):
    tensors, _ = checkpoint.load(run.latest_checkpoint())
    records = [{k: v for k, v in record.items() if k not in TIMINGS} for record in run.metrics()]
    return {name: t.tolist() for name, t in tensors.items()}, records


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Outcomes by core."""
    outcomes = {}
    for core in CORES:
        trainer = fresh(config(core), tmp_path_factory.mktemp("lte") / core)
        trainer.run()
        outcomes[core] = outcome(trainer.run_folder)
    return outcomes


def test_the_runs_move_through_the_curriculum(uninterrupted):
    """Otherwise the stops below would not be about a curriculum."""
    for _, records in uninterrupted.values():
        assert [record["length"] for record in records] == [1, 1, 2, 2, 2, 2, 2, 2]
        assert [record["step"] for record in records if "eval_accuracy" in record] == [20, 40]


# 3 and 5: a report is pending; 10: the level has just risen.
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("stop", [0, 3, 5, 10, 39])
def test_stop_and_resume(tmp_path, uninterrupted, core, stop):
    run = stopped_and_resumed(config(core), tmp_path / "run", stop)
    assert outcome(run) == uninterrupted[core]


def test_stop_and_resume_of_nested_programs_with_scheduled_feedback(tmp_path):
    settings = config("lstm", "program", dict(regime="scheduled", feedback=0.7, feedback_steps=30))
    trainer = fresh(settings, tmp_path / "whole")
    trainer.run()
    records = trainer.run_folder.metrics()
    assert {(record["length"], record["nest"]) for record in records} == {(1, 1), (2, 1), (2, 2)}
    run = stopped_and_resumed(settings, tmp_path / "run", 13)
    assert outcome(run) == outcome(trainer.run_folder)


def test_stop_and_resume_with_a_head_of_products(tmp_path):
    settings = config("rmc", "program", dict(head="bilinear", head_layers=2), optimizer="muon")
    trainer = fresh(settings, tmp_path / "whole")
    trainer.run()
    run = stopped_and_resumed(settings, tmp_path / "run", 13)
    assert outcome(run) == outcome(trainer.run_folder)


# ------------------------------------------------------------------ scores in detail


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("12+34", "sums"),
        ("x=1for[3]x+=2", "loops"),
        ("1if2>3else4", "comparisons"),
        ("((1*2)-3)if4<5else6", "products, differences, comparisons"),
        ("x=(x=1for[3]x+=2)for[4]x+=5", "loops, loops"),
        ("x=(1+2)for[4]x+=5", "sums, loops"),
    ],
)
def test_operations_of_a_program(text, names):
    assert lte_problem.operations(text) == names


def test_the_parts_of_a_score_make_up_the_score():
    problem = make_problem(config("lstm", "program"), CPU)
    scores = problem.evaluate()
    parts = lte_problem.score_operations(problem.model, problem.task, problem.eval_samples, CPU)
    assert sum(part["samples"] for part in parts.values()) == problem.eval_samples
    solved = sum(part["solved"] * part["samples"] for part in parts.values()) / problem.eval_samples
    assert solved == pytest.approx(scores["solved"])
    assert len(parts) == 25


def test_digits_count_from_the_last_one():
    part = lte_problem._digits([[True, False], [True], [False, True, True]])
    assert part["digits"] == pytest.approx([2 / 3, 1 / 2, 1])
    assert part["accuracy"] == pytest.approx(4 / 6)
    assert part["solved"] == pytest.approx(1 / 3)
    assert part["samples"] == 3


# ------------------------------------------------------------------ on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("task", "head"), [("copy", "relu"), ("program", "relu"), ("program", "bilinear")])
def test_captured_update_is_the_eager_one(core, task, head):
    records = []
    for cuda_graph in (False, True):
        settings = config(core, task, dict(head=head), device="cuda", cuda_graph=cuda_graph)
        settings = replace(settings, dnc=replace(settings.dnc, compile=False))
        device = pick_device("cuda")
        trainer = Trainer(make_problem(settings, device), settings.training, device)
        records.append([])
        trainer.run(report=records[-1].append)
        assert (trainer._updates.graph is not None) == cuda_graph
    for eager, captured in zip(*records, strict=True):
        assert (eager["length"], eager["nest"]) == (captured["length"], captured["nest"])
        assert eager["loss"] == pytest.approx(captured["loss"], rel=1e-3)
