"""On a GPU: forward and backward of every baseline can be captured in a CUDA graph and give the same."""

import pytest
import torch

from relational_rnn.cores.conv_lstm import ConvLSTM
from relational_rnn.cores.deep_lstm import DeepLSTM
from relational_rnn.cores.dnc import DNC
from relational_rnn.cores.entnet import EntNet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CORES = {
    "deep lstm": lambda: DeepLSTM(5, 8),
    "conv lstm": lambda: ConvLSTM((3, 4, 2), 4, 2),
    "entnet": lambda: EntNet(5, 3, 8),
    "henaff": lambda: EntNet(5, 3, 8, style="henaff"),
    "dnc": lambda: DNC(5, 6, 8, 4, 3, 2, hidden_size=8),
    "deep dnc": lambda: DNC(5, 6, 8, 4, hidden_size=8, num_layers=2),
    "dnc, one kernel": lambda: DNC(5, 6, 8, 4, 3, hidden_size=8, fused=True),
    "feedforward dnc": lambda: DNC(5, 6, 8, 4, controller="feedforward", hidden_size=8),
}


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("late", [False, True])
def test_capture(name, late):
    torch.manual_seed(0)
    core = CORES[name]().cuda()
    x = torch.randn(6, 4, *core.input_shape, device="cuda")
    resets, begins = torch.rand(6, 4, device="cuda") < 0.2, torch.tensor([0, 3, 5, 1], device="cuda")
    parameters = [p for p in core.parameters() if p.requires_grad]

    def run():
        output, _ = core.scan_late(x, begins) if late else core(x, resets=resets)
        gradients = torch.autograd.grad(output.square().sum(), parameters)
        return [output.detach(), *gradients]

    eager = run()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    graph.replay()
    tolerance = 1e-3 if name in ("deep lstm", "entnet") else 1e-5  # cuDNN's LSTM takes TF32
    for ours, theirs in zip(captured, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
