"""What `import relational_rnn` gives, and what it does not cost."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import relational_rnn
from relational_rnn.cores.base import RecurrentCore

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", relational_rnn.__all__)
def test_every_name_is_a_core(name):
    core = getattr(relational_rnn, name)
    assert issubclass(core, RecurrentCore)
    assert core.__name__ == name
    assert name in dir(relational_rnn)


def test_a_star_import_gives_all_of_them():
    names = {}
    exec("from relational_rnn import *", names)
    assert set(relational_rnn.__all__) <= set(names)


def test_editors_see_the_same_names():
    tree = ast.parse(Path(relational_rnn.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    assert {alias.name for line in guarded.body for alias in line.names} == set(relational_rnn.__all__)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, relational_rnn; dir(relational_rnn); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'relational_rnn' has no attribute 'GRU'"):
        _ = relational_rnn.GRU


def test_the_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert relational_rnn.__version__ == project["version"]
