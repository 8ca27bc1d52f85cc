"""Which job a command means, and how its controller is found."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.supervisor.asking import Asker, Seen

__all__ = ["add_flags", "address_of", "chosen", "note", "secret_of"]

_PORT = 29400


def add_flags(parser: argparse.ArgumentParser, *, named: bool = True) -> None:
    """Add JOB and the flags for a controller elsewhere."""
    if named:
        parser.add_argument("job", nargs="?", metavar="JOB", help="the job's name; the one that runs, if there is one")
    parser.add_argument(
        "--controller",
        metavar="HOST[:PORT]",
        help="where the controller is, for a job of another machine (port 29400); needs JOB and the token",
    )
    parser.add_argument("--token-file", metavar="FILE", help="the job's token (else PERDURE_TOKEN)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def chosen(args: argparse.Namespace) -> Asker:
    """The job that ``args`` mean. Raises `CallError` if that cannot be told."""
    from perdure.cli.controller import job_home
    from perdure.supervisor.asking import Asker, askers_in
    from perdure.supervisor.folder import JobFolder

    if args.controller:
        if not args.job:
            raise CallError("--controller needs the job's name: its token is good for that job alone")
        return Asker(args.job, address=address_of(args.controller), secret=secret_of(args))
    home = job_home()
    if args.job:
        folder = JobFolder(home, args.job)
        if not folder.path.is_dir():
            names = ", ".join(asker.name for asker in askers_in(home)) or "none"
            raise CallError(
                f"there is no job {args.job} in {home} (jobs there: {names}); set PERDURE_STATE to where it is, or "
                "give --controller"
            )
        return Asker(args.job, folder=folder)
    running = [asker for asker in askers_in(home) if asker.listening()]
    if len(running) == 1:
        return running[0]
    what = "no job runs here" if not running else f"{len(running)} jobs run here"
    names = ", ".join(asker.name for asker in (running or askers_in(home))) or "none"
    raise CallError(f"{what}; name one of: {names}")


def address_of(text: str) -> tuple[str, int]:
    """The address in ``HOST[:PORT]``.

    >>> address_of("node1"), address_of("10.0.0.7:29401")
    (('node1', 29400), ('10.0.0.7', 29401))
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, _PORT
    try:
        return host, int(port)
    except ValueError:
        raise CallError(f"{text}: give HOST:PORT") from None


def secret_of(args: argparse.Namespace) -> bytes:
    """The token of a job of another machine."""
    if args.token_file:
        try:
            return Path(args.token_file).read_bytes().strip()
        except OSError as error:
            raise CallError(f"cannot read {args.token_file}: {error.strerror}", file=args.token_file) from error
    if token := os.environ.get("PERDURE_TOKEN"):
        return token.encode()
    raise CallError("a job of another machine needs its token: set PERDURE_TOKEN, or give --token-file")


def note(seen: Seen) -> str:
    """A line that says why what is shown is not live; empty if it is."""
    return f"({seen.note})" if seen.note else ""
