"""``perdure memory observe``: keep what was told."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, opened, told
from perdure.cli.memory_lines import counted, print_json

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "observe",
        help="keep what was told, word for word",
        description="Keep a text, word for word. It is durable when this returns, and found at once. The text is the "
        "argument, a file, or what comes in by stdin.",
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what was told (- or nothing: stdin)")
    parser.add_argument("--file", metavar="FILE", help="the text is in this file")
    parser.add_argument("--source", default="", metavar="WORDS", help="where it comes from: a chat, a file")
    parser.add_argument("--speaker", default="", metavar="NAME", help="who said it")
    parser.add_argument(
        "--role",
        default="user",
        choices=("user", "assistant", "tool", "human"),
        help="whose word it is (user); human stands above all: an edit by a person",
    )
    parser.add_argument("--at", metavar="TIME", help="when it was said, as 2023-05-08T13:56+02:00 (now)")
    parser.add_argument("--key", metavar="KEY", help="the same key again is the same observation")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Keep it."""

    text = told(args.text, args.file)
    with opened(args, make=True) as memory:
        done = memory.observe(text, source=args.source, at=args.at, speaker=args.speaker, role=args.role, key=args.key)
    if args.json:
        print_json(done)
    else:
        print(f"{done.name}: {counted(len(done.facts), 'fact')}" + ("" if done.new else ", known already"))
    return 0
