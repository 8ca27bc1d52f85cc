"""``perdure checkpoint ls``: the commits of a run."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

__all__ = ["add_parser", "main"]

_COLUMNS = ("slot", "step", "when", "metric", "own", "shared", "parts", "epoch", "ranks", "")
_WIDTHS = (8, 10, 19, 11, 10, 10, 5, 5, 5, 0)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "ls",
        help="list the saved steps, newest first",
        description="List the commits of the branch that training is on, newest first. OWN bytes were written for the "
        "commit, SHARED ones are unchanged tensors of earlier commits that it refers to.",
    )
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--all", action="store_true", help="dead branches, pruned commits and unreadable ones too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """List."""
    from perdure.cli.moments import when
    from perdure.events.facts import size
    from perdure.store import open_store
    from perdure.upkeep.ledger import read_ledger

    ledger = read_ledger(open_store(args.url))
    rows = _rows(ledger, every=args.all)
    if args.json:
        print(json.dumps({"run": ledger.run, "commits": list(rows)}))
        return 0
    n = 0
    for row in rows:
        if not n:
            print(_line([name.upper() for name in _COLUMNS]))
        n += 1
        if "own_bytes" not in row:
            print(_line([row["slot"], *[""] * 8, row["what"]]))
            continue
        metric = "" if row["metric"] is None else f"{row['metric']:.6g}"
        own, shared = size(row["own_bytes"]), size(row["shared_bytes"]) if row["shared_bytes"] else ""
        marks = ", ".join(
            each for each in (row["what"], "pinned" if row["pinned"] else "", row["problem"] or "") if each
        )
        cells = [row["slot"], row["step"], when(row["created"]), metric, own, shared]
        print(_line([*cells, row["parts"], row["epoch"], row["ranks"], marks]))
    if not n:
        print(f"no commit to list in {args.url}")
    if ledger.unread:
        print(
            f"{len(ledger.unread)} records cannot be read; `perdure checkpoint verify {args.url}` says which",
            file=sys.stderr,
        )
    return 0


def _rows(ledger: Any, *, every: bool) -> Any:
    from perdure.upkeep.summary import summary_of

    run = ledger.opened()
    branch = [commit.slot for commit in ledger.branch()]
    on_branch = set(branch)
    head = next((slot for slot in branch if slot not in ledger.pruned), None)
    for slot in reversed(ledger.slots) if every else branch:
        commit = ledger.commits.get(slot)
        if commit is None:
            yield {"slot": slot, "what": "pruned" if slot in ledger.pruned else "cannot be read"}
            continue
        gone = slot in ledger.pruned
        if gone and not every:
            continue
        what = "pruned" if gone else ("head" if slot == head else ("" if slot in on_branch else "dead branch"))
        summary = None if gone else summary_of(run, commit)
        yield {
            "slot": slot,
            "step": commit.step,
            "created": commit.created,
            "metric": commit.metric,
            "pinned": commit.pinned,
            "own_bytes": summary.own_bytes if summary else 0,
            "shared_bytes": summary.shared_bytes if summary else 0,
            "parts": len(commit.parts),
            "epoch": commit.epoch,
            "ranks": summary.world if summary else 0,
            "parent": commit.parent,
            "what": what,
            "problem": summary.problem if summary else None,
        }


def _line(cells: list[Any]) -> str:
    return "  ".join(str(cell).rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
