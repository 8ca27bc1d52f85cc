"""The arguments of ``perdure doctor``, apart from its work, which loads what ``--help`` need not load."""

from __future__ import annotations

import argparse

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="look at this machine and a folder for runs; say what is slow or missing",
        description="Look at this machine and at a folder that runs are to be kept in; say what to do. Exit code 1 "
        "if something would lose data or not work.",
    )
    parser.add_argument("dir", nargs="?", metavar="DIR", help="a folder that runs are to be kept in; it is tried out")
    parser.add_argument(
        "--calibrate", action="store_true", help="find the fastest way to write to DIR (about 2 s) and remember it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Look, and tell."""
    from perdure.cli import doctor

    return doctor.main(args)
