"""``perdure memory consolidate``: sort what was told into topics."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_model, add_place, model_of, opened
from perdure.cli.memory_lines import counted, print_json, safe

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "consolidate",
        help="sort what was told into topics",
        description="Sort what was told and is not sorted yet into topics, and write their documents. Rules do it, or "
        "a model, which may only choose among ids: nothing that was told is rewritten. Edits of documents are taken "
        "in.",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what waits, and do nothing")
    add_model(parser)
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Sort it."""
    with opened(args, model=model_of(args)) as memory:
        if args.dry_run:
            waits = memory.consolidation()
            if args.json:
                print_json({"dry_run": True, "consolidation": waits})
            else:
                print(f"{counted(waits.staged, 'fact')} to sort")
            return 0
        change = memory.consolidate()
        count = len(memory.topics())
    if args.json:
        print_json({"change": change, "topics": count})
    elif change is None:
        print(f"nothing was left to sort; {counted(count, 'topic')}")
    else:
        note = f" ({safe(change.note, keeping='')})" if change.note else ""
        print(f"c{change.id}: {change.outcome}, by {safe(change.by, keeping='')}{note}; {counted(count, 'topic')}")
    return 0
