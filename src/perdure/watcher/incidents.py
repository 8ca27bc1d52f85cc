"""Incidents: what belongs together, how it ages, what is told of it, and the hysteresis before a node is replaced.

A job that stops does so of one cause, and all that follows (peers that fail, ranks that the launcher ends) is no
second one: evidence of the kinds `STOPS` makes one incident. Everything else has an incident for each kind and whom it
accuses, but for a few kinds that are one thing (`_TOGETHER`). Evidence is either a *condition*, which a detector finds
again at every look and which is gone soon after it is not found any more, or an *event*, which stays. From the first
death of an attempt on, nothing of it fades, and deaths in later looks are consequences.

    (nothing) --evidence--> suspicion --deadline, or proof--> verdict --gone, restarted--> cleared

An incident keeps its id. It is told when it is new and whenever its stage, label, owner, action or accused change; it
does not go back from a verdict to a suspicion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.verdicts import NOTHING, STOPS, Acts, Ruling, judge, kind_of

__all__ = ["Entry", "Incidents", "Mute", "Past", "Tempered", "temper"]

_FEW = 4
"""When more than one in so many ranks are accused, nobody is."""
_NETWORK_AGAIN_S = 300.0
_SAME_NODE_S = 7 * 86400.0
_NEXT_EVICTION_S = 600.0
_REMEMBERED = 256

CONDITIONS = frozenset({
    "stopped", "traced", "silent", "paused-together", "node-silent", "behind", "skipped", "extra", "many-behind",
    "odd-call", "calls-differ", "crossed", "outside", "all-waiting", "no-progress", "in-kernel",
})  # fmt: skip
_REFINE = frozenset({"in-loading", "in-io", "in-debugger", "in-kernel", "gave-up"})
"""Kinds that say more of an incident, but make none."""
_TOGETHER = {
    **dict.fromkeys(("slow-rank", "slow-node", "contention"), "slow"),
    **dict.fromkeys(("loss-spike", "loss-back", "divergence"), "loss"),
}
"""Kinds of what does not stop a job that are one incident where they are about the same node, or about nobody: a
neighbour makes a node slow, a rise of the loss ends one way or the other."""
_LOOSE, _LOOSE_S = "oom-kill", 4.0
_DEATHS = frozenset({"killed", "crashed", "raised", "told-to-end", "ended-together", "died-before", "left-early"})
_POLITE = frozenset({"told-to-end", "ended-together"})
"""Ends that somebody asked for, perhaps because another rank had failed that is seen a look later."""
_OWN_END = frozenset({"raised", "zombie"})
"""Ends of a rank that was ending for a while: what was its silence before was that."""
_LATER_DEATHS = frozenset({"died-before", "left-early", "crashed"})
"""What may still come to light in the looks right after a first death."""
_SETTLE_S = 2.6
_HOLD_S = 0.9
"""A death is told one look after it was seen, with what the kernel and the logs say of it."""
_HELD = {**dict.fromkeys((*_DEATHS, "zombie"), _HOLD_S), "calls-differ": _SETTLE_S}
"""For how long the first evidence of a row is not told yet. Of calls that differ, peers tell more as they fail."""
_TELLS_MORE = frozenset({"calls-differ"})
"""Kinds of which the newest is kept: later there is more to say."""
_CONDITION_LASTS_S = 2.6
_EVENT_LASTS_S = 300.0
_SIDE_LASTS_S = 60.0
_GRAVITY = {Action.WARN: 0, Action.RESTART: 1, Action.ROLLBACK: 2, Action.STOP_USER: 3, Action.EVICT: 4}


@dataclass(frozen=True, slots=True)
class Entry:
    """A verdict that was acted on, as the past keeps it. ``where`` are the nodes of its ranks, accused or not."""

    at_s: float
    label: Label
    action: Action
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Past:
    """Verdicts that were acted on, the oldest first: a value that may be kept, and given to the next analyser.

    Times are on the analyser's clock, so whoever keeps it over a restart of that clock must shift them.
    """

    entries: tuple[Entry, ...] = ()

    def after(self, entry: Entry) -> Past:
        """The past after ``entry``."""
        return Past((*self.entries, entry)[-_REMEMBERED:])

    def again(self, labels: Iterable[Label], where: Iterable[str], within_s: float, now_s: float) -> bool:
        """Whether one of ``labels`` was seen on one of the nodes ``where`` within some time."""
        some, places = set(labels), set(where)
        return any(
            entry.label in some and places & set(entry.where) and now_s - entry.at_s <= within_s
            for entry in self.entries
        )


@dataclass(frozen=True, slots=True)
class Tempered:
    """A ruling after the hysteresis; ``notes`` say what that has changed, for people."""

    label: Label
    owner: Owner
    action: Action
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def temper(ruling: Ruling, where: Sequence[str], past: Past, *, accused: int, n_ranks: int, now_s: float) -> Tempered:
    """Apply the hysteresis to a ruling: what only a repetition proves, and what too many would be accused of.

    ``where`` are the nodes on which it shows, ``accused`` how many ranks are, or are on accused nodes.
    """
    as_ruled = Tempered(ruling.label, ruling.owner, ruling.action, ruling.ranks, ruling.nodes)
    units = len(ruling.nodes) if ruling.nodes else len(ruling.ranks)
    if units > 1 and _FEW * accused > n_ranks:
        note = f"{accused} of {n_ranks} ranks would be accused, which is over a quarter: nobody is"
        nobody = replace(as_ruled, ranks=(), nodes=(), notes=(note,))
        if ruling.owner is Owner.NODE or ruling.action is Action.EVICT:
            nobody = replace(nobody, owner=Owner.NOBODY)
        return replace(nobody, action=Action.RESTART) if nobody.action is Action.EVICT else nobody
    worse = _repeated(as_ruled, where, past, now_s)
    if worse.action is not Action.EVICT:
        return worse
    if worse.label is Label.NIC_LINK and not past.again((Label.NIC_LINK,), where, _NETWORK_AGAIN_S, now_s):
        note = "a network link may come back: a node is replaced for the second time in five minutes"
        return replace(worse, action=Action.RESTART, notes=(*worse.notes, note))
    lately = [e for e in past.entries if e.action is Action.EVICT and now_s - e.at_s <= _NEXT_EVICTION_S]
    if lately and not set(lately[-1].where) & set(where):
        note = f"a node was replaced {now_s - lately[-1].at_s:.0f} s ago; another one is not without a person"
        return replace(worse, action=Action.RESTART, notes=(*worse.notes, note))
    return worse


def _repeated(ruled: Tempered, where: Sequence[str], past: Past, now_s: float) -> Tempered:
    """What it is if the same has happened on the same node within seven days."""

    def again(*labels: Label) -> bool:
        return past.again(labels, where, _SAME_NODE_S, now_s)

    nodes = tuple(sorted(where))
    label, action = ruled.label, ruled.action
    if label is Label.UNKNOWN and action is Action.RESTART and ruled.ranks and again(Label.UNKNOWN, Label.SUSPECT):
        note = "the same node was there the last time"
        return Tempered(Label.SUSPECT, Owner.NODE, Action.EVICT, ruled.ranks, nodes, (note,))
    if label is Label.NAN and ruled.ranks and again(Label.NAN):
        note = "it began on the same node the last time, with other batches"
        return Tempered(Label.SDC, Owner.NODE, Action.EVICT, ruled.ranks, nodes, (note,))
    if label is Label.GPU_ECC_CONTAINED and action is Action.RESTART and again(label):
        return replace(ruled, action=Action.EVICT, notes=("the second contained memory error of this node",))
    if label in (Label.DATALOADER, Label.LIB_BUG, Label.USER_CODE) and action is Action.RESTART:
        anywhere = any(each.label is label and now_s - each.at_s <= _SAME_NODE_S for each in past.entries)
        return replace(ruled, action=Action.STOP_USER, notes=("a restart has not cured it",)) if anywhere else ruled
    return ruled


@dataclass(frozen=True, slots=True)
class Mute:
    """What is not told: verdicts that agree with all that is given, until ``until_s`` on the analyser's clock."""

    label: Label | None = None
    node: str | None = None
    rank: int | None = None
    until_s: float | None = None

    def covers(self, verdict: Verdict, now_s: float) -> bool:
        """Whether ``verdict`` is not told now."""
        return (
            (self.until_s is None or now_s < self.until_s)
            and (self.label is None or verdict.label is self.label)
            and (self.node is None or self.node in verdict.nodes)
            and (self.rank is None or self.rank in verdict.ranks)
        )


@dataclass(slots=True)
class _Incident:
    id: str
    opened_s: float
    past: Past
    "What was before it, so that it does not count as its own repetition."
    seen: dict[tuple[str, tuple[int, ...], tuple[str, ...], str], Evidence] = field(default_factory=dict)
    last_s: dict[tuple[str, tuple[int, ...], tuple[str, ...], str], float] = field(default_factory=dict)
    stage: Stage = Stage.SUSPICION
    due: bool = False
    "Whether a phase has passed its deadline, or the attempt has failed, since it began."
    told: Verdict | None = None
    acknowledged: bool = False
    recorded: bool = False


class Incidents:
    """All open incidents of a job. `Analyser` feeds it; nothing else does."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self._attempt = 0
        self._count = 0
        self._stop: _Incident | None = None
        self._side: dict[tuple[str, tuple[int, ...], tuple[str, ...], str], _Incident] = {}
        self._died_s: float | None = None
        self._over: list[_Incident] = []
        self._loose: list[tuple[Evidence, float]] = []
        self._mutes: list[Mute] = []
        self.forgiven_s = 0.0
        "How long the last suspicion lasted that passed by itself; to be taken and set to 0."

    @property
    def stop(self) -> Verdict | None:
        """What was told last of the incident for which the job stops, if there is one."""
        return self._stop.told if self._stop is not None else None

    @property
    def open(self) -> tuple[Verdict, ...]:
        """What was told last of all open incidents."""
        incidents = [*([self._stop] if self._stop is not None else []), *self._side.values()]
        return tuple(each.told for each in incidents if each.told is not None)

    def mute(self, mute: Mute) -> None:
        """Tell nothing of what ``mute`` covers."""
        if mute.label is None and mute.node is None and mute.rank is None:
            raise CallError("a mute without label, node or rank would hide everything; say what it is for")
        self._mutes.append(mute)

    def acknowledge(self, incident: str) -> None:
        """A person knows of ``incident``: it is told again only when it is to be acted on more gravely, or is over."""
        for each in [*([self._stop] if self._stop is not None else []), *self._side.values()]:
            if each.id == incident:
                each.acknowledged = True
                return
        raise CallError(f"there is no open incident {incident!r}; open are {[v.incident for v in self.open]}")

    def restarted(self, attempt: int) -> None:
        """The ranks were started again: what stopped the attempt before is over, and all is armed anew."""
        self._attempt, self._count, self._died_s = attempt, 0, None
        gone = [key for key, each in self._side.items() if any(e.ranks for e in each.seen.values())]
        self._over += [self._side.pop(key) for key in gone]
        if self._stop is not None:
            self._over.append(self._stop)
            self._stop = None

    def feed(
        self,
        evidence: Iterable[Evidence],
        now_s: float,
        *,
        overdue: bool,
        ranks_of_nodes: Mapping[str, Sequence[int]],
        node_of: Mapping[int, str],
    ) -> list[Verdict]:
        """Take what was found in a look; return what is to be told. ``overdue``: a phase has passed its deadline."""
        told = [verdict for each in self._over if (verdict := self._cleared(each, now_s, "started again")) is not None]
        self._over = []
        died_before = self._died_s
        for each in evidence:
            if kind_of(each) == _LOOSE:
                self._loose.append((each, now_s))
            else:
                self._take(each, now_s, died_before)
        self._take_loose(now_s)
        for incident in [*([self._stop] if self._stop is not None else []), *self._side.values()]:
            self._fade(incident, now_s)
            verdict = self._ruled(incident, now_s, overdue, ranks_of_nodes, node_of)
            if verdict is not None and not any(mute.covers(verdict, now_s) for mute in self._mutes):
                incident.told = verdict
                told.append(verdict)
        self._close(now_s, told)
        return told

    def _take(self, each: Evidence, now_s: float, died_s: float | None) -> None:
        kind = kind_of(each)
        if kind == NOTHING:
            return
        key = (kind, each.ranks, each.nodes, str(each.label or ""))
        if kind in STOPS or kind in _REFINE:
            if kind in _DEATHS:
                late = died_s is not None and now_s - died_s > _SETTLE_S
                if died_s is not None and (late or not (kind in _LATER_DEATHS or self._asked_to_end(kind))):
                    return
                self._died_s = now_s if self._died_s is None else self._died_s
            if self._stop is None:
                if kind in _REFINE:
                    return
                self._stop = self._new(now_s)
            elif died_s is not None and kind in CONDITIONS and now_s - died_s > _SETTLE_S:
                return
            incident = self._stop
            if kind in _OWN_END:
                _forget_silence(incident, each.ranks)
        else:
            name = (_TOGETHER[kind], (), each.nodes, "") if kind in _TOGETHER else key
            if self._stop is not None and name not in self._side and kind.startswith(("slow-", "metric-", "loss-")):
                return  # of a job that stands still
            if name not in self._side:
                self._side[name] = self._new(now_s)
            incident = self._side[name]
        if kind in _TELLS_MORE:
            incident.seen[key] = each
        incident.seen.setdefault(key, each)
        incident.last_s[key] = now_s

    def _asked_to_end(self, kind: str) -> bool:
        """Whether all deaths so far are such that one of ``kind`` may be their reason."""
        seen = {key[0] for key in self._stop.seen} & _DEATHS if self._stop is not None else set()
        return seen <= _POLITE and kind not in seen and kind != "told-to-end"

    def _take_loose(self, now_s: float) -> None:
        """A kernel that killed for memory explains a death of these moments, or is told by itself if there is none."""
        for each, at_s in list(self._loose):
            key = (kind_of(each), each.ranks, each.nodes, "")
            if self._stop is not None and self._died_s is not None and self._died_s - at_s <= _LOOSE_S:
                self._stop.seen.setdefault(key, each)
                self._stop.last_s[key] = now_s
            elif now_s - at_s < _LOOSE_S:
                continue
            else:
                self._side.setdefault(key, self._new(now_s)).seen.setdefault(key, each)
                self._side[key].last_s[key] = now_s
            self._loose.remove((each, at_s))

    def _new(self, now_s: float) -> _Incident:
        self._count += 1
        return _Incident(f"{self._attempt}.{self._count}", now_s, self.past)

    def _fade(self, incident: _Incident, now_s: float) -> None:
        """Let go what is not found any more, unless the attempt has failed: then it is its picture."""
        if incident is self._stop and self._died_s is not None:
            return
        for key, at_s in list(incident.last_s.items()):
            if incident is not self._stop:
                lasts_s = _SIDE_LASTS_S
            else:
                lasts_s = _CONDITION_LASTS_S if key[0] in CONDITIONS else _EVENT_LASTS_S
            if now_s - at_s > lasts_s:
                del incident.seen[key], incident.last_s[key]

    def _ruled(
        self,
        incident: _Incident,
        now_s: float,
        overdue: bool,
        ranks_of_nodes: Mapping[str, Sequence[int]],
        node_of: Mapping[int, str],
    ) -> Verdict | None:
        ruling = judge(list(incident.seen.values()))
        if ruling is None:
            return None
        if now_s - self._since_s(incident, ruling) < _HELD.get(ruling.row.kinds[0], 0.0):
            return None
        where = ruling.nodes or tuple(sorted({node_of[rank] for rank in ruling.ranks if rank in node_of}))
        n_ranks = sum(len(ranks) for ranks in ranks_of_nodes.values())
        accused = len(ruling.ranks) or sum(len(ranks_of_nodes.get(node, ())) for node in ruling.nodes)
        tempered = temper(ruling, where, incident.past, accused=accused, n_ranks=n_ranks, now_s=now_s)
        failed = incident is self._stop and self._died_s is not None
        incident.due |= overdue or failed
        waits = ruling.row.acts
        if waits is not Acts.DEADLINE or incident.due:
            incident.stage = Stage.VERDICT
        warns = waits is not Acts.NOW and not incident.due and incident.stage is Stage.VERDICT
        verdict = Verdict(
            incident=incident.id,
            stage=incident.stage,
            label=tempered.label,
            owner=tempered.owner,
            action=Action.WARN if warns else tempered.action,
            confidence=_confidence(ruling, tempered, incident.stage),
            sentence="; ".join((ruling.sentence, *tempered.notes)),
            at_s=now_s,
            ranks=tempered.ranks,
            nodes=tempered.nodes,
            step=ruling.step,
            evidence=ruling.evidence,
        )
        before = incident.told
        if before is not None and (_gist(before) == _gist(verdict) or self._quiet(incident, before, verdict)):
            return None
        if verdict.stage is Stage.VERDICT and verdict.action is not Action.WARN and not incident.recorded:
            incident.recorded = True
            self.past = self.past.after(Entry(now_s, verdict.label, verdict.action, where))
        return verdict

    def _since_s(self, incident: _Incident, ruling: Ruling) -> float:
        """When what was ruled on was seen first: of deaths, and of what they died of, when the attempt's first was."""
        head = ruling.row.kinds[0]
        if self._died_s is not None and head != "zombie":
            return self._died_s
        first = [each.at_s for key, each in incident.seen.items() if key[0] == head and key[0] not in _TELLS_MORE]
        return min(first, default=incident.opened_s)

    def _quiet(self, incident: _Incident, before: Verdict, now: Verdict) -> bool:
        graver = _GRAVITY[now.action] > _GRAVITY[before.action] or now.stage is not before.stage
        return incident.acknowledged and not (graver and now.stage is Stage.VERDICT and now.action is not Action.WARN)

    def _close(self, now_s: float, told: list[Verdict]) -> None:
        stop = self._stop
        if stop is not None and all(key[0] in _REFINE for key in stop.seen):
            self._stop = None
            if stop.stage is Stage.SUSPICION:
                self.forgiven_s = max(self.forgiven_s, now_s - stop.opened_s)
            over = self._cleared(stop, now_s, "passed by itself")
            told += [over] if over is not None else []
        for key in [key for key, each in self._side.items() if not each.seen]:
            over = self._cleared(self._side.pop(key), now_s, "not seen any more")
            told += [over] if over is not None else []

    def _cleared(self, incident: _Incident, now_s: float, how: str) -> Verdict | None:
        if incident.told is None:
            return None
        sentence = f"{how}: {incident.told.sentence}"
        return msgspec.structs.replace(incident.told, stage=Stage.CLEARED, at_s=now_s, sentence=sentence)


def _forget_silence(incident: _Incident, ranks: Sequence[int]) -> None:
    for key in [key for key in incident.seen if key[0] == "silent" and set(key[1]) <= set(ranks)]:
        del incident.seen[key], incident.last_s[key]


def _confidence(ruling: Ruling, tempered: Tempered, stage: Stage) -> float:
    sure = ruling.row.early if stage is Stage.SUSPICION else ruling.row.sure
    strength = min(1.0, max(0.0, ruling.evidence[0].strength)) if ruling.evidence else 1.0
    unnamed = (ruling.ranks or ruling.nodes) and not (tempered.ranks or tempered.nodes)
    return round((0.5 if unnamed else sure) * (0.5 + 0.5 * strength), 3)


def _gist(verdict: Verdict) -> tuple[object, ...]:
    return verdict.stage, verdict.label, verdict.owner, verdict.action, verdict.ranks, verdict.nodes
