"""Ctrl-C and SIGTERM end a run at the next step instead of in the middle of one."""

from __future__ import annotations

import signal


class StopRequest:
    """A context in which SIGINT and SIGTERM are remembered. A second SIGINT interrupts at once, as usual."""

    signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        self._before = {number: signal.signal(number, self._remember) for number in self.signals}
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number, frame) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
