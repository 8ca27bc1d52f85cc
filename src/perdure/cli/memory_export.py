"""``perdure memory export``: a memory as JSON lines."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, opened
from perdure.cli.memory_lines import print_json, safe

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write a memory as JSON lines",
        description="Write a memory, as it is at this moment, as JSON lines: evidence, facts, topics, links, changes.",
    )
    parser.add_argument("to", metavar="TO", help="a new file")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Write it."""

    with opened(args) as memory:
        count = memory.export(args.to)
    if args.json:
        print_json({"file": args.to, "lines": count})
    else:
        print(f"{safe(args.to)}: {count} lines")
    return 0
