"""``perdure job drain``: leave a node without losing a step."""

from __future__ import annotations

import argparse
import json

from perdure.cli.job_flags import add_flags, chosen
from perdure.cli.job_wait import add_wait, wait_until

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "drain",
        help="leave a node without losing a step",
        description="Leave NODE: all ranks stop at a saved step, another node takes its place, and they go on from "
        "there. It is refused where too few nodes would be left.",
    )
    add_flags(parser)
    parser.add_argument("node", metavar="NODE", help="a node's name, as perdure job show has it")
    add_wait(parser, "the node is left")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Ask for it."""
    from perdure.supervisor.vocabulary import Drain

    asker = chosen(args)
    asker.order(Drain(args.node, by="perdure job drain"))
    if args.wait is not None:
        wait_until(
            asker,
            lambda view: (
                any(node.facts.name == args.node and node.standing == "drained" for node in view.nodes)
                or all(node.facts.name != args.node for node in view.nodes)
            ),
            within_s=args.wait,
            what=f"node {args.node} to be left",
        )
    said = f"node {args.node} of job {asker.name} {'is left' if args.wait is not None else 'is being left'}"
    print(json.dumps({"job": asker.name, "node": args.node}) if args.json else said)
    return 0
