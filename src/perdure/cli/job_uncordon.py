"""``perdure job uncordon``: a node may be used again."""

from __future__ import annotations

import argparse
import json

from perdure.cli.job_flags import add_flags, chosen

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "uncordon",
        help="let a node be used again",
        description="Let NODE, which was cordoned or drained, be used again: as a spare, or for the next free place.",
    )
    add_flags(parser)
    parser.add_argument("node", metavar="NODE", help="a node's name, as perdure job show has it")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Ask for it."""
    from perdure.supervisor.vocabulary import Uncordon

    asker = chosen(args)
    asker.order(Uncordon(args.node))
    said = f"node {args.node} of job {asker.name} may be used again"
    print(json.dumps({"job": asker.name, "node": args.node}) if args.json else said)
    return 0
