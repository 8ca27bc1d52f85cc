"""Decide what the launcher does next. No processes, no clock, no sleep: events in, actions out.

| state | event | next state | actions |
|---|---|---|---|
| idle | `begin` | running | StartAttempt |
| running | RankEnded well or excused, others run | running | |
| running | RankEnded, the last, all well | killing | KillTree (children that ranks left behind) |
| running | RankEnded badly, by a signal | stopping | Terminate |
| running | RankEnded badly, by its code | settling | |
| settling | 0.3 s over | stopping | Terminate |
| running | Asked | draining | Terminate |
| settling, stopping | all ended, or ``stop_grace_s`` over | killing | KillTree |
| draining | all ended, ``grace_s`` over, or Asked again | killing | KillTree |
| draining | RankEnded badly | draining, 10 s more at most | |
| killing | TreeGone: processes are left | done | Fail |
| killing | TreeGone: asked to stop | done | Stop |
| killing | TreeGone: all ended well | done | Succeed |
| killing | TreeGone: a rank failed, worth another try | waiting or running | StartAttempt after the back-off |
| killing | TreeGone: a rank failed, not worth it | done | Fail |
| waiting | back-off over | running | StartAttempt |
| waiting | Asked | done | Stop |
| settling, stopping, killing | Asked | the same | (remembered: no other attempt) |

**The budget counts restarts without progress.** Progress is a step beyond the best of all attempts before; steps done
again after a restore are not progress. So a job that loses a node a day runs for ever, and one that dies at the same
step each time does not. **A repeated failure ends the job early**: the same end and last words twice in a row without
progress (`causes`). And an exit code of the error tree that asks for a person or another call (73, 64) ends it at once:
above all an attempt that a newer one has superseded must not come back and supersede that one in turn.

**Settling.** Peers of a rank that raised can be gone before it is: its own exit takes longer than their lost
connection. A moment lets it end by itself, so that it is seen to have failed and not to have been terminated. A death
by signal needs no such moment.

**Back-off**: the first restart without progress is immediate, the next waits 1 s, then 2, 4, ... up to 30, times 0.5 to
1.5 by chance.

**Asked twice means now**, but a second signal within half a second is the same request heard twice (a process group and
its leader).

**Finished, then aborted.** Libraries of process groups abort at exit now and then, after all work. A rank whose phase
says finished and that dies of its own fault (SIGABRT, SIGSEGV, SIGBUS) is excused.
"""

from __future__ import annotations

import enum
import random
import signal

from perdure.errors import CallError, NeedsPerson
from perdure.supervisor.causes import Death, first_cause, same_failure
from perdure.supervisor.config import RunConfig
from perdure.supervisor.vocabulary import (
    Action,
    Asked,
    Event,
    Fail,
    KillTree,
    Progressed,
    RankEnded,
    Retry,
    StartAttempt,
    Stop,
    Succeed,
    Terminate,
    Tick,
    TreeGone,
)

__all__ = [
    "Action",
    "Asked",
    "Event",
    "Fail",
    "KillTree",
    "Policy",
    "Progressed",
    "RankEnded",
    "Retry",
    "StartAttempt",
    "State",
    "Stop",
    "Succeed",
    "Terminate",
    "Tick",
    "TreeGone",
    "excuse",
]

_NO_USE = frozenset({CallError.exit_code, NeedsPerson.exit_code})
_AT_EXIT = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})
_SAME_REQUEST_S = 0.5
_SETTLE_S = 0.3
_BROKEN_DRAIN_S = 10.0
_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 30.0


class State(enum.Enum):
    """Where the job stands."""

    IDLE = "idle"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    DRAINING = "draining"
    KILLING = "killing"
    WAITING = "waiting"
    DONE = "done"


_LIVE = frozenset({State.RUNNING, State.SETTLING, State.STOPPING, State.DRAINING})


def excuse(event: RankEnded) -> str | None:
    """Return why this end counts as success although it is not one; None if it does not."""
    if event.finished and event.signal in _AT_EXIT:
        return "it had finished before; this counts as success"
    return None


class Policy:
    """The state of one job on one node. ``now`` is monotonic seconds."""

    def __init__(self, config: RunConfig, *, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self.state = State.IDLE
        self.attempt = 0
        self._running: set[int] = set()
        self._deaths: list[RankEnded] = []
        self._asked: Asked | None = None
        self._asked_at = 0.0
        self._due = 0.0
        self._best_step = 0
        self._progressed = False
        self._restarts_in_a_row = 0
        self._last_cause: Death | None = None

    def begin(self) -> list[Action]:
        """Start the first attempt."""
        return self._start()

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; return what to do, in order."""
        match event:
            case RankEnded():
                return self._rank_ended(event, now)
            case Progressed(step):
                if step > self._best_step:
                    self._best_step, self._progressed = step, True
                return []
            case Asked():
                return self._asked_to_stop(event, now)
            case TreeGone():
                return self._tree_gone(event, now)
            case Tick():
                return self._time_passed(now)

    def _rank_ended(self, event: RankEnded, now: float) -> list[Action]:
        self._running.discard(event.rank)
        failed = event.code != 0 and excuse(event) is None
        if failed and not (
            self.state not in (State.RUNNING, State.SETTLING) and event.signal in (signal.SIGTERM, signal.SIGKILL)
        ):
            self._deaths.append(event)  # a rank that ended by our own SIGTERM has not failed
        if not self._running and self.state in _LIVE:
            return self._kill()
        if failed and self.state is State.RUNNING and event.signal is None:
            self.state, self._due = State.SETTLING, now + _SETTLE_S
            return []
        if failed and self.state in (State.RUNNING, State.SETTLING) and event.signal is not None:
            return self._terminate(now)
        if failed and self.state is State.DRAINING and event.signal != signal.SIGTERM:
            self._due = min(
                self._due, now + _BROKEN_DRAIN_S
            )  # its part of the step is lost: no use in waiting for long
        return []

    def _terminate(self, now: float) -> list[Action]:
        self.state, self._due = State.STOPPING, now + self._config.stop_grace_s
        return [Terminate()]

    def _asked_to_stop(self, event: Asked, now: float) -> list[Action]:
        first = self._asked is None
        if first:
            self._asked, self._asked_at = event, now
        if self.state is State.RUNNING:
            self.state, self._due = State.DRAINING, now + self._config.grace_s
            return [Terminate()]
        if self.state is State.DRAINING and now - self._asked_at > _SAME_REQUEST_S:
            return self._kill()
        if self.state is State.WAITING:
            return self._finish(Stop(event.signal))
        return []

    def _time_passed(self, now: float) -> list[Action]:
        if now < self._due:
            return []
        if self.state is State.SETTLING:
            return self._terminate(now)
        if self.state in (State.STOPPING, State.DRAINING):
            return self._kill()
        return self._start() if self.state is State.WAITING else []

    def _tree_gone(self, event: TreeGone, now: float) -> list[Action]:
        deaths = [Death(d.rank, d.code, d.signal, event.tails.get(d.rank, ())) for d in self._deaths]
        cause = first_cause(deaths) if deaths else None
        others = tuple(death for death in deaths if death is not cause)
        if event.left:
            pids = ", ".join(map(str, event.left))
            return self._finish(
                Fail(f"processes {pids} cannot be killed and may hold memory or a device", cause, others)
            )
        if self._asked is not None:
            return self._finish(Stop(self._asked.signal, event.killed))
        if cause is None:
            return self._finish(Succeed())
        return self._after_failure(cause, others, now)

    def _after_failure(self, cause: Death, others: tuple[Death, ...], now: float) -> list[Action]:
        if self._progressed:
            self._restarts_in_a_row, self._last_cause = 0, None
        if self._config.max_restarts == 0:
            return self._finish(Fail("no restart is allowed (max_restarts is 0)", cause, others))
        if cause.code in _NO_USE:
            return self._finish(Fail("its exit code says that a restart cannot help", cause, others))
        if same_failure(cause, self._last_cause):
            return self._finish(
                Fail("it failed the same way twice without a new step: a restart cannot help", cause, others)
            )
        if self._restarts_in_a_row >= self._config.max_restarts:
            return self._finish(Fail(f"{self._restarts_in_a_row} restarts in a row brought no new step", cause, others))
        self._last_cause = cause
        delay_s = backoff_s(self._restarts_in_a_row, chance=self._rng.random())
        self._restarts_in_a_row += 1
        retry = Retry(cause, others, delay_s)
        if delay_s == 0:
            return [retry, *self._start()]
        self.state, self._due = State.WAITING, now + delay_s
        return [retry]

    def _start(self) -> list[Action]:
        if self.state is not State.IDLE:
            self.attempt += 1
        self.state = State.RUNNING
        self._running = set(range(self._config.nproc))
        self._deaths = []
        self._progressed = False
        return [StartAttempt(self.attempt)]

    def _kill(self) -> list[Action]:
        self.state = State.KILLING
        return [KillTree()]

    def _finish(self, action: Action) -> list[Action]:
        self.state = State.DONE
        return [action]


def backoff_s(n_before: int, *, chance: float) -> float:
    """Return how long to wait after ``n_before`` restarts without progress; ``chance`` is in 0 .. 1.

    >>> [backoff_s(n, chance=0.5) for n in (0, 1, 2, 3, 9)]
    [0.0, 1.0, 2.0, 4.0, 30.0]
    """
    if n_before == 0:
        return 0.0
    return min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** min(n_before - 1, 10)) * (0.5 + chance)
