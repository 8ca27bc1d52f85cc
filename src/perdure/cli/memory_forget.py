"""``perdure memory forget``: so that nothing recalls it, or so that no byte of it is left."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from perdure.cli.memory_flags import add_place, add_sure, opened, sure
from perdure.cli.memory_lines import counted, print_json, print_table, safe
from perdure.errors import CallError, NeedsPerson

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "forget",
        help="let something be recalled no more; --purge leaves no byte of it",
        description="Forget a fact (and what says the same), all that was told at once, a topic, a source or a "
        "speaker. Its words stay in the ledger and can be had again with undo; with --purge no byte of them is left, "
        "also not in indexes, documents and backups that were made here, and a receipt says what was looked through.",
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="a fact (f12), evidence (e12) or a topic (t12)")
    parser.add_argument("--source", metavar="WORDS", help="all that came from there")
    parser.add_argument("--speaker", metavar="NAME", help="all that this person said")
    parser.add_argument("--purge", action="store_true", help="for good, to the last byte")
    parser.add_argument("--reason", default="", metavar="WORDS", help="why, for the list of changes")
    add_sure(parser)
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Forget; the exit code says whether a person has to see to something that is left."""

    target = _target(args)
    with opened(args) as memory:
        facts = memory.would_forget(**target)
        if args.dry_run:
            if args.json:
                print_json({"dry_run": True, "facts": facts})
            else:
                print_table(("id", "fact", "who"), [(each.name, each.text, each.speaker) for each in facts])
            return 0
        if not args.yes and sys.stdin.isatty():
            for each in facts[:20]:
                print(f"{each.name}  {safe(each.text, keeping='')}", file=sys.stderr)
        how = "Purge, for good," if args.purge else "Forget"
        if not sure(args, f"{how} {counted(len(facts), 'fact')}?"):
            print("nothing was forgotten")
            return 0
        receipt = memory.forget(**target, mode="purge" if args.purge else "tombstone", reason=args.reason)
    if args.json:
        print_json(receipt)
    else:
        done = "purged" if args.purge else "forgot"
        print(f"c{receipt.change}: {done} {counted(len(receipt.facts), 'fact')}")
        if args.purge:
            print(f"looked through {len(receipt.looked)} files, {sum(each.bytes for each in receipt.looked):,} bytes")
    if receipt.left:
        raise NeedsPerson("; ".join(receipt.left))
    return 0


def _target(args: argparse.Namespace) -> dict[str, Any]:
    given = {"source": args.source, "speaker": args.speaker}
    if args.id is not None:
        kinds = {"f": "fact", "e": "evidence", "t": "topic"}
        kind = kinds.get(args.id.strip().removeprefix("^")[:1])
        if kind is None:
            raise CallError(f"{args.id[:40]!r} is no id; give f12, e12 or t12")
        given[kind] = args.id
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) != 1:
        raise CallError("name one thing to forget: an id, --source or --speaker")
    return found
