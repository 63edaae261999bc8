"""rmc export: the trained core of a run as an ONNX model."""

from __future__ import annotations

from pathlib import Path

from relational_rnn.cli import UsageError
from relational_rnn.cli.train import take_option, user_errors

HELP = """\
usage: rmc export RUN PATH.onnx [--part NAME]
       rmc export NAME PATH.onnx        a model in the package

Writes one step of a run's recurrent core, with its trained weights, as an ONNX
model, runs it in onnxruntime on random sequences and says how far it is from
PyTorch. Needs pip install relational-rnn[export]. Inputs: x, state, reset (true
where a sequence begins); outputs: output, next_state. docs/exporting.md
explains them. --part chooses where a model has several cores. A file that
exists is not overwritten.
"""


def main(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    rest, part = take_option(arguments, "--part")
    if len(rest) != 2:
        raise UsageError(f"rmc export takes a run folder and a path, got {rest}; options: --part")

    from relational_rnn import pretrained
    from relational_rnn.cores import onnx

    with user_errors():
        loaded = pretrained.load(rest[0])
        name, core = choose(cores(loaded.model), part)
        path = onnx.export_step(core, Path(rest[1]))
        difference = onnx.check(path, core)
    size = path.stat().st_size / 2**20
    print(f"{path}: {name} ({type(core).__name__}) at step {loaded.about['step']:,}, {size:.1f} MiB")
    print(f"onnxruntime and PyTorch differ by {difference:.1e} of the largest value at most")
    return 0


def cores(model) -> dict:
    """The recurrent cores in a model by name; not the cores a core is made of."""
    from relational_rnn.cores.base import RecurrentCore

    found = {name: m for name, m in model.named_modules() if isinstance(m, RecurrentCore)}
    inner = {id(m) for core in found.values() for m in core.modules() if m is not core}
    return {name: core for name, core in found.items() if id(core) not in inner}


def choose(found: dict, part: str | None):
    if part is None:
        return next(iter(found.items()))
    if part not in found:
        raise UsageError(f"--part {part!r} is not in this model; allowed: {', '.join(found)}")
    return part, found[part]
