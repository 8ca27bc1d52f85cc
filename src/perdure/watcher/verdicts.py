"""The table from evidence to verdict. Pure, and meant to be read: the first row that fits decides.

A row fits when evidence of each of its kinds is there, and, where it has several, when all of them accuse the same
ranks or nobody. ``names`` says whom the verdict accuses. ``acts`` says when: ``now`` is proof, ``deadline`` is a
suspicion until a rank has stood still for longer than its phase may take, ``warns`` is told at once as a warning and
becomes the row's action after that deadline. The two confidences are shares of right verdicts (label and rank) of
simulated jobs, as a suspicion and as a verdict; `docs/watcher-verdicts.md` says how they were found.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import CLASSES, Action, Label, Owner

__all__ = ["NOTHING", "ROWS", "STOPS", "Acts", "Names", "Row", "Ruling", "judge", "kind_of", "markdown"]


class Names(enum.StrEnum):
    """Whom a verdict accuses. ``RANK`` names ranks without their node: it is where something shows, not why."""

    NODE = "node"
    RANK = "rank"
    NOBODY = "nobody"


class Acts(enum.StrEnum):
    """When a verdict is acted on."""

    NOW = "now"
    DEADLINE = "deadline"
    WARNS = "warns"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``label`` None: that of the evidence, with what is usual for it."""

    kinds: tuple[str, ...]
    label: Label | None
    owner: Owner
    action: Action
    names: Names
    acts: Acts
    early: float
    sure: float
    says: str

    @property
    def name(self) -> str:
        """How the row is called in an explanation."""
        return " + ".join(self.kinds)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the table says of some evidence, before hysteresis and deadlines."""

    row: Row
    label: Label
    owner: Owner
    action: Action
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    sentence: str
    step: int | None
    evidence: tuple[Evidence, ...]


# Evidence | label (* that of the line) | who must act | action | names | when | early and sure, in hundredths | because
_TABLE = """
# What a rule about a line is certain of: a machine, then what it hangs on.
hardware-line          | *                     | node      | evict     | node   | now      | 90 95 | a line tells of a fault of the machine
# Numbers.
nan-source             | train.nan             | data      | rollback  | rank   | now      | 90 95 | it began on one rank: in its batch, or its machine
norm-far               | hw.sdc                | node      | evict     | node   | now      | 70 70 | a flipped bit, or a very odd batch
replica-differs        | hw.sdc                | node      | evict     | node   | now      | 90 95 | replicas compute the same, so the odd one computes wrongly
replicas-differ        | hw.sdc                | nobody    | rollback  | nobody | now      | 50 60 | replicas differ, and it cannot be told which is right
nan-everywhere         | train.nan             | data      | rollback  | nobody | now      | 80 90 | it began everywhere: data, or the training itself
nan-unseen             | train.nan             | data      | rollback  | nobody | now      | 80 90 | nobody had looked where it began
loss-nan               | train.nan             | data      | rollback  | nobody | now      | 80 90 | the loss is not finite, and nothing says where that began
# Collectives that do not match, whatever ended of it.
odd-call               | sw.desync             | user      | stop_user | rank   | now      | 90 95 | the program of one rank calls another collective
left-early             | sw.desync             | user      | stop_user | rank   | now      | 85 92 | it left out collectives and went; the others failed
skipped                | sw.desync             | user      | stop_user | rank   | now      | 90 95 | a rank left out a collective
extra                  | sw.desync             | user      | stop_user | rank   | now      | 90 95 | a rank calls one collective more than the others
calls-differ           | sw.desync             | user      | stop_user | nobody | now      | 80 85 | calls differ, and it cannot be told whose is wrong
# Deaths.
ended-together         | infra.sched           | nobody    | restart   | nobody | now      | 80 80 | somebody ended the job
killed + oom-kill      | infra.host_oom        | user      | stop_user | rank   | now      | 90 95 | the kernel killed it for memory
killed + line          | *                     | user      | restart   | rank   | now      | 85 90 | a line says why it was killed
killed                 | transient.unknown     | transient | restart   | rank   | now      | 90 95 | somebody killed one rank
crashed + line         | *                     | user      | restart   | rank   | now      | 85 90 | a line says why it crashed
crashed                | sw.user_code          | user      | restart   | rank   | now      | 85 92 | native code failed; the same again is for the user
died-before + line     | *                     | user      | stop_user | rank   | now      | 85 90 | a line says why the first rank failed
died-before            | sw.user_code          | user      | stop_user | rank   | now      | 85 90 | one rank failed, the others of that
# A rank that cannot do anything.
stopped + in-debugger  | transient.unknown     | user      | warn      | rank   | warns    | 90 90 | a person looks at it
traced                 | transient.unknown     | user      | warn      | rank   | warns    | 90 90 | a person looks at it
stopped                | transient.unknown     | transient | restart   | rank   | warns    | 90 95 | a stopped process does nothing, in a collective or not
in-debugger            | transient.unknown     | user      | warn      | rank   | warns    | 90 90 | a person looks at it
paused-together        | transient.unknown     | nobody    | restart   | nobody | deadline | 80 80 | a machine was paused, which passes
node-silent            | hw.host               | node      | evict     | node   | deadline | 60 80 | a machine is gone, or its network is
# A rank that others wait for.
behind + in-loading    | sw.dataloader         | user      | restart   | rank   | deadline | 50 95 | it waits for its data
outside + in-loading   | sw.dataloader         | user      | restart   | rank   | deadline | 50 90 | it waits for its data
behind + in-io         | infra.storage         | infra     | restart   | rank   | deadline | 85 95 | it reads or writes and does not come back
behind + in-kernel     | infra.storage         | infra     | restart   | rank   | deadline | 85 95 | the kernel does not let it go (state D)
outside + in-io        | infra.storage         | infra     | restart   | rank   | deadline | 80 90 | it reads or writes and does not come back
behind + silent        | sw.lib_bug            | nobody    | restart   | rank   | deadline | 85 95 | native code holds the GIL and does not return
behind + gave-up       | sw.rank_skew          | user      | stop_user | rank   | now      | 80 85 | its own work took longer than the others wait
behind                 | transient.unknown     | transient | restart   | rank   | deadline | 30 95 | it computes, or hangs in its own work
outside                | transient.unknown     | transient | restart   | rank   | deadline | 40 85 | it is the only one at work
silent                 | sw.lib_bug            | nobody    | restart   | rank   | deadline | 80 90 | native code holds the GIL, or the process hangs hard
crossed                | sw.desync             | user      | stop_user | nobody | deadline | 70 85 | collectives come in different orders
zombie + line          | *                     | user      | stop_user | rank   | now      | 80 85 | a line says why it is gone
raised + line          | *                     | user      | stop_user | rank   | now      | 80 85 | a line says why it failed
raised                 | sw.user_code          | user      | stop_user | rank   | now      | 85 90 | a program that ends with an error of its own
told-to-end            | transient.unknown     | transient | restart   | rank   | now      | 50 60 | it was told to end, by whom is not known
zombie                 | transient.unknown     | transient | restart   | rank   | deadline | 70 70 | it is gone
many-behind            | transient.unknown     | nobody    | restart   | nobody | deadline | 50 60 | what many share fails: storage, the network, the program
all-waiting            | sw.lib_bug            | nobody    | restart   | nobody | deadline | 75 85 | below the collective: a library, or hardware that says nothing
no-progress            | transient.unknown     | nobody    | restart   | rank   | deadline | 50 60 | it does not get on
# Rules about lines that stop a job by themselves.
stop-line              | *                     | user      | stop_user | rank   | now      | 80 85 | a line says what failed
oom-kill               | infra.host_oom        | user      | warn      | node   | now      | 80 80 | memory ran out, though no rank died of it
# Of the training.
divergence             | train.divergence      | user      | stop_user | nobody | now      | 80 80 | the loss rises and stays
bad-resume             | train.bad_resume      | user      | rollback  | nobody | now      | 85 85 | the loss after a restore is not that before
loss-back              | train.spike_recovered | nobody    | warn      | nobody | now      | 80 80 | the loss rose and came back
loss-spike             | train.divergence      | user      | warn      | nobody | deadline | 30 30 | the loss rose; whether it comes back is not known yet
metric-lost            | train.metric_lost     | user      | warn      | nobody | now      | 80 80 | a metric is not reported any more
# Of jobs that are watched from outside: never more than a suspicion.
log-silent             | transient.unknown     | nobody    | warn      | rank   | deadline | 40 40 | others write on; or it has no more to say
kernel-hang            | transient.unknown     | nobody    | warn      | nobody | deadline | 60 60 | who hangs waits, perhaps for one that does not
exporter-silent        | hw.host               | node      | warn      | node   | deadline | 40 40 | others answer; or it has been ended
# What is slow, or will be full.
contention             | sw.contention         | infra     | warn      | node   | now      | 85 85 | another process takes what a rank needs
slow-node              | hw.straggler          | node      | warn      | node   | now      | 85 85 | all its ranks are slower than their peers
slow-rank              | hw.straggler          | node      | warn      | node   | now      | 85 85 | its own work takes longer than that of its peers
slow-job               | transient.unknown     | nobody    | warn      | nobody | now      | 80 80 | all are slower than they were, nobody more than others
memory-soon-full       | infra.host_oom        | user      | warn      | node   | now      | 80 80 | memory will be full soon
disk-soon-full         | infra.disk_full       | user      | warn      | node   | now      | 80 80 | a file system will be full soon
clock-jump             | infra.clock           | infra     | warn      | node   | now      | 90 90 | a clock has jumped
line                   | *                     | user      | warn      | node   | now      | 80 80 | a line tells of something that stops nobody
noted                  | *                     | user      | warn      | node   | now      | 60 60 | a detector has found it, and says what it is
"""  # noqa: E501 (a table is read by its columns)


def _read(table: str) -> Iterator[Row]:
    for line in table.splitlines():
        if not line or line.startswith("#"):
            continue
        kinds, label, owner, action, names, acts, sure, says = (cell.strip() for cell in line.split(" | "))
        early, later = (int(number) / 100 for number in sure.split())
        yield Row(
            kinds=tuple(kinds.split(" + ")),
            label=None if label == "*" else Label(label),
            owner=Owner(owner),
            action=Action(action),
            names=Names(names),
            acts=Acts(acts),
            early=early,
            sure=later,
            says=says,
        )


ROWS: tuple[Row, ...] = tuple(_read(_TABLE))
"""All rows, the first that fits decides."""
_SIDE = frozenset(
    {
        "oom-kill",
        "divergence",
        "bad-resume",
        "loss-back",
        "loss-spike",
        "metric-lost",
        "slow-rank",
        "slow-node",
        "slow-job",
        "contention",
        "memory-soon-full",
        "disk-soon-full",
        "clock-jump",
        "log-silent",
        "kernel-hang",
        "exporter-silent",
        "line",
        "noted",
    }
)  # fmt: skip
STOPS: frozenset[str] = frozenset(kind for row in ROWS for kind in row.kinds) - _SIDE
"""Kinds of which a job stops. They make one incident together: what follows from the first is no fault of its own."""
_HARDWARE = ("hw.",)
_ORDER = {kind: number for number, kind in enumerate(kind for row in ROWS for kind in row.kinds)}


_SAME = {
    "loss-not-finite": "loss-nan",
    "loss-diverged": "divergence",
    "loss-spike-recovered": "loss-back",
    "cpu-contention": "contention",
}
_CERTAIN = 0.8
_OF_SEVERAL = frozenset({Label.DESYNC})
"""Lines with these are of a rank that fell because calls differ, and do not say whose was wrong."""
NOTHING = "nothing"
"""Evidence of no kind that the table knows and without a label: it makes no incident by itself."""


def kind_of(evidence: Evidence) -> str:
    """Under which kind the table knows evidence: its own, or by what its label does, where it is certain of one."""
    kind = evidence.kind.replace("_", "-")
    kind = _SAME.get(kind, kind)
    if kind != "line" and kind in _ORDER:
        return kind
    if evidence.label is None:
        return "line" if kind == "line" else NOTHING
    if kind.endswith("-over"):
        return NOTHING
    if kind != "line" and evidence.strength < _CERTAIN:
        return "noted"
    if CLASSES[evidence.label].action is Action.WARN:
        return "line"
    return "hardware-line" if evidence.label.startswith(_HARDWARE) else "stop-line"


def judge(evidence: Sequence[Evidence]) -> Ruling | None:
    """Return what the first row says that fits, None if none does. ``evidence`` is of one incident, the oldest first.

    >>> found = Evidence(kind="killed", at_s=0.0, ranks=(2,), nodes=("b",), sentence="rank 2 on b was ended by SIGKILL")
    >>> judge([found]).label, judge([found]).ranks, judge([found]).nodes
    (<Label.UNKNOWN: 'transient.unknown'>, (2,), ())
    """
    by_kind: dict[str, list[Evidence]] = {}
    for each in evidence:
        kind = kind_of(each)
        by_kind.setdefault(kind, []).append(each)
        if kind == "stop-line":
            by_kind.setdefault("line", []).append(each)
    for row in ROWS:
        used = _used(row, by_kind)
        if used:
            return _ruled(row, used, tuple(evidence))
    return None


def _used(row: Row, by_kind: Mapping[str, list[Evidence]]) -> tuple[Evidence, ...]:
    """The evidence that makes a row fit: of each kind the oldest that accuses ranks which the first kind accuses."""
    if not all(kind in by_kind for kind in row.kinds):
        return ()
    head, *others = row.kinds
    if head == "line" and len(row.kinds) == 1 and any(kind_of(e) == "stop-line" for e in by_kind["line"]):
        return ()
    for first in by_kind[head]:
        used = [first]
        for kind in others:
            match = next((each for each in by_kind[kind] if _agrees(first, each)), None)
            if match is None:
                break
            used.append(match)
        else:
            return tuple(used)
    return ()


def _agrees(first: Evidence, other: Evidence) -> bool:
    if first.ranks and other.ranks:
        return bool(set(first.ranks) & set(other.ranks))
    if first.nodes and other.nodes:
        return bool(set(first.nodes) & set(other.nodes))
    return True


def _ruled(row: Row, used: tuple[Evidence, ...], evidence: tuple[Evidence, ...]) -> Ruling:
    first, last = used[0], used[-1]
    label, owner, action = row.label, row.owner, row.action
    told = next((each.label for each in reversed(used) if each.label is not None), None)
    if label is None or (told is not None and len(used) == 1):
        label = told if told is not None else Label.UNKNOWN
        owner, action = CLASSES[label].owner, CLASSES[label].action
        if kind_of(last) in ("line", "noted", *_SIDE) and row.action is Action.WARN:
            action = Action.WARN
    ranks, nodes = first.ranks or last.ranks, first.nodes or last.nodes
    names = Names.NODE if owner is Owner.NODE and row.names is Names.RANK and row.label is None else row.names
    if names is Names.NOBODY or (row.label is None and (owner is Owner.NOBODY or label in _OF_SEVERAL)):
        ranks, nodes = (), ()
    elif names is Names.RANK:
        nodes = ()
    sentence = first.sentence if len(used) == 1 else f"{first.sentence}; {last.sentence}"
    step = next((each.step for each in used if each.step is not None), None)
    return Ruling(row, label, owner, action, ranks, nodes, f"{sentence}: {row.says}", step, evidence)


def markdown(rows: Iterable[Row] = ROWS) -> str:
    """The table as it stands in the docs."""
    lines = [
        "| evidence | label | who must act | names | action | when | suspected | sure | because |",
        "|" + "---|" * 9,
    ]
    for row in rows:
        label = f"`{row.label}`" if row.label is not None else "of the line"
        owner, action = (row.owner, row.action) if row.label is not None else ("of the label", "of the label")
        kinds = " + ".join(f"`{kind}`" for kind in row.kinds)
        lines.append(
            f"| {kinds} | {label} | {owner} | {row.names} | {action} | {row.acts} | {row.early:.2f} | {row.sure:.2f}"
            f" | {row.says} |"
        )
    return "\n".join(lines)
