"""Sonnet v1's RelationalMemory, equation by equation, with no algebra: the input row goes through everything.

Written from the formulation in docs/model.md, sharing no code with the package, as the thing to compare with.
"""

import torch


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def naive_step(core, x, memory):
    """x [B, rows, input_size], memory [B, N, F] -> next memory, following a core's parameters by name."""
    p = dict(core.named_parameters())
    heads, keys, values = core.spec.num_heads, core.spec.key_size, core.spec.head_size
    batch, slots, _ = memory.shape
    rows = x @ p["input_projection.weight"].T + p["input_projection.bias"]
    a = torch.cat([memory, rows], dim=1)
    for i in range(len(core.blocks)):
        b = f"blocks.{i}."
        qkv = layer_norm(
            a @ p[b + "qkv.weight"].T + p[b + "qkv.bias"], p[b + "qkv_norm.weight"], p[b + "qkv_norm.bias"]
        )
        reads = []
        for h in range(heads):
            head = qkv[..., h * (2 * keys + values) : (h + 1) * (2 * keys + values)]
            q, k, v = head[..., :keys], head[..., keys : 2 * keys], head[..., 2 * keys :]
            logits = torch.einsum("bik,bjk->bij", q * core.spec.scale, k)
            reads.append(torch.einsum("bij,bjv->biv", torch.softmax(logits, -1), v))
        a = layer_norm(a + torch.cat(reads, -1), p[b + "attention_norm.weight"], p[b + "attention_norm.bias"])
        m = a
        for layer in range(len(core.mlp)):
            m = m @ p[f"mlp.{layer}.weight"].T + p[f"mlp.{layer}.bias"]
            if layer < len(core.mlp) - 1:
                m = torch.relu(m)
        a = layer_norm(m + a, p[b + "mlp_norm.weight"], p[b + "mlp_norm.bias"])
    candidate = a[:, :slots]
    if core.spec.gate_style is None:
        return candidate
    gates = (
        (rows.reshape(batch, -1) @ p["gate_from_input.weight"].T + p["gate_from_input.bias"])[:, None]
        + torch.tanh(memory) @ p["gate_from_memory.weight"].T
        + p["gate_from_memory.bias"]
    )
    half = gates.shape[-1] // 2
    input_gate = torch.sigmoid(gates[..., :half] + core.input_bias)
    forget_gate = torch.sigmoid(gates[..., half:] + core.forget_bias)
    return input_gate * torch.tanh(candidate) + forget_gate * memory


def naive_scan(core, x, memory, resets=None):
    """x [T, B, (rows,) input_size] -> memories [T, B, N, F]."""
    if core.input_rows is None:
        x = x.unsqueeze(2)
    memories = []
    for t in range(x.shape[0]):
        if resets is not None:
            identity = torch.zeros_like(memory)
            for s in range(min(memory.shape[1:])):
                identity[:, s, s] = 1
            memory = torch.where(resets[t][:, None, None], identity, memory)
        memory = naive_step(core, x[t], memory)
        memories.append(memory)
    return torch.stack(memories)
