"""Work that is done many times over: on a GPU a CUDA graph, which spares the host launching every kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class Repeated:
    """Calls a function, always the same one. On a GPU: itself `warmup` times, then a CUDA graph of it.

    All calls do the work, those of the warm-up too. The function must work on the same memory every time and
    read nothing back to the host. `generators`: all it draws from, but torch's own.

    The function is no attribute, so that an object that has both is freed, graph and all, when it is left.
    """

    def __init__(
        self,
        device: torch.device,
        generators: Iterable[torch.Generator] = (),
        *,
        warmup: int = 1,
        enabled: bool = True,
    ):
        self.device, self.generators, self.warmup = device, generators, warmup
        self.captures = enabled and device.type == "cuda"
        self.eager_calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self, function: Callable[[], None], *, before_capture: Callable[[], None] | None = None
    ) -> None:
        if not self.captures:
            function()
        elif self.eager_calls < self.warmup:
            self._on_side_stream(function)
            self.eager_calls += 1
        else:
            if self.graph is None:
                if before_capture is not None:
                    before_capture()
                self.graph = self._capture(function)
            self.graph.replay()

    def _on_side_stream(self, function: Callable[[], None]) -> None:
        """Warm-up as CUDA graphs want it."""
        side, main = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            function()
        main.wait_stream(side)

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # Weights that autocast has cast outside the graph are not the graph's to read.
        torch.clear_autocast_cache()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            if generator.device.type == "cuda":
                graph.register_generator_state(generator)
        with torch.cuda.graph(graph):  # records without running
            function()
        torch.clear_autocast_cache()
        return graph
