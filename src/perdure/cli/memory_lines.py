"""How records of a memory are printed: a table on a terminal, lines of fields between tabs in a pipe.

What was told may hold anything, also what would drive a terminal: control and invisible characters are shown escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["counted", "in_one_line", "print_json", "print_table", "safe"]


def safe(text: str, *, keeping: str = "\n\t") -> str:
    """``text`` as a terminal may have it.

    >>> safe("a\\x1b[2Jb\\nc")
    'a\\\\x1b[2Jb\\nc'
    """
    from perdure.memory.plain import visible

    return visible(text, keeping=keeping)


def counted(number: int, what: str) -> str:
    """``number`` and its noun.

    >>> counted(1, "fact"), counted(2, "fact")
    ('1 fact', '2 facts')
    """
    return f"{number} {what}{'s' if number != 1 else ''}"


def in_one_line(text: str) -> str:
    """``text`` as a field of a line.

    >>> in_one_line("a\\nb\\tc")
    'a\\\\nb\\\\tc'
    """
    return safe(text, keeping="")


def print_json(value: Any) -> None:
    """Print a record, or what is made of records, as one JSON object."""
    from perdure.memory.plain import plain

    print(json.dumps(plain(value)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows: drawn, with their columns' names, on a terminal; else their fields between tabs."""
    cells = [["" if each is None else in_one_line(str(each)) for each in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)
