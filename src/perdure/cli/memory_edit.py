"""``perdure memory edit``: correct a fact, as a person."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, opened, told
from perdure.cli.memory_lines import print_json

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "edit",
        help="correct a fact, as a person",
        description="Say what holds instead of a fact. What it said stays as history; what a person says stands above "
        "what others told, and undo takes it back.",
    )
    parser.add_argument("fact", metavar="FACT", help="its id, as f12")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what holds (- or nothing: stdin)")
    parser.add_argument("--file", metavar="FILE", help="the text is in this file")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Correct it."""
    text = told(args.text, args.file)
    with opened(args) as memory:
        change = memory.edit(args.fact, text)
    if args.json:
        print_json(change)
    else:
        print(f"c{change.id}: {args.fact} is replaced; perdure memory undo c{change.id} takes it back")
    return 0
