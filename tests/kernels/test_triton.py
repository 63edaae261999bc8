"""The fused kernels: on a GPU where there is one, and everywhere in Triton's interpreter."""

import importlib.util

import pytest
import torch

from relational_rnn import RelationalMemory
from tests.kernels.comparison import build, errors, examples, in_the_interpreter, run

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@needs_triton
def test_kernels_in_the_interpreter():
    """Every kernel, forward and backward, against the float64 specification, with torch.empty full of NaN."""
    assert in_the_interpreter("tests.kernels.interpreted").count("worst") == 13


CONFIGS = {
    "paper": dict(mem_slots=8, head_size=32, num_heads=8),
    "odd": dict(mem_slots=3, head_size=20, num_heads=3, gate_style="memory", key_size=12),
    "long": dict(mem_slots=4, head_size=64, num_heads=4, gate_style="memory"),
    "language model": dict(mem_slots=1, head_size=625, num_heads=4, attention_mlp_layers=5),
    "no gates": dict(mem_slots=5, head_size=16, num_heads=8, gate_style=None),
    "sixteen slots": dict(mem_slots=16, head_size=8, num_heads=16),
    "recomputed": dict(mem_slots=7, head_size=9, num_heads=3, attention_mlp_layers=1, recompute=True),
}
STEPS = {"long": 41, "recomputed": 13}


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_on_the_gpu(name, precision, monkeypatch):
    """fp32: all within 1e-5. tf32, bf16: within 1e-3, 5e-3, or half again of plain torch's error."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    core = build(CONFIGS[name], inputs=24, device="cuda")
    arguments = examples(core, STEPS.get(name, 9), 33, resetting=True)
    exact = run(core, "reference", torch.float64, *arguments)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    autocast = torch.bfloat16 if precision == "bf16" else None
    ours = errors(run(core, "triton", torch.float32, *arguments, autocast=autocast), exact)
    torchs = errors(run(core, "reference", torch.float32, *arguments, autocast=autocast), exact)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    if precision == "fp32":
        assert max(ours.values()) < 1e-5, ours
        return
    limit = {"tf32": 1e-3, "bf16": 5e-3}[precision]
    worse = {k: (error, torchs[k]) for k, error in ours.items() if not error < max(limit, 1.5 * torchs[k])}
    assert not worse, worse


@needs_gpu
def test_a_captured_step_gives_what_an_eager_one_gives():
    core = RelationalMemory(12, 4, 16, 4, device="cuda", backend="triton")
    x = torch.randn(5, 9, 12, device="cuda")
    with torch.no_grad():
        expected, _ = core(x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        core(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        output, _ = core(x)
    graph.replay()
    torch.testing.assert_close(output, expected)


@needs_gpu
def test_auto_takes_the_kernels_on_a_gpu():
    from relational_rnn.kernels import op, rows_triton

    core = RelationalMemory(12, 4, 16, 4, device="cuda")
    memory = core.initial_state(3)
    assert op.choose("auto", memory, 5, core.weights(), 1, False) is rows_triton
    assert op.choose("auto", memory.double(), 5, core.weights(), 1, False) is not rows_triton
