"""rmc export: the core of a run as an ONNX model."""

import pytest

from relational_rnn import pretrained
from relational_rnn.cli.__main__ import main

pytest.importorskip("onnxscript", reason="needs the extra export: pip install -e '.[export]'")
pytest.importorskip("onnxruntime", reason="needs the extra export: pip install -e '.[export]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A copy task with an encoder and a decoder of its own."""
    path = tmp_path_factory.mktemp("runs") / "run"
    size = ["--training.steps", "5", "--training.eval-every", "0", "--training.checkpoint-every", "5"]
    arguments = ["train", "lte", "--preset", "smoke", "--model.decoder", "separate", *size]
    assert main([*arguments, "--run", str(path)]) == 0
    return path


def test_the_exported_core_is_the_trained_one(run, tmp_path, capsys):
    from relational_rnn.cores import onnx

    path = tmp_path / "core.onnx"
    assert main(["export", str(run), str(path), "--part", "own_decoder"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{path}: own_decoder (RelationalMemory) at step 5, ")
    assert "onnxruntime and PyTorch differ by" in said.out
    assert said.err == ""
    model = pretrained.load_run(run).model
    assert onnx.check(path, model.own_decoder) < 1e-5
    with pytest.raises(ValueError, match="differs from the core"):
        onnx.check(path, model.encoder)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["RUN"], "takes a run folder and a path"),
        (["RUN", "out.onnx", "--part", "head"], "'head' is not in this model; allowed: encoder, own_decoder"),
        (["RUN", "out.pt"], "ends with .onnx"),
        (["missing", "out.onnx"], "missing does not exist"),
    ],
)
def test_wrong_arguments(run, tmp_path, monkeypatch, capsys, arguments, part):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *(str(run) if a == "RUN" else a for a in arguments)]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())
