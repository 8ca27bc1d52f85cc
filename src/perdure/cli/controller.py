"""``perdure controller``: the process that decides about a job. Started by the first launcher that needs it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["add_parser", "end_controller", "job_home", "main", "start_controller"]


_END_S = 5.0


def job_home() -> Path:
    """The folder in which jobs have theirs on this machine (PERDURE_STATE, else below XDG_STATE_HOME)."""
    named = os.environ.get("PERDURE_STATE", "")
    if named:
        return Path(os.path.abspath(named))
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    return home / "perdure" / "jobs"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "controller",
        help="decide about a job (started by itself when needed)",
        description="Decides about one job: which nodes have which places, when ranks start, what is done after a "
        "fault. The first launcher that needs it starts it; it leaves when the job is over or no launcher is left.",
    )
    parser.add_argument("--folder", required=True, metavar="DIR", help="the job's folder, with its spec.json and token")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="where launchers find it")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Decide until the job is over; 0 also if another controller is there already."""
    import msgspec

    from perdure.cli.watching import JobJudge
    from perdure.errors import CallError
    from perdure.events import Log
    from perdure.process.lock import FileLock
    from perdure.supervisor.config import Spec
    from perdure.supervisor.controller import Controller
    from perdure.supervisor.folder import JobFolder
    from perdure.supervisor.journal import Journal
    from perdure.supervisor.running import next_job

    place = Path(args.folder)
    folder = JobFolder(place.parent, place.name)
    folder.make()
    lock = FileLock.try_acquire(folder.lock)
    if lock is None:
        return 0  # another one decides; whoever started this one will find it
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # a launcher hears them, and says so
        signal.signal(number, signal.SIG_IGN)
    host, _, port = args.listen.rpartition(":")
    try:
        try:
            spec = msgspec.json.decode(folder.spec.read_bytes(), type=Spec)
        except (OSError, msgspec.MsgspecError) as error:
            raise CallError(f"cannot read {folder.spec}: {error}") from error
        journal = Journal(folder.journal)
        found = next_job(journal, spec, wall=time.time())
        if found is None:
            return 0
        job, again = found
        log = Log(os.environ.get("PERDURE_EVENTS") or None)
        judge = None
        if spec.watch:
            judge = JobJudge(folder.path, job=spec.name, run=job.run, phase_deadlines=spec.phase_deadlines)
        controller = Controller(
            folder,
            spec,
            job,
            journal=journal,
            secret=folder.token(),
            listen=(host, int(port)),
            again=again,
            log=log,
            judge=judge,
        )
        controller.run()
        journal.close()
        log.close()
    finally:
        lock.remove()
    return 0


def start_controller(folder: Path, *, listen: str = "127.0.0.1:0") -> subprocess.Popen[bytes]:
    """Start the controller of the job in ``folder`` as a process that outlives this one; it may find another there."""
    from perdure.process.environ import without_mark

    with open(folder / "controller.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "perdure", "controller", "--folder", str(folder), "--listen", listen],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=without_mark(),
            cwd="/",
            start_new_session=True,
        )


def end_controller(folder: Path) -> bool:
    """End the controller of the job in ``folder`` if it runs on this machine; whether there is none there any more."""
    from perdure.process.handle import Handle, is_running
    from perdure.supervisor.folder import JobFolder, boot_id

    where = JobFolder(folder.parent, folder.name).where()
    if where is None or where.machine != boot_id():
        return False
    return not is_running(where.pid) or Handle(where.pid).end(within_s=_END_S)
