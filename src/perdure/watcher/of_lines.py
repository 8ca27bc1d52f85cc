"""What lines say while a job runs, plugged into the analyser: of the kernel, of services, of ranks.

A line is worth what its writer is, and what became of him.

- **The kernel** says what happened to a machine. What `signatures` or the table of Xids call certain is told at once.
- **A rank** says anything: it prints tracebacks that it has caught, tries again and works on. So what its lines mean is
  kept, and becomes evidence only once *it has died badly*, as the reason: a ``stop-line``, which says of a death what
  it died of. What it printed and then went on for another step it has *survived*; that is no reason, nor is what it has
  survived before. A line that speaks of a failing machine is noted then, no more.
- Who was killed from outside was not killed by its own exception: of it only memory and the scheduler count.
- What ranks say once another one has died (a connection closed, a collective timed out) is no reason either, and
  weighs too little (`signatures.CASCADE`, `signatures.HINT`) to be kept.
- A line without a rank, of a launcher's stderr, belongs to whoever of its node has died.

Each kind of line, numbers aside, is looked up once; at most `_MOST_LINES` are read of a look, of which at most
`_MOST_NEW` of new kinds, as many again of those that speak of trouble, and those at the end: there stands what a rank
died of. `dropped` counts the others. So a storm costs a fifth of a second a look.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perdure.watcher.detecting import Held
from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import CLASSES, Action, Label, Owner
from perdure.watcher.logs.diagnose import Hit, hit_of, hit_of_xid
from perdure.watcher.logs.kernel import BURST_S, Xid, roots, xid_of
from perdure.watcher.logs.reading import Line, lines_of
from perdure.watcher.logs.signatures import CERTAIN, HINT
from perdure.watcher.logs.told import Told
from perdure.watcher.samples import LogLine, Looks, RankSample

__all__ = ["OfLines"]

_MOST_LINES: Final = 8000
_MOST_NEW: Final = 600
_MOST_KINDS: Final = 8192
_KEPT: Final = 32
"""Findings of one rank that are kept, the newest."""
_KEPT_S: Final = 120.0
_LASTS_S: Final = 60.0
_MOST_DEAD: Final = 16
_FROM_OUTSIDE: Final = frozenset({1, 2, 9, 15, 24})
_KILLS: Final = frozenset({Label.HOST_OOM, Label.SCHED})
_DIGITS: Final = re.compile(r"\d*[1-9]\d*")
_BY_NUMBER: Final = re.compile(r"code|status|errno|signal|http|exit|error|warn", re.IGNORECASE)
_XID_PID: Final = re.compile(r"\bpid='?(\d+)")
_KILLED_PID: Final = re.compile(r"[Kk]illed process (\d+)")
_VIRTUAL: Final = re.compile(r"\b(?:loop|ram|zram|nbd)\d+\b")
_TROUBLE: Final = re.compile(r"error|exception|fail|memory|fatal|abort|killed", re.IGNORECASE)
_HARDWARE: Final = "hw."
_NOTED: Final = 0.7


@dataclass(slots=True, eq=False)
class _Said:
    """A finding. ``step`` is what its rank had done a look after it was read; None until then."""

    hit: Hit
    at_s: float
    step: int | None = None
    machine: str = ""
    "The node of which it says that it fails."

    @property
    def kind(self) -> tuple[Label, str]:
        """What is the same when it is said again."""
        return self.hit.label, self.hit.why


class OfLines:
    """Reads lines as they come. ``dropped`` counts those that were left out of a storm."""

    def __init__(self) -> None:
        self.dropped = 0
        self._told = Told()
        self._meanings: dict[tuple[str, str], Hit | None] = {}
        self._of_machines = Held()
        self._xids: dict[str, list[tuple[float, Xid]]] = {}
        self._begin()

    def _begin(self) -> None:
        self._said: dict[tuple[str, int | None], deque[_Said]] = {}
        self._survived: set[tuple[str, int | None, tuple[Label, str]]] = set()
        self._noted = Held()

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """What lines say of machines now; and of ranks that have died, why."""
        ranks = {each.rank: each for each in looks.samples} if self._said or looks.lines else {}
        if self._said:
            self._age(ranks, now_s)
        if looks.lines:
            self._read(looks.lines, ranks, now_s)
        reasons = self._reasons(ranks, now_s) if self._said else []
        return [*self._of_machines.found(now_s), *self._noted.found(now_s), *reasons]

    def restarted(self, attempt: int) -> None:
        """What ranks said was of the attempt before; machines stay what they are."""
        self._begin()

    def _read(self, lines: Sequence[LogLine], ranks: Mapping[int, RankSample], now_s: float) -> None:
        if len(lines) > _MOST_LINES:
            self.dropped += len(lines) - _MOST_LINES
            lines = [*lines[: _MOST_LINES // 2], *lines[-_MOST_LINES // 2 :]]
        new, spared = 0, len(lines) - _MOST_NEW // 2
        for number, each in enumerate(lines):
            line = _line(each)
            if not self._told.says(line):
                continue
            if each.source != "rank" and (xid := xid_of(line)) is not None:
                self._take_xid(each.node, xid, ranks, now_s)
                continue
            key = (line.text if _BY_NUMBER.search(line.text) else _DIGITS.sub("9", line.text), line.level)
            if key not in self._meanings:
                new += 1
                if new > _MOST_NEW and number < spared and (new > 2 * _MOST_NEW or not _TROUBLE.search(line.text)):
                    self.dropped += 1
                    continue
                if len(self._meanings) >= _MOST_KINDS:
                    self._meanings.clear()
                self._meanings[key] = hit_of(line)
            hit = self._meanings[key]
            if hit is not None:
                self._take(each, line, replace(hit, lines=(line,)), ranks, now_s)

    def _take(self, each: LogLine, line: Line, hit: Hit, ranks: Mapping[int, RankSample], now_s: float) -> None:
        """A line means something: keep it, and tell it if it is the kernel's and certain."""
        if hit.weight <= HINT or hit.label is Label.UNKNOWN:
            return
        if each.source == "kernel" and _VIRTUAL.search(line.text):
            return  # a device that is a file or memory: whoever made it may break it
        of_machine = hit.label.startswith(_HARDWARE) and hit.weight >= CERTAIN and hit.action is not Action.WARN
        if each.source != "rank":
            rank = _rank_of(_KILLED_PID.search(line.text), ranks)
            if of_machine and each.node:
                evidence = _evidence("kernel-line", hit, now_s, nodes=(each.node,))
                self._of_machines.keep((each.node, hit.label), evidence, until_s=now_s + _LASTS_S)
            elif CLASSES[hit.label].action is not Action.WARN:
                self._keep(each.node, rank, hit, now_s)
            return
        rank = each.rank if each.rank is not None else line.rank
        self._keep(each.node, rank, hit, now_s, machine=each.node if of_machine else "")

    def _take_xid(self, node: str, xid: Xid, ranks: Mapping[int, RankSample], now_s: float) -> None:
        """Of a burst the cause is told, in whichever look its lines arrive."""
        burst = [each for each in self._xids.get(node, []) if now_s - each[0] <= 2 * BURST_S][-64:]
        self._xids[node] = burst = [*burst, (now_s, xid)]
        for cause in roots(each for _, each in burst):
            meaning = cause.meaning
            if meaning.after or meaning.label is Label.UNKNOWN:
                continue
            hit = hit_of_xid(cause)
            if meaning.owner is Owner.USER:
                self._keep(node, _rank_of(_XID_PID.search(cause.line.text), ranks), hit, now_s)
                continue
            mild = meaning.note or meaning.action is Action.WARN
            found = _evidence("xid", hit, now_s, nodes=(node,), strength=_NOTED if mild else 1.0)
            self._of_machines.keep((node, hit.label), found, until_s=now_s + _LASTS_S)

    def _keep(self, node: str, rank: int | None, hit: Hit, now_s: float, *, machine: str = "") -> None:
        said = self._said.setdefault((node if rank is None else "", rank), deque(maxlen=_KEPT))
        said.append(_Said(hit, now_s, machine=machine))

    def _age(self, ranks: Mapping[int, RankSample], now_s: float) -> None:
        """Forget what is old, and what its rank has survived."""
        slowest: dict[str, int] = {}
        if any(rank is None for _, rank in self._said):
            for each in ranks.values():
                if each.step is not None and not _is_dead(each):
                    slowest[each.node] = min(slowest.get(each.node, each.step), each.step)
        for (node, rank), said in list(self._said.items()):
            own = ranks.get(rank) if rank is not None else None
            step = slowest.get(node) if rank is None else None if own is None else own.step
            survived = [each for each in said if self._is_survived(each, step)]
            for old in survived:
                if len(self._survived) < _MOST_KINDS:
                    self._survived.add((node, rank, old.kind))
                if old.machine:
                    self._note(old, rank, now_s)
            kept = [each for each in said if each not in survived and now_s - each.at_s <= _KEPT_S]
            for new in kept:
                new.step = step if new.step is None else new.step
            said.clear()
            said.extend(kept)
            if not kept:
                del self._said[node, rank]

    def _note(self, said: _Said, rank: int | None, now_s: float) -> None:
        """A rank has spoken of a machine that fails, and works on."""
        who = () if rank is None else (rank,)
        note = _evidence("rank-line", said.hit, now_s, ranks=who, nodes=(said.machine,), strength=_NOTED)
        self._noted.keep((said.machine, rank, said.hit.label), note, until_s=now_s + _LASTS_S)

    @staticmethod
    def _is_survived(each: _Said, step: int | None) -> bool:
        return each.step is not None and step is not None and step > each.step

    def _reasons(self, ranks: Mapping[int, RankSample], now_s: float) -> list[Evidence]:
        """What ranks that have died badly, or nobody, said last; the heaviest first, of equals the earliest."""
        dead = [each for each in ranks.values() if _is_dead(each)]
        found: list[tuple[float, float, Evidence]] = []
        for each in dead:
            best = self._best("", each.rank, outside=each.exit_signal in _FROM_OUTSIDE)
            if best is not None:
                found.append((-best.hit.weight, best.at_s, _evidence("stop-line", best.hit, now_s, ranks=(each.rank,))))
        for node in {each.node for each in dead}:
            outside = all(each.exit_signal in _FROM_OUTSIDE for each in dead if each.node == node)
            best = self._best(node, None, outside=outside)
            if best is not None:
                found.append((0.5 - best.hit.weight, best.at_s, _evidence("stop-line", best.hit, now_s)))
        return [each for _, _, each in sorted(found, key=lambda each: each[:2])[:_MOST_DEAD]]

    def _best(self, node: str, rank: int | None, *, outside: bool) -> _Said | None:
        able = [
            each
            for each in self._said.get((node, rank), ())
            if (not outside or each.hit.label in _KILLS)
            and CLASSES[each.hit.label].action is not Action.WARN
            and (node, rank, each.kind) not in self._survived
        ]
        return max(able, key=lambda each: (each.hit.weight, -each.at_s), default=None)


def _is_dead(each: RankSample) -> bool:
    if each.finished:
        return False
    return bool(each.exit_code) or each.exit_signal is not None or (each.state in ("X", "Z") and each.exit_code is None)


def _line(each: LogLine) -> Line:
    found = lines_of([each.text], file=f"{each.source} {each.node} {each.rank}")
    line = found[0] if found else Line("", "")
    kernel = each.source == "kernel"
    rank = each.rank if each.rank is not None else None if each.source != "rank" else line.rank
    return Line(
        line.text, line.raw, line.file, rank=rank, node=each.node or line.node, at=line.at, level=line.level,
        kernel=kernel or line.kernel,
    )  # fmt: skip


def _rank_of(match: re.Match[str] | None, ranks: Mapping[int, RankSample]) -> int | None:
    """The rank whose process a line names."""
    pid = 0 if match is None else int(match[1])
    return next((each.rank for each in ranks.values() if pid and each.pid == pid), None)


def _evidence(
    kind: str,
    hit: Hit,
    now_s: float,
    *,
    ranks: tuple[int, ...] = (),
    nodes: tuple[str, ...] = (),
    strength: float = 1.0,
) -> Evidence:
    return Evidence(
        kind=kind,
        at_s=now_s,
        sentence=f"{hit.why} ({hit.lines[0].text.strip()[:160]})" if hit.lines else hit.why,
        ranks=ranks,
        nodes=nodes,
        strength=strength,
        label=hit.label,
        raw=tuple(line.raw[:400] for line in hit.lines[:4]),
    )
