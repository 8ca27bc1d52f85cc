"""``perdure agent``: the process that keeps a node's checkpoint memory. Started by the first rank that needs it."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.process.lock import FileLock

__all__ = ["add_parser", "main", "serve"]

LEASE_S = 60.0
_LONGEST_S = 366 * 86400.0
_GIVE_WAY_S = 20.0
_OLD_S = 60.0  # before that an agent may be about to write to its log


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "agent",
        help="keep checkpoint memory on this node (started by itself when needed)",
        description="Keeps checkpoint memory for one job and run on this node, and writes it to the store. The first "
        "rank that needs it starts it; it leaves by itself when nobody has been connected for the lease.",
    )
    parser.add_argument("--job", required=True, help="the job's name")
    parser.add_argument("--url", required=True, help="the run's store")
    parser.add_argument("--lease", default=None, metavar="S", help=f"seconds without anybody ({LEASE_S:g})")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Serve until the lease is over; 0 also if another agent is there already."""
    from perdure.store import open_store

    if args.lease is not None:
        lease_s = _lease_s(args.lease, "--lease")
    else:
        lease_s = _lease_s(os.environ.get("PERDURE_LEASE_S") or str(LEASE_S), "PERDURE_LEASE_S")
    return serve(args.job, args.url, lease_s=lease_s, open_store=open_store)


def _lease_s(text: str, of: str) -> float:
    """The seconds that ``text`` says, which a person has written."""
    from perdure.errors import CallError

    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_S:
        raise CallError(f"{of} is {text!r}; give seconds from 0 to {_LONGEST_S:g}, such as {LEASE_S:g}")
    return seconds


def serve(job: str, url: str, *, lease_s: float, open_store: Callable[..., object]) -> int:
    """Take the lock, listen, serve. ``open_store`` is a parameter so that tests can put a faulty store between."""
    from typing import cast

    from perdure.checkpoint.agent import Agent
    from perdure.checkpoint.link import socket_path
    from perdure.store import Store
    from perdure.wire import clear_stale, listen

    path = socket_path(job=job, url=url)
    lock = _lock(path)
    if lock is None:
        return 0  # another agent serves; whoever started this one will find it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _sweep(path.parent)
        clear_stale(path)
        listener = listen(path)
        agent = Agent(
            cast(Store, open_store(url)),
            listener,
            job=job,
            url=url,
            lease_s=lease_s,
            open_store=cast(Callable[[str], Store], open_store),
        )
        signal.signal(signal.SIGTERM, lambda number, frame: agent.leave())
        try:
            agent.run()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                log = path.with_suffix(".log")
                if log.stat().st_size == 0:  # nothing to say
                    log.unlink()
    finally:
        lock.remove()
    return 0


def _sweep(folder: Path) -> None:
    """Remove what agents that died have left: their locks, sockets, and logs in which nothing is."""
    from perdure.process.lock import FileLock

    for path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):  # another agent sweeps too
            lock = FileLock.try_acquire(path)
            if lock is None:
                continue  # it lives
            try:
                path.with_suffix(".sock").unlink(missing_ok=True)
                log = path.with_suffix(".log")
                if log.exists() and log.stat().st_size == 0 and time.time() - log.stat().st_mtime > _OLD_S:
                    log.unlink()
            finally:
                lock.remove()


def _lock(path: Path) -> FileLock | None:
    """The lock that guards the socket ``path``; None if another agent answers there. One that is leaving is awaited."""
    from perdure.clock import Deadline
    from perdure.errors import DeadlineExceeded
    from perdure.process.lock import FileLock
    from perdure.wire import connect

    deadline = Deadline.after(_GIVE_WAY_S, "the agent before this one to leave")
    while (lock := FileLock.try_acquire(path.with_suffix(".lock"))) is None:
        try:
            connect(path, deadline=Deadline.after(0.1, "the other agent")).close()
            return None
        except DeadlineExceeded:
            deadline.check()
    return lock
