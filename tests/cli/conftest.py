"""Fixtures of the command line's tests."""

import pytest

from relational_rnn.cli.__main__ import main
from tests.cli.commands import SMOKE


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A complete smoke run."""
    path = tmp_path_factory.mktemp("cli") / "run"
    assert main([*SMOKE, "--run", str(path)]) == 0
    return path
