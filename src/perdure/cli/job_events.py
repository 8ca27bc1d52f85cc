"""``perdure job events``: what happened in a job, and what was done about it."""

from __future__ import annotations

import argparse
import json
import time

from perdure.cli.job_flags import add_flags, chosen

__all__ = ["add_parser", "main"]

_POLL_S = 0.3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "events",
        help="what happened, and what was done about it",
        description="Print the facts of the job's newest run, in order. With --json one object a line.",
    )
    add_flags(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the job is over")
    parser.add_argument("--last", type=int, metavar="N", help="begin with the last N")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Print them."""
    from perdure.cli.following import Following
    from perdure.cli.moments import when
    from perdure.errors import CallError
    from perdure.supervisor.plain import plain_fact

    if args.last is not None and args.last < 0:
        raise CallError(f"--last is a number of facts, not {args.last}")
    asker, following = chosen(args), Following()
    told = 0
    facts = (seen := asker.look(history=False)).view.facts
    facts = facts if args.last is None else facts[max(len(facts) - args.last, 0) :]
    while True:
        for fact in facts:
            if fact.number > told:
                told = fact.number
                print(json.dumps(plain_fact(fact)) if args.json else f"{when(fact.at)}  {fact.sentence}", flush=True)
        if not args.follow or following.over(seen):
            return 0
        time.sleep(_POLL_S)
        facts = (seen := asker.look(history=False)).view.facts
