"""``perdure watch``: what watches over a job, and what it makes of what it sees. One file for each command.

Every command's own work is imported when it is called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse

from perdure.cli import watch_acknowledge, watch_diagnose, watch_explain, watch_mute, watch_run

__all__ = ["add_parser"]

_COMMANDS = (watch_run, watch_explain, watch_mute, watch_acknowledge, watch_diagnose)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group to the parser."""
    parser = commands.add_parser(
        "watch",
        help="say what is wrong with a job, and who must act",
        description="Say what is wrong with a job, whose it is, and what to do.",
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(group)
