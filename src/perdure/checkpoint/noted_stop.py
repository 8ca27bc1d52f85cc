"""Where ranks of several nodes stop when no agents can agree on it: through the board of `perdure.checkpoint.notes`.

Agents agree as `perdure.progress.stop` tells. Without them (``agent=False``, or once one has died) each rank looks at
the board at its cut, one round trip a step. It is the same argument, with the board in place of the page: the board
does one thing after another, so there is no fence to pay for, and no rank need know how far another may be.

**Words.** ``step-R``: the completed steps of rank R. ``wanted``: some rank was asked to stop. ``stop``: a step, and
whether it is firm; rank 0 writes it, inside its own cut.

**A rank at the cut of step s** leaves ``step-R = s``, then reads ``stop``. If there is none, or one past s, it goes on.
Else it waits until ``stop`` is firm, or past s.

**Rank 0**, if ``wanted``, takes T := 2 + the largest step, leaves ``stop = T``, and reads all steps again. If all are
below T, T is firm; else again. It begins once *every* rank has left a step: one that still relies on its agent does
not look here yet.

**From agents to the board.** Agents may have made a step firm just before one of them died, and told some nodes only.
A rank that knows a firm step from its page when it first turns to the board never leaves a step there, so that rank 0
proposes none; it leaves the firm one for the others. A rank that has left a step looks at its page no more. One that
comes to a step which agents proposed to it waits, once, for a rank that knows it to be firm, until all have left a
step (then nobody does) or the deadline has passed. Whoever was asked to stop says ``wanted`` here too, whatever became
of it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from perdure.checkpoint.notes import Notes
from perdure.errors import DeadlineExceeded, LinkLost
from perdure.events import Fact, Notice
from perdure.progress import MARGIN_STEPS, Page, StopAgreement

__all__ = ["NotedStop"]

_WAIT_S = 0.02
_SLOW_WAIT_S = 0.25  # where each look reads the steps of all ranks


class NotedStop:
    """One rank's side. ``agreement`` and ``page`` are those of the agents' way, None without agents.

    ``has_agents`` says whether agents still agree; ``tell`` takes a fact, and whether it is for every rank's log.
    Called from the thread that runs the training loop.
    """

    def __init__(
        self,
        notes: Notes,
        *,
        session: str,
        rank: int,
        world: int,
        agreement: StopAgreement | None,
        page: Page | None,
        has_agents: Callable[[], bool],
        tell: Callable[[Fact, bool], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._notes, self._session = notes, session
        self._rank, self._world = rank, world
        self._agreement, self._page, self._has_agents = agreement, page, has_agents
        self._tell, self._pause = tell, pause
        self._last: int | None = None  # the step of the cut before
        self._passed_on = False
        self._looked = False
        self._joined = False
        self._waited = False
        self._wanted = False
        self._lost: LinkLost | None = None

    def at_cut(self, step: int, *, asked: bool, deadline_s: float = 10.0) -> bool:
        """Whether this rank stops here. ``asked``: it has got a signal; ``deadline_s`` bounds each wait for another.

        Raises what it is to stop for without a save: `LinkLost` if it was asked to and the board is gone,
        `DeadlineExceeded` if the others have stopped at a step that it has passed.
        """
        before, self._last = self._last, step
        if self._agreement is not None and self._has_agents():
            stop = self._agreement.at_cut(step, deadline_s=deadline_s)
            self._pass_on()
            if stop or self._has_agents():
                return stop
        if self._lost is None:
            try:
                return self._look(step, before, asked, deadline_s)
            except LinkLost as error:
                self._lost = error
                if not asked:
                    text = f"this rank can agree with others on where to stop no more: {error}"
                    self._tell(Notice(text=text), True)
        if asked:
            raise LinkLost(f"it cannot agree with the other ranks on a step: {self._lost}") from self._lost
        return False

    # --- inside ------------------------------------------------------------------------------------------------------

    def _look(self, step: int, before: int | None, asked: bool, deadline_s: float) -> bool:
        if not self._looked:
            self._looked = True
            text = "no agents agree on where to stop: ranks do, through torch's store, at one look a step from now on"
            self._tell(Notice(text=text), False)
        if not self._joined and self._page is not None and self._page.firm:
            self._pass_on()
            return step >= self._page.firm
        if asked and not self._wanted:
            self._notes.leave(self._name("wanted"), b"1")
            self._wanted = True
        self._notes.leave(self._name(f"step-{self._rank}"), str(step).encode())
        self._joined = True
        if self._page is not None and 0 < self._page.proposed <= step and not self._waited:
            self._waited = True
            self._wait_for_the_agents_word(deadline_s)
        found = self._stop() if self._rank != 0 else self._settled()
        give_up = time.monotonic() + deadline_s
        while found is not None and not found[1] and step >= found[0]:
            if time.monotonic() > give_up:
                return False  # rank 0 died within its cut, and the attempt with it
            self._pause(_WAIT_S)
            found = self._stop()
        if found is None or step < found[0]:
            return False
        if before is not None and before >= found[0]:
            raise DeadlineExceeded(f"the others stop after step {found[0]}, and this rank has completed {step}")
        return True

    def _settled(self) -> tuple[int, bool] | None:
        """Rank 0: the firm step, once a stop is wanted and all ranks look here."""
        if self._notes.read(self._name("wanted")) is None:
            return None
        found = self._stop()
        while found is None or not found[1]:
            steps = self._steps()
            if steps is None:
                return None
            if found is not None and max(steps) < found[0]:
                found = (found[0], True)
            else:
                found = (max(steps) + MARGIN_STEPS, False)
            self._notes.leave(self._name("stop"), msgspec.json.encode(found))
        return found

    def _pass_on(self) -> None:
        """Leave the step that the agents have made firm, for ranks that they could not tell."""
        if self._passed_on or self._page is None or self._page.firm == 0:
            return
        self._passed_on = True
        try:
            self._notes.leave(self._name("wanted"), b"1")  # first: who finds the stop finds this too
            self._notes.leave(self._name("stop"), msgspec.json.encode((self._page.firm, True)))
        except LinkLost:
            pass  # this rank knows where to stop, and whoever kept the board is gone

    def _wait_for_the_agents_word(self, deadline_s: float) -> None:
        give_up = time.monotonic() + deadline_s
        while self._stop() is None and self._steps() is None and time.monotonic() < give_up:
            self._pause(_SLOW_WAIT_S)

    def _stop(self) -> tuple[int, bool] | None:
        text = self._notes.read(self._name("stop"))
        return None if text is None else msgspec.json.decode(text, type=tuple[int, bool])

    def _steps(self) -> list[int] | None:
        """The steps of all ranks; None if one has not left any."""
        found = self._notes.read_all([self._name(f"step-{rank}") for rank in range(self._world)])
        return None if found is None else [int(text) for text in found]

    def _name(self, word: str) -> str:
        return f"{self._session}/stop/{word}"
