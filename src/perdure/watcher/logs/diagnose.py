"""From the logs of a failed job: the kind of fault, who must act, what to do, and the lines that say so.

Pure: lines in, a `Diagnosis` out. Every line's meaning is looked up (`signatures`, `kernel`), numbers and time-outs of
collectives are judged as series (`numbers`, `collectives`), and each finding has a weight. The heaviest decides; of
equal ones the earliest, for what comes first causes what comes later. What others of the job say once one has failed
(connections closed, collectives timed out, signals from the launcher) decides only where nothing else was found, and
then nobody is accused. Without any sign of trouble there is no label: nothing failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import CLASSES, Action, Label, Owner
from perdure.watcher.logs import aftermath, collectives, norms, numbers, origins
from perdure.watcher.logs.kernel import Xid, roots, xid_of
from perdure.watcher.logs.reading import Line
from perdure.watcher.logs.signatures import CASCADE, CERTAIN, GENERIC, HINT, SPECIFIC, is_decoy, match_of, without_zeros
from perdure.watcher.logs.templates import novel
from perdure.watcher.logs.told import Told
from perdure.watcher.samples import Stack
from perdure.watcher.stacks import Place, judge_stacks, read_dump

__all__ = ["Diagnosis", "Hit", "diagnose", "evidence_of", "hit_of", "hit_of_xid", "hits_in", "hits_of_stacks"]

_THREAD = re.compile(r"^\s*(?:Current thread|Thread) (?:0x)?[\da-fA-F]+.*(?:most recent call first|\()")
_RETRY = re.compile(
    r"\b(?:retry(?:ing)?|will (?:be )?retr\w+|backing off|attempt \d+ ?(?:/|of) ?\d+|trying again)\b", re.IGNORECASE
)
_GAVE_UP = re.compile(r"max retries exceeded|giving up|gave up|exhausted|after \d+ (?:retries|attempts)", re.IGNORECASE)
_TROUBLE = re.compile(
    r"(?<![\w./-])(?:errors?|exception|fail(?:ed|ure|s)?|fatal|abort\w*|panic|crash\w*|killed|timed? ?-?out|hang"
    r"|hung|stuck|corrupt\w*"
    r"|lost|refused|denied|invalid|cannot|unable|unexpected\w*|terminat\w+|traceback|critical|dead"
    r"|unhealthy|bad)\b(?![/-]|\.\w)",
    re.IGNORECASE,
)
_OOM = re.compile(
    r"(?P<total>[\d.]+) (?P<u0>[KMGT]i?B) (?:total capacity|is total|total)"
    r"|total capacity of (?P<total2>[\d.]+) (?P<u1>[KMGT]i?B)"
)
_OWN = re.compile(
    r"this process has (?P<a>[\d.]+) (?P<ua>[KMGT]i?B)|(?P<b>[\d.]+) (?P<ub>[KMGT]i?B) reserved in total"
    r"|(?P<c>[\d.]+) (?P<uc>[KMGT]i?B) already allocated"
)
_ASKED = re.compile(r"tried to allocate (?P<a>[\d.]+) (?P<u>[KMGT]i?B)", re.IGNORECASE)
_OTHER = re.compile(r"\bProcess \d+ has (?P<a>[\d.]+) (?P<u>[KMGT]i?B) memory in use", re.IGNORECASE)
_RANK = re.compile(r"\b(?:global )?rank[s ]*[:=#]? ?\[?(\d{1,6})\b", re.IGNORECASE)
_NODE = re.compile(
    r"\b(?:node|host(?:name)?|machine)[s ]*[:=] ?([A-Za-z][\w.-]*\d[\w.-]*)|\bon (?:node"
    r"|host) ([\w.-]*\d[\w.-]*)",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"timed? ?-?out", re.IGNORECASE)
_NOT_ZERO = re.compile(r"\d*[1-9]\d*")
_BY_NUMBER = re.compile(
    r"code|status|errno|signal|http|exit|steal|load average|error|warn|\bto \d|world|joined", re.IGNORECASE
)
_OWNERS = {Label.SPIKE_RECOVERED: Owner.DATA}
"Where a log's reader is asked whose the cause is, and nobody is no answer."
_UNIT = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_SURE = ((CERTAIN, 0.95), (SPECIFIC, 0.88), (GENERIC, 0.75), (HINT, 0.6), (0.0, 0.3))
_ACCUSED = 16
_EVIDENCE = 6


@dataclass(frozen=True, slots=True)
class Hit:
    """A finding: what one or several lines mean."""

    label: Label
    owner: Owner
    action: Action
    weight: float
    why: str
    lines: tuple[Line, ...]
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the logs say. ``label`` is None if they tell of no failure; then there is no action either."""

    label: Label | None
    owner: Owner
    action: Action | None
    confidence: float
    "From the kind of finding: 0.95 where hardware says so itself, 0.3 where only after-effects were seen."
    why: str
    evidence: tuple[Line, ...] = ()
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    others: tuple[Hit, ...] = ()
    "What else was found, the heaviest of each label."


def diagnose(lines: Sequence[Line], *, more: Iterable[Hit] = ()) -> Diagnosis:
    """Judge the lines of one failed job, of all its files. ``more`` are findings from elsewhere (stacks).

    >>> from perdure.watcher.logs.reading import lines_of
    >>> said = diagnose(lines_of("RuntimeError: CUDA error: uncorrectable ECC error encountered"))
    >>> said.label, said.owner, said.action
    (<Label.GPU_ECC: 'hw.gpu_ecc'>, <Owner.NODE: 'node'>, <Action.EVICT: 'evict'>)
    """
    found = [*hits_in(lines), *more]
    hits = aftermath.lasting(found, lines, _errors(lines)) if found else []
    if found and not hits:
        return Diagnosis(None, Owner.NOBODY, None, 0.6, "the job went on after all that went wrong")
    if not hits:
        return _without(lines)
    top = min(hits, key=_order_of(hits))
    same = [hit for hit in hits if hit.label is top.label]
    top = _elsewhere(top, same)
    evidence = list(dict.fromkeys(top.lines))
    for hit in sorted(same, key=lambda hit: (-hit.weight, _order(hit))):
        evidence += [line for line in hit.lines if line not in evidence]
    rest: dict[Label, Hit] = {}
    for hit in sorted(hits, key=lambda hit: (-hit.weight, _order(hit))):
        if hit.label is not top.label and hit.label is not Label.UNKNOWN:
            rest.setdefault(hit.label, hit)
    named = top.owner is Owner.NODE or top.label in (Label.RANK_SKEW, Label.DESYNC, Label.DATALOADER, Label.STRAGGLER)
    accused = [hit for hit in same if hit.weight >= top.weight - 0.5] if named else []
    return Diagnosis(
        label=top.label,
        owner=top.owner,
        action=top.action,
        confidence=_confidence(top, rest.values()),
        why=top.why,
        evidence=tuple(evidence[:_EVIDENCE]),
        ranks=tuple(sorted({rank for hit in accused for rank in hit.ranks})[:_ACCUSED]),
        nodes=tuple(sorted({node for hit in accused for node in hit.nodes})[:_ACCUSED]),
        others=tuple(rest.values()),
    )


def _without(lines: Sequence[Line]) -> Diagnosis:
    """No signature matched: say nothing failed, or show what is new where something did."""
    trouble = [line for line in lines if line.level not in ("debug", "info", "warning") and _in_trouble(line.text)]
    quiet = aftermath.survived(trouble, lines)
    trouble = [line for line in trouble if (line.file, line.rank) not in quiet]
    if not trouble:
        return Diagnosis(None, Owner.NOBODY, None, 0.8 if lines else 0.0, "no line tells of a failure")
    usual = CLASSES[Label.UNKNOWN]
    shown = [line for line in novel(lines) if line in trouble] or trouble
    return Diagnosis(Label.UNKNOWN, usual.owner, usual.action, 0.3, usual.means, tuple(shown[:_EVIDENCE]))


def _errors(lines: Iterable[Line]) -> list[Line]:
    """Lines that call themselves errors, and speak of one."""
    return [line for line in lines if line.level == "error" and _in_trouble(line.text)]


def _in_trouble(text: str) -> bool:
    return _TROUBLE.search(without_zeros(text)) is not None and not is_decoy(text)


def hits_in(lines: Sequence[Line]) -> list[Hit]:
    """All findings in ``lines``, in no order that means anything."""
    told = list(_told(lines))
    xids = [xid for line in told if "xid" in line.text.lower() and (xid := xid_of(line)) is not None]
    of_xid = {id(xid.line) for xid in xids}
    remote = origins.from_the_network(lines)
    found = [hit_of_xid(xid) for xid in roots(xids)]
    meanings: dict[tuple[str, str], Hit | None] = {}  # lines of one kind mean the same, unless numbers do
    for line in told:
        if id(line) in of_xid:
            continue
        kind = line.text if _BY_NUMBER.search(line.text) else _NOT_ZERO.sub("9", line.text)
        key = (kind, line.level)
        if key not in meanings:
            meanings[key] = _of_line(line)
        hit = meanings[key]
        if hit is not None and not (hit.label is Label.NAN and norms.printed(line.text)):
            found.append(_from_network(_placed(hit, line)) if line.order in remote else _placed(hit, line))
    printed = numbers.findings_of(lines)
    if not any(each.label is Label.NAN for each in printed):
        printed += norms.not_finite(lines)
    for each in printed:
        usual = CLASSES[each.label]
        found.append(
            Hit(
                each.label,
                _OWNERS.get(each.label, usual.owner),
                each.action or usual.action,
                each.weight,
                each.why,
                each.lines,
                each.ranks,
            )
        )
    return [*found, *_waits(lines, found), *_dumped(lines)]


def hits_of_stacks(stacks: Sequence[Stack], line: Line) -> list[Hit]:
    """What stacks of ranks say, as a finding at ``line``. One stack alone says only that it waits for data."""
    standing = judge_stacks(stacks)
    if len(stacks) == 1 and standing.groups[0].place is Place.DATA:
        usual = CLASSES[Label.DATALOADER]
        why = "the main thread waits for data"
        return [Hit(Label.DATALOADER, usual.owner, usual.action, GENERIC - 0.1, why, (line,))]
    if standing.label is None or len(stacks) < 2:
        return []
    usual = CLASSES[standing.label]
    weight = SPECIFIC - 0.2 if standing.culprits else HINT
    owner = Owner.INFRA if standing.label is Label.LIB_BUG else usual.owner
    return [Hit(standing.label, owner, usual.action, weight, standing.why, (line,), standing.culprits, standing.nodes)]


def _dumped(lines: Sequence[Line]) -> list[Hit]:
    """Stacks that were dumped into the log."""
    first = next((line for line in lines if _THREAD.search(line.text)), None)
    if first is None:
        return []
    stacks = read_dump("\n".join(line.raw for line in lines))
    return hits_of_stacks(stacks, first) if stacks else []


def _told(lines: Iterable[Line]) -> Iterable[Line]:
    """Lines without the frames and source of tracebacks: a ``raise`` that is quoted has not been run."""
    told = Told()
    return (line for line in lines if told.says(line))


def _of_line(line: Line) -> Hit | None:
    """What a line means, wherever it stands."""
    signature = match_of(line.text)
    if signature is None:
        return None
    weight = signature.weight
    if weight <= CASCADE and line.level in ("info", "debug"):
        return None
    if weight > CASCADE:
        if _RETRY.search(line.text) and not _GAVE_UP.search(line.text) and weight < CERTAIN:
            weight = min(weight, HINT - 0.3)
        elif line.level == "warning" and "NCCL WARN" not in line.raw:
            weight -= 0.4
        elif line.level in ("info", "debug") and weight < CERTAIN:
            weight -= 0.6
            if weight < GENERIC and signature.weight <= GENERIC:
                return None
    hit = Hit(signature.label, signature.owner, signature.action, weight, signature.means, (line,))
    return _foreign(hit, line.text) if hit.label is Label.GPU_OOM else hit


def hit_of(line: Line) -> Hit | None:
    """What one line means by itself, and whose it is; an Xid is not looked at, nor what lines say beside each other."""
    hit = _of_line(line)
    return None if hit is None else _placed(hit, line)


def _from_network(hit: Hit) -> Hit:
    """An exception out of a library that speaks to servers, unless it says something more special itself."""
    if hit.weight > GENERIC or hit.label not in (Label.USER_CODE, Label.UNKNOWN):
        return hit
    why = "a connection to storage or a hub broke"
    return replace(
        hit, label=Label.STORAGE, owner=Owner.TRANSIENT, action=Action.RESTART, weight=SPECIFIC - 0.1, why=why
    )


def _placed(hit: Hit, line: Line) -> Hit:
    """The same finding at another line: whose it is."""
    said = _RANK.search(line.text)
    node = _NODE.search(line.text)
    ranks: tuple[int, ...] = (int(said[1]),) if said else (line.rank,) if line.rank is not None else ()
    where = (node[1] or node[2]) if node else line.node
    return replace(hit, lines=(line,), ranks=ranks, nodes=(where,) if where else ())


def hit_of_xid(xid: Xid) -> Hit:
    """What the driver of a GPU has reported, as a finding."""
    meaning = xid.meaning
    weight = CERTAIN
    if meaning.after:
        weight = CASCADE
    elif meaning.note or meaning.action is Action.WARN:
        weight = GENERIC - 0.3
    elif meaning.owner is Owner.USER:
        weight = SPECIFIC - 0.5
    why = f"{meaning.means} (Xid {xid.code}{', ' + xid.device if xid.device else ''})"
    line = xid.line
    return Hit(
        meaning.label, meaning.owner, meaning.action, weight, why, (line,), nodes=(line.node,) if line.node else ()
    )


def _gib(match: re.Match[str] | None, *names: tuple[str, str]) -> float | None:
    if match is not None:
        for value, unit in names:
            if match[value]:
                return float(match[value]) * _UNIT[match[unit][0]]
    return None


def _foreign(hit: Hit, text: str) -> Hit:
    """An out-of-memory of a program that holds little itself: another process has the rest."""
    total = _gib(_OOM.search(text), ("total", "u0"), ("total2", "u1"))
    own = _gib(_OWN.search(text), ("a", "ua"), ("b", "ub"), ("c", "uc"))
    asked = _gib(_ASKED.search(text), ("a", "u")) or 0.0
    others = sum(float(each["a"]) * _UNIT[each["u"][0]] for each in _OTHER.finditer(text))
    if total is None or own is None or own + asked > 0.6 * total:
        return hit
    if others < 0.3 * total and _OTHER.search(text):
        return hit
    usual = CLASSES[Label.STALE_PROCESS]
    why = f"a GPU is full though this process holds {own:.3g} of its {total:.3g} GiB: another process has the rest"
    return replace(hit, label=Label.STALE_PROCESS, owner=usual.owner, action=usual.action, why=why)


def _waits(lines: Sequence[Line], found: Sequence[Hit]) -> list[Hit]:
    """What time-outs of collectives say about ranks, beside each other and after what came before them."""
    waiting = collectives.waiting_in(lines)
    hits = []
    if (pair := collectives.disagreement(waiting)) is not None:
        usual = CLASSES[Label.DESYNC]
        one, other = pair
        why = f"at number {one.seq} rank {one.rank} was in {one.op}, rank {other.rank} in {other.op}, or of other sizes"
        ranks: tuple[int, ...] = () if other.rank is None else (other.rank,)
        hits.append(Hit(Label.DESYNC, usual.owner, usual.action, SPECIFIC, why, (one.line, other.line), ranks))
    timeouts = [
        hit
        for hit in found
        if (hit.weight == CASCADE or hit.label is Label.RDZV) and _TIMED_OUT.search(hit.lines[0].text)
    ]
    if timeouts:
        first = min(_order(hit) for hit in timeouts)
        at = next((n for n, line in enumerate(lines) if line.order >= first), 0)
        if (busy := collectives.own_work_before(lines, at)) is not None:
            usual = CLASSES[Label.RANK_SKEW]
            ranks = () if busy.rank is None else (busy.rank,)
            why = "others waited while a rank was in work of its own"
            shown = (busy, timeouts[0].lines[0])
            weight = max(HINT, *(hit.weight for hit in timeouts)) + 0.1
            hits.append(Hit(Label.RANK_SKEW, usual.owner, usual.action, weight, why, shown, ranks))
    late = collectives.behind(waiting)
    if late and not hits:
        usual = CLASSES[Label.UNKNOWN]
        ranks = tuple(each.rank for each in late if each.rank is not None)
        why = f"the collectives of rank {late[0].rank} are behind those of its peers"
        hits.append(Hit(Label.UNKNOWN, usual.owner, usual.action, CASCADE + 0.1, why, (late[0].line,), ranks))
    return hits


def _order(hit: Hit) -> int:
    return hit.lines[0].order if hit.lines else 0


def _order_of(hits: Sequence[Hit]) -> Callable[[Hit], tuple[float, float, int]]:
    """Heaviest first, then earliest: by the clock where all of the heaviest have one, else in the order of lines."""
    most = max(hit.weight for hit in hits)
    clocks = [hit.lines[0].at for hit in hits if hit.weight == most and hit.lines]
    timed = bool(clocks) and None not in clocks

    def key(hit: Hit) -> tuple[float, float, int]:
        at = hit.lines[0].at if hit.lines else None
        return (-hit.weight, at if timed and at is not None else 0.0, _order(hit))

    return key


def _elsewhere(top: Hit, same: Sequence[Hit]) -> Hit:
    """An error of a GPU that nothing explains is the program's or a library's if several nodes have it at once."""
    nodes = {node for hit in same for node in hit.nodes}
    if top.label is Label.GPU_OTHER and top.weight < CERTAIN and len(nodes) > 1:
        usual = CLASSES[Label.LIB_BUG]
        why = f"{top.why} on {len(nodes)} nodes at once: no machine stands out"
        return replace(top, label=Label.LIB_BUG, owner=Owner.INFRA, action=usual.action, why=why)
    return top


def _confidence(top: Hit, rest: Iterable[Hit]) -> float:
    sure = next(sure for weight, sure in _SURE if top.weight >= weight)
    against = any(hit.weight >= top.weight and hit.owner is not top.owner for hit in rest)
    return round(sure - 0.15 if against else sure, 2)


def evidence_of(diagnosis: Diagnosis, *, at_s: float) -> Evidence | None:
    """The diagnosis as `Evidence` for the analyser; None if nothing failed."""
    if diagnosis.label is None:
        return None
    return Evidence(
        kind="logs",
        at_s=at_s,
        sentence=diagnosis.why,
        ranks=diagnosis.ranks,
        nodes=diagnosis.nodes,
        strength=diagnosis.confidence,
        label=diagnosis.label,
        raw=tuple(line.raw for line in diagnosis.evidence),
    )
