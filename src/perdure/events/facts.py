"""What can happen: one frozen fact a kind, each with a sentence for people (``str(fact)``) and plain JSON for machines.

Times are seconds, sizes are bytes, steps are completed optimizer steps. Kinds are stable names: a reader of a newer log
sees what it does not know as `Other`.
"""

from __future__ import annotations

import signal as signals
from typing import Any

import msgspec

__all__ = [
    "AgentLost",
    "AgentStarted",
    "AttemptStarted",
    "AttemptStopped",
    "Committed",
    "Fact",
    "FellBack",
    "JobFailed",
    "JobStopped",
    "JobSucceeded",
    "NodeCordoned",
    "NodeDrained",
    "NodeJoined",
    "NodeLost",
    "Notice",
    "Other",
    "PlaceTaken",
    "RankDied",
    "RankLate",
    "RestoreSkipped",
    "Restored",
    "SaveFailed",
    "StepSaved",
    "StepsBegan",
    "StopAgreed",
    "VerdictTold",
    "seconds",
    "size",
]


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Something that happened. ``str(fact)`` is one sentence without a full stop."""


class StepSaved(Fact, frozen=True, kw_only=True, tag="step-saved"):
    """``save`` returned on this rank: the tensors are copied, or stay untouched until they are."""

    step: int
    blocked_s: float
    nbytes: int
    memory: bool = True
    """whether an agent holds it, which outlives this rank; else the rank's own background thread does"""

    def __str__(self) -> str:
        what = (
            f"saved step {self.step} to memory"
            if self.memory
            else f"copied step {self.step}, to be written by this rank"
        )
        return f"{what} ({size(self.nbytes)}, blocked {seconds(self.blocked_s)})"


class Committed(Fact, frozen=True, kw_only=True, tag="committed"):
    """A step is durable and is the newest of its lineage, at ``slot``."""

    step: int
    slot: int
    tier: str
    seconds: float
    raw_bytes: int
    stored_bytes: int

    def __str__(self) -> str:
        stored = "" if self.stored_bytes == self.raw_bytes else f" as {size(self.stored_bytes)}"
        later = f"{seconds(self.seconds)} after its save"
        return f"committed step {self.step} to {self.tier} ({size(self.raw_bytes)}{stored}, {later})"


class SaveFailed(Fact, frozen=True, kw_only=True, tag="save-failed"):
    """A save will never be durable; ``error`` is its sentence, ``latest`` the step that stays the newest."""

    step: int
    error: str
    latest: int | None = None

    def __str__(self) -> str:
        stays = "" if self.latest is None else f"; step {self.latest} stays the latest"
        return f"could not save step {self.step}: {self.error}{stays}"


class Restored(Fact, frozen=True, kw_only=True, tag="restored"):
    """This rank's state is that of ``step`` again. ``tiers`` maps tier to bytes; ``committed`` is false for a step from
    memory. This rank itself read ``read_nbytes`` for it, and took ``shared_nbytes`` that others of its node had read.
    """

    step: int
    tiers: dict[str, int]
    seconds: float
    read_nbytes: int = 0
    shared_nbytes: int = 0
    verified_tiles: int = 0
    committed: bool = True
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = " and ".join(f"{size(n)} from {tier}" for tier, n in self.tiers.items()) or "nothing to read"
        newer = "" if self.committed else ", which no store holds yet"
        notes = f"; {'; '.join(self.notes)}" if self.notes else ""
        where += f", {size(self.shared_nbytes)} of it read by other ranks of the node" if self.shared_nbytes else ""
        how = f"{self.verified_tiles} tiles verified, {seconds(self.seconds)}"
        return f"restored step {self.step}{newer} ({where}, {how}){notes}"


class RestoreSkipped(Fact, frozen=True, kw_only=True, tag="restore-skipped"):
    """There was nothing to restore; training starts from the beginning."""

    where: str

    def __str__(self) -> str:
        return f"no step to restore in {self.where}: starting from the beginning"


class FellBack(Fact, frozen=True, kw_only=True, tag="fell-back"):
    """Something was bad or gone, and the next best was taken: another tier of the same step, or an older step."""

    step: int
    to_step: int
    from_tier: str
    to_tier: str
    reason: str

    def __str__(self) -> str:
        if self.step == self.to_step:
            return f"step {self.step}: {self.from_tier} was no use ({self.reason}); taking {self.to_tier}"
        return f"step {self.step} was no use ({self.reason}); taking step {self.to_step} from {self.to_tier}"


class AgentStarted(Fact, frozen=True, kw_only=True, tag="agent-started"):
    """The agent of this node serves."""

    pid: int
    job: str

    def __str__(self) -> str:
        return f"agent {self.pid} serves job {self.job} on this node"


class AgentLost(Fact, frozen=True, kw_only=True, tag="agent-lost"):
    """The agent of this node is gone; ranks save by themselves from here on."""

    reason: str
    pid: int | None = None

    def __str__(self) -> str:
        return f"lost the agent: {self.reason}; this rank saves by itself from here on"


class AttemptStarted(Fact, frozen=True, kw_only=True, tag="attempt-started"):
    """The launcher has started all ranks of an attempt."""

    attempt: int
    world: int
    job: str = ""

    def __str__(self) -> str:
        return f"attempt {self.attempt} started with {self.world} rank{'s' if self.world != 1 else ''}"


class StepsBegan(Fact, frozen=True, kw_only=True, tag="steps-began"):
    """An attempt has completed its first step; the job had come as far as ``before``."""

    attempt: int
    step: int
    before: int = 0

    def __str__(self) -> str:
        known = f"; the job had come to step {self.before} before" if self.before >= self.step else ""
        return f"attempt {self.attempt} completed its first step, {self.step}{known}"


class RankDied(Fact, frozen=True, kw_only=True, tag="rank-died"):
    """A rank ended otherwise than well: with ``code``, or by ``signal``; ``excused`` says why it does not count, if it
    does not.
    """

    rank: int
    attempt: int
    code: int | None = None
    signal: int | None = None
    step: int | None = None
    excused: str | None = None
    node: str | None = None

    def __str__(self) -> str:
        at = "" if self.step is None else f" after step {self.step}"
        where = "" if self.node is None else f" on {self.node}"
        excused = "" if self.excused is None else f" ({self.excused})"
        return f"rank {self.rank}{where} {how_it_ended(self.code, self.signal)}{at}{excused}"


class RankLate(Fact, frozen=True, kw_only=True, tag="rank-late"):
    """A rank has been in ``phase`` for longer than it may."""

    rank: int
    node: str
    phase: str
    seconds: float
    allowed_s: float
    why: str = ""

    def __str__(self) -> str:
        took = f"{seconds(self.seconds)} in {self.phase}, {seconds(self.allowed_s)} are allowed"
        why = f" (it {self.why})" if self.why else ""
        return f"rank {self.rank} on {self.node} is late: {took}{why}"


class VerdictTold(Fact, frozen=True, kw_only=True, tag="verdict"):
    """The watcher names what is wrong. ``stage`` is suspicion, verdict or cleared; an incident keeps its name."""

    incident: str
    stage: str
    label: str
    owner: str
    action: str
    confidence: float
    sentence: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    step: int | None = None

    def __str__(self) -> str:
        sure = "" if self.stage == "cleared" else f", {self.action}, confidence {self.confidence:.2f}"
        return f"watcher, {self.stage}: {self.sentence} ({self.label}{sure}) [{self.incident}]"


class NodeJoined(Fact, frozen=True, kw_only=True, tag="node-joined"):
    """The launcher of a node is there."""

    node: str
    host: str
    nproc: int

    def __str__(self) -> str:
        return f"node {self.node} joined ({self.host}, {self.nproc} rank{'s' if self.nproc != 1 else ''})"


class NodeLost(Fact, frozen=True, kw_only=True, tag="node-lost"):
    """A node of the attempt is gone: its launcher died, or nothing is heard of it."""

    node: str
    ranks: int

    def __str__(self) -> str:
        return f"node {self.node} is lost, and {self.ranks} rank{'s' if self.ranks != 1 else ''} with it"


class NodeCordoned(Fact, frozen=True, kw_only=True, tag="node-cordoned"):
    """A node is not used for a while."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"node {self.node} is cordoned: {self.reason}"


class NodeDrained(Fact, frozen=True, kw_only=True, tag="node-drained"):
    """A node was left as somebody asked, after all ranks had stopped at a saved step."""

    node: str
    step: int

    def __str__(self) -> str:
        return f"node {self.node} is drained after step {self.step}"


class PlaceTaken(Fact, frozen=True, kw_only=True, tag="place-taken"):
    """A node takes a place, and with it the ranks of the node that had it before."""

    place: int
    node: str
    before: str | None = None

    def __str__(self) -> str:
        before = "" if self.before is None else f" of node {self.before}"
        return f"node {self.node} takes place {self.place}{before}"


class AttemptStopped(Fact, frozen=True, kw_only=True, tag="attempt-stopped"):
    """No process of the attempt is left. ``killed`` counts those that had to be killed."""

    attempt: int
    reason: str
    seconds: float
    killed: int = 0

    def __str__(self) -> str:
        killed = f", {self.killed} killed" if self.killed else ""
        return f"attempt {self.attempt} is stopped: {self.reason} ({seconds(self.seconds)}{killed})"


class JobSucceeded(Fact, frozen=True, kw_only=True, tag="job-succeeded"):
    """Every rank finished."""

    attempts: int
    seconds: float

    def __str__(self) -> str:
        many = "the first attempt" if self.attempts == 1 else f"attempt {self.attempts} of this run"
        return f"the job succeeded in {many}, after {seconds(self.seconds)}"


class JobFailed(Fact, frozen=True, kw_only=True, tag="job-failed"):
    """The job will not be tried again. ``reason`` says why not."""

    reason: str
    attempts: int
    rank: int | None = None
    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        who = "" if self.rank is None else f": rank {self.rank} {how_it_ended(self.code, self.signal)}"
        return f"the job failed{who}; {self.reason}"


class JobStopped(Fact, frozen=True, kw_only=True, tag="job-stopped"):
    """The job was asked to stop, by ``signal``, and did."""

    signal: int
    seconds: float
    killed: int = 0

    def __str__(self) -> str:
        killed = f"; {self.killed} processes did not stop in time and were killed" if self.killed else ""
        return f"the job stopped on {signal_name(self.signal)} within {seconds(self.seconds)}{killed}"


class StopAgreed(Fact, frozen=True, kw_only=True, tag="stop-agreed"):
    """All ranks of the node stop at the end of ``step``."""

    step: int

    def __str__(self) -> str:
        return f"asked to stop: all ranks stop after step {self.step}"


class Notice(Fact, frozen=True, kw_only=True, tag="notice"):
    """A sentence of its own, for what has no kind."""

    text: str

    def __str__(self) -> str:
        return self.text


class Other(Fact, frozen=True, kw_only=True, tag="other"):
    """A fact of a kind that this release does not know."""

    name: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}: {self.fields}"


def size(nbytes: int) -> str:
    """Return ``nbytes`` for people.

    >>> size(0), size(4 << 20), size(3_000_000_000)
    ('0 B', '4.0 MiB', '2.8 GiB')
    """
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def seconds(value: float) -> str:
    """Return a duration for people.

    >>> seconds(0.00042), seconds(0.042), seconds(4.2), seconds(420)
    ('0.4 ms', '42 ms', '4.2 s', '7 min 0 s')
    """
    if value < 0.01:
        return f"{value * 1000:.1f} ms"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{int(value) // 60} min {int(value) % 60} s"


def signal_name(number: int) -> str:
    """Return ``SIGTERM`` for 15; a number for a signal without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_it_ended(code: int | None, signal: int | None) -> str:
    """Return how a process ended, as a verb and its object."""
    return f"was killed by {signal_name(signal)}" if signal is not None else f"exited with code {code}"
