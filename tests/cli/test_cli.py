"""The command line in general: help, and what is wrong is said in one line."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tomllib

import pytest
import torch

from relational_rnn import __version__
from relational_rnn.cli import doctor
from relational_rnn.cli.__main__ import main
from relational_rnn.kernels import cpp_compiler
from relational_rnn.training import checkpoint
from tests.cli.commands import SMOKE, refused, rmc, snapshot
from tests.markdown import ROOT

# ------------------------------------------------------------------ help


def test_help_does_not_import_torch():
    code = """
import sys
from relational_rnn.cli.__main__ import main
main(["--help"])
main(["train", "--help"])
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rmc train" in done.stdout


def test_help_of_a_preset_shows_its_docstring_and_values(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*SMOKE, "--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "Seconds on two CPU cores" in said
    assert "--model.mem-slots" in said


@pytest.mark.parametrize("command", ["eval", "doctor", "demo"])
def test_help_of_commands(capsys, command):
    assert main([command, "--help"]) == 0
    assert f"usage: rmc {command}" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"relational-rnn {__version__}\n"


@pytest.mark.parametrize("command", ["eval", "generate"])
def test_an_option_that_there_is_not(capsys, command):
    refused(
        capsys, [command, "runs/first", "--sample", "3"], "unknown option '--sample'", f"rmc {command} --help"
    )


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for word in ("torch", "cuda", "triton", "backends", "[track]"):
        assert word in said


@pytest.mark.parametrize(("why", "said"), [(None, ", cpp,"), ("no compiler", ", not cpp (no compiler),")])
def test_doctor_says_whether_there_is_a_compiler(capsys, monkeypatch, why, said):
    monkeypatch.setattr(cpp_compiler, "why_not", lambda dtype: why)
    assert main(["doctor"]) == 0
    assert said in capsys.readouterr().out


def test_doctor_knows_every_extra():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(declared)


# ------------------------------------------------------------------ what is wrong is said in one line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["fly"], ["'fly'", "train, eval, generate, demo"]),
        (["train", "--preset", "smoke"], ["no experiment given", "nth-farthest"]),
        (["train", "nth-nearest"], ["'nth-nearest'", "nth-farthest"]),
        (["train", "nth-farthest", "--preset", "quick"], ["'quick'", "paper, fast, dims32, smoke, demo"]),
        (["train", "nth-farthest", "--preset"], ["--preset needs a value"]),
        ([*SMOKE, "--model.slots", "3"], ["'--model.slots'", "perhaps --model.mem-slots"]),
        ([*SMOKE, "--model.mem-slots", "three"], ["--model.mem-slots", "three"]),
        ([*SMOKE, "--model.mem-slots"], ["--model.mem-slots"]),
        ([*SMOKE, "--model.mem-slots", "0"], ["mem_slots=0", "1 or more"]),
        ([*SMOKE, "--model.mem-slots", "5"], ["total_units=32", "a multiple of mem_slots x num_heads = 10"]),
        ([*SMOKE, "--model.gate-style", "slot"], ["'slot'", "unit"]),
        ([*SMOKE, "--model.num-blocks", "0"], ["num_blocks=0"]),
        ([*SMOKE, "--model.head-layers", "-1"], ["head_layers=-1"]),
        ([*SMOKE, "--core", "gru"], ["'gru'", "lstm"]),
        ([*SMOKE, "--task.vectors", "1"], ["vectors=1", "2 or more"]),
        ([*SMOKE, "--task.dims", "9"], ["curriculum.stages", "(3, 9)"]),
        ([*SMOKE, "--curriculum.stages", "2", "1", "3"], ["--curriculum.stages"]),
        ([*SMOKE, "--training.steps", "0"], ["steps=0", "1 or more"]),
        ([*SMOKE, "--training.learning-rate", "-1"], ["learning_rate=-1.0", "more than 0"]),
        ([*SMOKE, "--training.precision", "fp8"], ["'fp8'", "bf16"]),
        ([*SMOKE, "--training.device", "tpu"], ["device='tpu'", "auto, cpu, cuda"]),
        ([*SMOKE, "--training.device", "cuda:77"], ["device='cuda:77'"]),
        ([*SMOKE, "surplus"], ["'surplus'"]),
        (["eval", "a", "b"], ["one run folder"]),
        (["eval", "missing"], ["missing does not exist"]),
        (["train", "--resume", "missing"], ["missing does not exist"]),
        (["train", "--resume"], ["--resume needs a value"]),
        (["doctor", "now"], ["'now'"]),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_wrong_arguments(tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    refused(capsys, arguments, *parts)
    assert not any(tmp_path.iterdir())  # nothing was made


def test_wrong_argument_in_a_real_process(tmp_path):
    process = rmc(*SMOKE, "--model.mem-slots", "0", cwd=tmp_path)
    said, wrong = process.communicate(timeout=60)
    assert (process.returncode, said) == (2, "")
    assert wrong == "rmc: error: mem_slots=0 is not allowed; allowed: 1 or more\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-count", "0"], "min_count=0 is not allowed; allowed: 1 or more"),
        (["--steps", "x"], "Error parsing --steps: invalid literal for int() with base 10: 'x'"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_parsers_box_becomes_one_line(monkeypatch, options, message, encoding):
    """It is drawn with other characters where output cannot show lines."""
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    _, wrong = rmc("train", "lm", "--preset", "smoke", *options).communicate(timeout=60)
    assert wrong == f"rmc: error: {message}; see rmc train lm --preset smoke --help\n"


@pytest.mark.parametrize(
    "code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP]
)
def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch, capsys, code):
    def refuse(*arguments, **options):
        raise OSError(code, os.strerror(code), str(tmp_path / "picture"))

    monkeypatch.setattr("relational_rnn.cli.figures.main", refuse)
    refused(capsys, ["figures"], f"{tmp_path / 'picture'}: {os.strerror(code)}")


def test_a_folder_in_a_file(tmp_path, capsys):
    (tmp_path / "file").touch()
    refused(
        capsys,
        ["sweep", *SMOKE[1:], "--memories", "1", "--output", tmp_path / "file" / "x"],
        "Not a directory",
    )


def test_a_name_that_is_too_long(capsys):
    refused(capsys, ["eval", "a" * 300], "File name too long")


def test_a_folder_in_place_of_a_file(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    refused(capsys, ["train", "--resume", run], "metrics.jsonl: Is a directory")


def test_control_characters_do_not_reach_the_terminal(tmp_path, capsys):
    """Names may come from others."""
    refused(capsys, ["eval", tmp_path / "\x1b[31mrun\x07"], r"\x1b[31mrun\x07 does not exist")
    (tmp_path / "\x1b[31mfile").touch()
    output = tmp_path / "\x1b[31mfile" / "x"
    refused(capsys, ["sweep", *SMOKE[1:], "--memories", "1", "--output", output], r"/\x1b[31mfile")


def test_a_tracked_run_is_evaluated_without_its_tracker(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("relational_rnn.training.tracking.find_spec", lambda name: None)
    run = shutil.copytree(finished, tmp_path / "run")
    rewrite_config(run, lambda c: c["config"]["training"].update(track="wandb"))
    assert main(["eval", str(run)]) == 0
    refused(capsys, ["train", "--resume", run], "track='wandb'")


def test_missing_tracker(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("relational_rnn.training.tracking.find_spec", lambda name: None)
    refused(
        capsys, [*SMOKE, "--training.track", "wandb", "--run", tmp_path / "r"], "track='wandb'", "[track]"
    )
    assert not (tmp_path / "r").exists()


def test_existing_run_folder(finished, tmp_path, capsys):
    before = snapshot(finished)
    refused(capsys, [*SMOKE, "--run", finished], finished, "exists already", "--resume")
    assert snapshot(finished) == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    refused(capsys, [*SMOKE, "--run", mine], "exists already")
    refused(capsys, ["train", "--resume", mine], "not a whole run folder", "config.json")
    refused(capsys, ["eval", mine], "not a whole run folder")
    refused(capsys, ["eval", mine / "thesis.txt"], "does not exist")
    assert snapshot(mine) == {str(mine / "thesis.txt"): b"years"}


def rewrite_config(run, change):
    path = run / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def rewrite_meta(run, **changes):
    path = run / "checkpoints" / "step-000000060.safetensors"
    tensors, meta = checkpoint.load(path)
    checkpoint.save(path, tensors, meta | changes)


def swap_model(run):
    rewrite_config(run, lambda c: c["config"]["model"].update(total_units=64))


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda run: truncate(run / "config.json"), "config.json is damaged"),
        (lambda run: (run / "config.json").unlink(), "config.json is missing"),
        (lambda run: rewrite_config(run, lambda c: c.pop("preset")), "config.json is damaged"),
        (lambda run: rewrite_config(run, lambda c: c["config"].pop("core")), "lacks ['core']"),
        (
            lambda run: rewrite_config(run, lambda c: c.update(experiment="sokoban")),
            "experiment 'sokoban'",
        ),
        (
            lambda run: truncate(run / "checkpoints" / "step-000000060.safetensors"),
            "step-000000060.safetensors is damaged",
        ),
        (lambda run: [p.unlink() for p in run.rglob("*.safetensors")], "has no checkpoint"),
        (swap_model, "has shape"),
        (lambda run: rewrite_meta(run, step="60"), "lacks ['step']"),
        (lambda run: rewrite_meta(run, seconds="long", names=5), "lacks ['names', 'seconds']"),
        (
            lambda run: rewrite_config(run, lambda c: c["config"].update(core="lstm")),
            "it is not of this model",
        ),
    ],
)
@pytest.mark.parametrize("command", [["train", "--resume"], ["eval"]])
def test_damaged_run_folders(finished, tmp_path, capsys, damage, part, command):
    run = tmp_path / "run"
    for name, content in snapshot(finished).items():
        target = run / os.path.relpath(name, finished)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (run / "weights.safetensors").unlink()  # which `eval` would take
    damage(run)
    (run / "checkpoints").mkdir(exist_ok=True)
    before = snapshot(run)
    refused(capsys, [*command, run], part)
    assert snapshot(run) == before


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (
            "training",
            {"optimizer": "rmsprop"},
            "training.optimizer is 'rmsprop', and checkpoint {} is of 'adam'",
        ),
        (
            "training",
            {"steps": 50},
            "training.steps is 50, and checkpoint {} is at step 60; allowed: 60 or more",
        ),
        ("training", {"clip_norm": 0.5}, "training.clip_norm is 0.5, and checkpoint {} is without clipping"),
        ("curriculum", {"stages": []}, "curriculum.stages has 1, and the checkpoint is in stage 1"),
    ],
)
def test_settings_that_a_checkpoint_was_not_made_with(finished, tmp_path, capsys, part, changes, message):
    run = shutil.copytree(finished, tmp_path / "run")
    rewrite_config(run, lambda c: c["config"][part].update(changes))
    before = snapshot(run)
    refused(
        capsys, ["train", "--resume", run], message.format(run / "checkpoints/step-000000060.safetensors")
    )
    assert snapshot(run) == before


@pytest.mark.parametrize("name", ["exp_avg/nothing", "exp_avg/head.0.bias"])
def test_an_optimiser_of_another_model(finished, tmp_path, capsys, name):
    run = shutil.copytree(finished, tmp_path / "run")
    path = run / "checkpoints" / "step-000000060.safetensors"
    tensors, meta = checkpoint.load(path)
    checkpoint.save(path, tensors | {f"optimizer/{name}": torch.zeros(3, 3)}, meta)
    refused(capsys, ["train", "--resume", run], f"the optimiser's {name!r} of [3, 3] is not of this model")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["train", "--help"], ["train", "nth-farthest", "--help"], ["doctor"]])
def test_a_reader_that_has_had_enough_is_no_error(arguments, unbuffered):
    """As `rmc ... | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "relational_rnn.cli", *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=environment, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_backend_that_cannot_run_here(finished, tmp_path, capsys):
    """It is named before anything is made; scoring a run does not need the one it was trained with."""
    path = tmp_path / "run"
    for options, reason in (
        (["--model.backend", "triton"], "'triton' cannot run here: the input is on cpu"),
        (["--model.backend", "torch", "--model.num-blocks", "2"], "'torch' cannot run here: num_blocks is 2"),
    ):
        refused(capsys, [*SMOKE, "--run", path, *options], reason)
        assert not path.exists()
    shutil.copytree(finished, path)
    described = json.loads((path / "config.json").read_text())
    described["config"]["model"]["backend"] = "triton"
    (path / "config.json").write_text(json.dumps(described))
    before = snapshot(path)
    refused(capsys, ["train", "--resume", path], "'triton' cannot run here")
    assert snapshot(path) == before
    scores = []
    for folder in (finished, path):
        assert main(["eval", str(folder)]) == 0
        scores.append(json.loads(capsys.readouterr().out)["accuracy"])
    assert scores[0] == scores[1]


def test_an_experiment_without_detail(finished, capsys):
    refused(capsys, ["eval", finished, "--detail"], "--detail is for lte and box-world")


def test_a_task_without_detail(tmp_path, capsys):
    run = tmp_path / "copy"
    few = ["--training.steps", "5", "--training.eval-every", "0", "--training.checkpoint-every", "5"]
    assert main(["train", "lte", "--preset", "smoke", *few, "--run", str(run)]) == 0
    refused(capsys, ["eval", run, "--detail", "--device", "cpu"], "'copy'", "addition, control, program")


@pytest.mark.parametrize("name", [3, [], {}, "nth"])
def test_an_experiment_there_is_not(finished, tmp_path, capsys, name):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    described = json.loads((path / "config.json").read_text()) | {"experiment": name}
    (path / "config.json").write_text(json.dumps(described))
    for command in (["train", "--resume"], ["eval"]):
        refused(capsys, [*command, path], f"is of experiment {name!r}; allowed: nth-farthest")


def test_resume_names_another_experiment(finished, capsys):
    refused(
        capsys,
        ["train", "learning-to-execute", "--resume", finished],
        "'nth-farthest'",
        "'learning-to-execute'",
    )
    refused(
        capsys, ["train", "--resume", finished, "nth-farthest", "--core", "lstm"], "--resume takes no options"
    )
    refused(capsys, ["train", "--resume", finished, "--core", "lstm"], "no options", "got '--core'")
