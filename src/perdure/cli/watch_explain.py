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
        "were near. FILE is what perdure watch run --json wrote.",
    )
    parser.add_argument("incident", metavar="INCIDENT", help="its id, as in the brackets behind each verdict")
    parser.add_argument("file", type=Path, metavar="FILE", help="verdicts as lines of JSON")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Explain."""
    import msgspec

    from perdure.watcher.evidence import Verdict
    from perdure.watcher.explaining import explain

    try:
        told = [msgspec.json.decode(line, type=Verdict) for line in args.file.read_bytes().splitlines()]
    except OSError as error:
        raise CallError(f"cannot read {args.file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CallError(f"{args.file} holds no verdicts as perdure watch run --json writes them: {error}") from error
    of = [each for each in told if each.incident == args.incident]
    if not of:
        known = ", ".join(dict.fromkeys(each.incident for each in told)) or "none"
        raise CallError(f"{args.file} has no incident {args.incident}; it has {known}")
    print(explain(of))
    return 0
