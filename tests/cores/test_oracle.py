"""Recorded numbers of the original implementation: outputs, states, gates, attention, gradients."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from relational_rnn import DNC, LSTM, ConvLSTM, DeepLSTM, RelationalMemory
from relational_rnn.cores.sonnet import load_sonnet
from relational_rnn.kernels import cpp_compiler

DATA = Path(__file__).parent.parent / "data"
CONFIGS = json.loads((DATA / "rmc_configs.json").read_text())
BACKENDS = ["reference", "auto", "torch", "cpp"]


def load(name):
    with np.load(DATA / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def variables(record, prefix="var/"):
    return {key.removeprefix(prefix): value for key, value in record.items() if key.startswith(prefix)}


def close(ours, theirs, name=""):
    """Within 1e-5 of the tensor's largest value: recorded float32 sums are off by that much themselves."""
    error = (ours - theirs).abs().max().item()
    assert error <= 1e-5 * max(1.0, theirs.abs().max().item()), (name, error)


def check_gradients(core, record, prefix="grad/"):
    """Load the recorded gradients into a copy of the core as if they were weights; ours must equal them."""
    twin = copy.deepcopy(core)
    load_sonnet(twin, variables(record, prefix))
    for (name, ours), theirs in zip(core.named_parameters(), twin.parameters(), strict=True):
        if ours.requires_grad:
            assert ours.grad is not None, name
            close(ours.grad, theirs.data, name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_relational_memory_reproduces_sonnet(name, backend):
    record = load(name)
    config = CONFIGS[name]
    if backend in ("torch", "cpp") and (config["config"]["num_blocks"] > 1 or config["input_rows"]):
        pytest.skip("the hand-written recurrence has one block and one input row")
    if backend == "cpp" and (missing := cpp_compiler.why_not(torch.float32)):
        pytest.skip(missing)
    core = RelationalMemory(7, **config["config"], input_rows=config["input_rows"], backend=backend)
    load_sonnet(core, variables(record))
    x = record["inputs"].requires_grad_()
    state = record["initial_state"].requires_grad_()
    output, final = core(x, state)
    close(output, record["outputs"])
    close(final, record["final_state"])
    close(output.unflatten(-1, (core.mem_slots, -1)), record["states"])
    loss = (output * record["cotangent"]).sum()
    close(loss, record["loss"])
    loss.backward()
    close(x.grad, record["grad_inputs"])
    close(state.grad, record["grad_initial_state"])
    check_gradients(core, record)


@pytest.mark.parametrize("name", CONFIGS)
def test_trace_reproduces_sonnets_attention_and_gates(name):
    record = load(name)
    config = CONFIGS[name]
    core = RelationalMemory(7, **config["config"], input_rows=config["input_rows"])
    load_sonnet(core, variables(record))
    output, _, trace = core(record["inputs"], record["initial_state"], need_weights=True)
    close(output, record["outputs"])
    close(trace.attention, record["attention"].transpose(1, 2))  # recorded as [T, blocks, B, H, rows, rows]
    if "input_gates" in record:
        close(trace.input_gate, record["input_gates"])
        close(trace.forget_gate, record["forget_gates"])
    else:
        assert trace.input_gate is None
        assert trace.forget_gate is None


@pytest.mark.parametrize("name", CONFIGS)
def test_initial_state_is_sonnets(name):
    record, config = load(name), CONFIGS[name]["config"]
    core = RelationalMemory(7, **config)
    assert torch.equal(core.initial_state(3), torch.eye(core.mem_slots, core.slot_size).expand(3, -1, -1))
    assert core.initial_state(3).shape == record["initial_state"].shape


def test_legacy_scale_reproduces_sonnet_before_november_2018():
    record = load("rmc_legacyscale_s4_h2_b1_unit")
    core = RelationalMemory(7, 4, 6, 2, legacy_scale=True)
    load_sonnet(core, variables(record))
    output, state = core(record["inputs"], record["initial_state"])
    close(output, record["outputs"])
    close(state, record["final_state"])
    other = RelationalMemory(7, 4, 6, 2)
    load_sonnet(other, variables(record))
    assert (other(record["inputs"], record["initial_state"])[0] - record["outputs"]).abs().max() > 1e-3


def test_a_core_without_numbers_cannot_be_filled():
    core, record = RelationalMemory(7, 4, 6, 2, device="meta"), load("rmc_legacyscale_s4_h2_b1_unit")
    with pytest.raises(ValueError, match="device='meta' is not allowed; allowed: one that holds numbers"):
        load_sonnet(core, variables(record))
    core = core.to_empty(device="cpu")
    load_sonnet(core, variables(record))
    twin = RelationalMemory(7, 4, 6, 2)
    load_sonnet(twin, variables(record))
    assert all(torch.equal(a, b) for a, b in zip(core.parameters(), twin.parameters(), strict=True))


def test_sequence_model_of_sonnets_nth_farthest_example():
    record = load("seq_nth_rmc")
    core = RelationalMemory(40, mem_slots=4, head_size=6, num_heads=2, batch_first=True)
    scope = "var/relational_memory/"
    load_sonnet(core, variables(record, scope))
    layers = []
    for i, name in enumerate(
        ["mlp/linear_0", "mlp/linear_1", "mlp/linear_2", "mlp/linear_3", "sequence_model/linear"]
    ):
        w, b = record[f"var/{name}/w"], record[f"var/{name}/b"]
        linear = nn.Linear(*w.shape)
        linear.weight.data, linear.bias.data = w.t().clone(), b.clone()
        layers += [linear, nn.ReLU()] if i < 4 else [linear]
    head = nn.Sequential(*layers)
    logits = head(core(record["inputs"])[0][:, -1])
    close(logits, record["logits"])
    loss = nn.functional.cross_entropy(logits, record["labels"])
    close(loss, record["loss"])
    loss.backward()
    check_gradients(core, record, "grad/relational_memory/")
    for i, name in enumerate(
        ["mlp/linear_0", "mlp/linear_1", "mlp/linear_2", "mlp/linear_3", "sequence_model/linear"]
    ):
        close(head[2 * i].weight.grad, record[f"grad/{name}/w"].t())


def test_lstm_reproduces_sonnet():
    record = load("lstm_h8")
    core = LSTM(5, 8)
    load_sonnet(core, variables(record))
    x = record["inputs"].requires_grad_()
    output, (hidden, cell) = core(x, (record["state0/hidden"], record["state0/cell"]))
    close(output, record["outputs"])
    close(hidden, record["states/hidden"][-1])
    close(cell, record["states/cell"][-1])
    (output * record["cotangent"]).sum().backward()
    close(x.grad, record["grad_inputs"])
    check_gradients(core, record)
    state = (record["state0/hidden"], record["state0/cell"])
    for t in range(6):
        _, state = core.step(record["inputs"][t], state)
        close(state[0], record["states/hidden"][t])
        close(state[1], record["states/cell"][t])


class TestLoadSonnetRefuses:
    def variables(self):
        return variables(load("rmc_s4_h2_b1_unit"))

    def core(self):
        return RelationalMemory(7, 4, 6, 2)

    def test_a_missing_variable(self):
        given = self.variables()
        del given["layer_norm_1/beta"]
        with pytest.raises(ValueError, match="missing layer_norm_1/beta"):
            load_sonnet(self.core(), given)

    def test_an_unused_variable(self):
        with pytest.raises(ValueError, match="unused linear_9/w"):
            load_sonnet(self.core(), self.variables() | {"linear_9/w": np.zeros(3)})

    def test_a_wrong_shape_and_changes_nothing(self):
        core, given = self.core(), self.variables()
        before = {k: v.clone() for k, v in core.state_dict().items()}
        given["mlp/linear_1/w"] = np.zeros((12, 13), np.float32)
        with pytest.raises(ValueError, match=r"mlp/linear_1/w has shape \[12, 13\], not \[12, 12\]"):
            load_sonnet(core, given)
        assert all(torch.equal(before[k], v) for k, v in core.state_dict().items())

    @pytest.mark.parametrize("kind", ["<U1", "complex64", "bool"])
    def test_what_is_no_real_number(self, kind):
        given = self.variables() | {"linear/b": np.ones(12).astype(kind)}
        with pytest.raises(ValueError, match=r"linear/b has values of type .*; allowed: real numbers"):
            load_sonnet(self.core(), given)

    def test_a_tensor_of_truths(self):
        given = self.variables() | {"linear/b": torch.ones(12, dtype=torch.bool)}
        with pytest.raises(ValueError, match=r"linear/b has dtype torch.bool; allowed: real numbers"):
            load_sonnet(self.core(), given)

    @pytest.mark.parametrize(
        "make", [torch.Tensor.to_sparse, lambda t: t.to("meta"), lambda t: torch.nested.as_nested_tensor([t])]
    )
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_a_tensor_without_all_its_numbers_and_changes_nothing(self, make):
        core, given = self.core(), self.variables()
        before = copy.deepcopy(core.state_dict())
        given["mlp/linear_1/b"] = make(given["mlp/linear_1/b"])
        with pytest.raises(ValueError, match="mlp/linear_1/b is sparse, nested or on the meta"):
            load_sonnet(core, given)
        assert all(torch.equal(before[k], v) for k, v in core.state_dict().items())

    @pytest.mark.parametrize(
        "compute", [nn.utils.parametrizations.weight_norm, lambda m: nn.utils.prune.identity(m, "weight")]
    )
    def test_weights_that_are_computed_and_would_keep_nothing(self, compute):
        core = self.core()
        compute(core.blocks[0].qkv)
        with pytest.raises(ValueError, match=r"core.s weights=.computed from others. .*: parameters"):
            load_sonnet(core, self.variables())

    def test_a_scope_that_is_no_name(self):
        with pytest.raises(ValueError, match="scope=3 is not allowed; allowed: a name or None"):
            load_sonnet(self.core(), self.variables(), scope=3)

    @pytest.mark.parametrize("given", [None, [], "linear/w", {1: np.ones(3)}])
    def test_what_is_no_mapping_from_names(self, given):
        with pytest.raises(ValueError, match=r"variables=.*; allowed: a mapping from names to arrays"):
            load_sonnet(self.core(), given)

    def test_a_variable_given_twice(self):
        given = self.variables()
        with pytest.raises(ValueError, match="each once, with or without :0"):
            load_sonnet(self.core(), given | {"linear/b:0": given["linear/b"] + 1})

    def test_a_scope_with_nothing_under_it(self):
        given = {f"core/{name}": value for name, value in self.variables().items()}
        with pytest.raises(ValueError, match=r"scope='cor' is not allowed; .* begin with core"):
            load_sonnet(self.core(), given, scope="cor")

    def test_a_core_it_does_not_know(self):
        with pytest.raises(ValueError, match="Linear"):
            load_sonnet(nn.Linear(2, 2), {})


def test_a_shared_scope_and_tensorflows_suffix_are_dropped():
    record = load("rmc_s4_h2_b1_unit")
    plain, scoped = RelationalMemory(7, 4, 6, 2), RelationalMemory(7, 4, 6, 2)
    load_sonnet(plain, variables(record))
    load_sonnet(scoped, {f"a/relational_memory/{k}:0": v.numpy() for k, v in variables(record).items()})
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), scoped.parameters(), strict=True))


@pytest.mark.filterwarnings("error")
def test_arrays_may_be_read_only_backwards_or_of_another_byte_order():
    record = variables(load("rmc_s4_h2_b1_unit"))
    plain = RelationalMemory(7, 4, 6, 2)
    load_sonnet(plain, record)
    read_only = {name: value.numpy().copy() for name, value in record.items()}
    for array in read_only.values():
        array.flags.writeable = False
    backwards = {name: value.numpy()[::-1].copy()[::-1] for name, value in record.items()}
    swapped = {name: value.numpy().astype(">f8") for name, value in record.items()}
    for arrays in (read_only, backwards, swapped):
        core = RelationalMemory(7, 4, 6, 2)
        load_sonnet(core, arrays)
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), core.parameters(), strict=True))


@pytest.mark.parametrize("scope", ["relational_memory", "relational_memory/"])
def test_a_core_out_of_a_whole_models_variables(scope):
    """Its MLP and that of the model have the same name, but for the scope."""
    record = load("seq_nth_rmc")
    alone, picked = RelationalMemory(40, 4, 6, 2), RelationalMemory(40, 4, 6, 2)
    load_sonnet(alone, variables(record, "var/relational_memory/"))
    load_sonnet(picked, {f"{name}:0": value for name, value in variables(record).items()}, scope)
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), picked.parameters(), strict=True))


def test_initialisation_has_the_distribution_of_sonnets():
    """Truncated at two deviations and not rescaled: the deviation is 0.8796 of 1/sqrt(fan in)."""
    core = RelationalMemory(64, 2, 64, 8)
    weight = core.blocks[0].qkv.weight
    assert weight.abs().max() <= 2 / 512**0.5
    assert abs(weight.std().item() * 512**0.5 - 0.8796) < 0.01
    assert core.blocks[0].qkv.bias.abs().max() == 0
    lstm = LSTM(64, 192)
    assert lstm.lstm.bias_ih_l0.abs().max() > 0
    assert abs(lstm.lstm.weight_hh_l0.std().item() * 256**0.5 - 0.8796) < 0.01


BASELINES = {
    "deeprnn_lstm_2x8_skip": lambda: DeepLSTM(5, 8),
    "convlstm_5x5_k2": lambda: ConvLSTM((5, 5, 4), 6, 2),
    "dnc_n8_w6_r3_w2": lambda: DNC(5, 7, 8, 6, 3, 2, hidden_size=10),
}


@pytest.mark.parametrize("name", BASELINES)
def test_load_sonnet_fills_every_baseline(name):
    """All variables, named as recorded; the outputs are then the original's."""
    record, core = load(name), BASELINES[name]()
    load_sonnet(core, variables(record))
    state = (record["state0/0"], record["state0/1"]) if name == "convlstm_5x5_k2" else None
    close(core(record["inputs"], state)[0], record["outputs"])
    with pytest.raises(ValueError, match="unused more/w"):
        load_sonnet(core, variables(record) | {"more/w": np.zeros(2)})
