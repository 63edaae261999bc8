"""What `RelationalMemory.fold` gives: of which core it is, and that it can be kept."""

import copy
import pickle
import re

import pytest
import torch
from torch import nn

from relational_rnn import RelationalMemory


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(head_size=16), "key_size=16; allowed: 8"),
        (dict(head_size=4, num_heads=8), "num_heads=8; allowed: 4"),  # of the same shapes
        (dict(input_size=6), "input_size=6; allowed: 5"),
        (dict(gate_style="memory"), "gate_style='memory'; allowed: 'unit'"),
        (dict(attention_mlp_layers=3), "attention_mlp_layers=3; allowed: 2"),
    ],
)
def test_folded_weights_of_another_core_are_refused(change, said):
    """Kernels read where the core's sizes say, whatever lies there."""
    sizes = dict(input_size=5, mem_slots=4, head_size=8, num_heads=4, backend="torch")
    core, other = RelationalMemory(**sizes), RelationalMemory(**(sizes | change))
    with torch.no_grad(), pytest.raises(ValueError, match="of another core, have " + re.escape(said)):
        core.step(torch.randn(3, 5), core.initial_state(3), other.fold())


def test_parameters_of_another_shape_are_refused():
    core = RelationalMemory(5, 4, 8, 4, backend="torch")
    core.mlp[1].bias = nn.Parameter(torch.zeros(1))  # torch's own operations would broadcast it
    with pytest.raises(ValueError, match=r"the core has mlp.1.bias=\(1,\); allowed: \(32,\)"):
        core(torch.randn(8, 3, 5))


def test_folded_weights_can_be_copied_and_kept():
    core, x = RelationalMemory(5, 4, 8, 4, backend="torch"), torch.randn(3, 5)
    state, folded = core.initial_state(3), core.fold()  # with gradients on: it wants none all the same
    assert not any(t.requires_grad for t in (*folded.qkv, *folded.gates, *folded.matrices, *folded.vectors))
    for again in (copy.deepcopy(folded), pickle.loads(pickle.dumps(folded))):
        assert torch.equal(core.step(x, state, again)[0], core.step(x, state, folded)[0])
