"""One step of a core as an ONNX model, for runtimes without PyTorch (`pip install relational-rnn[export]`).

The model's inputs are x [batch, ...], the state (`state`, or `state_0`, `state_1`, ... where a core has
several tensors) and reset [batch], boolean: where it is true, the state given is not looked at and a
sequence starts anew. Its outputs are output [batch, ...] and the next state (`next_state`, ...). A sequence
begins with a state of zeros and reset true, and goes on with what came out and reset false.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from relational_rnn.cores.base import RecurrentCore, State, require, select
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.relational_memory import RelationalMemory

BATCH = 2  # of the example that is traced; the model takes any
TOLERANCE = 1e-4  # of the check, relative to a tensor's largest value


def flat_state(state: State) -> list[Tensor]:
    """The tensors of a state, in order."""
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in flat_state(part)]
    return [state]


def like(state: State, tensors: list[Tensor]) -> State:
    """The tensors in the structure of `state`; takes them off the list."""
    if isinstance(state, tuple):
        return tuple(like(part, tensors) for part in state)
    return tensors.pop(0)


def state_names(core: RecurrentCore, prefix: str = "") -> list[str]:
    count = len(flat_state(core.initial_state(1)))
    return [f"{prefix}state"] if count == 1 else [f"{prefix}state_{i}" for i in range(count)]


class _Step(nn.Module):
    """A core's step with flat inputs and outputs."""

    def __init__(self, core: RecurrentCore):
        super().__init__()
        self.core = core

    def forward(self, x: Tensor, reset: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        given = like(self.core.initial_state(1), list(state))
        given = select(reset, self.core.initial_like(given), given)
        output, following = self.core.step(x, given)
        return output, *flat_state(following)


def export_step(core: RecurrentCore, path: Path | str) -> Path:
    """Write the core's step to `path`, one file with its weights. A file that exists is not overwritten."""
    path = Path(path)
    require(path.suffix == ".onnx", "path", str(path), "a name that ends with .onnx")
    require(not path.exists(), "path", str(path), "a file that does not exist yet")
    require(path.parent.is_dir(), "path", str(path), "a file in a folder that exists")
    _need("onnx", "onnxscript")
    core = portable(core)
    state = flat_state(core.initial_state(BATCH))
    x = torch.zeros(BATCH, *core.input_shape, dtype=torch.float32)  # whatever torch's default is
    example = (x, torch.ones(BATCH, dtype=torch.bool), *state)
    batch = torch.export.Dim("batch")
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _Step(core).eval(),
            example,
            dynamo=True,
            verbose=False,
            input_names=["x", "reset", *state_names(core)],
            output_names=["output", *state_names(core, "next_")],
            dynamic_shapes=({0: batch}, {0: batch}, tuple({0: batch} for _ in state)),
        )
    program.model.metadata_props["core"] = type(core).__name__
    program.model.metadata_props["description"] = repr(core).splitlines()[0]
    program.save(path, external_data=False)
    return path


def portable(core: RecurrentCore) -> RecurrentCore:
    """A copy on the CPU, in float32, that computes with plain operators only."""
    core = copy.deepcopy(core).to("cpu", torch.float32).eval()
    for module in core.modules():
        if isinstance(module, RelationalMemory):
            module.backend = "reference"
        elif isinstance(module, DNC):
            module.compile = module.fused = False
    return core


def run(path: Path | str, core: RecurrentCore, x: Tensor, resets: Tensor) -> list[Tensor]:
    """Sequence x [T, B, ...] through the file with onnxruntime: every step's output, then the last state."""
    _need("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = state_names(core)
    shapes = [t.shape[1:] for t in flat_state(core.initial_state(1, device="cpu"))]
    state = [torch.zeros(x.shape[1], *shape, dtype=torch.float32).numpy() for shape in shapes]
    outputs = []
    for now, reset in zip(x.float().numpy(), resets.numpy(), strict=True):
        inputs = {"x": now, "reset": reset, **dict(zip(names, state, strict=True))}
        output, *state = session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})
        outputs.append(torch.from_numpy(output))
    return [torch.stack(outputs), *map(torch.from_numpy, state)]


@torch.no_grad()
def check(path: Path | str, core: RecurrentCore, *, steps: int = 5, batch: int = 3, seed: int = 0) -> float:
    """The largest difference between the file and the core on random input, relative to the largest value.

    Over some steps, with one sequence of the batch begun anew in their middle: every output, and the last
    state. Not the DNC's: which of several equally free words it writes to hangs on the last bit, and what it
    puts out does not. A ValueError if the difference is over TOLERANCE.
    """
    core = portable(core)
    core.batch_first = False
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, batch, *core.input_shape, generator=generator, dtype=torch.float32)
    resets = torch.zeros(steps, batch, dtype=torch.bool)
    resets[0] = True
    resets[steps // 2, 1 % batch] = True
    output, state = core(x, resets=resets)
    expected = [output] if isinstance(core, DNC) else [output, *flat_state(state)]
    worst = 0.0
    for found, wanted in zip(run(path, core, x, resets), expected, strict=False):
        worst = max(worst, ((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6)).item())
    if not worst <= TOLERANCE:  # NaN too
        raise ValueError(
            f"{path} differs from the core by {worst:.2g} of the largest value; allowed: {TOLERANCE:g}"
        )
    return worst


@contextlib.contextmanager
def _quiet():
    """Without the exporter's remarks about its own workings."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in logs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for log in logs:
            log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for log, level in zip(logs, levels, strict=True):
                log.setLevel(level)


def _need(*packages: str) -> None:
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} is not installed; pip install relational-rnn[export] (or: -e '.[export]')"
        )
