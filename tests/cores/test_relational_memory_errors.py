"""Bad arguments and calls of the Relational Memory Core: every error names the value and what is allowed."""

import math

import pytest
import torch

from relational_rnn import RelationalMemory


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(mem_slots=0), "mem_slots=0.*at least 1"),
        (dict(head_size=-2), "head_size=-2"),
        (dict(num_heads=1.5), "num_heads=1.5"),
        (dict(num_heads=True), "num_heads=True"),
        (dict(num_blocks=0), "num_blocks=0"),
        (dict(attention_mlp_layers=0), "attention_mlp_layers=0"),
        (dict(key_size=0), "key_size=0"),
        (dict(input_size=0), "input_size=0"),
        (dict(input_rows=0), "input_rows=0"),
        (dict(gate_style="bad_gate"), "gate_style='bad_gate'.*'unit', 'memory' or None"),
        (dict(backend="cuda"), "backend='cuda'.*'auto', 'reference', 'torch', 'cpp' or 'triton'"),
        (dict(input_bias=None), "input_bias=None.*a number"),
        (dict(gate_style=None, output_gate=True), "output_gate=True"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        RelationalMemory(**(dict(input_size=3, mem_slots=2, head_size=4) | change))


def _bad_calls():
    x = torch.randn(5, 2, 3)
    yield "input of the wrong size", (torch.randn(5, 2, 4),), {}, r"\[5, 2, 4\]; allowed: \[T, B, 3\]"
    yield "input of too many dimensions", (torch.randn(1, 5, 2, 3),), {}, r"\[1, 5, 2, 3\]"
    yield "no tensor", ([1, 2],), {}, "list"
    yield "state of the wrong batch", (x, torch.zeros(3, 2, 4)), {}, r"\[3, 2, 4\]; allowed: \[2, 2, 4\]"
    yield "state of the wrong kind", (x, (torch.zeros(2, 2, 4),)), {}, "tuple"
    yield "state on another device", (x, torch.zeros(2, 2, 4, device="meta")), {}, "on meta, the input on cpu"
    yield "integer state", (x, torch.zeros(2, 2, 4, dtype=torch.long)), {}, "int64"
    yield "input of another dtype", (x.double(),), {}, "float64; allowed: torch.float32"
    yield "NaN in resets", (x,), dict(resets=torch.full((5, 2), math.nan)), "bool.*NaN.*float32"
    yield (
        "resets of the wrong shape",
        (x,),
        dict(resets=torch.zeros(2, 5, dtype=torch.bool)),
        r"\[2, 5\].*\[5, 2\]",
    )
    yield "resets no tensor", (x,), dict(resets=[True]), "list"


@pytest.mark.parametrize(("args", "kwargs", "message"), [pytest.param(*c[1:], id=c[0]) for c in _bad_calls()])
def test_bad_calls_are_named(args, kwargs, message):
    with pytest.raises(ValueError, match=message) as error:
        RelationalMemory(3, 2, 4)(*args, **kwargs)
    assert "\n" not in str(error.value)


def test_triton_without_a_gpu_is_a_clear_error():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    core = RelationalMemory(3, 2, 4, backend="triton")
    with pytest.raises(ValueError, match=r"backend='triton'.*cpu"):
        core(torch.randn(5, 2, 3))
