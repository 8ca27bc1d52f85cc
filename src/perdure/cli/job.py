"""``perdure job``: look at jobs, and say what is to be done with them. One file for each command.

Every command's own work is imported when it is called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse

from perdure.cli import job_drain, job_events, job_logs, job_ls, job_show, job_stop, job_uncordon

__all__ = ["add_parser"]

_COMMANDS = (job_ls, job_show, job_logs, job_events, job_drain, job_uncordon, job_stop)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group to the parser."""
    parser = commands.add_parser(
        "job",
        help="list, show, follow, drain, stop jobs",
        description="Look at jobs, and say what is to be done with them. A job's controller answers; a job without one "
        "is shown as its journal has it. JOB may be left out where exactly one job runs.",
    )
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(group)
