"""What a run folder notes about where and by what a run was made."""

import json
from datetime import datetime

import pytest

from relational_rnn.training.run_folder import RunFolder, RunFolderError, environment


@pytest.fixture
def run(tmp_path):
    run = RunFolder.create(tmp_path / "run", "nth-farthest", "smoke", {}, parameters=321)
    yield run
    run.close()


def test_the_start_is_noted(run):
    (session,) = json.loads((run.path / "environment.json").read_text())
    assert session["parameters"] == 321
    assert datetime.fromisoformat(session["started"]).tzinfo is not None
    assert {"commit", "uncommitted_changes", "python", "torch", "relational_rnn"} <= session.keys()
    assert {"system", "cpu", "cpu_cores", "cpu_threads", "gpu"} <= session.keys()
    assert "ended" not in session


def test_the_end_of_every_session_is_noted(run):
    run.session_ends(40)
    run.close()
    run.resume(30)
    first, second = run.sessions()
    assert first["ended_at_step"] == 40
    assert first["ended"] >= first["started"]
    assert (second["resumed_at_step"], second["parameters"]) == (30, 321)
    assert "ended" not in second  # until it ends; a killed session never does
    run.session_ends(60)
    assert [session["ended_at_step"] for session in run.sessions()] == [40, 60]


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": 1}', b"[1]", b"\xff"])
def test_a_damaged_note_stops_nothing(run, text):
    (run.path / "environment.json").write_bytes(text)
    assert run.sessions() == []
    run.session_ends(5)
    run.close()
    run.resume(0)
    assert len(run.sessions()) == 1


def test_without_a_note_file_nothing_stops(run):
    (run.path / "environment.json").unlink()
    run.session_ends(5)
    assert run.sessions() == []


@pytest.mark.parametrize("preset", [3, ["smoke"], "[/]", "\x1b[31msmoke", "a|b", ""])
def test_a_preset_that_is_no_name(run, preset):
    """Tables on terminals and pages show it."""
    described = {"experiment": "nth-farthest", "preset": preset, "config": {}}
    (run.path / "config.json").write_text(json.dumps(described))
    with pytest.raises(RunFolderError, match=r"config\.json is damaged: preset is .*; allowed: letters"):
        run.config()


def test_a_run_is_finished_with_its_last_checkpoint_or_its_weights_alone(run):
    run.checkpoint_path(0).touch()
    run.weights_path.touch()  # written before the last checkpoint
    assert not run.is_finished(20)
    run.checkpoint_path(20).touch()
    assert run.is_finished(20)
    assert not run.is_finished(40)
    for path in list(run.checkpoints.iterdir()):
        path.unlink()
    assert run.is_finished(20)
    run.weights_path.unlink()
    assert not run.is_finished(20)


def test_parameters_may_be_unknown():
    assert environment()["parameters"] is None


def test_a_folder_inside_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="run cannot be made: Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", "nth-farthest", "smoke", {})
