"""``perdure memory doctor``: is everything as it should be."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, home, opened
from perdure.cli.memory_lines import print_json, print_table
from perdure.errors import IntegrityError

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="examine a memory; --repair makes right what can be made again",
        description="Examine a memory: its file, every fact against the evidence that it was taken from, states "
        "against links, indexes and documents against the ledger. --repair makes again what is made from the ledger; "
        "what was told is never touched.",
    )
    parser.add_argument("--repair", action="store_true", help="make right what can be made again")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Examine; the exit code is 65 where something stays wrong."""
    from perdure.memory.doctor import examine_folder
    from perdure.memory.spaces import folder_of

    try:
        with opened(args) as memory:
            findings = memory.doctor(repair=args.repair)
    except IntegrityError:
        findings = examine_folder(folder_of(home(args), args.space), repair=args.repair)
    wrong = [each for each in findings if not each.repaired]
    if args.json:
        print_json({"findings": findings})
    elif not findings:
        print("everything is as it should be")
    else:
        rows = [
            (each.kind, each.what, "repaired" if each.repaired else "--repair helps" if each.repairable else "")
            for each in findings
        ]
        print_table(("kind", "what", ""), rows)
    return IntegrityError.exit_code if wrong else 0
