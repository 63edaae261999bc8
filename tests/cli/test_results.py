"""rmc results, from a real run to a report."""

import json
import shutil
from dataclasses import replace

import pytest

from relational_rnn.cli.__main__ import main
from relational_rnn.experiments import nth_farthest
from tests.analysis.folders import accuracies, session, write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A real run of seconds, without its checkpoints."""
    path = tmp_path_factory.mktemp("trained") / "run"
    arguments = ["train", "nth-farthest", "--preset", "smoke", "--training.seed", "5", "--run", str(path)]
    assert main(arguments) == 0
    shutil.rmtree(path / "checkpoints")
    (path / "weights.safetensors").unlink()
    return path


def refused(capsys, arguments, *parts):
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for part in parts:
        assert part in said


def test_from_a_run_to_the_report(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["results", "add", str(trained)]) == 0
    path = tmp_path / "results" / "runs" / "nth-farthest-3x2-smoke-rmc-seed5.json"
    result = json.loads(path.read_text())
    assert result["command"] == "rmc train nth-farthest --preset smoke --training.seed 5"
    assert result["steps"] == {"done": 60, "asked": 60}
    assert result["parameters"] > 1000
    assert result["wall_seconds"] is not None
    said = capsys.readouterr().out
    assert f"finished at step 60, eval_accuracy {result['final']['eval_accuracy']:.4g}" in said
    assert main(["results", "build", "--check"]) == 1
    assert "REPRODUCTION.md is out of date" in capsys.readouterr().out
    assert main(["results", "build"]) == 0
    assert main(["results", "build", "--check"]) == 0
    assert "nth-farthest 3x2, preset smoke" in (tmp_path / "results" / "REPRODUCTION.md").read_text()
    assert main(["results", "check"]) == 0
    assert "1 files checked, 0 refused" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"seed": 5', '"seed": 6', 1))
    assert main(["results", "check"]) == 1
    assert "was edited or damaged" in capsys.readouterr().err
    refused(capsys, ["results", "build"], "was edited or damaged")


def test_a_changed_preset_changes_the_command_and_not_the_result(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["results", "add", str(trained)]) == 0
    assert main(["results", "build"]) == 0
    folder = tmp_path / "results" / "runs"
    before = json.loads((folder / "nth-farthest-3x2-smoke-rmc-seed5.json").read_text())
    old = nth_farthest.PRESETS["smoke"]()
    new = replace(old, training=replace(old.training, batch_size=2 * old.training.batch_size))
    monkeypatch.setitem(nth_farthest.PRESETS, "smoke", lambda: new)
    capsys.readouterr()
    assert main(["results", "build", "--check"]) == 1
    assert "smoke-rmc-seed5.json is out of date" in capsys.readouterr().out
    assert main(["results", "build"]) == 0
    size = old.training.batch_size
    (path,) = folder.iterdir()
    assert path.name == f"nth-farthest-3x2-smoke-rmc-batch-size{size}-seed5.json"
    after = json.loads(path.read_text())
    assert f"--training.batch-size {size}" in after["command"]
    changed = {"overrides", "command", "sha256"}
    assert {key for key in after if after[key] != before[key]} == changed
    assert main(["results", "check"]) == 0
    assert main(["results", "build", "--check"]) == 0
    monkeypatch.undo()  # the preset is as it was, and another file has taken the name
    monkeypatch.chdir(tmp_path)
    assert main(["results", "add", str(trained)]) == 0
    refused(capsys, ["results", "build"], "would become", "remove one of them")


def test_a_copy_is_no_second_seed(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["results", "add", str(trained)]) == 0
    path = tmp_path / "results" / "runs" / "nth-farthest-3x2-smoke-rmc-seed5.json"
    shutil.copy(path, path.with_name("seed6.json"))
    assert main(["results", "check"]) == 1
    assert f"seed6.json is a copy of {path.relative_to(tmp_path)}" in capsys.readouterr().err
    refused(capsys, ["results", "build"], "runs/seed6.json is a copy of runs/nth-farthest-3x2")


def test_parameters_of_an_older_folder_are_counted(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "old")
    sessions = json.loads((trained / "environment.json").read_text())
    noted = sessions[0].pop("parameters")
    (tmp_path / "old" / "environment.json").write_text(json.dumps(sessions))
    assert main(["results", "add", "old"]) == 0
    (path,) = (tmp_path / "results" / "runs").iterdir()
    assert json.loads(path.read_text())["parameters"] == noted


def test_the_same_run_replaces_itself_and_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", accuracies(0.5, last=1000))
    write_run(tmp_path / "further", accuracies(0.5, 0.9, last=2000))
    other = [session(started="2026-11-16T12:00:00+00:00")]
    write_run(tmp_path / "other", accuracies(0.7, last=2000), sessions=other)
    assert main(["results", "add", "a"]) == 0
    assert main(["results", "add", "a"]) == 0
    assert "is of this run already" in capsys.readouterr().out
    assert main(["results", "add", "further"]) == 0
    refused(capsys, ["results", "add", "other"], "of another run with the same settings", "--replace")
    (path,) = (tmp_path / "results" / "runs").iterdir()
    assert json.loads(path.read_text())["final"]["eval_accuracy"] == 0.9
    assert main(["results", "add", "other", "--replace"]) == 0
    assert json.loads(path.read_text())["final"]["eval_accuracy"] == 0.7


def test_of_two_runs_that_would_be_one_file_none_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, accuracy in (("one", 0.5), ("other", 0.6)):
        write_run(tmp_path / name, accuracies(accuracy))
    refused(capsys, ["results", "add", "one", "other"], "one and other have the same settings", "give one")
    assert not (tmp_path / "results").exists()
    assert main(["results", "add", "one", "one"]) == 0


def test_control_characters_in_a_metrics_name_do_not_reach_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_run(tmp_path / "a", accuracies(0.5))
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace('"eval_', '"eval_\\u001b[31m": 1, "eval_'))
    assert main(["results", "add", "a"]) == 0
    said = capsys.readouterr().out
    assert r"eval_\x1b[31m 1" in said
    assert "\x1b" not in said


def test_skipped_lines_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_run(tmp_path / "a", accuracies(0.5, 0.6, last=2000))
    (path / "metrics.jsonl").write_text("garbage\n" + (path / "metrics.jsonl").read_text())
    assert main(["results", "add", "a"]) == 0
    assert "note: a: skipped 1 line of metrics.jsonl (line 1 is no JSON)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["shrink"], ["'shrink'", "add, check, build"]),
        (["add"], ["no run folder given"]),
        (["add", "missing"], ["missing does not exist"]),
        (["add", "run", "--commit", "zzz"], ["'zzz' is no commit"]),
        (["add", "run", "--fast"], ["'--fast'"]),
        (["check", "now"], ["'now'"]),
        (["build", "--all"], ["'--all'", "--check"]),
        (["check", "--results", "nowhere"], ["nowhere does not exist"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    refused(capsys, ["results", *arguments], *parts)
    assert not any((tmp_path / "results").iterdir())


def test_folders_of_no_known_experiment_or_preset(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_run(tmp_path / "a", accuracies(0.5))
    described = json.loads((path / "config.json").read_text())
    for key, value in (("experiment", "<b>"), ("preset", "own")):
        (path / "config.json").write_text(json.dumps({**described, key: value}))
        refused(capsys, ["results", "add", "a"], repr(value), "allowed: ")
    (path / "config.json").write_text(json.dumps({**described, "config": {}}))
    refused(capsys, ["results", "add", "a"], "config.json is damaged: training lacks batch_size")


def test_a_setting_that_no_longer_exists_does_not_matter(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_run(tmp_path / "a", accuracies(0.5))
    described = json.loads((path / "config.json").read_text())
    described["config"]["model"]["flavour"] = "old"
    (path / "config.json").write_text(json.dumps(described))
    assert main(["results", "add", "a"]) == 0
    (kept,) = (tmp_path / "results" / "runs").iterdir()
    assert json.loads(kept.read_text())["overrides"] == {"model.flavour": "old"}
