"""Tables as wide as they are, or a paragraph a row."""

import pytest
import rich.console

from relational_rnn.cli.tables import print_table

HEAD = ["cell", "accuracy %", "what is still to be done"]
ROWS = [["rmc [red]", "91.25", ""], ["lstm\x1b[31m", "20.00", "everything"]]


def narrow(monkeypatch, width):
    """A terminal of that width, for every Console that is not told another."""
    before = rich.console.Console

    def made(**options):
        return before(**{"width": width, "force_terminal": True, "color_system": None, **options})

    monkeypatch.setattr(rich.console, "Console", made)


def test_in_a_pipe_no_column_is_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    print_table("a title [of/] it", HEAD, [*ROWS, ["x" * 200, "1", "2"]])
    said = capsys.readouterr().out
    assert "x" * 200 in said
    assert "what is still to be done" in said
    assert "a title [of/] it" in said


@pytest.mark.parametrize("width", [60, 40])
def test_in_a_narrow_terminal_every_word_is_whole(monkeypatch, capsys, width):
    narrow(monkeypatch, width)
    print_table("a title", HEAD, ROWS)
    said = capsys.readouterr().out
    for word in ("rmc [red]", "91.25", r"lstm\x1b[31m", "everything", "accuracy %"):
        assert word in said
    assert "…" not in said
    assert ("- cell rmc [red], accuracy % 91.25\n" in said) == (width == 40)
