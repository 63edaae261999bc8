"""What a benchmark's table says of itself."""

import sys

from benchmarks.provenance import provenance


def test_a_command_does_not_say_where_files_lay(tmp_path, monkeypatch):
    words = [
        "cores.py",
        "--data",
        str(tmp_path),
        "--output",
        str(tmp_path / "table.json"),
        "--only",
        "acting",
    ]
    monkeypatch.setattr(sys, "argv", words)
    said = provenance()["command"]
    assert said == f"python benchmarks/cores.py --data {tmp_path.name} --output table.json --only acting"
