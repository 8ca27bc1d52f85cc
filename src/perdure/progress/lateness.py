"""Which rank of this node does not get on: deadlines by phase, learned from what is seen. Pure: records in, names out.

**How long a phase may take.** Its own ``deadline_ns``, where the rank gave one. Else what the user said. Else the
largest of: a floor, and ten times the longest that this phase was seen to take on any rank of the node. The first time
of a phase on a rank in an attempt has a floor of its own, because the first forward compiles, the first collective
connects everybody, and the first save allocates. What the user says of steps does not hold for the first one (that is
``first-step``); but once a first step has been seen on this node, ten times that is enough for those of later attempts.
Defaults are long, because a healthy job that is ended costs more than a hung one that waits: an evaluation that nobody
announced is part of `Phase.FORWARD`, and a recompilation is too.

**What counts as time.** Only what was looked at. If the looking itself was late (the machine stood still, the launcher
was stopped or starved), the phase of every rank begins anew; that is given once a phase, and after it each late look
counts as `LATE_LOOK_S`, so that a launcher which is always late still sees a hang.

**Who waits for whom.** A rank in a forward or a step may wait for the others, so it is not accused while one of them is
in a phase of its own (an evaluation, a save) and in time; nor while one of another node is, which the caller says. When
several are late together, the *suspects* are those that stand still as processes; else those with the fewest steps;
of them those that have been in their phase for longest; of them those whose beat stands while that of others grows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.errors import CallError
from perdure.progress.page import Phase, Snapshot

__all__ = ["LATE_LOOK_S", "Allowance", "Late", "Lateness", "phase_deadlines"]

LATE_LOOK_S = 5.0
"""A look this long after the one before is late, unless looks are meant to be further apart."""
_FACTOR = 10.0
_TOGETHER_NS = 500_000_000  # phases that begin within this have begun together
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """How long a phase may take: ``first_s`` the first time on a rank, at least ``floor_s`` later."""

    first_s: float
    floor_s: float
    said_first: bool = False
    "Whether a user said ``first_s``; else it only holds until a first step has been seen on the node."


DEFAULTS: Mapping[Phase, Allowance] = {
    Phase.STARTING: Allowance(3600.0, 3600.0),
    Phase.RESTORING: Allowance(3600.0, 3600.0),
    Phase.FORWARD: Allowance(3600.0, 1800.0),
    Phase.STEP: Allowance(3600.0, 1800.0),
    Phase.COPYING: Allowance(1800.0, 900.0),
    Phase.SAVING: Allowance(3600.0, 3600.0),
    Phase.EVALUATING: Allowance(7200.0, 7200.0),
    Phase.CLOSING: Allowance(3600.0, 3600.0),
}
_WAITING = frozenset({Phase.FORWARD, Phase.STEP})
_BEFORE_STEPS = frozenset({Phase.STARTING, Phase.RESTORING})
_NAMES: Mapping[str, tuple[Phase, ...]] = {
    "start": (Phase.STARTING,),
    "restore": (Phase.RESTORING,),
    "step": (Phase.FORWARD, Phase.STEP),
    "save": (Phase.COPYING, Phase.SAVING),
    "evaluate": (Phase.EVALUATING,),
    "close": (Phase.CLOSING,),
}


def phase_deadlines(text: str) -> dict[Phase, Allowance]:
    """Read what a user says of phases, in seconds: ``step=60,save=900``; return it for `Lateness`.

    Names are start, restore, step, first-step, save, evaluate, close. Raises `CallError` for another, for one that is
    said twice, and for what is no time.

    >>> phase_deadlines("step=60,first-step=600")[Phase.FORWARD]
    Allowance(first_s=600.0, floor_s=60.0, said_first=True)
    """
    said: dict[str, float] = {}
    for item in filter(None, (each.strip() for each in text.split(","))):
        name, equals, number = (part.strip() for part in item.partition("="))
        if name not in _NAMES and name != "first-step":
            raise CallError(f"there is no phase {name!r}; phases are {', '.join(_NAMES)} and first-step")
        if name in said:
            raise CallError(f"{name} is given twice in {text!r}")
        try:
            said[name] = float(number)
        except ValueError:
            said[name] = 0.0
        if not equals or not 0 < said[name] < 1e9:
            raise CallError(f"{item!r} gives no time for {name}; give seconds above 0, as {name}=60")
    first_s = said.pop("first-step", None)
    found = {phase: Allowance(seconds, seconds) for name, seconds in said.items() for phase in _NAMES[name]}
    for phase in _NAMES["step"]:
        usual = DEFAULTS[phase]
        if phase in found:
            seconds = found[phase].floor_s
            first = max(usual.first_s, seconds) if first_s is None else first_s
            found[phase] = Allowance(first, seconds, first_s is not None)
        elif first_s is not None:
            found[phase] = Allowance(first_s, usual.floor_s, True)
    return found


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that is longer in a phase than it may be. ``suspect`` if it may be the one that the others wait for."""

    rank: int
    phase: Phase
    seconds_in_phase: float
    allowed_s: float
    step: int
    suspect: bool
    why: str
    "what makes it a suspect, or that it seems to wait; goes on from ``rank 3``"


@dataclass(slots=True)
class _Seen:
    """One rank, from look to look."""

    at: Snapshot
    counted_ns: int
    from_step: int
    forgiven: bool = False
    beat_grew: bool = False
    done: set[Phase] = field(default_factory=set)


class Lateness:
    """Watches the ranks of one node over the attempts of a job. To be called from one thread.

    ``overrides`` are the user's (`phase_deadlines`); ``look_s`` is how far apart looks are meant to be.
    """

    def __init__(self, overrides: Mapping[Phase, Allowance] | None = None, *, look_s: float = 1.0) -> None:
        self._overrides = dict(overrides or {})
        self._late_look_ns = int(max(LATE_LOOK_S, 3 * look_s) * _SECOND)
        self._longest_ns: dict[Phase, int] = {}
        self._longest_first_ns: dict[Phase, int] = {}  # of steps
        self._seen: dict[int, _Seen] = {}
        self._looked_ns: int | None = None
        self._busy = False

    def begin_attempt(self) -> None:
        """Forget the ranks of the attempt before; what was learned stays."""
        self._seen = {}
        self._looked_ns = None
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether a rank was at the last look in a phase that others may wait for, and in time: for other nodes."""
        return self._busy

    def look(
        self,
        snapshots: Sequence[Snapshot],
        now_ns: int,
        *,
        stopped: Collection[int] = (),
        busy_elsewhere: bool = False,
    ) -> tuple[Late, ...]:
        """Take the records of all local ranks at ``now_ns`` (CLOCK_MONOTONIC); return who is late, suspects first.

        ``stopped`` are ranks whose process does not run (state T in /proc); ``busy_elsewhere`` says whether a rank of
        another node is `busy`. A record that no rank has claimed, and a rank that has finished, is never late.
        """
        gap_ns = None if self._looked_ns is None else now_ns - self._looked_ns
        self._looked_ns = now_ns
        for each in snapshots:
            self._count(each, now_ns, gap_ns)
        live = [self._seen[each.rank] for each in snapshots if each.phase not in (Phase.ABSENT, Phase.FINISHED)]
        late = [seen for seen in live if seen.counted_ns > self._allowed_ns(seen)]
        in_time = [seen for seen in live if seen.counted_ns <= self._allowed_ns(seen)]
        self._busy = any(seen.at.phase not in _WAITING and seen.at.rank not in stopped for seen in in_time)
        if self._busy or busy_elsewhere:
            late = [seen for seen in late if not self._may_wait(seen, stopped)]
        return self._named(late, [seen for seen in live if seen.at.rank in stopped], stopped)

    def _count(self, at: Snapshot, now_ns: int, gap_ns: int | None) -> None:
        if at.phase is Phase.ABSENT:
            return
        in_phase_ns = max(0, now_ns - at.phase_since_ns)
        seen = self._seen.get(at.rank)
        on_time = gap_ns is not None and 0 <= gap_ns <= self._late_look_ns
        if seen is None or seen.at.pid != at.pid:
            # Not looked at before: it began unseen, at most one look ago where looks are on time.
            self._seen[at.rank] = _Seen(at, min(in_phase_ns, self._late_look_ns), at.step)
            return
        if (seen.at.phase, seen.at.phase_since_ns) != (at.phase, at.phase_since_ns):
            self._learn(seen, at if on_time else None)
            seen.done.add(seen.at.phase)
            if seen.at.phase in _BEFORE_STEPS:
                seen.from_step = at.step  # what is restored sets it
            # It began after the look before, whatever a record between two stores says.
            began_ns = gap_ns if on_time and gap_ns is not None else self._late_look_ns
            seen.counted_ns, seen.forgiven = min(in_phase_ns, began_ns), False
        elif on_time:
            seen.counted_ns += gap_ns or 0
        elif not seen.forgiven:
            seen.counted_ns, seen.forgiven = 0, True
        else:
            seen.counted_ns += min(self._late_look_ns, max(0, gap_ns or 0))
        seen.beat_grew = at.beat != seen.at.beat
        seen.at = at

    def _learn(self, seen: _Seen, after: Snapshot | None) -> None:
        """Remember how long a phase that is over took: until the next began, or what was looked at of it."""
        took_ns = seen.counted_ns if after is None else max(0, after.phase_since_ns - seen.at.phase_since_ns)
        if after is not None and took_ns > seen.counted_ns + self._late_look_ns:
            took_ns = seen.counted_ns  # part of it was not looked at
        phase = seen.at.phase
        of_first = phase in _WAITING and self._first(seen)  # a compilation says nothing of the steps after it
        longest = self._longest_first_ns if of_first else self._longest_ns
        longest[phase] = max(took_ns, longest.get(phase, 0))

    def _may_wait(self, seen: _Seen, stopped: Collection[int]) -> bool:
        at = seen.at
        return at.phase in _WAITING and at.deadline_ns == 0 and at.rank not in stopped

    def _first(self, seen: _Seen) -> bool:
        at = seen.at
        return at.step <= seen.from_step + 1 if at.phase in _WAITING else at.phase not in seen.done

    def _allowed_ns(self, seen: _Seen) -> int:
        at = seen.at
        if at.deadline_ns > 0:
            return max(0, at.deadline_ns - at.phase_since_ns)
        allowance = self._overrides.get(at.phase)
        first = self._first(seen)
        if allowance is not None:
            before_ns = self._longest_first_ns.get(at.phase)
            if first and before_ns is not None and not allowance.said_first:
                return max(int(allowance.floor_s * _SECOND), int(_FACTOR * before_ns))
            return int((allowance.first_s if first else allowance.floor_s) * _SECOND)
        usual = DEFAULTS[at.phase]
        floor_ns = int((usual.first_s if first else usual.floor_s) * _SECOND)
        return max(floor_ns, int(_FACTOR * self._longest_ns.get(at.phase, 0)))

    def _named(self, late: list[_Seen], still: list[_Seen], stopped: Collection[int]) -> tuple[Late, ...]:
        """Say who of ``late`` is to be suspected. A rank that stands still is, as soon as anybody is late."""
        if not late:
            return ()
        suspects, why = _suspects(late, still)
        held = {seen.at.rank for seen in suspects}
        named = [*late, *(seen for seen in still if seen not in late)]
        found = [
            Late(
                rank=seen.at.rank,
                phase=seen.at.phase,
                seconds_in_phase=seen.counted_ns / _SECOND,
                allowed_s=self._allowed_ns(seen) / _SECOND,
                step=seen.at.step,
                suspect=seen.at.rank in held,
                why=why if seen.at.rank in held else "seems to wait for another",
            )
            for seen in named
        ]
        return tuple(sorted(found, key=lambda each: (not each.suspect, each.rank)))


def _suspects(late: list[_Seen], still: list[_Seen]) -> tuple[list[_Seen], str]:
    if still:
        return still, "is stopped as a process (state T)"
    if len(late) == 1:
        return late, "does not get on"
    fewest = min(seen.at.step for seen in late)
    behind = [seen for seen in late if seen.at.step == fewest]
    if len(behind) < len(late):
        why = "is behind the others by its steps"
    first = _since(behind)
    longest = [seen for seen in behind if seen.at.phase_since_ns <= first + _TOGETHER_NS]
    if len(longest) < len(behind):
        why = "has been in its phase for longest"
    silent = [seen for seen in longest if not seen.beat_grew]
    if 0 < len(silent) < len(longest):
        return silent, "gives no sign of life"
    if len(longest) == len(late):
        why = "does not get on, as all others"
    return longest, why


def _since(seen: Iterable[_Seen]) -> int:
    return min(each.at.phase_since_ns for each in seen)
