"""Wait for a store that may hang, and go on without it.

A call to a hung disk sleeps where no signal and no deadline reaches it (state D). So the work is done on a thread of
its own, which says that it moves; when it has not for a while, whoever waits raises, and leaves the thread to the disk.
It ends as soon as it is heard of again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from perdure.errors import DeadlineExceeded

__all__ = ["unless_stalled"]

Result = TypeVar("Result")
_END_S = 5.0  # after Ctrl-C, for the work to see that it is not wanted any more


class _Unwanted(Exception):
    """Ends work that nobody waits for."""


def unless_stalled(work: Callable[[Callable[[Any], None]], Result], *, stall_s: float, what: str) -> Result:
    """Return ``work(moved)``, done on another thread; raise `DeadlineExceeded` after ``stall_s`` without progress.

    ``work`` calls ``moved`` (with anything) whenever it has got further. What it writes to may change until it ends,
    even after the error: the caller must not use that any more.

    >>> unless_stalled(lambda moved: 7, stall_s=5.0, what="the newest step")
    7
    """
    turn = threading.Condition()
    steps = 0
    unwanted = False
    result: list[Result] = []
    errors: list[BaseException] = []

    def moved(_: Any = None) -> None:
        nonlocal steps
        with turn:
            if unwanted:
                raise _Unwanted
            steps += 1
            turn.notify_all()

    def run() -> None:
        try:
            result.append(work(moved))
        except BaseException as error:  # raised by who waits
            errors.append(error)
        with turn:
            turn.notify_all()

    def ended() -> bool:
        return bool(result or errors)

    threading.Thread(target=run, name="perdure-store", daemon=True).start()
    with turn:
        try:
            while not ended():
                if not turn.wait_for(lambda seen=steps: ended() or steps != seen, stall_s):  # type: ignore[misc]
                    unwanted = True
                    raise DeadlineExceeded(
                        f"the store made no progress for {stall_s:g} s with {what}; see whether its disk or server "
                        "hangs, then start again",
                        what=what,
                        stall_s=stall_s,
                    )
        except KeyboardInterrupt:
            unwanted = True
            turn.wait_for(ended, _END_S)
            raise
    if errors:
        raise errors[0]
    return result[0]
