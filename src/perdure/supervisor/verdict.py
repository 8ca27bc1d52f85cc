"""From what is known of a failed attempt to what is done about it. Pure: evidence and the past in, a verdict out.

The first row that fits decides.

| what is known | whose it is | what is done |
|---|---|---|
| somebody asked the job to stop | user | STOP |
| a newer attempt owns the run (`Superseded`) | user | STOP: this one must not come back and supersede that one |
| the cause is HOPELESS (exit 64 and 73, a program that is not whole), on a node without fault | user | STOP |
| a node's check failed | node | REPLACE |
| a node is gone | node | RESTART: its place is a hole, which itself may fill; twice in a row: REPLACE |
| the attempt was ended because the watcher was sure (`Named`) | by its label | what it says; below |
| a rank died by itself | by its `symptoms` | below |
| a rank was too long in a phase | process, in a save or restore storage | RESTART; the same node again: REPLACE |
| ranks only complain of one another | network | RESTART |
| nothing | unknown | RESTART |

A rank that died by itself, by what its last words mean:

| means | first time | again without progress |
|---|---|---|
| OWN | RESTART | the same place and words: STOP |
| PASSING | RESTART | the same node twice in a row: REPLACE |
| UNCLEAR | RESTART | the same node: REPLACE; on another node, or after that: STOP |
| HARDWARE | REPLACE | REPLACE |
| VALUE | RESTART | at the same step: ROLL_BACK if batches may be skipped, at most twice; else STOP |

What the watcher says is done as it says it: RESTART (for a rank, like a hang: the second time on a node REPLACE), EVICT
is REPLACE, STOP_USER is STOP. ROLLBACK restores a step below the bad one, and leaves its batch out if that is allowed;
where it is not, the same bad step a second time is STOP, and so is a third roll-back.

So nothing is said to be the data's, the program's or the machine's fault that has not happened twice, but where one
word is proof. In a job of one node everything happens on the same node, which is no reason to replace it. Whatever
passes is bounded by the budget of restarts without progress (`perdure.supervisor.budget`). What REPLACE does where
there is no node to take, and how long RESTART waits, is the caller's to decide.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perdure.events.facts import how_it_ended
from perdure.supervisor.causes import Death, LastWords, blames_a_peer, excused, fingerprint, first_cause
from perdure.supervisor.symptoms import Kind, Means, Reading, read

__all__ = ["Act", "Evidence", "Failure", "Kind", "LateRank", "Named", "Past", "Verdict", "judge"]

_MOST_ROLL_BACKS = 2
_REMEMBERED = 64
_STORES = frozenset({"saving", "restoring", "copying", "closing"})
_SHOWN = 200
_SAME_STEP = 2  # a probe may look at a gradient in some steps only
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Act(enum.Enum):
    """What is done about a failure."""

    RESTART = "restart"
    "start all ranks again on the same nodes"
    REPLACE = "replace"
    "give the node's place to another one"
    ROLL_BACK = "roll-back"
    "restore one checkpoint further back, and skip the batch"
    STOP = "stop"
    "end the job and tell the user"


_ACT_OF = {"restart": Act.RESTART, "evict": Act.REPLACE, "rollback": Act.ROLL_BACK, "stop_user": Act.STOP}
_KIND_OF = {
    "hw.": Kind.NODE,
    "train.": Kind.DATA,
    "infra.storage": Kind.STORAGE,
    "infra.": Kind.NODE,
    "sw.dataloader": Kind.PROCESS,
    "sw.": Kind.USER,
}


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that was longer in a phase than it may; of several the likeliest suspect stands first."""

    rank: int
    node: str
    phase: str
    seconds: float
    allowed_s: float
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A verdict of the watcher that ended ``attempt``; ``action`` and ``label`` are its words. ``nodes`` are accused,
    or have the accused ranks.
    """

    attempt: int
    incident: str
    action: str
    label: str
    sentence: str
    rank: int | None = None
    nodes: tuple[str, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known when an attempt has failed."""

    deaths: tuple[Death, ...] = ()
    "ranks that ended badly by themselves, in the order in which it was noticed; not those that the launcher ended"
    left: tuple[Death, ...] = ()
    "ranks that exited with code 0 before the first of them, and had not said that they had finished"
    lost: tuple[str, ...] = ()
    "nodes that are gone"
    late: tuple[LateRank, ...] = ()
    "ranks that did not get on"
    bad: tuple[tuple[str, str], ...] = ()
    "nodes whose check failed, each with the sentence of the check"
    named: Named | None = None
    "why the attempt was ended, if the watcher was the first to know"
    rolled_back: tuple[int | None, ...] = ()
    "the steps for which the watcher had the job roll back before"
    out_of_memory: tuple[str, ...] = ()
    "nodes whose kernel killed a process of the attempt because memory ran out (``oom_kill`` of its memory events)"
    n_nodes: int = 1
    "places of the attempt"
    asked: bool = False
    "whether somebody asked the job to stop"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the past keeps it: plain values, one JSON object. ``node`` is empty if no node may be at fault."""

    kind: Kind
    act: Act
    node: str = ""
    seen_on: str = ""
    step: int | None = None
    mark: str = ""
    hung: bool = False
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The failures since the last progress, oldest first: a value for the journal. Progress makes it ``Past()``."""

    failures: tuple[Failure, ...] = ()

    def after(self, verdict: Verdict) -> Past:
        """The past after ``verdict``."""
        return Past((*self.failures, verdict.failure)[-_REMEMBERED:])

    def cleared(self) -> Past:
        """The past after progress."""
        return Past()

    @property
    def node(self) -> str:
        """The node at fault in the last failure, if there was one and it is still in its place."""
        last = self.failures[-1] if self.failures else None
        return "" if last is None or last.act is Act.REPLACE else last.node


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is done, about which rank or node, and why, in one sentence. ``nodes`` are all that are to be replaced."""

    kind: Kind
    act: Act
    rank: int | None
    node: str | None
    sentence: str
    nodes: tuple[str, ...] = ()
    step: int | None = None
    "what the rank had completed"
    skip: tuple[int, int] | None = None
    """of ROLL_BACK: the first and the last step whose batches are to be left out. The bad one led to the step that was
    not completed, or to the one before it, where a loop looks at its loss after the optimizer step. To restore: a step
    below the first."""
    before: int | None = None
    "of ROLL_BACK: a step below this one is to be restored"
    cause: Death | None = None
    "the death that started it"
    suspects: tuple[str, ...] = ()
    "nodes that are worth a check before the next attempt"
    failure: Failure = Failure(Kind.UNKNOWN, Act.RESTART)
    "what `Past.after` remembers"


def judge(evidence: Evidence, past: Past, *, allow_skip: bool) -> Verdict:
    """Decide about a failed attempt. ``allow_skip`` if batches may be left out of the training.

    >>> killed = Evidence(deaths=(Death(1, signal=9, node="b"),), n_nodes=2)
    >>> first = judge(killed, Past(), allow_skip=False)
    >>> first.act, first.sentence
    (<Act.RESTART: 'restart'>, 'rank 1 on node b was killed from outside')
    >>> judge(killed, Past().after(first), allow_skip=False).act
    <Act.REPLACE: 'replace'>
    """
    deaths = [death for death in evidence.deaths if not excused(death)]
    if evidence.asked:
        return _verdict(Kind.USER, Act.STOP, "somebody asked for it")
    for death in deaths:
        if LastWords.of(death.tail).error == "Superseded":
            return _verdict(Kind.USER, Act.STOP, f"{_who(death)} was superseded by a newer attempt", cause=death)
    cause = first_cause(deaths) if deaths else None
    reading = None if cause is None else read(cause, out_of_memory=cause.node in evidence.out_of_memory)
    at_fault = {node for node, _ in evidence.bad} | set(evidence.lost)
    if cause is not None and reading is not None and reading.means is Means.HOPELESS and cause.node not in at_fault:
        return _of_death(cause, reading, past, allow_skip=allow_skip, alone=True)
    if evidence.bad or evidence.lost:
        return _of_nodes(evidence, cause, past)
    if evidence.named is not None:
        return _of_named(evidence, evidence.named, past, allow_skip=allow_skip)
    if cause is not None and reading is not None and not blames_a_peer(cause):
        if len({death.node for death in deaths if read(death) == reading}) > 1:
            reading = replace(reading, at_node=False)  # what several nodes meet at once is no node's fault
        return _of_death(cause, reading, past, allow_skip=allow_skip, alone=evidence.n_nodes == 1)
    if evidence.late:
        return _of_hang(evidence, cause, past)
    if cause is not None:
        whom = _left(evidence.left) or "a rank that says nothing itself"
        text = f"{_who(cause)} lost the connection to {whom}{_said(cause)}"
        suspects = tuple(dict.fromkeys(death.node for death in deaths if death.node))
        return replace(_verdict(Kind.NETWORK, Act.RESTART, text, cause=cause), suspects=suspects)
    return _verdict(Kind.UNKNOWN, Act.RESTART, "the attempt ended and nothing says why")


def _left(left: Sequence[Death]) -> str:
    """Who has gone with exit code 0 while others went on."""
    if not left:
        return ""
    step = "" if left[0].step is None else f" after step {left[0].step}"
    more = "" if len(left) == 1 else f" (and {len(left) - 1} more)"
    return f"{_who(left[0])}, which had exited with code 0{step}{more}"


def _of_death(death: Death, reading: Reading, past: Past, *, allow_skip: bool, alone: bool) -> Verdict:
    """``alone`` if there is one node only."""
    mark = fingerprint(death)
    alike = [failure for failure in past.failures if mark and failure.mark == mark]
    kind, node = reading.kind, death.node if reading.at_node else ""
    again_here = node != "" and past.node == node and not alone
    act, then = Act.RESTART, ""
    match reading.means:
        case Means.HOPELESS:
            act = Act.STOP
        case Means.HARDWARE if node:
            act, then = Act.REPLACE, "another node takes its place"
        case Means.OWN if alike:
            kind = reading.again or kind
            act, then = Act.STOP, "it failed the same way twice without a new step: a restart cannot help"
        case Means.VALUE:
            act, then = _of_value(death.step, alike, past, allow_skip=allow_skip)
        case Means.UNCLEAR if any(each.act is Act.REPLACE or each.seen_on != death.node for each in alike):
            act, then = Act.STOP, "it did so on another node too: it goes with the job, and a restart cannot help"
        case Means.UNCLEAR | Means.PASSING if again_here:
            act, then = Act.REPLACE, "the second time in a row on this node: another one takes its place"
        case Means.UNCLEAR if len(alike) > 1:
            act, then = Act.STOP, "it failed the same way again without a new step: a restart cannot help"
        case _:
            pass
    broken = reading.means in (Means.UNCLEAR, Means.HARDWARE) or kind in (Kind.STORAGE, Kind.NETWORK)
    return Verdict(
        kind,
        act,
        death.rank,
        node or None,
        f"{_who(death)} {reading.says}{_said(death)}" + (f"; {then}" if then else ""),
        nodes=(node,) if act is Act.REPLACE else (),
        step=death.step,
        skip=None if act is not Act.ROLL_BACK or death.step is None else (death.step, death.step + 1),
        before=death.step if act is Act.ROLL_BACK else None,
        cause=death,
        suspects=(node,) if node and broken and act is not Act.STOP else (),
        failure=Failure(kind, act, node, death.node, death.step, mark, False, death.rank),
    )


def _of_value(step: int | None, alike: list[Failure], past: Past, *, allow_skip: bool) -> tuple[Act, str]:
    before = [each for each in past.failures if each.kind is Kind.DATA]
    if not any(each.step == step for each in (before if step is not None else alike)):
        return Act.RESTART, "it may have been the machine"
    if not allow_skip or step is None or step < 2:
        why = "no batch may be skipped" if not allow_skip else "nobody knows at which step"
        why = "there is nothing before it to go back to" if allow_skip and step is not None else why
        return Act.STOP, f"the second time at the same place, and {why}"
    if sum(each.act is Act.ROLL_BACK for each in before) >= _MOST_ROLL_BACKS:
        return Act.STOP, f"{_MOST_ROLL_BACKS} roll-backs did not help"
    return Act.ROLL_BACK, f"the second time after step {step}: roll back, and skip the batches around it"


def _of_hang(evidence: Evidence, cause: Death | None, past: Past) -> Verdict:
    late = evidence.late[0]
    kind = Kind.STORAGE if late.phase.lower() in _STORES else Kind.PROCESS
    before = [each for each in past.failures if late.node != "" and each.node == late.node]
    again = any(each.hung for each in before) and not any(each.act is Act.REPLACE for each in before)
    act = Act.REPLACE if again and evidence.n_nodes > 1 else Act.RESTART
    on = f" on node {late.node}" if late.node else ""
    phase = late.phase.lower()
    text = f"rank {late.rank}{on} hung: {late.seconds:.0f} s in {phase}, which may take {late.allowed_s:.0f} s"
    return Verdict(
        kind,
        act,
        late.rank,
        late.node or None,
        text + ("; the second time on this node: another one takes its place" if act is Act.REPLACE else ""),
        nodes=(late.node,) if act is Act.REPLACE else (),
        step=late.step,
        cause=cause,
        suspects=tuple(dict.fromkeys(each.node for each in evidence.late if each.node)),
        failure=Failure(kind, act, late.node, late.node, late.step, "", True, late.rank),
    )


def _of_named(evidence: Evidence, named: Named, past: Past, *, allow_skip: bool) -> Verdict:
    act, then, skip = _ACT_OF[named.action], "", None
    node = named.nodes[0] if len(named.nodes) == 1 else ""
    before = [each for each in past.failures if node and each.node == node and each.hung]
    twice = bool(before) and all(each.act is not Act.REPLACE for each in before) and evidence.n_nodes > 1
    again = any(each is not None and abs(each - (named.step or 0)) <= _SAME_STEP for each in evidence.rolled_back)
    if act is Act.ROLL_BACK and len(evidence.rolled_back) >= _MOST_ROLL_BACKS:
        act, then = Act.STOP, f"{_MOST_ROLL_BACKS} roll-backs did not help"
    elif act in (Act.ROLL_BACK, Act.REPLACE) and named.step is not None and again and not allow_skip:
        act, then = Act.STOP, "the second time at the same step, and no batch may be skipped (--skip-bad-batch)"
    elif act is Act.ROLL_BACK and named.step is not None:
        skip = (named.step, named.step) if allow_skip else None
        then = f"roll back to before step {named.step}" + (", and skip its batch" if allow_skip else "")
    elif act is Act.RESTART and named.rank is not None and twice:
        act, then = Act.REPLACE, "the second time on this node: another one takes its place"
    kind = next((kind for word, kind in _KIND_OF.items() if named.label.startswith(word)), Kind.PROCESS)
    return Verdict(
        kind,
        act,
        named.rank,
        node or None,
        f"{named.sentence} ({named.label})" + (f"; {then}" if then else ""),
        nodes=named.nodes if act is Act.REPLACE else (),
        step=named.step,
        skip=skip,
        before=named.step if act is Act.ROLL_BACK else None,
        suspects=named.nodes if act is Act.RESTART else (),
        failure=Failure(kind, act, node, node, named.step, "", act is Act.RESTART, named.rank),
    )


def _of_nodes(evidence: Evidence, cause: Death | None, past: Past) -> Verdict:
    nodes = tuple(dict.fromkeys([*(name for name, _ in evidence.bad), *evidence.lost]))
    act, take = Act.REPLACE, "another takes its place" if len(nodes) == 1 else "others take their places"
    if evidence.bad:
        why = f"node {nodes[0]} failed a check: {evidence.bad[0][1].rstrip('.')}; {take}"
    else:
        why = f"node {nodes[0]} is gone" if len(nodes) == 1 else f"nodes {', '.join(nodes)} are gone"
        if past.node == nodes[0] and evidence.n_nodes > 1:
            why += f", the second time in a row; {take}"
        else:
            act = Act.RESTART
    return Verdict(
        Kind.NODE,
        act,
        None,
        nodes[0],
        why,
        nodes=nodes if act is Act.REPLACE else (),
        cause=cause,
        failure=Failure(Kind.NODE, act, nodes[0], nodes[0]),
    )


def _verdict(kind: Kind, act: Act, text: str, *, cause: Death | None = None) -> Verdict:
    rank, step = (None, None) if cause is None else (cause.rank, cause.step)
    return Verdict(
        kind, act, rank, None, text, step=step, cause=cause, failure=Failure(kind, act, step=step, rank=rank)
    )


def _who(death: Death) -> str:
    return f"rank {death.rank} on node {death.node}" if death.node else f"rank {death.rank}"


def _said(death: Death) -> str:
    """What it said itself, to stand after what it did."""
    words = LastWords.of(death.tail)
    if words.error:
        return f" ({f'{words.error}: {words.message}'.rstrip(': ')[:_SHOWN]})"
    if death.by_signal is not None:
        return "" if death.by_signal in _FROM_OUTSIDE else f" (it {how_it_ended(death.code, death.signal)})"
    return f" ({words.message[:_SHOWN]})" if words.message else ""
