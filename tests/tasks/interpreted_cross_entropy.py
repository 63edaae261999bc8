"""Checks the fused loss on the CPU, in Triton's interpreter; test_language_modeling.py runs it as a process.

The interpreter must be asked for before Triton is imported, hence a process of its own.
"""

import sys

import torch

from relational_rnn.tasks import linear_cross_entropy as module
from relational_rnn.tasks.linear_cross_entropy import IGNORE, linear_cross_entropy


def results(implementation, reduction, targets, tensors):
    hidden, weight, *bias = tensors
    loss = linear_cross_entropy(
        hidden, weight, targets, *bias, reduction=reduction, implementation=implementation
    )
    outer = torch.linspace(-1, 2, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    return [loss.detach(), *torch.autograd.grad((loss * outer).sum(), tensors)]


def main() -> int:
    torch.set_num_threads(1)
    failures = 0
    for words, at_once in ((101, 1 << 27), (64, 1000), (9000, 1 << 27)):  # padded; in chunks; two blocks
        module.LOGITS_AT_ONCE = at_once
        torch.manual_seed(0)
        hidden, weight, bias = torch.randn(5, 3, 16), torch.randn(words, 16), torch.randn(words)
        targets = torch.randint(0, words, (5, 3))
        targets[0, 0], targets[2:4, 1] = words - 1, IGNORE
        for reduction in ("mean", "sum", "none"):
            narrow = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
            wide = [t.double().requires_grad_() for t in (hidden, weight, bias)]
            got = results("triton", reduction, targets, narrow)
            wanted = results("plain", reduction, targets, wide)
            worst = max((a - b).norm() / b.norm() for a, b in zip(got, wanted, strict=True)).item()
            print(f"{words} words, {reduction}: worst {worst:.1e}")
            failures += not worst < 1e-6
    return failures


if __name__ == "__main__":
    sys.exit(min(main(), 1))
