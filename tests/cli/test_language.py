"""rmc train and eval with a language model."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relational_rnn.cli.__main__ import main
from relational_rnn.tasks.text.prepare import open_prepared
from relational_rnn.tasks.text.vocabulary import UNK_ID
from relational_rnn.training.progress import Display
from tests.tasks.text.files import make_wikitext

SHORT = ["train", "lm", "--preset", "smoke", "--core", "lstm", "--training.steps", "10"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_wikitext(tmp_path_factory.mktemp("text"), lines=40)


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    run = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["train", "lm", "--preset", "smoke", "--data", str(data), "--run", str(run)]
    assert main([*arguments, "--core", "lstm"]) == 0
    return run


def test_the_score_is_that_of_the_training(run, capsys):
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 30
    assert found["test_perplexity"] == last["eval_test_perplexity"]
    assert found["valid_perplexity"] == last["eval_full_valid_perplexity"]
    assert main(["train", "--resume", str(run)]) == 0
    assert "is complete: 30 of 30 steps" in capsys.readouterr().out


def test_a_model_is_loaded_and_exported_without_its_text(run, tmp_path, capsys):
    from relational_rnn import pretrained

    copy = shutil.copytree(run, tmp_path / "copy")
    described = json.loads((copy / "config.json").read_text())
    described["config"]["data"] = str(tmp_path / "gone")
    (copy / "config.json").write_text(json.dumps(described))
    model = pretrained.load_run(copy).model
    whole = pretrained.load_run(run).model.state_dict()
    assert all((whole[name] == tensor).all() for name, tensor in model.state_dict().items())
    (copy / "vocabulary.tsv").unlink()
    with pytest.raises(ValueError, match=r"not a whole run folder of language modelling: no vocabulary\.tsv"):
        pretrained.load_run(copy)


def test_one_step_has_no_change_to_punish(data, tmp_path, capsys):
    """The preset has a penalty on changes of the core's output."""
    run = tmp_path / "run"
    assert main([*SHORT, "--data", str(data), "--steps", "1", "--run", str(run)]) == 0
    assert "nan" not in (run / "metrics.jsonl").read_text().lower()


def test_evaluations_say_how_far_they_are(data, tmp_path, monkeypatch, capsys):
    said = []
    monkeypatch.setattr(Display, "note", lambda display, text: said.append(text))
    monkeypatch.setattr("relational_rnn.tasks.language_evaluation.STEPS", 4)
    arguments = ["train", "lm", "--preset", "smoke", "--data", str(data), "--core", "lstm"]
    assert main([*arguments, "--training.steps", "10", "--run", str(tmp_path / "run")]) == 0
    for what in ("valid", "valid in one unroll", "test in one unroll"):
        start = f"evaluating: {what}, "
        shares = [int(text.removeprefix(start)[:-2]) for text in said if text.startswith(start)]
        assert shares == sorted(shares)
        assert shares[-1] == 100
        assert shares[0] < 60
    assert "evaluating" not in capsys.readouterr().out  # which is no terminal


def test_a_run_resumes_with_its_own_batch_size(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "copy")
    described = json.loads((copy / "config.json").read_text())
    described["config"]["training"]["batch_size"] = 8
    (copy / "config.json").write_text(json.dumps(described))
    assert main(["train", "--resume", str(copy)]) == 2
    assert "training.batch_size is 8, the checkpoint's 4; allowed: 4" in capsys.readouterr().err


def test_what_is_said_about_the_text(data, tmp_path, capsys):
    train = [*SHORT, "--data", str(data)]
    assert main([*train, "--max-words", "20", "--run", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out.splitlines()
    prepared = open_prepared(data / "prepared-20-1")
    ids = prepared.tokens["train"]
    shares = [100 * (prepared.tokens[split] == UNK_ID).mean() for split in ("train", "valid")]
    assert 1 < shares[0] < 99
    epochs = 10 * 4 * 8 / len(ids)
    assert said[1].startswith(f"text: {len(ids)} tokens to train on, 20 words, <unk> is ")
    assert f"{shares[0]:.1f} % of train and {shares[1]:.1f} % of valid" in said[1]
    found = re.search(r"; 10 updates are (\S+) epochs$", said[1])[1]
    assert float(found) == pytest.approx(epochs, rel=0.1)  # a window that is not full is left out
    assert "on valid and test; weights in" in said[-1]


def test_a_run_finds_its_text_from_any_folder(data, tmp_path, monkeypatch, capsys):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    monkeypatch.chdir(data.parent)
    train = [*SHORT, "--data", data.name]
    assert main([*train, "--prepared", "words", "--run", str(run)]) == 0
    capsys.readouterr()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["test_perplexity"] > 1
    assert main(["train", "--resume", str(run)]) == 0
    assert not any(elsewhere.iterdir())


def test_a_run_with_kernels_that_are_not_here(data, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "lm", "--preset", "smoke", "--data", str(data), "--run", str(run)]) == 0
    described = json.loads((run / "config.json").read_text())
    described["config"]["rmc"]["backend"] = "triton"
    (run / "config.json").write_text(json.dumps(described))
    capsys.readouterr()
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["test_perplexity"] > 1


def test_a_terminal_shows_how_far_the_scores_are(run):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "relational_rnn.cli", "eval", str(run), "--device", "cpu"]
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=False)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "test in one unroll, 100 %" in shown
    assert json.loads(done.stdout)["test_perplexity"] > 1  # and nothing else


def test_options_may_come_before_the_run(run, capsys):
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    wanted = capsys.readouterr().out
    assert main(["eval", "--device", "cpu", str(run)]) == 0
    assert capsys.readouterr().out == wanted


def test_the_appendixs_analyses(run, data, tmp_path, capsys):
    options = ["--splits", "test", "--unrolls", "1,1000000", "--frequencies", "--dynamic"]
    arguments = ["eval", str(run), *options, "--device", "cpu", "--out", str(tmp_path / "scores.json")]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "scores.json").read_text())
    assert "valid_perplexity" not in found
    assert found["test_unrolls"]["1000000"] == found["test_perplexity"] != found["test_unrolls"]["1"]
    table = found["test_frequencies"]
    assert table["all"] == {
        "perplexity": pytest.approx(found["test_perplexity"]),
        "tokens": found["test_tokens"],
    }
    assert sum(row["tokens"] for row in table.values()) == 2 * found["test_tokens"]
    assert found["test_dynamic_perplexity"] != found["test_perplexity"]
    assert main(arguments) == 2
    assert "exists already" in capsys.readouterr().err


def test_scores_are_not_lost_with_their_file(run, tmp_path, monkeypatch, capsys):
    def refuse(path, text):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    assert main(["eval", str(run), "--device", "cpu", "--out", str(tmp_path / "scores.json")]) == 2
    said = capsys.readouterr()
    assert "test_perplexity" in json.loads(said.out)
    assert said.err == f"rmc: error: {tmp_path / 'scores.json'}: Permission denied\n"


def test_help_of_a_language_models_evaluation(run, capsys):
    assert main(["eval", str(run), "--help"]) == 0
    assert "--unrolls" in capsys.readouterr().out


def test_without_a_preset_it_is_that_of_wikitext_2(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["train", "lm", "--help"])
    assert "rmc train lm --preset wikitext2" in capsys.readouterr().out
    assert main(["train", "lm"]) == 2
    assert "data='' is not allowed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "RUN", "--splits", "best"], "--splits 'best' is not allowed"),
        (
            ["eval", "RUN", "--unrolls", "10,0"],
            "--unrolls '0' is not allowed; allowed: a whole number, 1 to",
        ),
        (["eval", "RUN", "--unrolls", "9" * 5000], "is not allowed; allowed: a whole number, 1 to"),
        (["generate", "RUN", "--length", "9" * 5000], "is not allowed; allowed: a whole number, 0 to"),
        (["generate", "RUN", "--seed", "9" * 5000], "is not allowed; allowed: a whole number, 0 to"),
        (["eval", "RUN", "--precision", "fp8"], "--precision 'fp8'"),
        (["eval", "RUN", "--data", "nowhere"], "nowhere is no folder"),
        (["generate", "RUN", "--length", "many"], "--length 'many' is not allowed"),
        (["generate", "RUN", "--temperature", "hot"], "--temperature 'hot' is not allowed"),
        (["generate", "RUN", "--temperature", "nan"], "--temperature 'nan' is not allowed"),
        (["generate", "RUN", "--suggest", "100000"], "count=100000 is not allowed; allowed: 1 to"),
        (["generate", "RUN", "--seed", str(2**64)], f"--seed '{2**64}' is not allowed; allowed: a whole"),
        (["eval", "RUN", "--out", "nowhere/scores.json"], "nowhere is no folder"),
        (["generate", "RUN", "--suggest", "3", "--length=5"], "--length is not allowed with --suggest"),
        (["generate", "RUN", "more"], "takes one run folder"),
        (["generate", "nowhere"], "run folder nowhere does not exist"),
        (["train", "lm", "--preset", "smoke"], "data='' is not allowed"),
    ],
)
def test_wrong_options(run, capsys, arguments, message):
    assert main([str(run) if word == "RUN" else word for word in arguments]) == 2
    assert message in capsys.readouterr().err


def test_too_short_a_text(data, tmp_path, capsys):
    arguments = ["train", "lm", "--preset", "smoke", "--data", str(data), "--run", str(tmp_path / "run")]
    assert main([*arguments, "--training.batch-size", "1000"]) == 2
    said = capsys.readouterr().err
    assert "tokens; allowed: training.batch_size 1000 x steps 8 x 2 (shift) = 16000 or more" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tokenizer": "bpe"}', '{"tokenizer": []}'])
def test_a_damaged_note_of_the_tokenizer_is_named(run, tmp_path, capsys, content):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "text.json").write_text(content)
    assert main(["generate", str(copy), "--prompt", "the"]) == 2
    said = capsys.readouterr().err
    assert "text.json is damaged: tokenizer is " in said
    assert "allowed: whitespace, words" in said


def test_limits_that_token_files_do_not_have(data, tmp_path, capsys):
    prepared, run = tmp_path / "prepared", tmp_path / "run"
    train = ["train", "lm", "--preset", "smoke", "--core", "lstm", "--training.steps", "10"]
    limits = ["--max-words", "20", "--min-count", "2", "--prepared", str(prepared)]
    assert main([*train, "--data", str(data), *limits, "--run", str(tmp_path / "first")]) == 0
    assert "note" not in capsys.readouterr().err
    train += ["--data", str(prepared), "--run", str(run)]
    made = f"the token files in {prepared} were made with"
    for limit, message in (
        (["--max-words", "30"], f"--max-words 30 is not allowed: {made} 20; allowed: that, or"),
        (["--max-words", "20", "--min-count", "3"], f"--min-count 3 is not allowed: {made} 2;"),
        (["--prepared", str(run)], f"--prepared {run} is not allowed: {prepared} holds token files already"),
    ):
        assert main([*train, *limit]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.startswith("rmc: error: ")
        assert said.count("\n") == 1
        assert not run.exists()
    assert main([*train, "--max-words", "20", "--min-count", "2"]) == 0
    assert "note" not in capsys.readouterr().err
    run.rename(tmp_path / "second")
    assert main(train) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith(f"note: the preset's --max-words 1000 is not used: {made} 20;")
    assert said[1].startswith(f"note: the preset's --min-count 1 is not used: {made} 2;")


def test_a_limit_that_would_give_the_same_words_is_no_contradiction(data, tmp_path, capsys):
    prepared = tmp_path / "prepared"
    train = ["train", "lm", "--preset", "smoke", "--core", "lstm", "--training.steps", "10"]
    every_word = ["--max-words", "None", "--prepared", str(prepared)]
    assert main([*train, "--data", str(data), *every_word, "--run", str(tmp_path / "one")]) == 0
    assert main([*train, "--data", str(prepared), "--run", str(tmp_path / "two")]) == 0  # 1000
    assert (
        main([*train, "--data", str(prepared), "--max-words", "900", "--run", str(tmp_path / "three")]) == 0
    )
    assert capsys.readouterr().err == ""


def test_another_text_leaves_the_runs_token_files_alone(data, tmp_path, capsys):
    run, prepared = tmp_path / "run", tmp_path / "prepared"
    arguments = ["train", "lm", "--preset", "smoke", "--data", str(data), "--prepared", str(prepared)]
    assert main([*arguments, "--core", "lstm", "--training.steps", "10", "--run", str(run)]) == 0
    before = {path.name: path.read_bytes() for path in prepared.iterdir()}
    other = make_wikitext(tmp_path / "other", lines=30, seed=5)
    assert main(["eval", str(run), "--data", str(other), "--device", "cpu"]) == 2
    assert {path.name: path.read_bytes() for path in prepared.iterdir()} == before


def test_another_text_is_refused(run, tmp_path, capsys):
    other = make_wikitext(tmp_path / "text", lines=3, seed=9)
    assert main(["eval", str(run), "--data", str(other), "--device", "cpu"]) == 2
    assert "is of another vocabulary" in capsys.readouterr().err
