"""What a benchmark times must be right: the check that comes before it finds what is not."""

import importlib.util
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from relational_rnn import RelationalMemory
from relational_rnn.kernels import rows_torch

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "exactness.py"
spec = importlib.util.spec_from_file_location("exactness", SCRIPT)
exactness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exactness)


@pytest.fixture
def core():
    torch.manual_seed(0)
    return RelationalMemory(5, 3, 8, 2, backend="torch")  # the recurrence that kernels run in, on a CPU


def x():
    return torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_recurrence_is_right(core, precision):
    within = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()
    found = exactness.errors(core, x(), within)
    assert {"output", "d input"} < found.keys()
    assert len(found) == 2 + len(list(core.parameters()))
    assert exactness.wrong(found, precision) == []
    assert exactness.wrong(exactness.acting_errors(core, x()[0], within), precision) == []
    if precision == "bf16":  # so it is compared, and with float64
        assert found["output"][0] > 1e-5
        assert exactness.wrong(found, "fp32") == []  # no further off than the plain cell in bf16


def test_a_wrong_gradient_is_found(core, monkeypatch):
    """Outputs alone would not show it."""
    right = rows_torch.relu_backward

    def wrong(delta, *others):
        return right(delta, *others).mul_(1.1)

    monkeypatch.setattr(rows_torch, "relu_backward", wrong)
    found = exactness.errors(core, x(), nullcontext())
    assert found["output"][0] < 1e-6
    assert any(line.startswith("d mlp.0.weight") for line in exactness.wrong(found, "fp32"))


def test_nan_is_wrong():
    assert exactness.wrong({"output": (float("nan"), 0.1)}, "bf16") == ["output nan (plain 1.0e-01)"]


def test_what_the_plain_cell_has_too_is_right():
    assert exactness.wrong({"d input": (0.05, 0.04), "output": (0.011, 0.001)}, "bf16") == [
        "output 1.1e-02 (plain 1.0e-03)"
    ]
