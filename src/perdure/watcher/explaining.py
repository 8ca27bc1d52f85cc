"""Print how a verdict came about: what was found, which row of the table decided, and which rows did not.

Pure: the verdicts of one incident, oldest first, as they were told; text out.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.labels import CLASSES
from perdure.watcher.verdicts import ROWS, Acts, Row, judge, kind_of

__all__ = ["explain", "lives_of"]

_WHEN = {
    Acts.NOW: "this is proof, so it is acted on at once",
    Acts.DEADLINE: "this is a suspicion until a rank stands still for longer than its phase may take",
    Acts.WARNS: "this is told at once as a warning, and acted on when a rank is past the deadline of its phase",
}
_NEAR = 5
_LINES = 8


def explain(told: Sequence[Verdict]) -> str:
    """Return the reasoning of an incident as text. ``told`` is all that was told of it, oldest first, at least one.

    Raises `CallError` if ``told`` is empty or of several incidents.
    """
    if not told or len({each.incident for each in told}) != 1:
        raise CallError("give all verdicts of one incident, at least one")
    last = next((each for each in reversed(told) if each.stage is not Stage.CLEARED), told[-1])
    lines = [*_headed(last), "", "How it went", *_history(told), "", "What was found", *_found(last)]
    return "\n".join([*lines, "", "Why this verdict", *_why(last)]) + "\n"


def lives_of(told: Sequence[Verdict]) -> list[list[Verdict]]:
    """Return what was told, apart by incident, in the order in which they began; each the oldest first.

    Records are written on by the next run, whose ids begin anew: what comes after the end of an incident, or at an
    earlier time or stage, is another one of the same id.
    """
    lives: list[list[Verdict]] = []
    newest: dict[str, list[Verdict]] = {}
    for each in told:
        life = newest.get(each.incident)
        if life is None or _begins_anew(life[-1], each):
            life = newest[each.incident] = []
            lives.append(life)
        life.append(each)
    return lives


def _begins_anew(last: Verdict, each: Verdict) -> bool:
    back = last.stage is Stage.VERDICT and each.stage is Stage.SUSPICION
    earlier = each.at_s < last.at_s or (each.wall_s or 0.0) < (last.wall_s or 0.0) - 60.0
    return last.stage is Stage.CLEARED or back or earlier


def _headed(verdict: Verdict) -> list[str]:
    who = ", ".join([*(f"rank {rank}" for rank in verdict.ranks), *verdict.nodes]) or "nobody"
    return [
        f"incident {verdict.incident}: {verdict.label} ({CLASSES[verdict.label].means})",
        f"  {verdict.sentence}",
        f"  accused: {who}; must act: {verdict.owner}; action: {verdict.action};"
        f" confidence {verdict.confidence:.2f}, of a {verdict.stage}",
    ]


def _history(told: Sequence[Verdict]) -> list[str]:
    start_s = told[0].at_s
    return [
        f"  +{each.at_s - start_s:6.1f} s  {each.stage:9}  {each.label}, {each.action},"
        f" {', '.join(f'rank {rank}' for rank in each.ranks) or ', '.join(each.nodes) or 'nobody'}"
        for each in told
    ]


def _found(verdict: Verdict) -> list[str]:
    lines = []
    for each in verdict.evidence:
        lines.append(f"  {each.at_s - verdict.at_s:+8.1f} s  {kind_of(each):16}  {each.sentence}")
        lines += [f"{'':31}| {raw}" for raw in each.raw[:_LINES]]
    return lines or ["  nothing that was kept"]


def _why(verdict: Verdict) -> list[str]:
    ruling = judge(verdict.evidence)
    if ruling is None:
        return ["  no row of the table fits what was kept"]
    row = ruling.row
    lines = [f"  row `{row.name}` is the first that fits: {row.says}", f"  {_WHEN[row.acts]}"]
    if (ruling.label, ruling.action) != (verdict.label, verdict.action):
        lines.append(
            f"  by itself it says {ruling.label}, {ruling.action}; the hysteresis or the deadline changed that"
        )
    near = _near(row, verdict.evidence)
    if near:
        lines.append("  rows before it that would have been more exact, and what they lack:")
        lines += [f"    `{other.name}`: no {', '.join(missing)} of the same ranks" for other, missing in near]
    return lines


def _near(decided: Row, evidence: Sequence[Evidence]) -> list[tuple[Row, list[str]]]:
    kinds = {kind_of(each) for each in evidence}
    found = []
    for row in ROWS[: ROWS.index(decided)]:
        missing = [kind for kind in row.kinds if kind not in kinds]
        if missing and len(missing) < len(row.kinds):
            found.append((row, missing))
    return found[:_NEAR]
