"""Checks a DNC's whole sequence on the CPU, in Triton's interpreter and simt/; test_dnc.py runs this.

The specification is in float64, or with resets in float32: in a new memory slots are equally free but for
1e-6, which float32 does not see, and so puts them into another order.
"""

import copy
import sys
from functools import partial
from unittest import mock

import torch

from relational_rnn.cores.base import map_state
from relational_rnn.cores.dnc import DNC
from relational_rnn.kernels import dnc, dnc_sequence
from tests.kernels.comparison import errors
from tests.kernels.simt.emulated import compiled

CASES = {  # layers, reads, share of resets (None: none are given), limit of the cells
    "one layer": (1, 1, None, 20.0),
    "one layer, resets, no limit": (1, 2, 0.3, None),
    "two layers": (2, 1, None, 20.0),
    "two layers, resets, a limit that cells meet": (2, 2, 0.3, 1.0),
}


def flat(state) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else [t for part in state for t in flat(part)]


def run(core, x, state, resets, cotangent):
    """Outputs, last state and every gradient, by name."""
    x = x.clone().requires_grad_()
    state = map_state(lambda s: s.clone().requires_grad_(), state)
    output, last = core(x, state, resets=resets)
    ends = flat(last)
    loss = (output * cotangent.to(output.dtype)).sum() + sum(
        (k + 1) * e.sin().sum() for k, e in enumerate(ends)
    )
    loss.backward()
    found = {"output": output, "d input": x.grad}
    found |= {f"state {k}": e for k, e in enumerate(ends)}
    found |= {f"d state {k}": s.grad for k, s in enumerate(flat(state)) if s.grad is not None}
    found |= {f"d {name}": p.grad for name, p in core.named_parameters() if p.requires_grad}
    return {name: tensor.detach() for name, tensor in found.items()}


def compare(name, device="cpu"):
    layers, reads, share, limit = CASES[name]
    torch.manual_seed(0)
    steps, batch, slots = 5, 3, 6
    core = DNC(4, 5, slots, 7, reads, 1, "lstm", 9, layers, limit, fused=True).to(device)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(steps, batch, 4, device=device)
    # Usages far enough apart that float64 puts slots into the same order.
    state = list(map_state(lambda s: 0.3 * torch.rand_like(s), core.initial_state(batch)))
    state[6] = (torch.rand(batch, slots, device=device).argsort(-1) + 0.5) / slots
    resets = None if share is None else torch.rand(steps, batch, device=device) < share
    cotangent = torch.randn(steps, batch, 5, device=device)
    kind = torch.float64 if resets is None else torch.float32
    spec, given = copy.deepcopy(core).to(kind), map_state(lambda s: s.to(kind), tuple(state))
    spec.fused = False
    expected = run(spec, x.to(kind), given, resets, cotangent.to(kind))
    with mock.patch.object(dnc_sequence, "scan", wraps=dnc_sequence.scan) as taken:
        ours = run(core, x, tuple(state), resets, cotangent)
    assert taken.called
    assert set(ours) == set(expected)
    return errors(ours, expected)


def main() -> int:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # torch.empty holds NaN
    torch.utils.deterministic.fill_uninitialized_memory = True
    failures = 0
    with (
        mock.patch.object(dnc, "forward", partial(dnc.forward, compiled=compiled)),
        mock.patch.object(dnc, "backward", partial(dnc.backward, compiled=compiled)),
        mock.patch.object(DNC, "_one_kernel", lambda core, device: core.fused),
    ):
        for name in CASES:
            found = compare(name)
            worst = max(found, key=found.get)
            print(f"{name}: worst {worst} {found[worst]:.1e}")
            failures += not found[worst] < 2e-5 if CASES[name][2] is None else not found[worst] < 1e-4
        failures += one_step_of_one_sample()
    return failures


def one_step_of_one_sample() -> int:
    """The words read are then in one piece among the features: their gradient is the caller's own, not to be
    added to."""
    core = DNC(4, 5, 6, 7, 1, 1, "lstm", 9, fused=True)
    features = []
    core.output.register_forward_pre_hook(lambda layer, args: features.append(args[0]))
    _, (reads, *_) = core(torch.randn(1, 1, 4))
    cotangent = torch.ones_like(features[0])
    torch.autograd.grad((features[0], reads), core.interface.weight, (cotangent, torch.ones_like(reads)))
    return not torch.equal(cotangent, torch.ones_like(cotangent))


if __name__ == "__main__":
    sys.exit(min(main(), 1))
