"""``perdure checkpoint verify``: hash everything again, and name each damage and what it costs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from perdure.errors import IntegrityError

__all__ = ["add_parser", "main"]

_EPILOG = "exit code: 0 if everything is as it was written, 65 if anything is damaged"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "verify",
        help="hash everything again; name each damage and what it costs",
        description="Read the newest commit (or others), compare every byte with its digest, and prove that the pieces "
        "of every tensor cover it. Goes on after a damage, to find all.",
        epilog=_EPILOG,
    )
    parser.add_argument("url", metavar="URL")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, metavar="N", help="this step instead of the newest")
    which.add_argument("--slot", type=int, metavar="N", help="the commit in this slot, of a dead branch too (ls --all)")
    which.add_argument("--all", action="store_true", help="every commit that was not pruned, of dead branches too")
    parser.add_argument(
        "--no-data", action="store_true", help="all but the tensors' bytes: seconds, whatever their size"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Verify; 65 if anything is damaged."""
    from perdure.cli.bars import Bar
    from perdure.events.facts import size
    from perdure.store import open_store
    from perdure.upkeep.verifying import verify

    with Bar("verify, MiB", 1) as bar:

        def moved(done: int, total: int) -> None:
            bar.total = max(total >> 20, 1)
            bar.at(done >> 20, "")

        report = verify(
            open_store(args.url),
            step=args.step,
            slot=args.slot,
            every=args.all,
            data=not args.no_data,
            on_bytes=moved,
        )
    if args.json:
        print(json.dumps(asdict(report)))
        return IntegrityError.exit_code if report.damages else 0
    for note in report.notes:
        print(f"note: {note}")
    for damage in report.damages:
        print(f"DAMAGED {damage.message}\n        costs: {damage.costs}")
    steps = f"step {report.steps[0]}" if len(report.steps) == 1 else f"{len(report.steps)} steps"
    what = f"{report.n_tensors} tensors in {report.n_packs} packs, {size(report.hashed_bytes)} hashed"
    if report.damages:
        n = len(report.damages)
        print(
            f"{steps}: {n} damage{'s' if n > 1 else ''} found ({what}); mend with `perdure checkpoint repair "
            f"{args.url} --from COPY`, or restore another step"
        )
        sys.stdout.flush()
        return IntegrityError.exit_code
    print(f"{steps}: everything is as it was written ({what})")
    return 0
