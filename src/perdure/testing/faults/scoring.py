"""Judge what a watcher has said of the cases. Pure: outcomes in, scores and a report out.

An *incident* is all that was said under one id. Of the incidents told after the fault the *answer* is the first that
ends with a right label and the right accused, else with the right accused, else the first that became a verdict, else
the first. Everything else that was told is counted against the watcher: another incident is one too many, any mention
of somebody innocent, at any stage, is an accusation, and an action of another incident makes the action wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from perdure.testing.faults.cases import Outcome, Told, node_of
from perdure.testing.faults.kinds import KINDS, Family, Kind, Whom

__all__ = ["Score", "answered", "p95", "score", "wilson"]

_BEFORE_S = -0.2
"""What is told up to this long before the fault was noted is about it: the note is made a moment later."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One case, judged. Times are seconds from the fault, None if that never came."""

    case: str
    family: Family
    whom: Whom
    named: bool = False
    "The answer accuses whom it should, and nobody else."
    accuses: bool = False
    "The answer is a verdict that accuses somebody."
    labelled: bool = False
    acted: bool = False
    "Its action is right, and no other incident asks for one."
    suspected_s: float | None = None
    "Until anything was told of the incident that is the answer."
    verdict_s: float | None = None
    "Until a verdict with the right label and accused."
    action_s: float | None = None
    "Until it asked for a right action."
    incidents: int = 0
    "Told since the fault."
    false: int = 0
    "Incidents that mention somebody innocent, at any stage, before the fault or after."
    actions: int = 0
    "Of what is healthy (a whole healthy case, or the time before a fault): incidents that ask for an action;"
    warnings: int = 0
    "and all others that are not fair."

    @property
    def right(self) -> bool:
        """Nothing to complain of."""
        if self.family is Family.HEALTHY:
            return not (self.actions or self.warnings)
        return (
            self.named and self.labelled and self.acted
            and self.incidents == 1 and not (self.false or self.actions or self.warnings)
        )  # fmt: skip


def _accused_right(kind: Kind, told: Told, rank: int, node: str) -> bool:
    if kind.whom is Whom.NOBODY:
        return not (told.ranks or told.nodes)
    if kind.whom is Whom.RANK:
        return told.ranks == (rank,) and set(told.nodes) <= {node}
    return bool(told.ranks or told.nodes)  # and that they are of the node is asked by `_innocent`


def _innocent(outcome: Outcome, told: Told) -> bool:
    """Whether somebody is mentioned who has nothing to do with it; nodes count, not the ranks of one node."""
    kind = KINDS[outcome.kind]
    if kind.family is Family.HEALTHY or kind.whom is Whom.NOBODY:
        return bool(told.ranks or told.nodes) and not kind.may_warn
    return bool(({node_of(outcome.nodes, rank) for rank in told.ranks} | set(told.nodes)) - {outcome.node})


def answered(kind: Kind, told: Told, *, rank: int, node: str) -> bool:
    """Whether ``told`` is all that is asked: a verdict, the right label, the right accused and a right action."""
    return (
        told.stage == "verdict"
        and told.label in kind.labels
        and told.action in kind.actions
        and _accused_right(kind, told, rank, node)
    )


def score(outcome: Outcome) -> Score:
    """Judge one case."""
    kind = KINDS[outcome.kind]
    incidents: dict[str, list[Told]] = {}
    for each in outcome.told:
        if each.stage != "cleared":
            incidents.setdefault(each.incident, []).append(each)
    false = sum(any(_innocent(outcome, each) for each in some) for some in incidents.values())
    healthy = kind.family is Family.HEALTHY
    before = [some for some in incidents.values() if healthy or some[0].after_s < _BEFORE_S]
    after = [some for some in incidents.values() if not (healthy or some[0].after_s < _BEFORE_S)]
    acting = [some for some in before if _asks(some)]
    base = Score(
        case=f"{outcome.kind}/{outcome.seed}",
        family=kind.family,
        whom=kind.whom,
        incidents=len(after),
        false=false,
        actions=len(acting),
        warnings=0 if kind.may_warn else len(before) - len(acting),
    )
    if not after:
        return base

    def accused(told: Told) -> bool:
        return _accused_right(kind, told, outcome.rank, outcome.node) and not _innocent(outcome, told)

    def rank(some: list[Told]) -> int:
        last = some[-1]
        if accused(last):
            return 0 if last.label in kind.labels and last.stage == "verdict" else 1
        return 2 if any(each.stage == "verdict" for each in some) else 3

    answer = min(after, key=rank)
    last = answer[-1]
    return msgspec.structs.replace(
        base,
        named=accused(last),
        accuses=last.stage == "verdict" and bool(last.ranks or last.nodes),
        labelled=last.label in kind.labels,
        acted=last.stage == "verdict"
        and last.action in kind.actions
        and not any(_asks(some) for some in after if some is not answer),
        suspected_s=answer[0].after_s,
        verdict_s=_first(e for e in answer if e.stage == "verdict" and accused(e) and e.label in kind.labels),
        action_s=_first(each for each in answer if answered(kind, each, rank=outcome.rank, node=outcome.node)),
    )  # fmt: skip


def _asks(some: Iterable[Told]) -> bool:
    return any(each.stage == "verdict" and each.action != "warn" for each in some)


def _first(told: Iterable[Told]) -> float | None:
    return next((each.after_s for each in told), None)


def wilson(right: int, of: int, *, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927).

    >>> [round(each, 3) for each in wilson(9, 10)]
    [0.596, 0.982]
    """
    if of == 0:
        return 0.0, 1.0
    share, square = right / of, z * z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def p95(times: Sequence[float | None]) -> float:
    """The smallest time that 95 in 100 do not exceed, one of those given; what never came is infinite.

    >>> p95([1.0] * 19 + [None])
    1.0
    """
    if not times:
        return math.nan
    ordered = sorted(math.inf if each is None else each for each in times)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]
