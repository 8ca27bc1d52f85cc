"""``perdure watch logs DIR``, or ``perdure watch --logs DIR``: follow the ranks' logs of a job that runs already."""

from __future__ import annotations

import argparse

from perdure.errors import CallError

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    from perdure.cli.watch_others import add_options

    parser = commands.add_parser(
        "logs",
        help="follow the logs of a job that runs already (or: perdure watch --logs DIR)",
        description="Follow the ranks' logs in DIR (of torchrun --log-dir, of Slurm, one file a rank, or others; or "
        "one file) of a job that perdure has not started. Losses, slow steps, silent logs and lines of faults are told "
        "on stderr. When the job has ended, what its logs say of it is printed, as by perdure watch diagnose. Ends "
        "with exit code 0.",
    )
    parser.add_argument("where", nargs="?", metavar="DIR", help="where the logs are")
    parser.add_argument("--logs", metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--metrics", nargs="+", default=[], metavar="URL", help="scrape these exporters, too")
    add_options(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Follow, and tell."""
    from perdure.cli.watch_others import watch

    if args.where is not None and args.logs is not None:
        raise CallError(f"logs are followed in one folder; {args.where} and {args.logs} are two")
    where = args.where if args.where is not None else args.logs
    if where is None:
        raise CallError("where the logs are is missing: perdure watch logs DIR")
    return watch(args, where=where, urls=args.metrics)
