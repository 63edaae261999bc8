"""Ctrl-C, SIGTERM and a closed terminal end a run at the next step instead of in the middle of one."""

from __future__ import annotations

import os
import signal
import time

# Seconds in which a signal is the first one once more: `timeout` and a terminal tell a whole group of
# processes, and their parent, torchrun say, tells each of them again.
SAME_REQUEST = 1.0


class StopRequest:
    """A context in which SIGINT, SIGTERM and SIGHUP are remembered. A second one interrupts at once: a
    KeyboardInterrupt with its number, wherever the program is."""

    signals = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

    def __init__(self):
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        wanted = [number for number in self.signals if not _by_nohup(number)]
        self._before = {number: signal.signal(number, self._remember) for number in wanted}
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number, frame) -> None:
        if number == getattr(signal, "SIGHUP", None):
            _silence(self._terminals)
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
        elif time.monotonic() - self._since >= SAME_REQUEST:
            raise KeyboardInterrupt(number)


def _by_nohup(number: int) -> bool:
    """Whether a closed terminal is not to end this process."""
    return number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN


def _silence(streams: list[int]) -> None:
    """Their terminal is gone: what is written there from now on would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)
