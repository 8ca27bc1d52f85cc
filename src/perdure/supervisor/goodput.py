"""What a job's time went into, from its journal. Pure.

Theory. Time in which a job completes steps that it had not completed before is *progress*; all other time is lost, to
one of a few uses. *Goodput* is progress over the time since the run began: the effective training time ratio (ETTR) of
the literature. A step that is done again counts where it was done first; the time of doing it again is lost.

The journal says when the job went from state to state, and in an attempt when its first step was done
(`perdure.events.StepsBegan`), when its first new step, and when, to within some seconds, its last new one:

    start  warm-up  execute .................................................  verify  recover  warm-up  execute ...
                    launch    | repeat         | progress          | stall
                              first step done    first new step     last new step

- *launch*: processes start, import, restore, and do one step;
- *repeat*: steps that an attempt before had done already;
- *stall*: after the last new step, until the attempt ends: a step that was not finished, a hang, saving at the end.

What is still open counts as progress while it is no longer than a few steps take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from perdure.errors import ProtocolError
from perdure.events import (
    AttemptStarted,
    Fact,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    RankDied,
    RankLate,
    StepsBegan,
    VerdictTold,
)
from perdure.supervisor.job import State
from perdure.supervisor.messages import Moment, Told

__all__ = ["CAUSES", "USES", "Account", "Span", "account_of", "spans_of"]

USES: Final = ("start", "warm-up", "launch", "repeat", "progress", "stall", "verify", "recover")
CAUSES: Final = ("node lost", "rank late", "rank failed", "node cordoned", "drained", "watcher", "other")

_BLAMED: Final[dict[type[Fact], str]] = {  # of what happened in an attempt, the first of these is why there was another
    NodeLost: "node lost",
    RankLate: "rank late",
    RankDied: "rank failed",
    NodeCordoned: "node cordoned",
    NodeDrained: "drained",
    VerdictTold: "watcher",
}
_FACTS: Final[tuple[type[Fact], ...]] = (AttemptStarted, *_BLAMED)
_KINDS: Final = {cls.__struct_config__.tag: cls for cls in _FACTS}
_OPEN_S: Final = 10.0
_OPEN_STEPS: Final = 3


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """From ``at`` to ``until`` (seconds since 1970) the job's time went into ``use``, one of `USES`."""

    at: float
    until: float
    attempt: int
    "The attempt that runs, or the one before, or -1 before the first."
    use: str

    @property
    def seconds(self) -> float:
        """How long that is."""
        return self.until - self.at


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run went."""

    wall_s: float
    "Since the run began, or while it lasted."
    seconds: dict[str, float]
    "By use; all of `USES`, and together ``wall_s``."
    goodput: float | None
    "Progress over ``wall_s``; None if ranks have never told a step."
    restarts: dict[str, int]
    "By cause; all of `CAUSES`."
    steps: int
    "New steps of the run."


def spans_of(moments: Sequence[Moment], facts: Iterable[Told], *, now_at: float) -> tuple[Span, ...]:
    """Return what the time between the first moment and ``now_at`` went into, without gaps, in order.

    ``now_at`` is the end for a job that is not over; one that is over ends when it was.
    """
    began = _first_steps(facts)
    spans: list[Span] = []
    i = 0
    while i < len(moments):
        here = moments[i]
        if here.state.final:
            break
        j = i + 1
        while j < len(moments) and moments[j].state is here.state and moments[j].attempt == here.attempt:
            j += 1
        end = moments[j].at if j < len(moments) else max(now_at, moments[-1].at)
        if here.state is State.EXECUTE:
            after = moments[j] if j < len(moments) else None
            spans += _attempt(moments[i:j], after, began.get(here.attempt), end)
        else:
            spans.append(Span(at=here.at, until=end, attempt=here.attempt, use=here.state.value))
        i = j
    return tuple(span for span in spans if span.until > span.at)


def _attempt(inside: Sequence[Moment], after: Moment | None, began_at: float | None, end: float) -> list[Span]:
    """The spans of one attempt: ``inside`` are its moments, ``after`` is the one that ended it."""
    steps = [inside[0].step, *(moment.step for moment in inside[1:])]
    new = [moment.at for before, moment in zip(steps, inside[1:], strict=False) if moment.step > before]
    if after is not None and after.step > steps[-1]:
        new.append(end)  # it was on its way to the journal
    first_new = new[0] if new else end
    last_new = new[-1] if new else end
    if after is None and new:
        last = max(moment.step for moment in inside)
        mean_s = (last_new - first_new) / max(last - steps[0] - 1, 1)
        if end - last_new <= max(_OPEN_S, _OPEN_STEPS * mean_s):
            last_new = end
    first = min(max(inside[0].at, began_at), first_new) if began_at is not None else first_new
    cuts = ((first, "launch"), (first_new, "repeat"), (last_new, "progress"), (end, "stall"))
    found, at = [], inside[0].at
    for until, use in cuts:
        found.append(Span(at=at, until=until, attempt=inside[0].attempt, use=use))
        at = max(at, until)
    return found


def _first_steps(facts: Iterable[Told]) -> dict[int, float]:
    """When each attempt completed its first step."""
    found: dict[int, float] = {}
    for told in facts:
        if told.kind == StepsBegan.__struct_config__.tag:
            found.setdefault(int(_fields(told)["attempt"]), told.at)
    return found


def account_of(moments: Sequence[Moment], facts: Sequence[Told], *, now_at: float) -> Account:
    """Return where the time of the run went, and what its restarts were for."""
    spans = spans_of(moments, facts, now_at=now_at)
    seconds = dict.fromkeys(USES, 0.0)
    for span in spans:
        seconds[span.use] += span.seconds
    wall_s = sum(seconds.values())
    steps = moments[-1].step - moments[0].step if moments else 0
    known = steps > 0 or bool(_first_steps(facts))
    return Account(
        wall_s=wall_s,
        seconds=seconds,
        goodput=seconds["progress"] / wall_s if known and wall_s > 0 else None,
        restarts=_restarts(facts),
        steps=steps,
    )


def _restarts(facts: Iterable[Told]) -> dict[str, int]:
    counted = dict.fromkeys(CAUSES, 0)
    seen: set[str] = set()
    first = True
    for told in facts:
        kind = _KINDS.get(told.kind)
        if kind is AttemptStarted:
            if not first:
                counted[next((cause for cause in CAUSES if cause in seen), "other")] += 1
            seen, first = set(), False
        elif kind is not None and _counts(kind, told):
            seen.add(_BLAMED[kind])
    return counted


def _counts(kind: type[Fact], told: Told) -> bool:
    """Whether a fact can be why there was another attempt."""
    if kind is RankDied:
        return not _fields(told).get("excused")
    if kind is VerdictTold:
        fields = _fields(told)
        return bool(fields["stage"] == "verdict" and fields["action"] != "warn")
    return True


def _fields(told: Told) -> dict[str, Any]:
    try:
        return msgspec.json.decode(told.fields, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"fact {told.number} of the journal cannot be read: {error}") from error
