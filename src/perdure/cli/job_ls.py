"""``perdure job ls``: the jobs of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

__all__ = ["add_parser", "main"]

_COLUMNS = ("job", "state", "attempt", "step", "nodes", "ranks", "since", "")
_WIDTHS = (28, 9, 7, 10, 5, 5, 19, 0)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "ls",
        help="list the jobs of this machine",
        description="List the jobs that have a folder on this machine (PERDURE_STATE), with the state of each and "
        "since when it is in it. The last column says what is known of a job without a controller.",
    )
    parser.add_argument("--running", action="store_true", help="only jobs that have a controller")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """List."""
    from perdure.cli.controller import job_home
    from perdure.cli.moments import when
    from perdure.errors import CallError, PerdureError
    from perdure.supervisor.asking import askers_in
    from perdure.supervisor.plain import plain, since

    rows: list[dict[str, Any]] = []
    for asker in askers_in(job_home()):
        try:
            seen = asker.look()
        except CallError:
            continue  # it never began
        except PerdureError as error:
            print(f"perdure: job {asker.name}: {error}", file=sys.stderr)
            continue
        if seen.live or not args.running:
            rows.append(plain(seen) | {"since": since(seen.view)})
    if args.json:
        print(json.dumps({"jobs": rows}))
        return 0
    for i, row in enumerate(rows):
        if i == 0:
            print(_line([name.upper() for name in _COLUMNS]))
        nodes = [node for node in row["nodes"] if node["place"] is not None]
        what = "" if row["live"] or row["exit_code"] is not None else "no controller"
        cells = [row["job"], row["state"], max(row["attempt"], 0), row["step"], len(nodes)]
        print(_line([*cells, sum(node["nproc"] for node in nodes), when(row["since"]), what]))
    if not rows:
        print(f"no job {'runs' if args.running else ''} in {job_home()}".replace("  ", " "))
    return 0


def _line(cells: list[Any]) -> str:
    first = str(cells[0]).ljust(_WIDTHS[0])
    rest = "  ".join(str(cell).rjust(width) for cell, width in zip(cells[1:], _WIDTHS[1:], strict=True))
    return f"{first}  {rest}".rstrip()
