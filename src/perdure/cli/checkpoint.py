"""``perdure checkpoint``: look into a run, verify it, mend it, and take it elsewhere. One file for each command.

Every command's own work is imported when it is called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

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


class _Command(argparse.ArgumentParser):
    """Lets names stand after options too: ``show RUN --step 3 NAME``."""

    _inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Options first, then what is left of all places together; that calls here again."""
        if self._inside:
            return super().parse_known_args(args, namespace)
        self._inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._inside = False


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group to the parser."""
    parser = commands.add_parser(
        "checkpoint",
        help="list, show, verify, compare, repair, prune, export, import saved steps",
        description="Look into a run, verify it, mend it, and take it elsewhere. URL is a folder or s3://...",
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Command)
    for command in _COMMANDS:
        command.add_parser(group)
