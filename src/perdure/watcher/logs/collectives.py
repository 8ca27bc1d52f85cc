"""What the time-outs of collectives say about each other.

PyTorch's watchdogs print, for every rank that gave up, which collective it waited in. Alone such a line is a cascade.
Side by side they tell: the same number with another operation or size means that ranks went different ways (desync);
a rank whose number is behind is the one that the others wait for; equal everywhere names nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.watcher.logs.reading import Line

__all__ = ["Waiting", "behind", "disagreement", "own_work_before", "waiting_in"]

_WORK = re.compile(
    r"Work\w+\(SeqNum=(?P<seq>\d+),\s*OpType=(?P<op>\w+)(?:,\s*NumelIn=(?P<n>\d+))?(?:,\s*NumelOut=(?P<m>"
    r"\d+))?"
)
_RANK = re.compile(r"\[Rank (\d+)\]|\brank[ =:]+(\d+)", re.IGNORECASE)
_GROUP = re.compile(r"PG (?:ID|GUID)[ :]*([\w()]+)")
_LAST = re.compile(r"last enqueued (?:NCCL )?work: (?P<in>-?\d+), last completed (?:NCCL )?work: (?P<out>-?\d+)")
_OWN_WORK = re.compile(
    r"\b(?:sav(?:ing|e)|writ(?:ing|e)|load(?:ing)?|download(?:ing)?|upload(?:ing)?|tokeni[sz]\w+"
    r"|pre-?process\w*|prepar\w+"
    r"|build(?:ing)?|index\w*|evaluat\w+|validat\w+|generat\w+|compil\w+|convert\w*|merg\w+|gather\w*|consolidat\w*"
    r"|extract\w*|copy\w*|map(?:ping)?|filter\w*|group\w*|pack\w*|shuffl\w*|cach\w+)\b.{0,120}"
    r"(?:\.\.\.|\d ?%|\bon rank 0|\d+/\d+|checkpoint|dataset|index|cache|examples?/s|tokenizer|split"
    r"|documents?|epoch)",
    re.IGNORECASE,
)
_BAR = re.compile(
    r"\b[a-z]{3,}ing\b.{0,60}\b(?P<a>\d{1,2})(?:\.\d+)? ?%"  # scanning labels 41%
    r"|(?<!\d)(?P<b>\d{1,2})%\|.{0,80}\[\d+:\d\d",  # a bar that is not full
    re.IGNORECASE,
)
_STEP = re.compile(r"\b(?:loss|lm loss|iteration \d+/|step[ :=]+\d+|epoch \d+)", re.IGNORECASE)
_LOOK_BACK = 40


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank that gave up waiting in a collective."""

    rank: int | None
    group: str
    seq: int
    op: str
    size: tuple[str, str]
    line: Line


def waiting_in(lines: Iterable[Line]) -> list[Waiting]:
    """The ranks that gave up, in the order of the lines; one entry for each rank and number."""
    found: dict[tuple[int | None, str, int], Waiting] = {}
    for line in lines:
        if "Work" not in line.text or not (match := _WORK.search(line.text)):
            continue
        said = _RANK.search(line.text)
        rank = int(said[1] or said[2]) if said else line.rank
        group = named[1] if (named := _GROUP.search(line.text)) else ""
        seq = int(match["seq"])
        size = (match["n"] or "", match["m"] or "")
        found.setdefault((rank, group, seq), Waiting(rank, group, seq, match["op"].upper(), size, line))
    return list(found.values())


def disagreement(waiting: Sequence[Waiting]) -> tuple[Waiting, Waiting] | None:
    """Two ranks that stood at the same number of a group in different collectives, the rarer second."""
    of: dict[tuple[str, int], list[Waiting]] = {}
    for each in waiting:
        if each.rank is not None:
            of.setdefault((each.group, each.seq), []).append(each)
    for same in of.values():
        ways = Counter((each.op, each.size) for each in same)
        if len(ways) > 1:
            usual = ways.most_common(1)[0][0]
            one = next(each for each in same if (each.op, each.size) == usual)
            return one, next(each for each in same if (each.op, each.size) != usual)
    return None


def behind(waiting: Sequence[Waiting]) -> list[Waiting]:
    """Ranks whose number is lower than that of most others in their group; empty if most cannot be told."""
    found = []
    for group in {each.group for each in waiting}:
        of = {each.rank: each for each in waiting if each.group == group and each.rank is not None}
        top = max((each.seq for each in of.values()), default=0)
        late = [each for each in of.values() if each.seq < top]
        if 0 < len(late) < len(of) - len(late):
            found += late
    return found


def own_work_before(lines: Sequence[Line], first: int) -> Line | None:
    """The line that says what a rank was doing while others began to wait, if the last thing told before line
    ``first`` (an index) is such work and no step of training.
    """
    for line in reversed(lines[max(first - _LOOK_BACK, 0) : first]):
        if _STEP.search(line.text):
            return None
        if _OWN_WORK.search(line.text) or _BAR.search(line.text):
            return line
    return None
