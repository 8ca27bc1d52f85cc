"""placeholder until the helper's lands"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from perdure.errors import CallError, NeedsPerson
from perdure.supervisor.causes import Death, first_cause, same_failure

_NO_USE = frozenset({CallError.exit_code, NeedsPerson.exit_code})


class Act(enum.Enum):
    RESTART = "restart"
    REPLACE = "replace"
    ROLL_BACK = "roll-back"
    STOP = "stop"


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    node: str
    phase: str
    seconds: float
    allowed_s: float


class Past(msgspec.Struct, frozen=True):
    last: dict | None = None

    def cleared(self):
        return Past()

    def after(self, verdict, deaths):
        c = verdict.cause
        return Past(None if c is None else dict(rank=c.rank, code=c.code, signal=c.signal, tail=list(c.tail)))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    deaths: tuple = ()
    lost: tuple = ()
    late: tuple = ()
    bad: tuple = ()
    n_nodes: int = 1


@dataclass(frozen=True, kw_only=True)
class Verdict:
    act: Act
    sentence: str
    cause: Death | None = None
    rank: int | None = None
    node: str | None = None
    step: int | None = None
    suspects: tuple = ()


def judge(e, past, *, allow_skip):
    cause = first_cause(e.deaths) if e.deaths else None
    last = None
    if past.last:
        last = Death(past.last["rank"], past.last["code"], past.last["signal"], tuple(past.last["tail"]))
    if e.lost:
        return Verdict(act=Act.RESTART, sentence=f"node {e.lost[0]} was lost", cause=cause)
    if e.late:
        return Verdict(act=Act.RESTART, sentence=f"rank {e.late[0].rank} was late", cause=cause)
    if cause is not None and cause.code in _NO_USE:
        return Verdict(act=Act.STOP, sentence="its exit code says that a restart cannot help", cause=cause)
    if cause is not None and same_failure(cause, last):
        return Verdict(
            act=Act.STOP, sentence="it failed the same way twice without a new step: a restart cannot help", cause=cause
        )
    return Verdict(act=Act.RESTART, sentence=f"rank {cause.rank} failed" if cause else "it failed", cause=cause)
