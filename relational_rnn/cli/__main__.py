"""The command `rmc`. Nothing here imports torch: `rmc --help` must answer at once."""

from __future__ import annotations

import errno
import importlib
import os
import select
import signal
import sys

from relational_rnn import __version__
from relational_rnn.analysis.runs import visible
from relational_rnn.cli import UsageError

USAGE = """\
usage: rmc COMMAND ...

  rmc train EXPERIMENT [--preset NAME] [--run FOLDER] [--any.option VALUE ...]
  rmc train EXPERIMENT --help   every option of a training
  rmc train --resume FOLDER     continue a run that was stopped
  rmc eval FOLDER               score a run's newest weights on fresh samples
  rmc generate FOLDER           text, or likely next words, of a trained
                                language model
  rmc reproduce SECTION         train what is missing of a section of the paper,
                                then print it
  rmc results add RUN           keep what a run came to; also: check, build (the
                                report)
  rmc figures [RUN ...]         pictures of runs or results: --output FOLDER
  rmc export RUN PATH.onnx      one step of a run's core as an ONNX model
  rmc release RUN NAME          put a run's weights into the package
  rmc explore [RUN ...]         a page to look inside trained models, on this
                                machine only
  rmc attention RUN             what the memory of a trained N-th farthest model
                                attends to
  rmc ablate RUN                its accuracy when parts of that attention are
                                blocked
  rmc sweep nth-farthest        train every point of a grid, shared by as many
                                processes as are started
  rmc demo                      RMC against LSTM on a small N-th farthest:
                                minutes on two CPU cores
  rmc doctor                    what this machine can do
  rmc play GAME                 box-world or mini-pacman in the terminal
  rmc record GAME PATH          a film of a run's agent or a random player, .gif
                                or .mp4
  rmc bench                     the core's speed on this machine's GPU; needs
                                the repository

experiments: nth-farthest, lte, box-world, mini-pacman, lm
"""
COMMANDS = (
    "train",
    "eval",
    "generate",
    "demo",
    "explore",
    "doctor",
    "play",
    "record",
    "bench",
    "reproduce",
    "results",
    "figures",
    "export",
    "release",
    "attention",
    "ablate",
    "sweep",
)
# A file or folder that cannot be written, or read: for the user to put right, and no fault of the program.
REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR),
    *(errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)


def main(arguments: list[str] | None = None) -> int:
    try:
        try:
            return run(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not nobody_reads(sys.stdout):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 141  # as a program ends whose reader, `head` say, has had enough


def nobody_reads(pipe) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def run(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print(f"relational-rnn {__version__}")
        return 0
    try:
        if command not in COMMANDS:
            raise UsageError(f"unknown command {command!r}; allowed: {', '.join(COMMANDS)}")
        return importlib.import_module(f"relational_rnn.cli.{command}").main(rest)
    except UsageError as error:
        print(f"rmc: error: {visible(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"rmc: error: {visible(where)}{error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print("rmc: interrupted", file=sys.stderr)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


def end(code: int) -> None:
    """End the process. A process of torchrun's that is not the first ends at once, without Python's own
    clearing up: with gloo (torch 2.13) that aborts now and then when all work is done, and torchrun would
    take it for a rank that died, and start all of them again."""
    if os.environ.get("RANK", "0") != "0" and "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    end(main())
