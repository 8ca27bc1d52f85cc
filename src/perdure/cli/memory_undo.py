"""``perdure memory undo``: take a change back."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, add_sure, opened, sure
from perdure.cli.memory_lines import print_json, print_table, safe

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "undo",
        help="take a change back; without one, list the changes",
        description="Take a change back: a consolidation, an edit, a tombstone, also another undo. Nothing is removed; "
        "another change is added. Without CHANGE, list the latest ones.",
    )
    parser.add_argument("change", nargs="?", metavar="CHANGE", help="its number, as c3")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many to list (20)")
    add_sure(parser)
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Take it back, or list."""
    from perdure.memory.plain import plain

    with opened(args) as memory:
        if args.change is None:
            changes = plain(memory.changes(limit=max(args.limit, 1)))
            columns = ("id", "at", "kind", "by", "outcome", "note")
            if args.json:
                print_json({"changes": changes})
            else:
                print_table(columns, [[each[name] for name in columns] for each in changes])
            return 0
        was = memory.change(args.change)
        said = safe(f"c{was.id}, {was.kind} by {was.by}: {was.note}", keeping="")
        if args.dry_run or not sure(args, f"Take back {said}?"):
            if args.json:
                print_json({"dry_run": args.dry_run, "change": was})
            else:
                print(f"would take back {said}" if args.dry_run else "nothing was taken back")
            return 0
        done = memory.undo(args.change)
    if args.json:
        print_json(done)
    else:
        print(safe(f"c{done.id}: {done.note}", keeping=""))
    return 0
