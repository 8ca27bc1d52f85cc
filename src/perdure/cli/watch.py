"""``perdure watch``: what watches over a job, and what it makes of what it sees. One file for each command.

Every command's own work is imported when it is called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from perdure.cli import watch_diagnose, watch_explain, watch_logs, watch_metrics, watch_run
from perdure.errors import CallError

__all__ = ["add_parser", "spelled_out"]

_COMMANDS = (watch_run, watch_logs, watch_metrics, watch_explain, watch_diagnose)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group to the parser."""
    parser = commands.add_parser(
        "watch",
        help="say what is wrong with a job, and who must act",
        description="Say what is wrong with a job, whose it is, and what to do. perdure watch -- COMMAND is short for "
        "perdure watch run -- COMMAND, and perdure watch --logs DIR for perdure watch logs DIR (and --metrics URL...).",
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(group)


def spelled_out(words: Sequence[str]) -> list[str]:
    """A command line with the word for the command of ``watch`` put in, where it was left out.

    Raises `CallError` where two commands are meant that cannot be one.

    >>> spelled_out(["watch", "--", "torchrun", "train.py"])
    ['watch', 'run', '--', 'torchrun', 'train.py']
    >>> spelled_out(["watch", "--live", "--", "torchrun", "train.py"])
    ['watch', 'run', '--live', '--', 'torchrun', 'train.py']
    >>> spelled_out(["watch", "--json", "out", "--logs=here"])
    ['watch', 'logs', '--json', 'out', '--logs=here']
    """
    if words[:1] != ["watch"] or len(words) < 2:
        return list(words)
    at = list(words).index("--") if "--" in words else len(words)
    own = {word.partition("=")[0] for word in words[1:at]}
    others = {"--logs": "logs", "--metrics": "metrics"}
    chosen = [name for option, name in others.items() if option in own]
    if at < len(words) and (chosen or words[1] in others.values()):
        raise CallError(
            "a job that is started here is watched by its ranks' own records, not by logs or metrics: leave out either "
            "what stands before -- or the command after it; a second perdure watch may run beside the first"
        )
    if not words[1].startswith("--"):
        return list(words)
    if words[1] == "--":
        return ["watch", "run", *words[1:]]
    return ["watch", *(chosen or ["run"] * (at < len(words)))[:1], *words[1:]]
