"""``perdure memory backup``: a copy of a memory, made while others write."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, home, opened
from perdure.cli.memory_lines import print_json, safe

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "backup",
        help="copy a memory while others write; --restore makes one of a copy",
        description="Copy a memory, as it is at this moment, to one file: TO, or one named for the time in its own "
        "folder, or in a store (s3://...). The memory notes it, so that a purge reaches it. With --restore, make the "
        "memory --space, which must not exist, of such a file.",
    )
    parser.add_argument("to", nargs="?", metavar="TO", help="a new file, or the URL of a store")
    parser.add_argument("--restore", metavar="FILE", help="the other way: make a new memory of this file")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Copy it."""
    from perdure.errors import CallError

    if args.restore is not None:
        from perdure.memory.backup import restore
        from perdure.memory.spaces import folder_of, make_folder

        if args.to is not None:
            raise CallError("give TO or --restore, not both")
        folder = folder_of(home(args), args.space)
        make_folder(folder)
        restore(args.restore, folder)
        place = str(folder)
    else:
        with opened(args) as memory:
            place = memory.backup(args.to)
    if args.json:
        print_json({"restored" if args.restore else "backup": place})
    else:
        print(safe(place))
    return 0
