"""``perdure checkpoint prune``: give up steps by rules or by name, and delete what nothing needs any more."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from perdure.cli.bars import Bar
from perdure.errors import CallError, NeedsPerson, TryAgain

if TYPE_CHECKING:
    from perdure.store import Store
    from perdure.upkeep.pruning import PrunePlan

__all__ = ["add_parser", "main"]

_EPILOG = """\
examples:
  perdure checkpoint prune checkpoints/run7 --keep last=3,every-steps=1000 --dry-run
  perdure checkpoint prune checkpoints/run7 --keep last=3,every=1h,best=2:min
  perdure checkpoint prune checkpoints/run7 --step 300 --step 400

Rules look at the training of the newest step. Steps of another one (that began from scratch in the same folder) stay,
unless --other-trainings says that they go. Without --keep, --step and --slot only what sessions left behind that ended
in the middle of a save is deleted; temporaries and cut uploads that are a day old go in any case. The newest step,
pinned steps and whatever perdure did not write always stay. Safe while the run is trained and read.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``prune`` to the command line; `main` is its ``func``."""
    parser = commands.add_parser(
        "prune",
        help="give up steps by rules or by name, and free what they hold",
        description="Give up the steps of a run that no rule keeps, or those named, and delete what nothing needs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="the run: a folder or a URL")
    add(
        "--keep",
        metavar="RULES",
        help="what stays: last=N, every-steps=N, every=1h, best=N:min or best=N:max, by commas",
    )
    add("--step", type=int, action="append", default=[], metavar="N", help="give up this step; again for more")
    add("--slot", type=int, action="append", default=[], metavar="N", help="give up the commit in this slot (ls --all)")
    add("--other-trainings", action="store_true", help="give up all that is not of the newest step's training")
    add("--even-pinned", action="store_true", help="also if what --step or --slot names is pinned")
    add("--lost", action="store_true", help="give up the commits that can no longer be read, which else stop a prune")
    add("--dry-run", action="store_true", help="show what would be done and do nothing")
    add("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """Prune as ``args`` say; return the exit code."""
    from perdure.store import Run, open_store
    from perdure.upkeep.keep import as_rules  # lazy: --help must not pay for msgspec
    from perdure.upkeep.pruning import execute
    from perdure.upkeep.retention import Retention

    if args.even_pinned and not (args.step or args.slot):
        raise CallError("--even-pinned goes with --step or --slot: pinned steps are given up by name alone")
    rules = () if args.keep is None else as_rules(args.keep)
    run = Run.open(open_store(args.run), create=False)
    plan = Retention().plan(
        run,
        rules=rules,
        steps=args.step,
        slots=args.slot,
        even_pinned=args.even_pinned,
        lost=args.lost,
        other_trainings=args.other_trainings,
        measure=True,
    )
    if args.json:
        print(json.dumps(_as_json(plan, dry_run=args.dry_run)))
    else:
        _show(plan, orphans_only=not (rules or args.step or args.slot or args.lost or args.other_trainings))
    if plan.blocked is not None:
        raise NeedsPerson(plan.blocked)
    if not args.dry_run:
        names = [*plan.packs, *plan.parts]
        if names and not args.json:
            with Bar("prune, files", len(names)) as bar:
                done = iter(range(1, len(names) + 1))
                execute(run, plan, on_blob=lambda name: bar.at(next(done), ""))
        else:
            execute(run, plan)
    swept, unknown = _sweep(run.store, dry_run=args.dry_run)
    if not args.json:
        print(_summary(plan, dry_run=args.dry_run))
        if swept:
            what = "temporaries or cut uploads that dead writers left"
            print(f"{'would remove' if args.dry_run else 'removed'} {len(swept)} {what}")
        if unknown is not None:
            print(f"cut uploads were not looked for: {unknown}")
    return 0


def _sweep(store: Store, *, dry_run: bool) -> tuple[list[str], str | None]:
    """What dead writers left beside blobs, removed unless ``dry_run``; or why nobody can tell."""
    from perdure.store.leftovers import sweeper_of

    sweeper = sweeper_of(store)
    if sweeper is None:
        return [], None
    try:
        return (sweeper.leftovers() if dry_run else sweeper.sweep()), None
    except (CallError, NeedsPerson, TryAgain) as error:
        return [], str(error)


def _show(plan: PrunePlan, *, orphans_only: bool) -> None:
    """A table of all steps: a drawn one on a terminal, lines elsewhere."""
    if orphans_only:
        print("no --keep, --step or --slot: every step stays, only what ended sessions left behind is deleted")
    steps = [(each.slot, str(each.step), "kept", ", ".join(each.reasons)) for each in plan.kept]
    steps += [(slot, "unknown" if step is None else str(step), "given up", "") for slot, step in plan.give_up]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table("step", "slot", "", "why")
        for slot, step, what, why in sorted(steps):
            table.add_row(step, str(slot), what, why, style="dim" if what == "given up" else None)
        Console().print(table)
        return
    for slot, step, what, why in sorted(steps):
        print(f"step {step} (slot {slot}): {what}" + (f" ({why})" if why else ""))


def _summary(plan: PrunePlan, *, dry_run: bool) -> str:
    would = "would give up" if dry_run else "gave up"
    would_free = "would free" if dry_run else "freed"
    n_files = len(plan.packs) + len(plan.parts)
    return (
        f"kept {len(plan.kept)} steps, {would} {len(plan.give_up)}, {would_free} {plan.freed_bytes:,} bytes "
        f"in {n_files} files"
    )


def _as_json(plan: PrunePlan, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "kept": [{"step": each.step, "slot": each.slot, "reasons": list(each.reasons)} for each in plan.kept],
        "given_up": [{"step": step, "slot": slot} for slot, step in plan.give_up],
        "packs": list(plan.packs),
        "parts": list(plan.parts),
        "freed_bytes": plan.freed_bytes,
        "blocked": plan.blocked,
    }
