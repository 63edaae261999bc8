"""Cores as ONNX models: onnxruntime computes what PyTorch does, for any batch, across resets."""

import pytest
import torch

from relational_rnn import DNC, LSTM, ConvLSTM, DeepLSTM, EntNet, RelationalMemory
from relational_rnn.cores import onnx

NEEDED = "needs the extra export: pip install -e '.[export]'"
onnx_package = pytest.importorskip("onnx", reason=NEEDED)
pytest.importorskip("onnxscript", reason=NEEDED)
pytest.importorskip("onnxruntime", reason=NEEDED)

CORES = {
    "rmc": lambda: RelationalMemory(5, 3, 4, 2),
    "rmc, memory gates, output gate, batch first": lambda: RelationalMemory(
        5, 2, 4, 2, gate_style="memory", output_gate=True, batch_first=True
    ),
    "rmc, no gates, two blocks, rows": lambda: RelationalMemory(
        5, 2, 4, gate_style=None, num_blocks=2, input_rows=3
    ),
    "lstm": lambda: LSTM(5, 7),
    "deep lstm": lambda: DeepLSTM(5, 4),
    "entnet": lambda: EntNet(5, num_cells=2, cell_size=3),
    "conv lstm": lambda: ConvLSTM((3, 3, 2), 4, 2),
    "dnc": lambda: DNC(5, 6, memory_size=6, word_size=4, num_reads=2),
}


@pytest.mark.parametrize("name", CORES)
def test_onnxruntime_and_torch_agree(name, tmp_path):
    torch.manual_seed(0)
    core = CORES[name]()
    path = onnx.export_step(core, tmp_path / "core.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["core.onnx"]  # weights are inside
    onnx_package.checker.check_model(str(path), full_check=True)
    for batch in (1, 4):
        assert onnx.check(path, core, steps=7, batch=batch, seed=batch) < 1e-5


def test_reset_makes_the_given_state_irrelevant(tmp_path):
    import onnxruntime

    core = RelationalMemory(5, 3, 4, 2)
    path = onnx.export_step(core, tmp_path / "core.onnx")
    session = onnxruntime.InferenceSession(str(path))
    assert [i.name for i in session.get_inputs()] == ["x", "reset", "state"]
    assert [o.name for o in session.get_outputs()] == ["output", "next_state"]
    x, state = torch.randn(2, 5), torch.full((2, 3, 8), 9.0)
    reset = torch.tensor([True, False])
    found, _ = session.run(None, {"x": x.numpy(), "reset": reset.numpy(), "state": state.numpy()})
    with torch.no_grad():
        fresh, _ = core.step(x, core.initial_state(2))
        going_on, _ = core.step(x, state)
    torch.testing.assert_close(
        torch.from_numpy(found), torch.stack([fresh[0], going_on[1]]), atol=1e-5, rtol=0
    )


def test_the_core_itself_is_not_changed(tmp_path):
    core = RelationalMemory(5, 2, 4, backend="torch").double().train()
    onnx.export_step(core, tmp_path / "core.onnx")
    assert core.backend == "torch"
    assert core.training
    assert next(core.parameters()).dtype == torch.float64


def test_torchs_default_dtype_does_not_matter(tmp_path):
    torch.set_default_dtype(torch.float64)
    try:
        core = RelationalMemory(5, 2, 4)
        path = onnx.export_step(core, tmp_path / "core.onnx")
        assert onnx.check(path, core) < 1e-5
    finally:
        torch.set_default_dtype(torch.float32)
    kinds = {i.type.tensor_type.elem_type for i in onnx_package.load(str(path)).graph.input}
    assert kinds == {onnx_package.TensorProto.FLOAT, onnx_package.TensorProto.BOOL}


def test_a_file_of_other_weights_is_noticed(tmp_path):
    core = LSTM(3, 4)
    path = onnx.export_step(core, tmp_path / "core.onnx")
    with torch.no_grad():
        next(core.parameters()).add_(1.0)
    with pytest.raises(ValueError, match="differs from the core by"):
        onnx.check(path, core)


def test_wrong_paths(tmp_path):
    core = LSTM(3, 4)
    with pytest.raises(ValueError, match=r"ends with .onnx"):
        onnx.export_step(core, tmp_path / "core.pt")
    with pytest.raises(ValueError, match="folder that exists"):
        onnx.export_step(core, tmp_path / "nowhere" / "core.onnx")
    (tmp_path / "there.onnx").write_text("mine")
    with pytest.raises(ValueError, match="does not exist yet"):
        onnx.export_step(core, tmp_path / "there.onnx")
    assert (tmp_path / "there.onnx").read_text() == "mine"


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"onnx, onnxscript is not installed; pip install relational-rnn\[export\]"
    ):
        onnx.export_step(LSTM(3, 4), tmp_path / "core.onnx")
