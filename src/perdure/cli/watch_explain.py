"""``perdure watch explain``: why the watcher said what it said of an incident."""

from __future__ import annotations

import argparse
from pathlib import Path

from perdure.errors import CallError

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain",
        help="why a verdict is what it is",
        description="Print how an incident went, what was found, which row of the table was taken and which others "
        "were near. FILE is what perdure watch run --json wrote, or the folder of --record, or of a job.",
    )
    parser.add_argument("incident", metavar="INCIDENT", help="its id, as in the brackets behind each verdict")
    parser.add_argument("file", type=Path, metavar="FILE", help="verdicts as lines of JSON, or a folder of them")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Explain."""
    from perdure.watcher.explaining import explain, lives_of
    from perdure.watcher.recording import VERDICTS, read_verdicts

    path = args.file / VERDICTS if args.file.is_dir() else args.file
    try:
        told, unread = read_verdicts(path)
    except OSError as error:
        raise CallError(f"cannot read {path}: {error.strerror}") from error
    if unread and not told:
        raise CallError(f"{path} holds no verdicts as perdure watch run --json writes them")
    lives = lives_of(told)
    of = [life for life in lives if life[0].incident == args.incident]
    if not of:
        known = ", ".join(dict.fromkeys(life[0].incident for life in lives)) or "none"
        raise CallError(f"{path} has no incident {args.incident}; it has {known}")
    if len(of) > 1:
        print(f"{path} is of several runs, with {len(of)} incidents {args.incident}: this is the last")
    if unread:
        print(f"{unread} lines of {path} cannot be read")
    print(explain(of[-1]))
    return 0
