"""``perdure checkpoint``: look into a run, verify it, mend it, and take it elsewhere. One file for each command.

Every command's own work is imported when it is called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse

from perdure.cli import (
    checkpoint_diff,
    checkpoint_export,
    checkpoint_import,
    checkpoint_ls,
    checkpoint_prune,
    checkpoint_repair,
    checkpoint_show,
    checkpoint_verify,
)

__all__ = ["add_parser"]

_COMMANDS = (
    checkpoint_ls,
    checkpoint_show,
    checkpoint_verify,
    checkpoint_diff,
    checkpoint_repair,
    checkpoint_prune,
    checkpoint_export,
    checkpoint_import,
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group to the parser."""
    parser = commands.add_parser(
        "checkpoint",
        help="list, show, verify, compare, repair, prune, export, import saved steps",
        description="Look into a run, verify it, mend it, and take it elsewhere. URL is a folder or s3://...",
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(group)
