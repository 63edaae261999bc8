"""rmc bench: the core's speed, by the repository's benchmark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from relational_rnn.cli import UsageError

HELP = """\
usage: rmc bench [OPTION ...]

Times the core against its peers on this GPU: runs benchmarks/cores.py of the
repository this package is installed from. Options are passed on; python
benchmarks/cores.py --help lists them.
"""
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cores.py"


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    if not SCRIPT.is_file():
        raise UsageError(
            "benchmarks/cores.py is not here: it is in the repository, not in the installed package; "
            "run this from a clone installed with pip install -e ."
        )
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], check=False).returncode
