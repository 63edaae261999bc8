"""Learning to execute on the command line: single runs, and table 1 from many (test_sections.py has the rest
of `rmc reproduce`)."""

import json
import os
import shutil
import signal

import pytest

from relational_rnn.analysis import table1
from relational_rnn.cli.__main__ import main
from relational_rnn.training.run_folder import RunFolder
from tests.cli.commands import outcome, refused, rmc, snapshot, stopped_run, wait_for

SMOKE = ["train", "lte", "--preset", "smoke"]
TABLE = ["reproduce", "table1", "--preset", "smoke"]


def read(runs):
    """The saved cells by (task, core)."""
    table = json.loads((runs / "table1.json").read_text())
    return {(cell["task"], cell["core"]): cell for cell in table["cells"]}


def stopped(path, core, task, until):
    stopped_run(path, "lte", ["--core", core, "--task", task], until)


# ------------------------------------------------------------------ rmc train lte


@pytest.mark.parametrize("core", ["rmc", "lstm", "entnet", "dnc"])
def test_train_and_eval(tmp_path, capsys, core):
    run = tmp_path / "run"
    assert main([*SMOKE, "--core", core, "--task", "reverse", "--run", str(run)]) == 0
    assert "done: eval_accuracy" in capsys.readouterr().out
    last = RunFolder.open(run).metrics()[-1]
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["accuracy"], scores["solved"]) == (last["eval_accuracy"], last["eval_solved"])


def test_default_run_folder_names_the_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*SMOKE, "--training.steps", "5", "--task", "double"]) == 0
    (run,) = (tmp_path / "runs" / "lte").iterdir()
    assert run.name.startswith("smoke-double-rmc-seed0-")


def test_a_killed_process_resumes_exactly(tmp_path):
    long = ["--training.steps", "400", "--core", "entnet"]
    assert main([*SMOKE, *long, "--run", str(tmp_path / "whole")]) == 0
    run = tmp_path / "run"
    process = rmc(*SMOKE, *long, "--run", run)
    wait_for(lambda: any(run.glob("checkpoints/step-*[1-9]*")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert main(["train", "--resume", str(run)]) == 0
    assert outcome(run) == outcome(tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([*SMOKE, "--task", "sort"], ["'sort'", "addition", "double"]),
        ([*SMOKE, "--task", "copy", "--nest", "2"], ["nest=2", "copy has no programs to nest"]),
        ([*SMOKE, "--length", "0"], ["length=0", "1 or more"]),
        ([*SMOKE, "--core", "gru"], ["'gru'", "entnet"]),
        ([*SMOKE, "--rmc.mem-slots", "3"], ["total_units=32", "mem_slots x num_heads = 6"]),
        ([*SMOKE, "--mem-slots", "3"], ["'--mem-slots'", "perhaps --rmc.mem-slots"]),
        (["train", "lte", "--preset", "quick"], ["'quick'", "paper, fast, scratchpad, nest3, smoke"]),
        (["reproduce", "table1", "--onyl", "copy-rmc"], ["'--onyl'", "perhaps --only"]),
        (["reproduce", "table3"], ["'table3'", "nth-farthest, table1, box-world, mini-pacman, table2"]),
        ([*TABLE, "--tasks", "copy,sort"], ["--tasks 'sort'", "addition, control, program, copy"]),
        ([*TABLE, "--cores", "gru"], ["--cores 'gru'", "rmc, lstm, entnet, dnc"]),
        ([*TABLE, "--only", "copy-*", "--cores", "rmc"], ["--only copy-*", "--cores"]),
        ([*TABLE, "--task", "copy"], ["--task is not allowed", "--only"]),
        ([*TABLE, "--model.depth", "3"], ["'--model.depth'"]),
        ([*TABLE, "--nest", "2"], ["nest=2", "copy has no programs to nest"]),
        (["reproduce", "table1", "--preset", "quick"], ["'quick'", "fast, paper, scratchpad, nest3, smoke"]),
        (["reproduce", "table1", "--table-only", "--runs", "missing"], ["missing does not exist"]),
        (["reproduce", "table1", "--table-only", "--length", "3"], ["--table-only", "'--length'"]),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    refused(capsys, arguments, *parts)
    assert not any(tmp_path.iterdir())  # nothing was made


# ------------------------------------------------------------------ rmc reproduce table1


def test_missing_cells_run_stopped_ones_resume_finished_ones_stay(tmp_path, capsys):
    runs, whole = tmp_path / "runs", tmp_path / "whole"
    some = ["--runs", str(runs), "--tasks", "copy", "--cores", "rmc,entnet"]
    stopped(runs / "copy-rmc", "rmc", "copy", 13)
    assert main(["reproduce", "table1", "--table-only", "--runs", str(runs)]) == 0
    said = capsys.readouterr().out
    assert "at step 13 of 40" in said
    assert said.count("not run") == 23
    cells = read(runs)
    assert cells["copy", "rmc"]["status"] == "stopped"
    assert "accuracy" not in cells["copy", "rmc"]

    assert main([*TABLE, *some]) == 0
    said = capsys.readouterr().out
    assert "0 of 2 cells are finished" in said
    assert "resuming" in (runs / "copy-rmc.log").read_text()
    assert main([*SMOKE, "--run", str(whole)]) == 0  # copy, rmc
    assert outcome(runs / "copy-rmc") == outcome(whole)
    finished = {core: snapshot(runs / f"copy-{core}") for core in ("rmc", "entnet")}

    assert main([*TABLE, *some]) == 0
    assert "2 of 2 cells are finished" in capsys.readouterr().out
    assert {core: snapshot(runs / f"copy-{core}") for core in finished} == finished

    cells = read(runs)
    assert len(cells) == 24
    cell, last = cells["copy", "rmc"], RunFolder.open(whole).metrics()[-1]
    assert cell["accuracy"] == last["eval_accuracy"]
    assert (cell["status"], cell["samples"], cell["paper_accuracy"]) == ("finished", 640, 1.0)
    assert cells["program", "rmc"] == {
        "task": "program",
        "core": "rmc",
        "paper_accuracy": 0.79,
        "status": "not run",
    }
    page = (runs / "table1.md").read_text()
    assert "not run (79.0)" in page
    assert f"{100 * last['eval_accuracy']:.1f}* (100.0)" in page  # length 2 is not the paper's
    assert "cannot be compared" in page
    assert page.count("| copy-") == 2


def test_a_run_of_other_settings_is_refused_before_anything_starts(tmp_path, capsys):
    runs = tmp_path / "runs"
    stopped(runs / "double-rmc", "rmc", "double", 10)
    before = snapshot(runs)
    some = ["--runs", runs, "--tasks", "copy,double", "--cores", "rmc"]
    refused(capsys, [*TABLE, *some, "--training.seed", "3"], runs / "double-rmc", "training.seed is 0, not 3")
    for path in (runs / "double-rmc" / "checkpoints").iterdir():
        path.unlink()
    refused(capsys, [*TABLE, *some], runs / "double-rmc", "has no checkpoint")
    (runs / "copy-rmc").mkdir()
    (runs / "copy-rmc" / "notes.txt").touch()
    refused(capsys, [*TABLE, *some], "not a whole run folder")
    # Nothing was made but by this test, and only what it removed is gone.
    assert {os.path.relpath(name, runs) for name in snapshot(runs).keys() - before.keys()} == {
        "copy-rmc/notes.txt"
    }


def test_a_cell_killed_before_anything_was_in_it_begins_again(tmp_path, capsys):
    runs = tmp_path / "runs"
    (runs / "copy-lstm" / "checkpoints").mkdir(parents=True)  # as `rmc train` makes them, one after the other
    (runs / "copy-lstm" / "metrics.jsonl").touch()
    command = [*TABLE, "--runs", str(runs), "--tasks", "copy", "--cores", "lstm", "--training.steps", "5"]
    assert main(command) == 0
    assert read(runs)["copy", "lstm"]["status"] == "finished"


def test_a_language_model_killed_before_its_first_checkpoint_is_discarded(tmp_path):
    """It has its vocabulary before that."""
    from relational_rnn.training.run_folder import discard_unborn

    for name in ("vocabulary.tsv", "text.json", "job.txt", "notes.txt"):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / name).write_text("<unk>\t0\n")
        discard_unborn(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]  # somebody's own


def test_a_cell_that_another_process_trains_is_left_to_it(tmp_path, capsys):
    runs = tmp_path / "runs"
    stopped(runs / "copy-rmc", "rmc", "copy", 10)
    (runs / "copy-entnet" / "checkpoints").mkdir(parents=True)
    begins = RunFolder(runs / "copy-entnet")
    begins.lock()
    assert main([*TABLE, "--runs", str(runs), "--tasks", "copy", "--cores", "entnet"]) == 0
    assert "copy-entnet is left to another process" in capsys.readouterr().out
    assert begins.checkpoints.is_dir()
    begins.close()
    other = RunFolder.open(runs / "copy-rmc")
    other.lock()
    command = [*TABLE, "--runs", str(runs), "--tasks", "copy", "--cores", "rmc,lstm"]
    assert main(command) == 0
    assert "copy-rmc is left to another process, which trains it" in capsys.readouterr().out
    assert [read(runs)["copy", core]["status"] for core in ("rmc", "lstm")] == ["stopped", "finished"]
    other.close()
    assert main(command) == 0
    assert read(runs)["copy", "rmc"]["status"] == "finished"


def test_ctrl_c_ends_the_whole_table(tmp_path):
    runs = tmp_path / "runs"
    long = ["--tasks", "copy", "--cores", "entnet,lstm", "--training.steps", "1000000"]
    process = rmc(*TABLE, "--runs", runs, *long)
    wait_for(lambda: any(runs.glob("copy-entnet/checkpoints/step-*[1-9]*")), process)
    process.send_signal(signal.SIGINT)
    said, wrong = process.communicate(timeout=60)
    assert process.returncode == 130, wrong
    assert "Traceback" not in wrong
    assert "not finished: copy-entnet, copy-lstm" in said
    assert "of 1000000; resume with" in (runs / "copy-entnet.log").read_text()
    assert not (runs / "copy-lstm").exists()
    assert read(runs)["copy", "entnet"]["status"] == "stopped"


def test_a_table_needs_no_notes_of_where_its_runs_were_made(tmp_path):
    stopped(tmp_path / "copy-lstm", "lstm", "copy", 10)
    for damage in (lambda path: path.write_text("[{"), lambda path: path.unlink()):
        damage(tmp_path / "copy-lstm" / "environment.json")
        assert main(["reproduce", "table1", "--table-only", "--runs", str(tmp_path)]) == 0
        cell = read(tmp_path)["copy", "lstm"]
        assert (cell["status"], cell["step"], cell["commit"], cell["gpu"]) == ("stopped", 10, None, None)


def test_a_table_of_damaged_notes_and_scores(tmp_path):
    """Whoever edited these: what is left is shown."""
    stopped(tmp_path / "copy-lstm", "lstm", "copy", 20)
    run = RunFolder.open(tmp_path / "copy-lstm")
    (run.path / "environment.json").write_text('[{"gpu": 5}]')
    records = [{k: v for k, v in record.items() if k != "eval_solved"} for record in run.metrics()]
    assert "eval_accuracy" in records[-1]
    run.metrics_path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert main(["reproduce", "table1", "--table-only", "--runs", str(tmp_path)]) == 0
    cell = read(tmp_path)["copy", "lstm"]
    assert (cell["step"], "accuracy" in cell) == (20, False)
    assert "| 5 |" in (tmp_path / "table1.md").read_text()


def test_weights_kept_without_checkpoints_are_a_finished_cell(tmp_path, capsys):
    command = ["reproduce", "table1", "--preset", "smoke", "--only", "copy-lstm", "--runs", str(tmp_path)]
    run = tmp_path / "copy-lstm"
    task = ["--task", "copy", "--core", "lstm"]
    assert main(["train", "lte", "--preset", "smoke", *task, "--run", str(run)]) == 0
    shutil.rmtree(run / "checkpoints")
    capsys.readouterr()
    assert main(command) == 0
    assert "1 of 1 cells are finished" in capsys.readouterr().out
    assert read(tmp_path)["copy", "lstm"]["status"] == "finished"


def test_a_calculation_written_down_is_not_the_papers(tmp_path, capsys):
    command = ["reproduce", "table1", "--preset", "smoke", "--only", "addition-lstm", "--runs", str(tmp_path)]
    assert main([*command, "--model.scratchpad", "--training.steps", "5"]) == 0
    said = capsys.readouterr().out
    assert "*+ (99.8)" in said
    assert table1.WRITTEN in said
    assert f"\\{table1.WRITTEN}\n" in (tmp_path / "table1.md").read_text()


def test_cells_in_words():
    assert table1.shown({"status": "not run"}) == "not run"
    assert table1.shown({"status": "finished", "accuracy": 0.9987}) == "99.9"
    stopped = {"status": "stopped", "step": 5, "steps": 9}
    assert table1.shown(stopped) == "at step 5 of 9"
    assert table1.shown({**stopped, "accuracy": 0.5}) == "50.0 at step 5 of 9"
