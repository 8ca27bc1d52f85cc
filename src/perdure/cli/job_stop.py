"""``perdure job stop``: end a job, with its state saved."""

from __future__ import annotations

import argparse
import json
import signal

from perdure.cli.job_flags import add_flags, chosen
from perdure.cli.job_wait import add_wait, wait_until

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "stop",
        help="end a job, with its state saved",
        description="End a job as SIGTERM to its launcher does: ranks save and end within the job's --grace. Given "
        "again, it ends them at once.",
    )
    add_flags(parser)
    add_wait(parser, "the job is over")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Ask for it."""
    from perdure.supervisor.vocabulary import Asked

    asker = chosen(args)
    asker.order(Asked(signal.SIGTERM, by="perdure job stop"))
    if args.wait is not None:
        what = f"job {asker.name} to end"
        wait_until(asker, lambda view: view.job.state.final, within_s=args.wait, what=what)
    said = f"job {asker.name} {'is over' if args.wait is not None else 'is stopping: its ranks save and end'}"
    print(json.dumps({"job": asker.name}) if args.json else said)
    return 0
