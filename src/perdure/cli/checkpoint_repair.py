"""``perdure checkpoint repair``: put good copies in the place of what is damaged."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from perdure.errors import IntegrityError

if TYPE_CHECKING:
    from perdure.upkeep.repairing import Fix

__all__ = ["add_parser", "main"]

_EPILOG = "exit code: 0 if all that was looked at is good now, 65 if something could not be mended"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "repair",
        help="put good copies in the place of what is damaged",
        description="Take what is damaged or missing in URL from other copies of the same run, tile by tile. A plan is "
        "made first; a mended file is verified in full before it takes the place of the damaged one.",
        epilog=_EPILOG,
    )
    parser.add_argument("url", metavar="URL")
    parser.add_argument(
        "--from", dest="others", metavar="URL", action="append", nargs="+", required=True, help="a copy of the run"
    )
    parser.add_argument("--step", type=int, metavar="N", help="only what this step needs, besides the run's records")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and do nothing")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Plan, tell, and, without ``--dry-run``, carry out."""
    from perdure.cli.bars import Bar
    from perdure.events.facts import size
    from perdure.store import open_store
    from perdure.upkeep.repairing import carry_out, plan_repair

    urls = [url for group in args.others for url in group]
    store, others = open_store(args.url), [open_store(url) for url in urls]
    plan = plan_repair(store, others, step=args.step)
    if args.json:
        fixes = [_told(fix, urls) for fix in plan.fixes]
        print(json.dumps({"fixes": fixes, "lost": [asdict(each) for each in plan.lost], "notes": plan.notes}))
    else:
        for note in plan.notes:
            print(f"note: {note}")
        for fix in plan.fixes:
            print(f"mend {fix.name} ({size(fix.nbytes)}): {fix.why}; {_sources(fix, urls)}")
        for lost in plan.lost:
            print(f"LOST {lost.message}")
    if not args.dry_run and plan.fixes:
        with Bar("repair, files", len(plan.fixes)) as bar:
            n = 0

            def begun(fix: Fix) -> None:
                nonlocal n
                bar.at(n, fix.name)
                n += 1

            carry_out(store, others, plan, on_fix=begun)
            bar.at(n, "done")
    if not args.json:
        done = "would be mended" if args.dry_run else "were mended"
        left = f"; {len(plan.lost)} cannot be mended from here: add another --from" if plan.lost else ""
        print(f"{len(plan.fixes)} files {done}{left}")
    sys.stdout.flush()
    return IntegrityError.exit_code if plan.lost else 0


def _told(fix: Fix, urls: list[str]) -> dict[str, object]:
    copied = {urls[number - 1]: nbytes for number, nbytes in fix.copied_bytes.items()}
    return {"name": fix.name, "nbytes": fix.nbytes, "why": fix.why, "copied_bytes": copied, "staged": fix.staged}


def _sources(fix: Fix, urls: list[str]) -> str:
    from perdure.events.facts import size

    if fix.staged:
        return "an earlier repair has left a good copy here"
    copied = [f"{size(nbytes)} from {urls[number - 1]}" for number, nbytes in sorted(fix.copied_bytes.items())]
    return " and ".join(copied) or "all of it is here"
