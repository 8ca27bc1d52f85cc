"""``perdure memory topics``: what a memory knows about."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, opened
from perdure.cli.memory_lines import print_json, print_table

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "topics",
        help="list the topics",
        description="List the topics into which what was told has been sorted. Each is a Markdown document in the "
        "memory's folder, below topics/: an edit of one is taken in as the word of a person.",
    )
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """List them."""
    with opened(args) as memory:
        topics, folder = memory.topics(), memory.folder
    if args.json:
        print_json({"folder": folder, "topics": topics})
    else:
        print_table(("id", "topic", "summary", "file"), [(t.name, t.title, t.summary, t.file) for t in topics])
    return 0
