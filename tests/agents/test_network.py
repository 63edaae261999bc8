"""Encoder and network: layouts, position tags, and that a sequence at once is the same as step by step."""

import pytest
import torch

from relational_rnn.agents.network import NO_ACTION, AgentNetwork, Encoder, Inputs, core_inputs
from relational_rnn.cores.base import map_state
from relational_rnn.environments import BoxWorld, MiniPacman
from relational_rnn.experiments import box_world
from relational_rnn.experiments.reinforcement import Model, build_network

SMALL = Model(total_units=32, mem_slots=2, num_heads=2, conv_channels=3)


def random_inputs(env, *lead, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Inputs(
        torch.rand(*lead, *env.observation_shape, generator=generator),
        torch.randint(1, 12, (*lead, 2), generator=generator),
        torch.randint(NO_ACTION, env.num_actions, lead, generator=generator),
        torch.randn(*lead, generator=generator),
    )


def test_the_appendix():
    """12 and 24 kernels of 2 x 2 and two tags: 5 x 5 x 26 cells, 650 + 4 actions + reward to the RMC."""
    network = build_network(BoxWorld(), (14, 14), "rmc", box_world.paper().model)
    assert [tuple(layer.weight.shape) for layer in network.encoder.layers] == [(12, 6, 2, 2), (24, 12, 2, 2)]
    assert network.encoder.output_shape == (5, 5, 26)
    assert network.core.input_size == 655
    assert network.initial_state(1).shape == (1, 4, 256)
    assert network.core.spec.num_heads == 4
    assert network.core.gate_from_memory.out_features == 2  # one input and one forget gate per slot
    network = build_network(BoxWorld(), (14, 14), "conv-lstm", box_world.paper().model)
    assert network.core.output_shape == (5, 5, 64)
    assert network.core.kernel_size == (2, 2)


def test_tags():
    image, position = torch.zeros(1, 6, 5, 5), torch.tensor([[3, 7]])
    tags = Encoder((6, 5, 5), (14, 14), tags="view")(image, position)[0, ..., -2:]
    assert tags[:, 0, 0].tolist() == tags[0, :, 1].tolist() == [-1, -0.5, 0, 0.5, 1]
    assert tags[0, :, 0].tolist() == [-1] * 5
    tags = Encoder((6, 5, 5), (14, 14), tags="room")(image, position)[0, ..., -2:]
    # Rows 1..5 and columns 5..9 of 0..13, which spans -1..1.
    assert tags[:, 0, 0].tolist() == pytest.approx([2 * row / 13 - 1 for row in (1, 2, 3, 4, 5)])
    assert tags[0, :, 1].tolist() == pytest.approx([2 * col / 13 - 1 for col in (5, 6, 7, 8, 9)])
    assert Encoder((6, 5, 5), (14, 14), tags="none")(image, position).shape == (1, 5, 5, 24)
    # With all of the room in view they are the same.
    full = torch.zeros(1, 3, 14, 14)
    room, view = (Encoder((3, 14, 14), (14, 14), tags=t)(full, position)[..., -2:] for t in ("room", "view"))
    assert torch.equal(room, view)


@pytest.mark.parametrize("core", ["rmc", "rows", "lstm", "conv-lstm"])
@pytest.mark.parametrize("env", [BoxWorld(), MiniPacman(view="full")], ids=["box", "pacman"])
def test_a_sequence_is_its_steps(core, env):
    model = SMALL if core != "rows" else Model(total_units=32, mem_slots=2, num_heads=2, cells_as_rows=True)
    network = build_network(env, (15, 19), "rmc" if core == "rows" else core, model)
    inputs = random_inputs(env, 6, 3)
    first = torch.rand(6, 3, generator=torch.Generator().manual_seed(1)) < 0.4
    start = map_state(lambda s: s + 0.1, network.initial_state(3))
    whole, last = network(inputs, start, first)
    state = start
    for t in range(6):
        output, state = network.step(Inputs(*(part[t] for part in inputs)), state, first[t])
        torch.testing.assert_close(output.logits, whole.logits[t])
        torch.testing.assert_close(output.value, whole.value[t])
    torch.testing.assert_close(state, last)


def test_last_action_and_reward_reach_the_core():
    env = BoxWorld()
    network = build_network(env, (14, 14), "rmc", SMALL)
    inputs = random_inputs(env, 3)._replace(
        last_action=torch.tensor([NO_ACTION, 0, 3]), last_reward=torch.tensor([0.0, 1.0, -3.0])
    )
    extra = network.features(inputs)[:, -5:]
    assert extra.tolist() == [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0.5], [0, 0, 0, 1, -0.75]]


def test_the_first_policy_is_nearly_uniform():
    env = BoxWorld()
    logits = build_network(env, (14, 14), "rmc", Model())
    output, _ = logits.step(random_inputs(env, 8), logits.initial_state(8), torch.ones(8, dtype=torch.bool))
    assert output.logits.abs().max() < 0.1


def test_contrast_is_that_of_the_image():
    torch.manual_seed(0)
    plain = Encoder((6, 5, 5), (14, 14))
    contrasted = Encoder((6, 5, 5), (14, 14), background=0.75, contrast=4.0)
    contrasted.load_state_dict(plain.state_dict())
    image, position = torch.randint(0, 5, (3, 6, 5, 5)) / 4, torch.ones(3, 2)
    assert torch.equal(contrasted(image, position), plain((image - 0.75) * 4, position))
    assert not torch.equal(contrasted(image, position), plain(image, position))


def test_wrong_settings():
    with pytest.raises(ValueError, match=r"contrast=0.0 is not allowed; allowed: more than 0"):
        Encoder((3, 5, 5), (14, 14), contrast=0.0)
    with pytest.raises(ValueError, match=r"tags='world' is not allowed; allowed: view, room or none"):
        Encoder((3, 5, 5), (14, 14), tags="world")
    with pytest.raises(ValueError, match="one of each for every layer"):
        Encoder((3, 5, 5), (14, 14), channels=(12,))
    encoder = Encoder((3, 5, 5), (14, 14))
    core = build_network(BoxWorld(), (14, 14), "rmc", SMALL).core
    assert core.input_shape == core_inputs(Encoder((6, 5, 5), (14, 14)), 4)[1]
    with pytest.raises(ValueError, match=r"input_shape=\(655,\) is not allowed; allowed: .*\(656,\)"):
        AgentNetwork(encoder, core, 5)
    with pytest.raises(ValueError, match="total_units=30 is not allowed; allowed: a multiple of"):
        build_network(BoxWorld(), (14, 14), "rmc", Model(total_units=30))
