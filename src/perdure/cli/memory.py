"""``perdure memory``: what an agent was told. One file for each command.

Every command's own work is imported when it is called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse

from perdure.cli import (
    memory_ask,
    memory_backup,
    memory_bench,
    memory_consolidate,
    memory_doctor,
    memory_edit,
    memory_export,
    memory_forget,
    memory_history,
    memory_import,
    memory_mcp,
    memory_observe,
    memory_search,
    memory_show,
    memory_spaces,
    memory_status,
    memory_topics,
    memory_undo,
)

__all__ = ["add_parser"]

_COMMANDS = (
    memory_observe,
    memory_search,
    memory_ask,
    memory_topics,
    memory_show,
    memory_edit,
    memory_history,
    memory_forget,
    memory_undo,
    memory_consolidate,
    memory_backup,
    memory_export,
    memory_import,
    memory_doctor,
    memory_bench,
    memory_status,
    memory_spaces,
    memory_mcp,
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group to the parser."""
    parser = commands.add_parser(
        "memory",
        help="keep what an agent is told, and find what of it holds",
        description="Long-term memory for agents: keeps every word it is told, knows what of it still holds, and can "
        "say who said so. It works without any model.",
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(group)
