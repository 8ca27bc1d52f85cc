"""Agree on one step at which all ranks of a node stop, after any of them was asked to, without a collective.

Why not a collective: the request (SIGTERM) reaches ranks at different moments, in different phases. A rank that enters
an all-reduce "shall we stop?" which another has already passed hangs both. Here nobody waits for a rank that is
somewhere else.

**Words.** Each rank publishes ``step``, its completed optimizer steps, which only grows. The *cut* of a step is a point
that every rank passes once for each step it completes (the end of the iteration). ``term`` of any rank: it was asked to
stop. ``proposed`` and ``firm``: two words of the page, written by the arbiter alone. The arbiter is the lowest local
rank that is not finished, and acts only inside its own cut.

**A rank at the cut of step s**

1. publishes ``step = s``;
2. reads ``proposed`` = P. If P = 0 or s < P it goes on.
3. Else it waits until ``firm`` is set, or ``proposed`` has grown past s (then it goes on), then stops if s >= ``firm``.

**The arbiter at its cut**, after 1 and before 2, if some ``term`` is set and ``firm`` is 0

1. T := 2 + the largest published step; ``proposed := T``; a fence;
2. reads all published steps. If one is >= T: again, from 1. Else ``firm := T``.

**All stop at the same T.** Take a rank that goes on past its cut of T. It published T before it read a ``proposed``
that was not T (0, or less than it needs to wait for). The arbiter wrote ``proposed = T`` and then, past the fence, read
a step of that rank below T. Both cannot be: either the rank's store comes before the arbiter's read (which then sees T
and proposes a larger one), or the arbiter's store comes before the rank's read (which then sees T, and waits). That is
Dekker's argument, and it needs a full fence between the store and the read on *both* sides. A fence in every cut of
every rank would be paid always for what happens once, and Python has none to offer; so the arbiter pays for all with
``membarrier(2)``, which makes every running CPU pass a full fence before it returns. Ranks need only program order,
which an interpreter keeps.

**Nobody waits for long.** A rank waits in 3 only while the arbiter is between its two writes, microseconds to
milliseconds within one call, in which it waits for nobody; and at most until ``deadline_s``, after which (the arbiter
was killed at just that point) it goes on: the attempt is lost anyway. The repetition in 2 ends because the others run
out of steps they can take without the arbiter's rank. No rank misses T: each has T ahead of it, and none stops earlier,
so that the collectives of all steps up to T have all their members.

**Finished ranks.** If the arbiter finishes, the next rank sees ``FINISHED``, which was written after the arbiter's last
cut: two never act at once. A finished rank still counts with its last step, so that T lies past it: the others then run
to their end as it did, instead of ending one step apart. If all ranks end before T, they ended.

The steps of a loop may jump (a caller counts as it likes) if all ranks jump alike: a rank stops at its first cut at or
past T.

**Several nodes.** Each has a page of its own, and no rank is the arbiter (``arbitrates`` is False): the agent of node 0
is. Its writes and reads are then `look`, on every node: write ``proposed``, fence, and answer with the largest
published step; once all answers are below T, every node gets ``firm``. The argument is the same for each node, and
ranks wait for a few round trips of the network instead of for microseconds. When an agent is gone, ranks agree without
them: `perdure.checkpoint.noted_stop`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable

from perdure.progress.page import Page, Phase

__all__ = ["MARGIN_STEPS", "StopAgreement", "fence_all", "look"]

MARGIN_STEPS = 2
_WAIT_S = 0.0005
_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "ppc64le": 365, "s390x": 356, "riscv64": 283}
_GLOBAL = 1


class StopAgreement:
    """One rank's side of the agreement. Called from the thread that runs the training loop.

    >>> with Page.create(1) as page:
    ...     stop = StopAgreement(page, local_rank=0)
    ...     page.rank(0).claim(rank=0)
    ...     page.rank(0).ask_to_stop()
    ...     [stop.at_cut(step, deadline_s=1.0) for step in (1, 2, 3)]
    [False, False, True]
    """

    def __init__(
        self,
        page: Page,
        *,
        local_rank: int,
        arbitrates: bool = True,
        fence: Callable[[], None] | None = None,
        pause: Callable[[float], None] = time.sleep,
        gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._page = page
        self._records = page.records()
        self._mine = self._records[local_rank]
        self._may_arbitrate = arbitrates
        self._fence = fence or fence_all
        self._pause = pause
        self._gone = gone

    def at_cut(self, step: int, *, deadline_s: float = 10.0) -> bool:
        """Publish ``step``; return whether this rank stops here. About two microseconds when nobody asked.

        ``deadline_s`` bounds the wait for the arbiter; a rank that waited in vain goes on (False), and so does one
        whose arbiter is ``gone``.
        """
        self._mine.step = step
        page = self._page
        if (
            self._may_arbitrate
            and page.firm == 0
            and self._arbitrates()
            and any(record.term for record in self._records)
        ):
            self._settle()
        if page.proposed == 0 or step < page.proposed:
            return False
        give_up = time.monotonic() + deadline_s
        while (firm := page.firm) == 0:
            if step < page.proposed or self._gone() or time.monotonic() > give_up:
                return False
            self._pause(_WAIT_S)
        return step >= firm

    @property
    def agreed(self) -> int | None:
        """The step at which all stop, once it is agreed."""
        return self._page.firm or None

    def _arbitrates(self) -> bool:
        for record in self._records[: self._mine.local_rank]:
            if record.phase is not Phase.FINISHED:
                return False
        return True

    def _settle(self) -> None:
        """Propose steps until one lies ahead of every rank for certain; make it firm."""
        while True:
            target = max(record.step for record in self._records) + MARGIN_STEPS
            self._page.proposed = target
            self._fence()
            if all(record.step < target for record in self._records):
                self._page.firm = target
                return


def look(page: Page, proposed: int, *, fence: Callable[[], None] | None = None) -> int:
    """One node's answer to the arbiter of several: write ``proposed``, unless it is 0, then find the largest step."""
    if proposed:
        page.proposed = proposed
        (fence or fence_all)()
    return max(record.step for record in page.records())


def fence_all() -> None:
    """Return after every CPU that runs a thread of this machine has passed a full memory fence.

    Without ``membarrier`` (an old kernel, a sandbox) a millisecond passes instead, in which a store buffer has long
    drained.
    """
    number = _MEMBARRIER.get(platform.machine())
    if number is None or not hasattr(os, "sched_yield") or _libc().syscall(number, _GLOBAL, 0) != 0:
        time.sleep(0.001)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
