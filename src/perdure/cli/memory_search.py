"""``perdure memory search``: the facts that fit a question."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.memory import Hit
from perdure.cli.memory_flags import add_place, opened
from perdure.cli.memory_lines import print_json, print_table

__all__ = ["add_parser", "main", "print_hits"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "search",
        help="find the facts that fit a question",
        description="Find the facts that fit a question best, the best first: those that hold now.",
    )
    parser.add_argument("question", metavar="QUESTION", help="what to look for, in plain words")
    parser.add_argument("--limit", type=int, default=10, metavar="N", help="how many at most (10)")
    parser.add_argument("--history", action="store_true", help="also facts that were replaced")
    parser.add_argument("--as-of", metavar="TIME", help="what was known and held at that time, as 2023-05-08")
    parser.add_argument("--speaker", metavar="NAME", help="only what this person said")
    parser.add_argument("--source", metavar="WORDS", help="only what came from there")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Search."""
    from perdure.errors import CallError

    if args.limit < 1:
        raise CallError("--limit must be 1 or more")
    only = {"as_of": args.as_of, "speaker": args.speaker, "source": args.source}
    with opened(args) as memory:
        hits = memory.search(args.question, limit=args.limit, history=args.history, **only)
    if args.json:
        print_json({"facts": hits})
    else:
        print_hits(hits)
    return 0


def print_hits(hits: Sequence[Hit]) -> None:
    """Print what was found, the best first."""

    from perdure.memory.plain import who_of

    rows = []
    for each in hits:
        said = [f"replaced by {', '.join(f'f{by}' for by in each.by)}"] if each.by else []
        said += [f"against {', '.join(f'f{other}' for other in each.conflicts)}"] if each.conflicts else []
        fact = each.fact
        rows.append((fact.name, fact.text, who_of(fact), fact.observed[:10], "; ".join([fact.state.value, *said])))
    print_table(("id", "fact", "who", "told", "state"), rows)
