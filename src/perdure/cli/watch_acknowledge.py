"""``perdure watch acknowledge``: a person knows of an incident of a job."""

from __future__ import annotations

import argparse
import json

from perdure.cli.job_flags import add_flags, chosen

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "acknowledge",
        help="say that you know of an incident",
        description="Say that you know of INCIDENT: it is told again only when it is to be acted on more gravely, or "
        "is over.",
    )
    parser.add_argument("incident", metavar="INCIDENT", help="its id, as in the brackets behind each verdict")
    parser.add_argument("--job", metavar="NAME", help="the job's name; the one that runs, if there is one")
    add_flags(parser, named=False)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Say it."""
    from perdure.supervisor.vocabulary import Acknowledge

    asker = chosen(args)
    asker.order(Acknowledge(args.incident))
    said = f"incident {args.incident} of job {asker.name} is acknowledged"
    print(json.dumps({"job": asker.name, "incident": args.incident}) if args.json else said)
    return 0
