"""``perdure memory spaces``: which memories there are."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, home
from perdure.cli.memory_lines import print_json, print_table

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "spaces",
        help="list the memories of a folder",
        description="List the memories of a folder by name. Each is a folder of its own; nothing leads from one into "
        "another.",
    )
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """List them."""
    from perdure.memory.spaces import folder_of, spaces_in

    root = home(args)
    rows = [(name, (folder_of(root, name) / "ledger.db").stat().st_size) for name in spaces_in(root)]
    if args.json:
        print_json({"root": root, "spaces": [{"name": name, "ledger_bytes": size} for name, size in rows]})
    else:
        print_table(("space", "bytes"), rows)
    return 0
