"""``perdure memory import``: take in an export."""

from __future__ import annotations

import argparse
import os

from perdure.cli.memory_flags import add_place, opened
from perdure.cli.memory_lines import print_json
from perdure.errors import CallError

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "import",
        help="take in what perdure memory export wrote",
        description="Take in an export, beside what is there; the same again adds nothing. A file that is no whole "
        "export is refused, and nothing of it is taken in.",
    )
    parser.add_argument("file", metavar="FILE")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Take it in."""
    from perdure.memory.plain import plain

    if not os.path.isfile(args.file):
        raise CallError(f"there is no file {args.file}; give what perdure memory export wrote")
    with opened(args, make=True) as memory:
        done = memory.import_(args.file)
    if args.json:
        print_json(done)
    else:
        print(", ".join(f"{value} {name}" for name, value in plain(done).items() if isinstance(value, int)))
    return 0
