"""The originals' steps written from their equations, on variables as the originals name and lay them out.

Plain loops, no code shared with the package. Each `*_step` takes (variables, x, state, ...) and gives
(output, state), so that any size can be compared, not only the recorded ones.
"""

import itertools

import torch


def linear(v, name, x):
    return x @ v[f"{name}/w"] + v[f"{name}/b"]


def layer_norm(v, name, x):
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt() * v[f"{name}/gamma"] + v[f"{name}/beta"]
    )


def numbered(name, count):
    """TensorFlow's unique names: linear, linear_1, linear_2, ..."""
    return [name] + [f"{name}_{i}" for i in range(1, count)]


# ------------------------------------------------------------------ relational memory


def rmc_shapes(inputs, rows, head_size, heads, blocks, style, mlp_layers, keys):
    size = head_size * heads
    features, gates = heads * (2 * keys + head_size), 2 * (size if style == "unit" else 1)
    widths = [(inputs, size)] + [(size, features)] * blocks
    widths += [] if style is None else [(rows * size, gates), (size, gates)]
    shapes = {}
    names = [*numbered("linear", len(widths)), *(f"mlp/linear_{i}" for i in range(mlp_layers))]
    for name, (into, out) in zip(names, widths + [(size, size)] * mlp_layers, strict=True):
        shapes |= {f"{name}/w": (into, out), f"{name}/b": (out,)}
    for i, name in enumerate(numbered("layer_norm", 3 * blocks)):
        shapes |= {f"{name}/{part}": (size if i % 3 else features,) for part in ("gamma", "beta")}
    return shapes


def rmc_step(v, x, memory, heads, blocks, style, mlp_layers, keys, forget_bias, input_bias):
    """x [B, rows, inputs], memory [B, N, M]; the input rows come last."""
    slots = memory.shape[1]
    linears, norms = numbered("linear", blocks + 3), numbered("layer_norm", 3 * blocks)
    e = linear(v, "linear", x)
    a = torch.cat([memory, e], 1)
    for block in range(blocks):
        qkv = layer_norm(v, norms[3 * block], linear(v, linears[1 + block], a))
        reads = []
        for head in qkv.chunk(heads, -1):
            q, k, value = head[..., :keys], head[..., keys : 2 * keys], head[..., 2 * keys :]
            reads.append(torch.softmax(q @ k.mT / keys**0.5, -1) @ value)
        a = layer_norm(v, norms[3 * block + 1], a + torch.cat(reads, -1))
        m = a
        for i in range(mlp_layers):
            m = linear(v, f"mlp/linear_{i}", m.clamp(min=0) if i else m)
        a = layer_norm(v, norms[3 * block + 2], m + a)
    new = a[:, :slots]
    if style is not None:
        gates = linear(v, linears[1 + blocks], e.flatten(1))[:, None]
        gates = gates + linear(v, linears[2 + blocks], memory.tanh())
        i, f = gates.chunk(2, -1)
        new = torch.sigmoid(i + input_bias) * new.tanh() + torch.sigmoid(f + forget_bias) * memory
    return new.flatten(1), new


# ------------------------------------------------------------------ LSTMs


def lstm_shapes(inputs, units, scope=""):
    return {f"{scope}w_gates": (inputs + units, 4 * units), f"{scope}b_gates": (4 * units,)}


def lstm_equations(gates, cell, forget_bias):
    i, j, f, o = gates.chunk(4, -1)
    cell = torch.sigmoid(f + forget_bias) * cell + torch.sigmoid(i) * j.tanh()
    return cell.tanh() * torch.sigmoid(o), cell


def lstm_step(v, x, state, forget_bias=1.0, scope=""):
    gates = torch.cat([x, state[0]], -1) @ v[f"{scope}w_gates"] + v[f"{scope}b_gates"]
    hidden, cell = lstm_equations(gates, state[1], forget_bias)
    return hidden, (hidden, cell)


def deep_lstm_step(v, x, state, scopes, forget_bias=1.0, skip=True, concat=True):
    current, outputs, states = x, [], []
    for i, (scope, layer_state) in enumerate(zip(scopes, state, strict=True)):
        current = torch.cat([x, current], -1) if skip and i else current
        current, layer_state = lstm_step(v, current, layer_state, forget_bias, scope)
        outputs.append(current)
        states.append(layer_state)
    return torch.cat(outputs, -1) if skip and concat else current, tuple(states)


def conv_lstm_shapes(inputs, outputs, kernel, bias):
    shapes = {"conv/w": (*kernel, inputs, 4 * outputs), "conv_1/w": (*kernel, outputs, 4 * outputs)}
    return shapes | ({"conv/b": (4 * outputs,), "conv_1/b": (4 * outputs,)} if bias else {})


def same_convolution(x, w):
    """[B, Y, X, C]: tap by tap, TensorFlow's SAME, which puts the odd row or column of padding last."""
    kernel, (_, height, width, _) = w.shape[:2], x.shape
    up, left = ((k - 1) // 2 for k in kernel)
    padded = x.new_zeros(x.shape[0], height + kernel[0] - 1, width + kernel[1] - 1, x.shape[3])
    padded[:, up : up + height, left : left + width] = x
    taps = itertools.product(*map(range, kernel))
    return sum(padded[:, i : i + height, j : j + width] @ w[i, j] for i, j in taps)


def conv_lstm_step(v, x, state, forget_bias=1.0):
    gates = same_convolution(x, v["conv/w"]) + same_convolution(state[0], v["conv_1/w"])
    gates = gates + v.get("conv/b", 0) + v.get("conv_1/b", 0)
    hidden, cell = lstm_equations(gates, state[1], forget_bias)
    return hidden, (hidden, cell)


# ------------------------------------------------------------------ DNC


def dnc_shapes(inputs, outputs, words, reads, writes, units, scopes):
    """With the scopes of the controller's layers, the lowest first."""
    seen = inputs + reads * words
    shapes = {}
    for i, scope in enumerate(scopes):
        shapes |= lstm_shapes(seen + (units if i else 0), units, scope)
    sizes = dict(write_vectors=writes * words, erase_vectors=writes * words, write_keys=writes * words)
    sizes |= dict(write_strengths=writes, allocation_gate=writes, write_gate=writes)
    sizes |= dict(read_keys=reads * words, read_strengths=reads, free_gate=reads)
    sizes |= dict(read_mode=reads * (1 + 2 * writes))
    features = units * len(scopes)
    for name, size in sizes.items():
        shapes |= {f"dnc/memory_access/{name}/w": (features, size), f"dnc/memory_access/{name}/b": (size,)}
    width = features + reads * words
    return shapes | {"dnc/output_linear/w": (width, outputs), "dnc/output_linear/b": (outputs,)}


def cosine_softmax(memory, keys, strengths):
    def length(x):
        return ((x**2).sum(-1) + 1e-6).sqrt()

    similarity = keys @ memory.mT / (length(keys)[..., None] * length(memory)[:, None] + 1e-6)
    return torch.softmax(similarity * strengths[..., None], -1)


def allocate(usage):
    """Sort, running product of all before, unsort; of equals the lower index first."""
    used = 1e-6 + (1 - 1e-6) * usage
    rows = []
    for row in used:
        free, product, order = [None] * len(row), 1.0, (1 - row).sort(descending=True, stable=True).indices
        for slot in order.tolist():
            free[slot] = (1 - row[slot]) * product
            product = product * row[slot]
        rows.append(torch.stack(free))
    return torch.stack(rows)


def dnc_step(v, x, state, scopes, reads, writes, clip):
    """The state is (words read, memory, read and write weights, link, precedence, usage, controller)."""

    def limit(t):
        return t if clip is None else t.clamp(-clip, clip)

    def heads(name, count):
        return linear(v, f"dnc/memory_access/{name}", h).unflatten(-1, (count, -1))

    words, memory, read_w, write_w, link, precedence, usage, controller = state
    seen = torch.cat([x, words.flatten(1)], -1)
    h, controller = deep_lstm_step(v, seen, controller, scopes)
    h, controller = limit(h), tuple((limit(a), limit(b)) for a, b in controller)

    free, alloc_gate, write_gate = (
        torch.sigmoid(heads(name, count)).squeeze(-1)
        for name, count in (("free_gate", reads), ("allocation_gate", writes), ("write_gate", writes))
    )
    write_strengths, read_strengths = (
        torch.nn.functional.softplus(heads(name, count)).squeeze(-1)
        for name, count in (("write_strengths", writes), ("read_strengths", reads))
    )
    usage = usage + (1 - usage) * (1 - (1 - write_w.detach()).prod(1))
    usage = usage * (1 - free[..., None] * read_w).prod(1)

    content, running, new = cosine_softmax(memory, heads("write_keys", writes), write_strengths), usage, []
    for i in range(writes):
        a, ag, wg = allocate(running), alloc_gate[:, i, None], write_gate[:, i, None]
        new.append(wg * (ag * a + (1 - ag) * content[:, i]))
        running = running + (1 - running) * ag * wg * a
    write_w = torch.stack(new, 1)
    erase, vectors = torch.sigmoid(heads("erase_vectors", writes)), heads("write_vectors", writes)
    for i in range(writes):
        memory = memory * (1 - write_w[:, i, :, None] * erase[:, i, None])
    memory = memory + torch.einsum("bhn,bhw->bnw", write_w, vectors)

    slots = memory.shape[1]
    rows, columns = write_w[..., :, None], write_w[..., None, :]
    link = (1 - rows - columns) * link + rows * precedence[..., None, :]
    link = link.masked_fill(torch.eye(slots, dtype=torch.bool), 0)
    precedence = (1 - write_w.sum(-1, keepdim=True)) * precedence + write_w

    modes = torch.softmax(heads("read_mode", reads), -1)
    content = cosine_softmax(memory, heads("read_keys", reads), read_strengths)
    new = modes[..., -1:] * content
    for i in range(writes):
        backward = torch.einsum("bji,brj->bri", link[:, i], read_w)
        forward = torch.einsum("bij,brj->bri", link[:, i], read_w)
        new = new + modes[..., i, None] * backward + modes[..., writes + i, None] * forward
    words = new @ memory
    output = limit(linear(v, "dnc/output_linear", torch.cat([h, words.flatten(1)], -1)))
    return output, (words, memory, new, write_w, link, precedence, usage, controller)
