"""Who may consolidate: a row with an expiry in the ledger, and a file lock that a process loses by dying.

The lock keeps those of one machine apart and shows at once that a holder is gone; the row does so between machines, and
is looked at again within the transaction that carries a plan out, so that one who was thought dead changes nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, PerdureError
from perdure.memory.ledger import Ledger
from perdure.memory.whole_files import locked

__all__ = ["LEASE_S", "leased", "renew", "still_held"]

LEASE_S: Final = 60.0
_NAME: Final = "consolidate"


@contextmanager
def leased(ledger: Ledger, lock: Path, *, deadline: Deadline) -> Iterator[str]:
    """Hold the lease, and give the name it is held under.

    Raises `DeadlineExceeded` where another does not let go of it.
    """
    host = socket.gethostname()
    holder = f"{host}/{os.getpid()}/{secrets.token_hex(8)}"
    with locked(lock, deadline=deadline):
        while not _take(ledger, holder, host):
            if deadline.passed():
                raise DeadlineExceeded(f"gave up waiting for {deadline.what}, on another machine", missing=["lease"])
            deadline.clock.sleep(min(0.2, max(0.01, deadline.left())))
        try:
            yield holder
        finally:
            with suppress(PerdureError, sqlite3.Error):  # it runs out by itself, and the first error counts
                with ledger.change() as db:
                    db.execute("DELETE FROM lease WHERE name = ? AND holder = ?", (_NAME, holder))


def renew(ledger: Ledger, holder: str, seconds: float) -> None:
    """Let the lease run for so long from now."""
    with ledger.change() as db:
        db.execute(
            "UPDATE lease SET until_s = ? WHERE name = ? AND holder = ?", (ledger.wall() + seconds, _NAME, holder)
        )


def still_held(db: sqlite3.Connection, holder: str) -> None:
    """Raise `DeadlineExceeded` where another has taken the lease."""
    row = db.execute("SELECT holder FROM lease WHERE name = ?", (_NAME,)).fetchone()
    if row is None or row[0] != holder:
        raise DeadlineExceeded("another worker has taken this one's place", missing=["lease"])


def _take(ledger: Ledger, holder: str, host: str) -> bool:
    now = ledger.wall()
    with ledger.change() as db:
        row = db.execute("SELECT holder, until_s FROM lease WHERE name = ?", (_NAME,)).fetchone()
        # Whoever holds the file lock knows that no one on this machine works; elsewhere, only time tells.
        if row is not None and row[1] > now and not row[0].startswith(f"{host}/"):
            return False
        db.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?)", (_NAME, holder, now + LEASE_S))
    return True
