"""A core as an ONNX model, and the same sequence through onnxruntime and PyTorch.

    pip install -e '.[export]'
    python examples/onnx_export.py

`rmc export RUN PATH.onnx` does the first half for the core of a trained run. Prints the largest difference.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from relational_rnn import RelationalMemory
from relational_rnn.cores.onnx import export_step


def main() -> float:
    torch.manual_seed(0)
    core = RelationalMemory(input_size=6, mem_slots=4, head_size=8, num_heads=2)
    x = torch.randn(10, 3, 6)  # [time, batch, features]
    resets = torch.zeros(10, 3, dtype=torch.bool)
    resets[4, 1] = True  # the second sequence begins anew at the fifth step
    with torch.no_grad():
        expected, _ = core(x, resets=resets)

    with tempfile.TemporaryDirectory() as folder:
        path = export_step(core, Path(folder) / "cell.onnx")
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    # From here on nothing needs PyTorch. The zeros are never looked at: reset is true at the first step.
    state = np.zeros((3, 4, 16), np.float32)  # [batch, slots, slot size]
    difference = 0.0
    for t in range(len(x)):
        reset = np.ones(3, bool) if t == 0 else resets[t].numpy()
        output, state = session.run(
            ["output", "next_state"], {"x": x[t].numpy(), "state": state, "reset": reset}
        )
        difference = max(difference, float(np.abs(output - expected[t].numpy()).max()))
    print(f"10 steps of 3 sequences: onnxruntime and PyTorch differ by {difference:.1e} at most")
    return difference


if __name__ == "__main__":
    main()
