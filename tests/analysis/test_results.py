"""Results: what is kept of a run folder, and what is refused."""

import json
import shlex

import pytest

from relational_rnn.analysis import results
from relational_rnn.analysis.results_make import (
    differences,
    file_name,
    make_result,
    thinned,
    variant,
    wall_seconds,
)
from relational_rnn.analysis.runs import read_run
from relational_rnn.cli.train import parse
from relational_rnn.experiments import load_experiment
from relational_rnn.experiments.nth_farthest import Curriculum
from relational_rnn.tasks.nth_farthest import NthFarthest
from relational_rnn.training.config import to_dict
from tests.analysis.folders import COMMIT, STEPS, accuracies, preset, session, write_run

BATCH = preset("nth-farthest", "fast").training.batch_size


def made(path, **options):
    run = read_run(path)
    return make_result(path, to_dict(preset(run.experiment, run.preset)), **options)[0]


@pytest.fixture
def result(tmp_path):
    return made(write_run(tmp_path / "run", accuracies(0.5, 0.92, 0.91)))


def test_a_result_says_what_happened(result):
    assert result["command"] == "rmc train nth-farthest --preset fast"
    assert (result["task"], result["core"], result["seed"], result["parameters"]) == ("8x16", "rmc", 0, 1234)
    assert (result["status"], result["steps"]) == ("finished", {"done": STEPS, "asked": STEPS})
    assert result["seen"] == {"amount": STEPS * BATCH, "unit": "samples"}
    assert (result["training_seconds"], result["wall_seconds"]) == (STEPS / 10, 600)
    assert result["final"]["eval_accuracy"] == 0.91
    assert result["best"]["eval_accuracy"] == {"value": 0.92, "step": 2 * (STEPS // 3)}
    assert result["curve"]["eval_accuracy"]["value"] == [0.5, 0.92, 0.91]
    assert result["curve"]["eval_accuracy"]["step"][-1] == STEPS
    assert result["hardware"]["gpu"] == "A GPU"
    assert (result["commit"], result["commit_from"]) == (COMMIT, "run folder")


def test_a_written_result_is_read_back(tmp_path, result):
    path = tmp_path / "runs" / file_name(result)
    assert path.name == "nth-farthest-8x16-fast-rmc-seed0.json"
    path.parent.mkdir()
    path.write_text(results.dumps(result))
    assert results.load_all(tmp_path) == {f"runs/{path.name}": result}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"eval_accuracy": 0.91', '"eval_accuracy": 0.99'),
        ("0.5, 0.92, 0.91", "0.5, 0.92, 0.95"),
        ('"gpu": "A GPU"', '"gpu": "A better GPU"'),
        ('"wall_seconds": 600', '"wall_seconds": 60'),
    ],
)
def test_an_edit_by_hand_is_refused(tmp_path, result, before, after):
    text = results.dumps(result)
    assert text.count(before) >= 1
    path = tmp_path / "edited.json"
    path.write_text(text.replace(before, after))
    with pytest.raises(results.ResultError, match=r"edited.json was edited or damaged: its sha256"):
        results.load(path)


@pytest.mark.parametrize("field", sorted(results.FIELDS))
def test_a_missing_field_is_named(result, field):
    del result[field]
    with pytest.raises(results.ResultError, match=f"incomplete: it lacks {field}"):
        results.check(result, "r.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2; allowed: 1"),
        ({"parameters": "many"}, "parameters is 'many'"),
        ({"seed": True}, "seed is True"),
        ({"commit": "abc"}, "40 hexadecimal"),
        ({"status": "fine"}, "status is 'fine'; allowed: finished, stopped"),
        ({"versions": {"python": "3.11"}}, "versions lacks torch, relational_rnn"),
        ({"final": {"step": 1}}, "no evaluation"),
        ({"curve": {"loss": {"step": [1, 2], "value": [1.0]}}}, "as many steps as values"),
        ({"more": 1}, "not allowed: more"),
    ],
)
def test_wrong_fields_are_named_even_with_a_fitting_seal(result, change, message):
    changed = {**result, **change}
    changed["sha256"] = results.seal(changed)
    with pytest.raises(results.ResultError, match=message):
        results.check(changed, "r.json")


def test_what_is_no_json_is_refused(tmp_path):
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(results.ResultError, match=r"r.json cannot be read"):
        results.load(tmp_path / "r.json")
    with pytest.raises(results.ResultError, match="must be a JSON object"):
        results.check([], "r.json")


def test_files_of_another_kind_must_say_how_they_were_made(tmp_path):
    path = tmp_path / "summary.json"
    whole = dict(command="rmc demo", commit="abc", date="today", versions={}, hardware="a CPU", runs=[{}])
    path.write_text(json.dumps(whole))
    assert results.check_other(path) == whole
    for key in whole:
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
        with pytest.raises(results.ResultError, match=f"lacks {key}"):
            results.check_other(path)
    path.write_text(json.dumps({**whole, "hardware": {"cpu": 2}}))
    with pytest.raises(results.ResultError, match="hardware is"):
        results.check_other(path)
    for wrong, message in (
        ({"what": 5}, "what is 5"),
        ({"runs": []}, r"runs is \[\]; allowed: a list of one"),
    ):
        path.write_text(json.dumps({**whole, **wrong}))
        with pytest.raises(results.ResultError, match=message):
            results.check_other(path)


def test_a_stopped_run_is_kept_as_such(tmp_path):
    path = write_run(tmp_path / "run", accuracies(0.5, last=5000), sessions=[session(), session()])
    stopped = made(path)
    assert (stopped["status"], stopped["steps"]) == ("stopped", {"done": 5000, "asked": STEPS})
    assert stopped["wall_seconds"] == 1200


def test_damaged_lines_are_counted(tmp_path):
    every = 5 * preset("nth-farthest", "fast").training.eval_every
    path = write_run(
        tmp_path / "run",
        accuracies(0.1, 0.2, 0.3, 0.4, 0.5, last=5 * every),
        training={"log_every": every, "eval_every": every, "checkpoint_every": every},
    )
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([lines[0], "garbage", *lines[3:]]) + "\n")
    damaged = made(path)
    assert damaged["skipped_lines"] == 1
    assert damaged["missing_lines"] == 2
    assert damaged["curve"]["eval_accuracy"]["value"] == [0.1, 0.4, 0.5]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "metrics.jsonl").write_text('{"step": 200, "seconds": 1}\n'), "no evaluation"),
        (lambda p: (p / "metrics.jsonl").unlink(), "metrics.jsonl is missing"),
        (lambda p: (p / "environment.json").unlink(), "no environment.json"),
        (lambda p: (p / "config.json").unlink(), "config.json is missing"),
        (lambda p: (p / "config.json").write_text("[]"), "must have experiment, preset and config"),
        (lambda p: (p / "environment.json").write_text("{}"), "must be a list"),
        (
            lambda p: change_session(p, started="2026-01-01T00:00:00"),
            "started is '2026-01-01T00:00:00'; allowed",
        ),
        (lambda p: change_session(p, started=None), "environment.json is damaged: started is None"),
        (lambda p: change_session(p, started="noon"), "started is 'noon'; allowed: a date"),
        (lambda p: change_session(p, ended=5), "ended is 5; allowed: a date"),
        (lambda p: change_session(p, gpu=["A GPU"]), r"gpu is \['A GPU'\]; allowed: text"),
        (lambda p: change_training(p, steps="60"), "training.steps is '60'; allowed: whole numbers"),
        (lambda p: change_training(p, batch_size=None), "training.batch_size is None"),
    ],
)
def test_incomplete_folders_are_refused(tmp_path, spoil, message):
    path = write_run(tmp_path / "run", accuracies(0.5))
    described = to_dict(preset("nth-farthest", "fast"))
    spoil(path)
    with pytest.raises(ValueError, match=message):
        make_result(path, described)


def change_session(path, **values):
    sessions = json.loads((path / "environment.json").read_text())
    sessions[-1] |= values
    (path / "environment.json").write_text(json.dumps(sessions))


def change_training(path, **values):
    described = json.loads((path / "config.json").read_text())
    described["config"]["training"] |= values
    (path / "config.json").write_text(json.dumps(described))


def test_an_earlier_score_does_not_stand_for_a_last_one_that_is_no_number(tmp_path):
    path = write_run(tmp_path / "run", accuracies(0.5, 0.92, float("nan")))
    with pytest.raises(
        results.ResultError, match=f"no number from the evaluation at its end, step {STEPS:,}"
    ):
        made(path)


def test_steps_that_are_text_are_refused(result):
    result["steps"] = {"done": STEPS, "asked": str(STEPS)}
    result["sha256"] = results.seal(result)
    with pytest.raises(results.ResultError, match=f"steps.asked is '{STEPS}'; allowed: numbers"):
        results.check(result, "file")


def test_a_folder_without_commit_or_parameters_needs_them_given(tmp_path):
    bare = session(commit=None, parameters=None, gpu=None)
    path = write_run(tmp_path / "run", accuracies(0.5), sessions=[bare])
    with pytest.raises(results.ResultError, match="--commit HASH"):
        made(path, parameters=7)
    with pytest.raises(results.ResultError, match="how many parameters"):
        made(path, commit=COMMIT)
    given = made(path, parameters=7, commit=COMMIT)
    assert (given["parameters"], given["commit_from"]) == (7, "given when the result was added")
    assert given["uncommitted_changes"] is None
    assert given["hardware"]["device"] == "cpu"


def test_wall_time_is_unknown_after_a_kill():
    killed = session()
    del killed["ended"]
    assert wall_seconds([killed, session()]) is None


def test_long_curves_keep_their_ends():
    curve = thinned([(step, step / 7) for step in range(100, 100_100, 100)])
    assert len(curve["step"]) == len(curve["value"]) == 200
    assert (curve["step"][0], curve["step"][-1]) == (100, 100_000)
    assert curve["value"][0] == 14.2857


def test_paths_of_a_machine_are_not_kept(tmp_path):
    path = write_run(tmp_path / "run", accuracies(0.5))
    described = json.loads((path / "config.json").read_text())
    described["config"]["data"] = "/home/somebody/texts/wikitext-2"
    (path / "config.json").write_text(json.dumps(described))
    kept = made(path)
    assert "somebody" not in results.dumps(kept)
    assert kept["config"]["data"] == "wikitext-2"


CHANGES = {
    "nothing": ("nth-farthest", "fast", {}),
    "numbers": (
        "nth-farthest",
        "paper",
        {"training": {"steps": 5, "learning_rate": 3e-05, "clip_norm": 0.5}},
    ),
    "none": ("mini-pacman", "fast", {"training": {"clip_norm": None}}),
    "flag": ("nth-farthest", "fast", {"training": {"cuda_graph": False}}),
    "stages": ("nth-farthest", "fast", {"curriculum": Curriculum(((2, 1), (8, 16)), 0.5)}),
    "no stages": ("nth-farthest", "fast", {"curriculum": Curriculum()}),
    "task": ("nth-farthest", "paper", {"task": NthFarthest(vectors=4, dims=4)}),
    "words": ("lte", "fast", {"task": "copy", "core": "dnc", "length": 3}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_the_command_makes_the_same_settings(tmp_path, case):
    experiment, name, fields = CHANGES[case]
    path = write_run(tmp_path / "run", accuracies(0.5), experiment, name, seed=3, **fields)
    kept = made(path)
    words = shlex.split(kept["command"])
    assert words[:5] == ["rmc", "train", experiment, "--preset", name]
    config = parse(load_experiment(experiment).PRESETS[name], words[5:], "rmc train")
    assert json.loads(json.dumps(to_dict(config))) == json.loads((path / "config.json").read_text())["config"]


def test_settings_of_other_cores_are_no_difference():
    usual = {"core": "rmc", "rmc": {"heads": 4}, "dnc": {"heads": 4}, "lr": 1}
    run = usual | {"core": "dnc", "rmc": {"heads": 1}, "dnc": {"heads": 2}}
    assert differences(run, usual) == {"core": "dnc", "dnc.heads": 2}


def test_a_preset_that_changed_what_an_older_run_could_not_choose(tmp_path):
    """The run has no word of the LSTM's precision; it was bf16, and the preset's is not any more."""
    path = write_run(tmp_path / "run", accuracies(0.5), "lm", "wikitext2", core="lstm") / "config.json"
    described = json.loads(path.read_text())
    assert described["config"]["lstm"].pop("bf16") is False
    path.write_text(json.dumps(described))
    kept = made(path.parent)
    assert kept["overrides"]["lstm.bf16"] is True
    assert "--lstm.bf16" in shlex.split(kept["command"])


def test_names_tell_variants_apart(tmp_path):
    wide = write_run(tmp_path / "a", accuracies(0.5), training={"learning_rate": 1e-4}, seed=2)
    kept = made(wide)
    assert variant(kept) == {"training.learning_rate": 1e-4}
    assert file_name(kept) == "nth-farthest-8x16-fast-rmc-learning-rate0.0001-seed2.json"
    many = write_run(
        tmp_path / "b", accuracies(0.5), curriculum=Curriculum((*((2, d) for d in range(1, 17)), (8, 16)))
    )
    assert len(file_name(made(many))) < 60
