"""``perdure memory status``: what there is, and what waits."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from perdure.cli.memory_flags import add_place, opened
from perdure.cli.memory_lines import print_json, print_table, safe

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "status",
        help="how much there is, and what waits",
        description="How much a memory holds, what is not yet sorted into topics, and what went wrong last.",
    )
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Show it."""
    from perdure.memory.plain import plain

    with opened(args) as memory:
        found = plain(memory.status()) | {"consolidation": plain(memory.consolidation())}
    if args.json:
        print_json(found)
        return 0
    rows = []
    last = found["consolidation"].pop("last")
    found["consolidation"]["last"] = "none" if last is None else _said(last)
    for name, value in found.items():
        told = value
        if isinstance(value, dict):
            left = value.pop("left_alone", None) or {}
            rows += [("left alone", safe(f"{file} {why}", keeping="")) for file, why in left.items()]
            told = ", ".join(f"{key.replace('_', ' ')} {each}" for key, each in value.items() if each not in ("", {}))
        rows.append((name.replace("_", " "), told))
    print_table(("", ""), rows)
    return 0


def _said(last: Mapping[str, Any]) -> str:
    note = f" ({safe(last['note'], keeping='')})" if last["note"] else ""
    return f"{last['id']} {last['outcome']}{note}"
