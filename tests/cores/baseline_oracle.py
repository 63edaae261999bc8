"""Run a core against what the original implementation did, recorded in tests/data/*.npz."""

import copy
import itertools
from pathlib import Path

import numpy as np
import torch

DATA = Path(__file__).parent.parent / "data"


def load(name):
    with np.load(DATA / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def variables(oracle, kind, scope):
    """The oracle's "var/..." or "grad/..." entries, without the module's scope."""
    prefix = f"{kind}/{scope}"
    return {key.removeprefix(prefix): value for key, value in oracle.items() if key.startswith(prefix)}


@torch.no_grad()
def assign(mapping, values):
    assert mapping.keys() == values.keys()
    for name, (function, shape) in mapping.items():
        assert tuple(values[name].shape) == shape, name
        function(values[name])


def check(core, mapping, oracle, scope, state, states, tolerance=1e-5):
    """Outputs, every step's state, and gradients of inputs and all variables.

    `mapping(core)` is the core's function of cores/sonnet_variables.py; `state` and `states` are the oracle's
    first state and all next ones, in the core's structure.
    """
    close = dict(rtol=tolerance, atol=tolerance)
    assign(mapping(core), variables(oracle, "var", scope))
    inputs = oracle["inputs"].clone().requires_grad_()
    outputs, _ = core(inputs, state)
    torch.testing.assert_close(outputs, oracle["outputs"], **close)
    for t in range(len(inputs)):
        output, state = core.step(inputs[t].detach(), state)
        torch.testing.assert_close(output, oracle["outputs"][t], **close)
        for ours, theirs in zip(flat(state), flat(states), strict=True):
            torch.testing.assert_close(ours, theirs[t], **close)

    loss = (outputs * oracle["cotangent"]).sum()
    loss.backward()
    torch.testing.assert_close(loss, oracle["loss"], rtol=1e-4, atol=tolerance)
    torch.testing.assert_close(inputs.grad, oracle["grad_inputs"], **close)
    wanted = copy.deepcopy(core)  # the oracle's gradients in our layout: load them as if they were weights
    assign(mapping(wanted), variables(oracle, "grad", scope))
    for (name, parameter), gradient in zip(core.named_parameters(), wanted.parameters(), strict=True):
        if parameter.requires_grad:
            torch.testing.assert_close(
                parameter.grad, gradient.data, **close, msg=lambda m, n=name: f"{n}: {m}"
            )


def flat(state):
    return [tensor for part in state for tensor in flat(part)] if isinstance(state, tuple) else [state]


def assert_states_close(first, second, **options):
    for a, b in zip(flat(first), flat(second), strict=True):
        torch.testing.assert_close(a, b, **options)


def check_contract(core, time, batch, seed):
    """forward == step in a loop, and resets == separate sequences; the core in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(time, batch, *core.input_shape, generator=generator, dtype=torch.float64)
    resets = torch.rand(time, batch, generator=generator) < 0.3
    state = core.initial_state(batch)
    outputs, last = core(x)
    stepped = []
    for t in range(time):
        output, state = core.step(x[t], state)
        stepped.append(output)
    torch.testing.assert_close(outputs, torch.stack(stepped))
    assert_states_close(last, state)
    assert outputs.shape == (time, batch, *core.output_shape)

    outputs, last = core(x, resets=resets)
    for b in range(batch):
        cuts = [0, *(t for t in range(1, time) if resets[t, b]), time]
        for begin, end in itertools.pairwise(cuts):
            alone, alone_last = core(x[begin:end, b])  # unbatched
            torch.testing.assert_close(outputs[begin:end, b], alone)
        assert_states_close(tuple(part[b] for part in flat(last)), tuple(flat(alone_last)))


def check_packed(core):
    """A PackedSequence of unsorted lengths gives each sequence what it gets alone."""
    lengths = [2, 4, 1]
    sequences = [torch.randn(length, *core.input_shape, dtype=torch.float64) for length in lengths]
    packed = torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
    outputs, last = core(packed)
    outputs = torch.nn.utils.rnn.unpack_sequence(outputs)
    for b, sequence in enumerate(sequences):
        alone, alone_last = core(sequence)
        torch.testing.assert_close(outputs[b], alone)
        assert_states_close(tuple(part[b] for part in flat(last)), tuple(flat(alone_last)))
