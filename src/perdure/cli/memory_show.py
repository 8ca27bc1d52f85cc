"""``perdure memory show``: a topic's document, a fact and what it stands on, or what was told."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from perdure.cli.memory_flags import add_place, opened
from perdure.cli.memory_lines import print_json, safe

if TYPE_CHECKING:
    from perdure.memory import Evidence

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show",
        help="show a topic, a fact or what was told",
        description="Show the document of a topic (t3, or its title), a fact with what it was taken from (f12), or "
        "what was told, word for word (e12).",
    )
    parser.add_argument("what", metavar="WHAT", help="t3, a title, f12 or e12")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Show it."""
    found = re.fullmatch(r"\^?([efEF])\d{1,18}", args.what.strip())
    kind = found[1].lower() if found else "t"
    with opened(args) as memory:
        if kind == "t":
            topic = memory.topic(args.what)
            document = memory.show(topic.id)
            if args.json:
                print_json({"topic": topic, "document": document})
            else:
                print(safe(document), end="" if document.endswith("\n") else "\n")
            return 0
        fact = memory.fact(args.what.strip().lower()) if kind == "f" else None
        evidence = memory.evidence(fact.evidence if fact is not None else args.what.strip().lower())
    if args.json:
        print_json({"evidence": evidence} | ({"fact": fact} if fact is not None else {}))
        return 0
    if fact is not None:
        holds = "".join(f", {word} {at}" for word, at in (("since", fact.since), ("until", fact.until)) if at)
        print(f"{fact.name} ({fact.state.value}{safe(holds)}): {safe(fact.text)}")
    print(_origin(evidence))
    print(safe(evidence.text))
    return 0


def _origin(evidence: Evidence) -> str:
    who = f"{evidence.speaker} ({evidence.role.value})" if evidence.speaker else evidence.role.value
    where = f", from {evidence.source}" if evidence.source else ""
    return safe(f"{evidence.name}, told by {who}{where}, {evidence.observed}:", keeping="")
