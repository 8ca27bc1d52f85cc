"""``perdure memory ask``: an answer, and the facts that it stands on."""

from __future__ import annotations

import argparse
import sys

from perdure.cli.memory_flags import add_model, add_place, model_of, opened
from perdure.cli.memory_lines import print_json, safe
from perdure.cli.memory_search import print_hits

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "ask",
        help="answer a question from memory",
        description="Answer a question from memory. Without a model the answer is the facts that hold now, ranked.",
    )
    parser.add_argument("question", metavar="QUESTION")
    add_model(parser)
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Ask."""

    with opened(args, model=model_of(args)) as memory:
        answer = memory.ask(args.question)
    if args.json:
        print_json(answer)
        return 0
    if answer.by != "rules":
        print(safe(answer.text))
    print_hits(answer.hits)
    if answer.note:
        print(f"({safe(answer.note)})", file=sys.stderr)
    return 0
