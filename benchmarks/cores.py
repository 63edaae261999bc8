"""Milliseconds of a training step of each core on the paper's workloads, side by side in one run on one GPU.

python benchmarks/cores.py [--only lte-256 acting] [--without compiled] [--output FILE]

Outputs and gradients are checked against the float64 specification first (exactness.py); what fails gets no
time. Every time is the
median of replays of a CUDA graph, but for rows marked eager. The LSTM is cuDNN's with as many units as the
memory has. Rows: ours (fused kernels, by precision; with recompute; eager), the same cell as a plain PyTorch
loop (eager), that cell under torch.compile in a CUDA graph, and the LSTM.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from exactness import acting_errors, errors, wrong
from provenance import provenance, save

from relational_rnn import LSTM, RelationalMemory

RESULTS = Path(__file__).parent / "results"
PRECISIONS = ["bf16", "tf32", "fp32"]
CHECKED = ["fp32", "bf16"]


@dataclass(frozen=True)
class Workload:
    """T steps of B samples of `inputs` features through N slots of H heads of V features."""

    steps: int
    batch: int
    inputs: int
    slots: int
    head_size: int
    heads: int
    layers: int = 2
    gates: str = "unit"

    def rmc(self, **options) -> RelationalMemory:
        sizes = (self.inputs, self.slots, self.head_size, self.heads)
        options |= dict(attention_mlp_layers=self.layers, gate_style=self.gates, device="cuda")
        return RelationalMemory(*sizes, **options)


WORKLOADS = {
    "nth-farthest": Workload(8, 1600, 40, 8, 32, 8),
    "lte-256": Workload(65, 128, 128, 4, 64, 4),
    "lte-256-memory-gates": Workload(65, 128, 128, 4, 64, 4, gates="memory"),  # as the paper's programs
    "lte-512": Workload(65, 128, 128, 4, 128, 4),
    "rl-32": Workload(40, 32, 256, 4, 64, 4),
    "rl-1024": Workload(40, 1024, 256, 4, 64, 4),
    "rl-1024-memory-gates": Workload(40, 1024, 256, 4, 64, 4, gates="memory"),  # as the paper's games
    "rl-4096": Workload(40, 4096, 256, 4, 64, 4),
    "lm": Workload(100, 384, 512, 1, 625, 4, layers=5),
}
COMPILED = ("nth-farthest", "lte-256")  # where torch.compile is timed too; each takes it about a minute
ACTING = Workload(1, 4096, 256, 4, 64, 4)
ACTING_BATCHES = (1, 32, 1024, 4096, 16384)


class Precision:
    """fp32, tf32 or bf16 (autocast with float32 parameters and state) while it is entered."""

    def __init__(self, name: str):
        self.name, self.autocast = name, torch.autocast("cuda", torch.bfloat16, enabled=name == "bf16")

    def __enter__(self):
        torch.set_float32_matmul_precision("highest" if self.name == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = self.name != "fp32"
        self.autocast.__enter__()

    def __exit__(self, *error):
        self.autocast.__exit__(*error)


def check(workload: Workload, precision: str) -> dict[str, tuple[float, float]]:
    """Errors of a few steps; of all samples, since kernels are chosen by how many there are."""
    torch.manual_seed(0)
    x = torch.randn(min(5, workload.steps), workload.batch, workload.inputs, device="cuda")
    return errors(workload.rmc(backend="triton"), x, Precision(precision))


def check_acting(batch: int, precision: str) -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    x = torch.randn(batch, ACTING.inputs, device="cuda")
    return acting_errors(ACTING.rmc(backend="triton"), x, Precision(precision))


def captured(function) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def milliseconds(function, *, repeats: int = 20) -> float:
    """Median time on the device."""
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def training_step(core, x: torch.Tensor, run=None):
    """Forward and backward of a core, every output with a gradient."""
    cotangent = torch.randn(*x.shape[:2], core.output_size, device="cuda")
    run = run or (lambda x: core(x)[0])

    def function(precision: str):
        for parameter in core.parameters():
            parameter.grad = None
        with Precision(precision):
            output = run(x)
        output.backward(cotangent.to(output.dtype))

    return function


def compiled_loop(core):
    """The cell under torch.compile, in a loop: compiling the whole loop takes minutes."""
    cell = torch.compile(core.step)

    def run(x):
        state, outputs = core.initial_state(x.shape[1]), []
        for now in x:
            output, state = cell(now, state)
            outputs.append(output)
        return torch.stack(outputs)

    return run


def measure(core, function, precision: str, *, eager: bool = False) -> dict:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    if eager:
        ms = milliseconds(lambda: function(precision), repeats=5)
    else:
        graph = captured(lambda: function(precision))
        ms = milliseconds(graph.replay)
    total = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() / 2**20
    return {
        "ms": round(ms, 4),
        "peak_mib": round(peak),
        "precision": precision,
        "set_up_seconds": round(total, 1),
    }


def bench_training(name: str, workload: Workload, skip: set[str], precisions: list[str]) -> list[dict]:
    torch.manual_seed(0)
    x = torch.randn(workload.steps, workload.batch, workload.inputs, device="cuda")
    rows = []

    def add(row: str, core, precision: str, *, run=None, eager=False):
        if row.split(",")[0] in skip:
            return
        rows.append(
            {"workload": name, "row": row}
            | measure(core, training_step(core, x, run), precision, eager=eager)
        )
        show(rows[-1])

    small = workload.steps * workload.batch * workload.slots * workload.head_size * workload.heads < 2**28
    for precision in precisions if small else ["bf16"]:
        add("ours", workload.rmc(backend="triton"), precision)
    add("ours, recompute", workload.rmc(backend="triton", recompute=True), "bf16")
    add("ours, eager", workload.rmc(backend="triton"), "bf16", eager=True)
    units = workload.slots * workload.head_size * workload.heads
    add("cuDNN LSTM", LSTM(workload.inputs, units, device="cuda"), "bf16")
    if small:
        add("plain loop, eager", workload.rmc(backend="reference"), "bf16", eager=True)
    if name in COMPILED and "compiled" not in skip:
        core = workload.rmc(backend="reference")
        add("compiled cell", core, "bf16", run=compiled_loop(core))
    return rows


def bench_full_step() -> list[dict]:
    """N-th farthest: data, forward, backward and Adam, as `rmc train` captures them."""
    from relational_rnn.experiments.nth_farthest import NthFarthestProblem, fast
    from relational_rnn.training.loop import Trainer

    rows = []
    for core in ("rmc", "lstm"):
        config = fast()
        config = replace(config, core=core, training=replace(config.training, optimizer="adam"))
        trainer = Trainer(
            NthFarthestProblem(config, torch.device("cuda", 0)), config.training, torch.device("cuda", 0)
        )
        trainer.run(5)
        row = "ours" if core == "rmc" else "cuDNN LSTM"
        ms = milliseconds(trainer._updates.graph.replay)
        rows.append(
            {
                "workload": "nth-farthest, whole training step",
                "row": row,
                "ms": round(ms, 4),
                "precision": "bf16",
            }
        )
        show(rows[-1])
    return rows


def is_right(name: str, check, result: dict) -> bool:
    """Whether a workload's numbers are; its errors, ours and the plain cell's, go into the result."""
    found = result["errors"][name] = {precision: check(precision) for precision in CHECKED}
    bad = {precision: wrong(each, precision) for precision, each in found.items()}
    for precision, names in bad.items():
        if names:
            print(f"{name}: WRONG NUMBERS in {precision}: {', '.join(names)}; not timed", flush=True)
    return not any(bad.values())


def bench_acting(skip: set[str], result: dict) -> list[dict]:
    rows = []
    for batch in ACTING_BATCHES:
        if not is_right(f"acting, batch {batch}", functools.partial(check_acting, batch), result):
            continue
        x = torch.randn(batch, ACTING.inputs, device="cuda")
        units = ACTING.slots * ACTING.head_size * ACTING.heads
        cores = {
            "ours": ACTING.rmc(backend="triton"),
            "plain, in a graph": ACTING.rmc(backend="reference"),
            "cuDNN LSTM": LSTM(ACTING.inputs, units, device="cuda"),
        }
        for row, core in cores.items():
            if row in skip:
                continue
            state = core.initial_state(batch)

            def act(precision, core=core, x=x, state=state, more=()):
                with torch.no_grad(), Precision(precision):
                    core.step(x, state, *more)

            rows.append({"workload": f"acting, batch {batch}", "row": row} | measure(core, act, "bf16"))
            show(rows[-1])
            if row == "ours":
                with torch.no_grad(), Precision("bf16"):
                    folded = core.fold()
                timed = measure(core, functools.partial(act, more=(folded,)), "bf16")
                rows.append({"workload": f"acting, batch {batch}", "row": "ours, folded"} | timed)
                show(rows[-1])
    return rows


def show(row: dict) -> None:
    memory = f"{row['peak_mib']:7d} MiB" if "peak_mib" in row else ""
    print(
        f"{row['workload']:34s} {row['row']:20s} {row['precision']:5s} {row['ms']:9.3f} ms {memory}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*WORKLOADS, "full-step", "acting"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--without", nargs="+", default=[], help="rows to leave out, such as compiled")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(
            2, "benchmarks/cores.py: no CUDA GPU here, and times of a CPU would mislead; allowed: a GPU\n"
        )
    result = provenance("cuda") | {
        "workloads": {name: asdict(w) for name, w in WORKLOADS.items()},
        "errors": {},
        "rows": [],
    }
    gpu = result["hardware"]["device"].lower().replace(" ", "-")
    output = options.output or RESULTS / f"cores_{result['date']}_{gpu}.json"
    skip = set(options.without)
    for name in options.only:
        if name in WORKLOADS:
            if is_right(name, functools.partial(check, WORKLOADS[name]), result):
                result["rows"] += bench_training(name, WORKLOADS[name], skip, options.precisions)
        elif name == "full-step":
            result["rows"] += bench_full_step()
        else:
            result["rows"] += bench_acting(skip, result)
        save(result, output)  # after each: a run cut short keeps what it has
    print(f"saved {output}")


if __name__ == "__main__":
    main()
