"""``perdure agent``: the process that keeps a node's checkpoint memory. Started by the first rank that needs it."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.process.lock import FileLock

__all__ = ["add_parser", "main", "serve"]

LEASE_S = 60.0
_GIVE_WAY_S = 20.0


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
    parser.add_argument("--lease", type=float, default=None, metavar="S", help=f"seconds without anybody ({LEASE_S:g})")
    parser.add_argument("--memory", type=int, default=None, metavar="BYTES", help="checkpoint memory to hold at most")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Serve until the lease is over; 0 also if another agent is there already."""
    from perdure.store import open_store

    lease = args.lease if args.lease is not None else float(os.environ.get("PERDURE_LEASE_S", LEASE_S))
    return serve(args.job, args.url, lease_s=lease, memory_bytes=args.memory, open_store=open_store)


def serve(
    job: str, url: str, *, lease_s: float, memory_bytes: int | None = None, open_store: Callable[..., object]
) -> int:
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
        clear_stale(path)
        listener = listen(path)
        agent = Agent(
            cast(Store, open_store(url)),
            listener,
            job=job,
            url=url,
            lease_s=lease_s,
            memory_bytes=memory_bytes,
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
        lock.release()
    return 0


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
