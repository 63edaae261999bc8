"""Ctrl-C and SIGTERM end a run at the next step instead of in the middle of one."""

from __future__ import annotations

import signal
import time

# Seconds in which a signal is the first one once more: `timeout` and a terminal tell a whole group of
# processes, and their parent, torchrun say, tells each of them again.
SAME_REQUEST = 1.0


class StopRequest:
    """A context in which SIGINT and SIGTERM are remembered. A second one interrupts at once: a
    KeyboardInterrupt with its number, wherever the program is."""

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
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
        elif time.monotonic() - self._since >= SAME_REQUEST:
            raise KeyboardInterrupt(number)
