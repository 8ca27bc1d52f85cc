"""The arguments of ``perdure doctor``, apart from its work, which loads what ``--help`` need not load."""

from __future__ import annotations

import argparse

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="look at this machine and a folder for runs; say what is slow or missing",
        description="Look at this machine and at a folder that runs are to be kept in; say what to do. Probes of the "
        "processor, memory, disk, clock and GPUs run in processes of their own, so that one that hangs is named. Exit "
        "code 1 if something would lose data or not work.",
    )
    parser.add_argument("dir", nargs="?", metavar="DIR", help="a folder that runs are to be kept in; it is tried out")
    parser.add_argument(
        "--calibrate", action="store_true", help="find the fastest way to write to DIR (about 2 s) and remember it"
    )
    parser.add_argument(
        "--checks",
        nargs="?",
        const="all",
        metavar="NAMES",
        help="run these checks alone, as cpu,memory,disk (default: all that apply); DIR comes before it",
    )
    parser.add_argument(
        "--context",
        metavar="JSON",
        help='what checks are told, as \'{"gpus": 8, "need_memory_bytes": 64000000000}\' (docs/checks.md)',
    )
    parser.add_argument(
        "--deadline", type=float, default=120.0, metavar="S", help="seconds for all checks together (default: 120)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; with --checks one a line, as they come"
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Look, and tell."""
    from perdure.cli import doctor

    return doctor.main(args)
