"""The row functions in C++ against the float64 specification, and what happens where there is no compiler."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relational_rnn import RelationalMemory
from relational_rnn.kernels import cpp_compiler, op, rows_cpp, rows_torch
from tests.kernels.comparison import ROOT, build, errors, examples, run

needs_compiler = pytest.mark.skipif(cpp_compiler._compiler() is None, reason="needs a C++ compiler")
CONFIGS = {
    "paper": dict(mem_slots=8, head_size=32, num_heads=8),
    "demo": dict(mem_slots=4, head_size=8, num_heads=4),
    "heads of 64": dict(mem_slots=4, head_size=64, num_heads=2, gate_style="memory"),
    "odd": dict(mem_slots=3, head_size=5, num_heads=3, gate_style="memory", key_size=7),
    "one slot": dict(mem_slots=1, head_size=16, num_heads=1, attention_mlp_layers=5),
    "no gates": dict(mem_slots=5, head_size=16, num_heads=2, gate_style=None),
    "sixteen slots": dict(mem_slots=16, head_size=3, num_heads=4, attention_mlp_layers=1),
}


@pytest.fixture
def poisoned():
    """torch.empty gives NaN: what is read without having been written shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
        torch.use_deterministic_algorithms(False)


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def in_both(config, steps, batch, resetting, precision):
    """Errors beside float64: of C++, of the specification in that precision, and of the same in torch."""
    core = build(config)
    arguments = examples(core, steps, batch, resetting=resetting)
    exact = run(core, "reference", torch.float64, *arguments)
    autocast = torch.bfloat16 if precision == "bf16" else None
    return [
        errors(run(core, backend, torch.float32, *arguments, autocast=autocast), exact)
        for backend in ("cpp", "reference", "torch")
    ]


@needs_compiler
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_agrees_with_float64(name, recompute, poisoned):
    """Outputs, final state, every gradient, with resets anywhere and more steps than a stretch has."""
    ours, *_ = in_both(CONFIGS[name] | dict(recompute=recompute), 11, 5, True, "fp32")
    assert max(ours.values()) < 5e-6, ours


@needs_compiler
@pytest.mark.parametrize("name", CONFIGS)
def test_bf16_is_no_worse_than_torch(name, poisoned):
    """5e-3, or half again of what torch has, as the specification or by hand, where that is more."""
    ours, *torchs = in_both(CONFIGS[name], 9, 33, True, "bf16")
    limits = {k: max(5e-3, 1.5 * max(other[k] for other in torchs)) for k in ours}
    worse = {k: (error, limits[k]) for k, error in ours.items() if not error < limits[k]}
    assert not worse, worse
    assert ours["output"] > 1e-5  # so it was computed in bf16


@needs_compiler
@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(1, 9),
    values=st.integers(1, 17),
    heads=st.integers(1, 4),
    keys=st.sampled_from([None, 1, 8, 11]),
    layers=st.integers(1, 3),
    style=st.sampled_from(["unit", "memory", None]),
    steps=st.integers(1, 10),
    batch=st.integers(1, 7),
    resetting=st.booleans(),
)
def test_any_sizes(slots, values, heads, keys, layers, style, steps, batch, resetting):
    if heads * values == 1 or slots * values * heads < 3:
        values += 2  # the norm of one feature is zero, whose error over zero says nothing
    config = dict(mem_slots=slots, head_size=values, num_heads=heads, key_size=keys, gate_style=style)
    ours, plain, _ = in_both(config | dict(attention_mlp_layers=layers), steps, batch, resetting, "fp32")
    wrong = {k: (error, plain[k]) for k, error in ours.items() if not error < max(1e-5, 3 * plain[k])}
    assert not wrong, wrong


@needs_compiler
def test_threads_share_the_rows(threads, monkeypatch):
    """Also more of them than samples; with as many threads the same bits."""
    monkeypatch.setattr(rows_cpp, "PARALLEL", 1)
    rows_cpp._sizes.cache_clear()
    config = CONFIGS["odd"]
    assert max(in_both(config, 5, 2, True, "fp32")[0].values()) < 5e-6
    core = build(config)
    arguments = examples(core, 5, 7, resetting=True)
    one, two = (run(core, "cpp", torch.float32, *arguments) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    rows_cpp._sizes.cache_clear()


@needs_compiler
def test_numbers_of_any_size():
    """tanh and exp by our own series: small, large and infinite memories, as torch has them."""
    core = build(dict(mem_slots=2, head_size=8, num_heads=2))
    core.backend = "cpp"
    values = torch.tensor([0.0, 1e-30, 1e-8, 1e-4, 0.2499, 0.2501, 3.0, 8.9, 9.1, 44.0, 90.0, 1e4, 1e30])
    for value in torch.cat([values, -values]):
        state = torch.full((3, 2, 16), value.item())
        state[:, 0, 0] += 1  # not all alike
        rows = torch.zeros(6, 16), torch.zeros(6, 16)
        now = type("Now", (), dict(rows=rows[0], hidden=rows[1]))
        rows_cpp.begin(state, None, now)
        torch.testing.assert_close(now.hidden, state.tanh().flatten(0, 1), rtol=5e-7, atol=1e-37)
        torch.testing.assert_close(now.rows, state.flatten(0, 1), rtol=0, atol=0)


@needs_compiler
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(bad):
    """And stays with its sample."""
    core = build(dict(mem_slots=3, head_size=8, num_heads=2))
    core.backend = "cpp"
    x = torch.randn(4, 5, 5)
    right = core(x)[0]
    x[1, 2] = bad
    output = core(x)[0]
    assert output[1:, 2].isnan().all()
    untouched = [0, 1, 3, 4]
    assert torch.equal(output[:, untouched], right[:, untouched])
    assert torch.equal(output[0], right[0])


@needs_compiler
def test_auto_takes_it_where_it_helps():
    core = RelationalMemory(5, 4, 8, 4)
    weights = core.weights()

    def chosen(steps, batch, core=core, folded=False):
        return op.choose("auto", core.initial_state(batch), steps, core.weights(), 1, core.recompute, folded)

    assert chosen(8, 32) is rows_cpp
    assert chosen(1, 32) is None  # one step, and gradients are wanted
    assert chosen(3, 2) is None  # little to do
    assert chosen(1, 1, folded=True) is rows_cpp
    with torch.no_grad():
        assert chosen(1, 64) is rows_cpp
    assert chosen(8, 32, core=core.double()) is None  # float64
    for kind, wanted in ((torch.bfloat16, rows_cpp), (torch.float16, None)):
        with torch.autocast("cpu", kind):
            single = RelationalMemory(5, 4, 8, 4)
            assert chosen(8, 32, core=single) is wanted
    assert op.choose("reference", core.initial_state(32), 8, weights, 1, False) is None


@needs_compiler
def test_asked_for_where_it_cannot_run():
    for options, reason in (
        (dict(dtype=torch.float64), "the dtype is float64; allowed: float32"),
        (dict(num_blocks=2), "num_blocks is 2"),
        (dict(device="meta"), "the input is on meta, not on a CPU"),
    ):
        core = RelationalMemory(5, 4, 8, backend="cpp", **options)
        weight = core.input_projection.weight
        with pytest.raises(ValueError, match=f"backend='cpp' cannot run here: {reason}"):
            core(torch.ones(3, 2, 5, dtype=weight.dtype, device=weight.device))


@needs_compiler
def test_torch_compile_sees_one_operator_or_none():
    """Asked for, it is one; `auto` leaves torch's own operations, which go anywhere."""
    x = torch.randn(8, 32, 5)
    for backend, wanted in (("cpp", 1), ("auto", 0)):
        core = RelationalMemory(5, 4, 8, 4, backend=backend)
        graphs = []

        def keep(graph, inputs, graphs=graphs):
            graphs.append(graph)
            return graph

        compiled = torch.compile(lambda x, core=core: core(x)[0], fullgraph=True, backend=keep)
        torch.testing.assert_close(compiled(x), core(x)[0], rtol=1e-4, atol=1e-5)
        assert str(graphs[0].code).count("relational_rnn.scan") == wanted


@needs_compiler
def test_weights_are_multiplied_out_only_for_many_inputs():
    """On a CPU that costs more than it spares for few."""
    core = RelationalMemory(7, 4, 8, 4, backend="cpp")
    weights = core.weights()
    assert core._fold(weights, rows_cpp, 13).projection is not None
    assert core._fold(weights, rows_cpp, 14).projection is None
    assert core._fold(weights, rows_torch).projection is None
    x, state = torch.randn(3, 7), torch.randn(3, 4, 32)
    torch.testing.assert_close(core.step(x, state)[0], core.step(x, state, core.fold())[0])


def in_a_process(code, **environment):
    """-> what it printed; warnings stand there too."""
    command = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


TRAIN = """
import torch
from relational_rnn import RelationalMemory
from relational_rnn.kernels import op
core = RelationalMemory(5, 4, 8, 4)
core(torch.randn(8, 32, 5))[0].sum().backward()
rows = op.choose("auto", core.initial_state(32), 8, core.weights(), 1, False)
print("took", rows and rows.__name__)
"""


@needs_compiler
def test_it_is_compiled_once_for_all_processes(tmp_path):
    assert "rows_cpp" in in_a_process(TRAIN, XDG_CACHE_HOME=str(tmp_path))
    folder = tmp_path / "relational-rnn"
    (library,) = folder.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    before = library.stat().st_mtime_ns
    assert "rows_cpp" in in_a_process(TRAIN, XDG_CACHE_HOME=str(tmp_path))
    assert [path.stat().st_mtime_ns for path in folder.iterdir()] == [before]


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "false"])
def test_without_a_compiler_that_works(tmp_path, compiler):
    """auto never fails; that something is broken is said, that there is none is not."""
    said = in_a_process(TRAIN, CXX=compiler, XDG_CACHE_HOME=str(tmp_path))
    assert "took None" in said
    assert ("could not be compiled" in said) == (compiler == "false")
    ask = TRAIN.replace("4, 8, 4)", "4, 8, 4, backend='cpp')", 1)
    ask = f"try:\n    {ask.strip().replace(chr(10), chr(10) + '    ')}\nexcept ValueError as e:\n    print(e)"
    said = in_a_process(ask, CXX=compiler, XDG_CACHE_HOME=str(tmp_path))
    assert "backend='cpp' cannot run here: " in said
    assert ("there is no C++ compiler" in said) == (compiler != "false")


@needs_compiler
@pytest.mark.skipif(os.name != "posix", reason="needs Unix permissions")
def test_a_folder_that_others_may_write_to_is_not_loaded_from(tmp_path):
    folder = tmp_path / "relational-rnn"
    folder.mkdir()
    folder.chmod(0o777)
    said = in_a_process(TRAIN, XDG_CACHE_HOME=str(tmp_path))
    assert "took None" in said
    assert "others may write to it" in said
    assert list(folder.iterdir()) == []


@needs_compiler
@pytest.mark.parametrize("damage", ["cut off", "empty", "another byte"])
def test_a_damaged_library_is_compiled_anew(tmp_path, damage):
    in_a_process(TRAIN, XDG_CACHE_HOME=str(tmp_path))
    (library,) = (tmp_path / "relational-rnn").iterdir()
    whole = library.read_bytes()
    damaged = {"cut off": whole[:4096], "empty": b"", "another byte": whole[:-1] + bytes([whole[-1] ^ 1])}
    library.write_bytes(damaged[damage])
    said = in_a_process(TRAIN, XDG_CACHE_HOME=str(tmp_path))
    assert "rows_cpp" in said
    assert "could not be compiled" not in said
    (again,) = (tmp_path / "relational-rnn").iterdir()
    assert again.stem.endswith(cpp_compiler._digest(again.read_bytes()))


TO = '"$(while [ "$1" != "-o" ]; do shift; done; echo "$2")"'  # where the output is wanted


def a_compiler(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize(
    ("name", "script", "said"),
    [
        ("cc", r"printf '\377\376' >&2; exit 1", "could not be compiled"),  # not UTF-8
        ("o'brien", "exit 1", "could not be compiled"),  # a quotation mark in its name
        ("cc", f": > {TO}", "could not be compiled"),  # makes an empty file
        ("cc", f'echo "int x;" | g++ -x c++ -shared -o {TO} -', "none of our functions"),
    ],
)
def test_compilers_that_do_strange_things(tmp_path, name, script, said):
    compiler = a_compiler(tmp_path / name, f'[ "$1" = "--version" ] && exit 0\n{script}')
    found = in_a_process(TRAIN, CXX=compiler, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "took None" in found
    assert said in found


def test_a_home_that_nobody_knows(monkeypatch):
    """No HOME, and a user of no name."""

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cpp_compiler.Path, "home", nowhere)
    monkeypatch.setattr(cpp_compiler, "_compiler", lambda: ("c++",))
    with pytest.warns(UserWarning, match="could not be compiled"):
        assert cpp_compiler.library.__wrapped__(torch.float32) is None


@needs_compiler
def test_torch_compile_says_why_it_cannot():
    core = RelationalMemory(5, 4, 8, 4, backend="cpp", dtype=torch.float64)
    with pytest.raises(ValueError, match="the dtype is float64; allowed: float32, bfloat16"):
        torch.compile(core, backend="aot_eager")(torch.randn(8, 33, 5, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore")
def test_a_traced_core_is_torchs_own_operations():
    core, x = RelationalMemory(5, 4, 8, 4), torch.randn(16, 32, 5)
    traced = torch.jit.trace(core, (x,))  # which checks itself without gradients
    assert "relational_rnn::" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x)[0], core(x)[0], rtol=1e-4, atol=1e-4)


@needs_compiler
def test_bf16_gradients_of_long_sequences_are_summed_in_float32():
    """Stretch after stretch: in bf16 the sum would stop growing."""
    torch.manual_seed(0)
    core = RelationalMemory(5, 4, 8, 4, backend="cpp")
    core.mlp[0].bias.data += 8  # no unit is near the ReLU's corner
    x, state, _, cotangent = examples(core, 3000, 8)
    resets = (torch.arange(3000) % 2 == 0)[:, None].expand(-1, 8)
    arguments = x, state, resets, cotangent.abs()  # gradients of one sign, so that their sum grows
    exact = run(core, "reference", torch.float64, *arguments)
    wrong = errors(run(core, "cpp", torch.float32, *arguments, autocast=torch.bfloat16), exact)
    weights = [name for name in wrong if name.endswith(("mlp.0.weight", "qkv.weight"))]
    assert len(weights) == 2
    assert max(wrong[name] for name in weights) < 0.03
