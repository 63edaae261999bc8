"""Checks the fused LSTM recurrence on the CPU, through Triton's interpreter; test_lstm.py runs this.

float64 goes to the specification, step by step.
"""

import sys

import torch

from relational_rnn import LSTM
from tests.kernels.lstms import CASES, act, compare


def main() -> int:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # torch.empty holds NaN
    torch.utils.deterministic.fill_uninitialized_memory = True
    failures = 0
    for name in CASES:
        found = compare(name, "cpu") | {f"{part} in acting": e for part, e in act(name, "cpu").items()}
        worst = max(found, key=found.get)
        print(f"{name}: worst {worst} {found[worst]:.1e}")
        failures += not found[worst] < 1e-5
    core, nothing = LSTM(3, 4), torch.full((2, 4), torch.nan)
    output, (hidden, _) = core(torch.randn(1, 2, 3), (nothing, nothing), resets=torch.tensor([[True, True]]))
    failures += not output.isfinite().all()
    shared = hidden.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    failures += shared  # what is written to the state is not to change the output
    x = torch.randn(2, 2, 3, requires_grad=True)
    output, _ = core(x, resets=torch.tensor([[True, True], [False, True]]))
    cotangents = torch.randn(5, *output.shape)
    try:
        torch.autograd.grad(output, x, cotangents, is_grads_batched=True)
        failures += 1
    except ValueError as error:
        failures += "many gradients at once (is_grads_batched, vmap) through the fused LSTM" not in str(error)
    return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
