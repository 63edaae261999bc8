"""Sizes and options of the originals that nobody recorded: their equations against the cores, by load_sonnet.

Outputs, every step's state, and gradients of inputs, initial state and all variables, in float64.
"""

import copy

import pytest
import torch

from relational_rnn import DNC, LSTM, ConvLSTM, DeepLSTM, RelationalMemory
from relational_rnn.cores.sonnet import load_sonnet
from tests.cores import naive_originals as naive
from tests.cores.baseline_oracle import flat


def random_variables(shapes, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale
        * (torch.randn(shape, generator=generator).double() / (shape[0] ** 0.5) + name.endswith("gamma"))
        for name, shape in shapes.items()
    }


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def compare(core, step, shapes, *, time=4, batch=3, state=None, scale=1.0, seed=0, tolerance=1e-9):
    """`step(variables, x, state)` is the original's; `core` must do the same once it is loaded."""
    close = dict(rtol=tolerance, atol=tolerance)
    v = {name: leaf(value) for name, value in random_variables(shapes, seed, scale).items()}
    load_sonnet(core, {name: value.detach().numpy() for name, value in v.items()})
    torch.manual_seed(seed)
    x = leaf(torch.randn(time, batch, *core.input_shape).double())
    state = core.initial_state(batch) if state is None else state
    theirs_state, outputs = state, []
    for t in range(time):
        output, theirs_state = step(v, x[t], theirs_state)
        outputs.append(output)
    theirs = torch.stack(outputs)
    ours, ours_state = core(x, state)
    torch.testing.assert_close(ours, theirs, **close)
    for a, b in zip(flat(ours_state), flat(theirs_state), strict=True):
        torch.testing.assert_close(a, b, **close)

    cotangent = torch.randn_like(theirs)
    names, parameters = zip(*((n, p) for n, p in core.named_parameters() if p.requires_grad), strict=True)
    starts = [part for part in flat(state) if part.requires_grad]
    theirs = torch.autograd.grad((theirs * cotangent).sum(), [x, *starts, *v.values()])
    ours = torch.autograd.grad((ours * cotangent).sum(), [x, *starts, *parameters])
    begin = 1 + len(starts)
    for a, b in zip(ours[:begin], theirs[:begin], strict=True):
        torch.testing.assert_close(a, b, **close)
    twin = copy.deepcopy(core)  # the original's gradients in our layout
    load_sonnet(twin, dict(zip(v, theirs[begin:], strict=True)))
    wanted = dict(twin.named_parameters())
    for name, gradient in zip(names, ours[begin:], strict=True):
        torch.testing.assert_close(gradient, wanted[name].data, **close, msg=lambda m, n=name: f"{n}: {m}")


RMC = [
    dict(),
    dict(gate_style="memory", num_blocks=2, attention_mlp_layers=1),
    dict(gate_style=None, num_blocks=3, attention_mlp_layers=3),
    dict(num_blocks=2, attention_mlp_layers=5, key_size=5),
    dict(mem_slots=1, head_size=1, num_heads=3, key_size=2, gate_style="memory"),
    dict(
        mem_slots=16, head_size=2, num_heads=3, forget_bias=-0.5, input_bias=2.0
    ),  # more slots than features
    dict(gate_style="memory", input_rows=3, num_blocks=2, input_bias=-1.0),
    dict(gate_style=None, input_rows=2, attention_mlp_layers=1),
    dict(input_rows=1, forget_bias=0.0),
    dict(input_size=40, mem_slots=2, head_size=3, num_heads=1),
]


@pytest.mark.parametrize("backend", ["reference", "auto", "torch"])
@pytest.mark.parametrize("start", ["identity", "random"])
@pytest.mark.parametrize(("time", "batch"), [(1, 1), (5, 2)])
@pytest.mark.parametrize("config", RMC, ids=str)
def test_relational_memory(config, start, time, batch, backend):
    config = dict(input_size=4, mem_slots=3, head_size=4, num_heads=2) | config
    blocks, rows = config.get("num_blocks", 1), config.get("input_rows") or 1
    if backend == "torch" and (blocks > 1 or rows > 1):
        pytest.skip("the hand-written recurrence has one block and one input row")
    core = RelationalMemory(**config, backend=backend, dtype=torch.float64)
    style, layers = config.get("gate_style", "unit"), config.get("attention_mlp_layers", 2)
    heads, head_size = config["num_heads"], config["head_size"]
    keys = config.get("key_size", head_size)
    shapes = naive.rmc_shapes(config["input_size"], rows, head_size, heads, blocks, style, layers, keys)
    biases = config.get("forget_bias", 1.0), config.get("input_bias", 0.0)

    def step(v, x, memory):
        return naive.rmc_step(
            v, x.reshape(len(x), rows, -1), memory, heads, blocks, style, layers, keys, *biases
        )

    memory = torch.zeros(batch, core.mem_slots, core.slot_size).double()
    for slot in range(min(memory.shape[1:])):
        memory[:, slot, slot] = 1
    torch.testing.assert_close(core.initial_state(batch), memory, rtol=0, atol=0)
    if start == "random":
        memory = torch.randn_like(memory)
    scoped = {f"relational_memory_1/{name}": shape for name, shape in shapes.items()}
    compare(
        core,
        lambda v, x, s: step({n.removeprefix("relational_memory_1/"): t for n, t in v.items()}, x, s),
        scoped,
        time=time,
        batch=batch,
        state=memory.requires_grad_(),
    )


@pytest.mark.parametrize("forget_bias", [0.0, 1.0, -2.5])
@pytest.mark.parametrize(("inputs", "units", "time", "batch"), [(1, 1, 1, 1), (5, 3, 7, 2), (2, 9, 50, 1)])
def test_lstm(inputs, units, time, batch, forget_bias):
    core = LSTM(inputs, units, forget_bias, dtype=torch.float64)
    state = tuple(leaf(torch.randn(batch, units).double()) for _ in range(2))
    compare(
        core,
        lambda v, x, s: naive.lstm_step(v, x, s, forget_bias, "lstm_2/"),
        naive.lstm_shapes(inputs, units, "lstm_2/"),
        time=time,
        batch=batch,
        state=state,
    )


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("scope", ["lstm_{}/", "a/deep_rnn/lstm_{}/"])
@pytest.mark.parametrize(("skip", "concat"), [(True, True), (True, False), (False, True)])
def test_deep_lstm(layers, scope, skip, concat):
    scopes = [scope.format(i) for i in range(layers)]
    shapes = naive.lstm_shapes(4, 6, scopes[0])
    for name in scopes[1:]:
        shapes |= naive.lstm_shapes(4 * skip + 6, 6, name)
    state = tuple(tuple(leaf(torch.randn(2, 6).double()) for _ in range(2)) for _ in range(layers))
    options = dict(skip_connections=skip, concat_outputs=concat, dtype=torch.float64)
    compare(
        DeepLSTM(4, 6, layers, 0.5, **options),
        lambda v, x, s: naive.deep_lstm_step(v, x, s, scopes, 0.5, skip, concat),
        shapes,
        batch=2,
        state=state,
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "outputs", "kernel"),
    [
        ((5, 4, 3), 2, 3),
        ((3, 6, 1), 4, (4, 1)),
        ((2, 2, 2), 3, (5, 6)),
        ((1, 1, 4), 1, 2),
        ((4, 1, 2), 2, (2, 3)),
    ],
)
def test_conv_lstm(shape, outputs, kernel, bias):
    core = ConvLSTM(shape, outputs, kernel, 0.25, use_bias=bias, dtype=torch.float64)
    pair = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    state = tuple(leaf(torch.randn(2, *core.output_shape).double()) for _ in range(2))
    compare(
        core,
        lambda v, x, s: naive.conv_lstm_step(v, x, s, 0.25),
        naive.conv_lstm_shapes(shape[2], outputs, pair, bias),
        batch=2,
        state=state,
    )


DNCS = [
    dict(),
    dict(reads=3, writes=2, clip=None),
    dict(writes=3, slots=2, words=7),
    dict(reads=4, slots=1, words=1),
    dict(layers=2, reads=2, writes=2),
    dict(layers=3, clip=0.3),
    dict(clip=0.5, scale=3.0, reads=2),
    dict(slots=16, words=3, time=50, batch=1),
]


@pytest.mark.parametrize("scope", ["dnc/lstm", "lstm"])
@pytest.mark.parametrize("start", ["zeros", "random"])
@pytest.mark.parametrize("config", DNCS, ids=str)
def test_dnc(config, start, scope):
    c = dict(reads=1, writes=1, slots=5, words=4, layers=1, clip=20.0, scale=1.0, time=5, batch=2) | config
    core = DNC(
        3,
        6,
        c["slots"],
        c["words"],
        c["reads"],
        c["writes"],
        "lstm",
        7,
        c["layers"],
        c["clip"],
        dtype=torch.float64,
    )
    scopes = [f"{name}/" for name in naive.numbered(scope, c["layers"])]
    shapes = naive.dnc_shapes(3, 6, c["words"], c["reads"], c["writes"], 7, scopes)

    def step(v, x, state):
        *rest, controller = state
        single = c["layers"] == 1
        state = (*rest, (controller,) if single else controller)
        output, (*rest, controller) = naive.dnc_step(v, x, state, scopes, c["reads"], c["writes"], c["clip"])
        return output, (*rest, controller[0] if single else controller)

    state = core.initial_state(c["batch"])
    if start == "random":
        torch.manual_seed(1)
        words, memory, read, write, link, precedence, usage, controller = state
        read, write, precedence = (torch.randn_like(t).softmax(-1) for t in (read, write, precedence))
        link, usage = torch.rand_like(link) / 8, torch.rand_like(usage)
        link = link * (1 - torch.eye(c["slots"]))
        controller = tuple(flat(controller))
        controller = tuple(torch.randn_like(t) for t in controller)
        controller = (
            controller if c["layers"] == 1 else tuple(zip(controller[::2], controller[1::2], strict=True))
        )
        state = (
            torch.randn_like(words),
            torch.randn_like(memory),
            read,
            write,
            link,
            precedence,
            usage,
            controller,
        )
    compare(
        core, step, shapes, time=c["time"], batch=c["batch"], state=state, scale=c["scale"], tolerance=1e-8
    )
