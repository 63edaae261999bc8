"""Repeated work: every call does it once, whether eager, to warm up or from a graph."""

import gc
import weakref

import pytest
import torch

from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.kernels.graphs import Repeated
from relational_rnn.tasks.language_model import Dropout, LanguageModel

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("warmup", [1, 3])
def test_every_call_draws_the_next_numbers(device, warmup):
    device = torch.device(device)
    generator = torch.Generator(device).manual_seed(3)
    total = torch.zeros(4, device=device)
    before = []
    repeated = Repeated(device, [generator], warmup=warmup)
    for _ in range(6):
        repeated(
            lambda: total.add_(torch.rand(4, generator=generator, device=device)),
            before_capture=lambda: before.append(total.clone()),
        )
    again = torch.Generator(device).manual_seed(3)
    numbers = torch.stack([torch.rand(4, generator=again, device=device) for _ in range(6)])
    assert torch.allclose(total, numbers.sum(0))
    assert (repeated.graph is not None) == (device.type == "cuda")
    if device.type == "cuda":
        assert torch.allclose(torch.stack(before), numbers[:warmup].sum(0, keepdim=True))
    else:
        assert before == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", ["word", "input", "output", "recurrent", "softmax"])
def test_every_call_drops_out_something_else(device, place):
    torch.manual_seed(0)
    core = RelationalMemory(16, mem_slots=1, head_size=16, num_heads=1)
    model = LanguageModel(core, 20, dropout=Dropout(**{place: 0.5})).to(device)
    words = torch.randint(20, (8, 4), device=device)
    nats, state = torch.zeros((), device=device), model.initial_state(4)

    def work():
        with torch.no_grad():
            nats.copy_(model(words, words, state).nats)

    repeated, seen = Repeated(torch.device(device)), []
    for _ in range(6):
        repeated(work)
        seen.append(nats.item())
    assert len(set(seen)) == 6


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_captured_unasked(device):
    repeated, total = Repeated(torch.device(device), enabled=False), torch.zeros((), device=device)
    for _ in range(3):
        repeated(lambda: total.add_(1))
    assert total.item() == 3
    assert repeated.graph is None


def test_whoever_repeats_its_own_work_is_freed_at_once():
    class Owner:
        def __init__(self):
            self.repeated, self.done = Repeated(torch.device("cpu")), 0

        def work(self):
            self.done += 1

    owner = Owner()
    owner.repeated(owner.work)
    assert owner.done == 1
    left = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert left() is None
    finally:
        gc.enable()
