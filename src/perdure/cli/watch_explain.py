"""``perdure watch explain``: why the watcher said what it said of an incident."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.cli.verdict_file import Line
    from perdure.watcher.evidence import Verdict

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain",
        help="why a verdict is what it is",
        description="Print how an incident went, what was found, which row of the table was taken and which others "
        "were near. FILE is what perdure watch run --json wrote, or the folder of --record; a job of perdure run keeps "
        "its own in its folder.",
    )
    parser.add_argument("incident", metavar="INCIDENT", help="its id, as in the brackets behind each verdict")
    parser.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="verdicts as lines of JSON, or a folder of them"
    )
    parser.add_argument("--job", metavar="NAME", help="a job of perdure run, instead of FILE")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Explain."""
    from perdure.watcher.explaining import explain

    if (args.file is None) == (args.job is None):
        raise CallError("give either FILE or --job NAME: where are the verdicts?")
    print(explain(_of_job(args.job, args.incident) if args.file is None else _of_file(args.file, args.incident)))
    return 0


def _of_job(job: str, incident: str) -> list[Line]:
    from perdure.cli.controller import job_home
    from perdure.cli.verdict_file import incident_of, read_lines
    from perdure.supervisor.folder import JobFolder
    from perdure.watcher.recording import VERDICTS

    folder = JobFolder(job_home(), job).path
    try:
        lines = read_lines(folder / VERDICTS)
    except OSError as error:
        raise CallError(f"cannot read {folder / VERDICTS}: {error.strerror}") from error
    if not folder.is_dir():
        raise CallError(f"there is no job {job} in {job_home()}; set PERDURE_STATE to where it is")
    return incident_of(lines, incident, where=f"job {job}")


def _of_file(file: Path, incident: str) -> list[Verdict]:
    from perdure.watcher.explaining import lives_of
    from perdure.watcher.recording import VERDICTS, read_verdicts

    path = file / VERDICTS if file.is_dir() else file
    try:
        told, unread = read_verdicts(path)
    except OSError as error:
        raise CallError(f"cannot read {path}: {error.strerror}") from error
    if unread and not told:
        raise CallError(f"{path} holds no verdicts as perdure watch run --json writes them")
    lives = lives_of(told)
    of = [life for life in lives if life[0].incident == incident]
    if not of:
        known = ", ".join(dict.fromkeys(life[0].incident for life in lives)) or "none"
        raise CallError(f"{path} has no incident {incident}; it has {known}")
    if len(of) > 1:
        print(f"{path} is of several runs, with {len(of)} incidents {incident}: this is the last")
    if unread:
        print(f"{unread} lines of {path} cannot be read")
    return of[-1]
