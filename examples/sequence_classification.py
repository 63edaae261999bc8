"""The RMC in a sequence classifier of your own: padded batches of different lengths, in place of nn.LSTM.

    python examples/sequence_classification.py

The task needs a memory: a sequence of random vectors, two of them marked; are the two alike in the sign of
their first feature? Half the answers are right by chance. Prints the accuracy on fresh sequences.
"""

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from relational_rnn import RelationalMemory

FEATURES = 4  # of each vector; one more says whether it is marked


class Classifier(nn.Module):
    def __init__(self, classes: int = 2):
        super().__init__()
        self.core = RelationalMemory(FEATURES + 1, mem_slots=2, head_size=16, num_heads=2, batch_first=True)
        self.head = nn.Linear(self.core.output_size, classes)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        # A PackedSequence goes in as into nn.LSTM. The state is that of each sequence's own last step.
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, memory = self.core(packed)  # [batch, slots, slot size]
        return self.head(memory.flatten(1))


def batch(size: int, generator: torch.Generator, longest: int = 8):
    """x [size, longest, FEATURES + 1], padded with zeros; the lengths; whether the marked two are alike."""
    lengths = torch.randint(3, longest + 1, (size,), generator=generator)
    x = torch.randn(size, longest, FEATURES + 1, generator=generator)
    x[..., -1] = 0
    # Two different places of each sequence: the two highest of random numbers, where there is a vector.
    there = torch.arange(longest) < lengths[:, None]
    places = torch.rand(size, longest, generator=generator).masked_fill(~there, -1).topk(2, dim=1).indices
    x[torch.arange(size)[:, None], places, -1] = 1
    marked = x[torch.arange(size)[:, None], places, 0]  # [size, 2]
    return x * there[..., None], lengths, (marked.sign().prod(1) > 0).long()


def main(steps: int = 300, seed: int = 0) -> float:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(1, steps + 1):
        x, lengths, target = batch(128, generator)
        loss = nn.functional.cross_entropy(model(x, lengths), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    with torch.no_grad():
        x, lengths, target = batch(2000, generator)
        accuracy = (model(x, lengths).argmax(1) == target).float().mean().item()
    print(f"accuracy on fresh sequences: {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
