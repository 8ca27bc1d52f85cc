"""``perdure memory history``: what replaced a fact, and what it replaced."""

from __future__ import annotations

import argparse

from perdure.cli.memory_flags import add_place, opened
from perdure.cli.memory_lines import in_one_line, print_json, print_table

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "history",
        help="what replaced a fact, and what it replaced",
        description="What replaces, repeats or contradicts a fact, and what it replaced, the oldest first.",
    )
    parser.add_argument("fact", metavar="FACT", help="its id, as f12")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Show it."""

    from perdure.memory.plain import who_of

    with opened(args) as memory:
        found = memory.history(args.fact)
    if args.json:
        print_json(found)
        return 0
    bound: dict[int, list[str]] = {each.id: [] for each in found.facts}
    for link in found.links:
        why = f" ({in_one_line(link.reason)})" if link.reason else ""
        bound.get(link.fact, []).append(f"{link.kind.value} f{link.other}{why}")
    rows = []
    for each in found.facts:
        who, since = who_of(each), each.since or each.observed[:10]
        rows.append((each.name, each.text, who, since, each.state.value, "; ".join(bound[each.id])))
    print_table(("id", "fact", "who", "since", "state", "why"), rows)
    return 0
