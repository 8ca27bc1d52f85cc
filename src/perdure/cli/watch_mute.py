"""``perdure watch mute``: be told nothing of some kind, node or rank of a job for a while."""

from __future__ import annotations

import argparse
import json
import re

from perdure.cli.job_flags import add_flags, chosen
from perdure.errors import CallError

__all__ = ["add_parser", "main", "seconds_of"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "mute",
        help="be told nothing of a label, a node or a rank for a while",
        description="Tell no verdicts that agree with all that is given, and act on none. What still holds when "
        "the mute ends is told then.",
    )
    parser.add_argument("--job", metavar="NAME", help="the job's name; the one that runs, if there is one")
    parser.add_argument("--label", help="what is wrong, as sw.contention")
    parser.add_argument("--node", metavar="NODE", help="a node that is accused")
    parser.add_argument("--rank", type=int, metavar="N", help="a rank that is accused")
    parser.add_argument("--for", dest="within", metavar="TIME", help="how long, as 90s, 10m or 2h (until the job ends)")
    add_flags(parser, named=False)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Ask for it."""
    from perdure.supervisor.vocabulary import Mute
    from perdure.watcher.labels import Label

    if args.label is None and args.node is None and args.rank is None:
        raise CallError("a mute without --label, --node or --rank would hide everything; say what it is for")
    if args.label is not None and args.label not in list(Label):
        raise CallError(f"there is no label {args.label}; labels are {', '.join(Label)}")
    for_s = None if args.within is None else seconds_of(args.within)
    asker = chosen(args)
    asker.order(Mute(label=args.label or "", node=args.node or "", rank=args.rank, for_s=for_s))
    what = [args.label, None if args.node is None else f"node {args.node}"]
    what += [None if args.rank is None else f"rank {args.rank}"]
    said = ", ".join(each for each in what if each is not None)
    until = "until it ends" if for_s is None else f"for {args.within}"
    fields = {"job": asker.name, "label": args.label, "node": args.node, "rank": args.rank, "for_s": for_s}
    print(json.dumps(fields) if args.json else f"nothing is told of {said} in job {asker.name} {until}")
    return 0


def seconds_of(text: str) -> float:
    """Return a duration that a person has written.

    >>> seconds_of("90"), seconds_of("10m"), seconds_of("1.5h")
    (90.0, 600.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None:
        raise CallError(f"{text!r} is no time; give a number and s, m, h or d, as 10m")
    return float(found[1]) * _UNITS[found[2]]
