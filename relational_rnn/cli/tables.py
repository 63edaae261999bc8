"""Tables for the terminal, whatever its width."""

from __future__ import annotations

from relational_rnn.analysis.runs import visible


def print_table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """As a table if it fits; in a terminal too narrow for it a paragraph a row, or rich would cut the words.

    What is printed into a file or a pipe has all the width it needs.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table

    shown = Table(title=escape(visible(title)))  # a name may have brackets, which are markup to rich
    for name in head:
        shown.add_column(escape(visible(name)))
    for row in rows:
        shown.add_row(*(escape(visible(cell)) for cell in row))
    console, endless = Console(), Console(width=10_000)
    needed = Measurement.get(endless, endless.options, shown).maximum
    if not console.is_terminal:
        Console(width=needed).print(shown)
    elif needed <= console.width:
        console.print(shown)
    else:
        print(visible(title))
        for row in rows:
            said = [f"{name} {cell}" for name, cell in zip(head, row, strict=True) if cell]
            print(f"- {visible(', '.join(said))}")
