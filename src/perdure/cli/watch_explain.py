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
        "were near. FILE is what perdure watch run --json wrote; a job of perdure run keeps its own in its folder.",
    )
    parser.add_argument("incident", metavar="INCIDENT", help="its id, as in the brackets behind each verdict")
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="verdicts as lines of JSON")
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
    from perdure.cli.watching import VERDICTS
    from perdure.supervisor.folder import JobFolder

    folder = JobFolder(job_home(), job).path
    try:
        lines = read_lines(folder / VERDICTS)
    except OSError as error:
        raise CallError(f"cannot read {folder / VERDICTS}: {error.strerror}") from error
    if not folder.is_dir():
        raise CallError(f"there is no job {job} in {job_home()}; set PERDURE_STATE to where it is")
    return incident_of(lines, incident, where=f"job {job}")


def _of_file(file: Path, incident: str) -> list[Verdict]:
    import msgspec

    from perdure.watcher.evidence import Verdict

    try:
        told = [msgspec.json.decode(line, type=Verdict) for line in file.read_bytes().splitlines()]
    except OSError as error:
        raise CallError(f"cannot read {file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CallError(f"{file} holds no verdicts as perdure watch run --json writes them: {error}") from error
    of = [each for each in told if each.incident == incident]
    if not of:
        known = ", ".join(dict.fromkeys(each.incident for each in told)) or "none"
        raise CallError(f"{file} has no incident {incident}; it has {known}")
    return of
