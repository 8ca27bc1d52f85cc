"""Wait until a job has come so far."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.supervisor.asking import Asker
    from perdure.supervisor.messages import View

__all__ = ["add_wait", "wait_until"]

_POLL_S = 0.2


def add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--wait``."""
    parser.add_argument(
        "--wait", type=float, metavar="S", help=f"wait until {what}, at most so many seconds (exit code 75 if not)"
    )


def wait_until(asker: Asker, done: Callable[[View], bool], *, within_s: float, what: str) -> None:
    """Look at the job until ``done``; raise `DeadlineExceeded` after ``within_s``."""
    from perdure.clock import Deadline

    deadline = Deadline.after(within_s, what)
    while not done(asker.look(history=False).view):
        deadline.check()
        time.sleep(_POLL_S)
