"""Time of a training step of program evaluation: data, model, backward pass and Adam, as one CUDA graph.

    python benchmarks/lte_training_step.py [--only dnc] [--out benchmarks/results/lte_training_step.json]

The paper's set-up (appendix A.2): batches of 128 of the Mix curriculum, programs of nest 2 and length 5 or
memorisation of length 5, non-auto-regressive decoder, MLP of 4 x 256. Needs a CUDA GPU; matrix products in
TF32. Each row is the mean over `--steps` replays after a warm-up. `--only` measures the rows whose name has
that text and keeps the others of the file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from provenance import provenance, save

from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.entnet import EntNet
from relational_rnn.cores.relational_memory import RelationalMemory
from relational_rnn.tasks import learning_to_execute as lte
from relational_rnn.tasks.lte_curriculum import Curriculum
from relational_rnn.tasks.seq2seq import Seq2Seq

BATCH = 128

ROWS = {
    "rmc 4x256, 4 heads": ("program", lambda: RelationalMemory(45, 4, 64, 4, gate_style="memory")),
    "deep lstm 2x1024": ("program", lambda: DeepLSTM(45, 1024)),
    "entnet lstm 4x256": ("program", lambda: EntNet(45, 4, 256)),
    "entnet henaff 4x256": ("program", lambda: EntNet(45, 4, 256, style="henaff")),
    "dnc 80x64, lstm 2x256": ("program", lambda: paper_dnc("lstm")),
    "dnc 80x64, lstm 2x256, compiled": ("program", lambda: paper_dnc("lstm", compile=True)),
    "dnc 80x64, lstm 2x256, one kernel": ("program", lambda: paper_dnc("lstm", fused=True)),
    "dnc 80x64, feedforward 2x256": ("copy", lambda: paper_dnc("feedforward")),
    "dnc 80x64, feedforward 2x256, compiled": ("copy", lambda: paper_dnc("feedforward", compile=True)),
}


def paper_dnc(controller: str, **options) -> DNC:
    return DNC(45, 256, 80, 64, 4, 1, controller, hidden_size=256, num_layers=2, **options)


def milliseconds(task: lte.LearningToExecute, core, steps: int) -> tuple[float, float]:
    """(milliseconds of a step, seconds of the set-up)."""
    began = time.perf_counter()
    device = torch.device("cuda")
    model = Seq2Seq(core).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)
    generator = torch.Generator(device).manual_seed(0)
    curriculum = Curriculum(task.length, task.nest, device=device)

    def step() -> None:
        batch = task.batch(BATCH, generator=generator, curriculum=curriculum)
        logits = model(batch.inputs, batch.input_lengths, task.output_steps)
        optimizer.zero_grad()
        lte.loss(logits, batch).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        graph.replay()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / steps, start - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/lte_training_step.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    measured = {name: row for name, row in ROWS.items() if arguments.only in name}
    kept = json.loads(arguments.out.read_text())["rows"] if arguments.only and arguments.out.exists() else []
    rows = [row for row in kept if row["core"] not in measured]
    for name, (task_name, make) in measured.items():
        task = lte.LearningToExecute(task_name)
        torch.cuda.reset_peak_memory_stats()
        step_ms, set_up = milliseconds(task, make(), arguments.steps)
        memory = torch.cuda.max_memory_allocated() / 2**30
        row = dict(core=name, task=task_name, time_steps=task.input_steps + task.output_steps)
        row |= dict(
            ms_per_step=round(step_ms, 3), set_up_s=round(set_up, 1), peak_memory_gib=round(memory, 2)
        )
        rows.append(row)
        print(row, flush=True)
        torch.cuda.empty_cache()

    save(provenance("cuda") | dict(rows=rows), arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
