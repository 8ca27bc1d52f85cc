"""The faults of the suite, and what a watcher is expected to say of each. Data, and meant to be read.

A kind says what is done to a job, whom a verdict may accuse (the rank, its node, nobody), which labels and actions are
right, and how long a case waits for the answer. What is healthy has no right label: nothing is to be done, and a
suspicion or a warning counts as a warning, unless the kind says that one is fair.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.watcher.labels import Action, Label

__all__ = ["DEADLINE_S", "FAULTS", "HEALTHY", "KINDS", "Family", "How", "Kind", "Whom", "markdown"]

DEADLINE_S = 10.0
"""What a step may take in every case, as the user of a job says it; a watcher acts on a hang after that."""


class Family(enum.StrEnum):
    """Which of the promises a kind is measured by."""

    DEATH = "death"
    FREEZE = "freeze"
    HANG = "hang"
    DESYNC = "desync"
    NUMBERS = "numbers"
    SLOW = "slow"
    RESOURCES = "resources"
    HARDWARE = "hardware"
    HEALTHY = "healthy"


class How(enum.StrEnum):
    """How a fault is made: to the processes from outside, by the program itself, or by what the watcher is shown."""

    OUTSIDE = "from outside"
    INSIDE = "in the program"
    PLAYED = "played"


class Whom(enum.StrEnum):
    """Whom a right verdict accuses."""

    RANK = "rank"
    NODE = "node"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of case. ``labels`` and ``actions`` are all that are right; both are empty for what is healthy."""

    name: str
    family: Family
    how: How
    what: str
    whom: Whom = Whom.NOBODY
    labels: frozenset[Label] = frozenset()
    actions: frozenset[Action] = frozenset()
    shapes: tuple[tuple[int, ...], ...] = ((2, 2), (3, 1), (2, 1), (1, 1, 1))
    "Ranks of each node, drawn by the seed."
    calm_s: tuple[float, float] = (3.0, 5.0)
    "How long it trains before, drawn."
    within_s: float = 25.0
    "How long the answer is waited for; what is healthy goes on for so long."
    plan: Mapping[str, Any] = field(default_factory=dict)
    "What else `perdure.testing.faults.trouble.Plan` says."
    pinned: bool = False
    may_warn: bool = False
    "A warning is fair, though nothing is to be done."


_STEP_S = (0.02, 0.1)
_ANY = ((2, 2), (3, 1), (2, 1), (1, 1, 1))
_THREE = ((2, 2), (3, 1), (1, 1, 1))
_PAIRS = ((2, 2), (1, 1))


def _labels(*labels: Label) -> frozenset[Label]:
    return frozenset(labels)


def _actions(*actions: Action) -> frozenset[Action]:
    return frozenset(actions)


def _dies(name: str, how: How, what: str, labels: frozenset[Label], actions: frozenset[Action], **more: Any) -> Kind:
    return Kind(
        name=name, family=Family.DEATH, how=how, what=what, whom=Whom.RANK, labels=labels, actions=actions,
        within_s=12.0, **more,
    )  # fmt: skip


def _hangs(name: str, what: str, labels: frozenset[Label], actions: frozenset[Action], **more: Any) -> Kind:
    return Kind(
        name=name, family=Family.HANG, how=How.INSIDE, what=what, whom=Whom.RANK, labels=labels, actions=actions, **more
    )


def _desync(name: str, what: str) -> Kind:
    return Kind(
        name=name, family=Family.DESYNC, how=How.INSIDE, what=what, whom=Whom.RANK, labels=_labels(Label.DESYNC),
        actions=_actions(Action.STOP_USER), shapes=_THREE,
    )  # fmt: skip


def _numbers(
    name: str,
    what: str,
    whom: Whom,
    label: Label | tuple[Label, ...],
    *actions: Action,
    plan: Mapping[str, Any],
    **more: Any,
) -> Kind:
    return Kind(
        name=name, family=Family.NUMBERS, how=How.INSIDE, what=what, whom=whom,
        labels=frozenset([label] if isinstance(label, Label) else label),
        actions=_actions(*actions), plan=plan, **more,
    )  # fmt: skip


def _slow(name: str, what: str, whom: Whom, label: Label, **more: Any) -> Kind:
    return Kind(
        name=name, family=Family.SLOW, what=what, whom=whom, labels=_labels(label), actions=_actions(Action.WARN),
        calm_s=more.pop("calm_s", (12.0, 14.0)), within_s=25.0, how=more.pop("how", How.INSIDE), **more,
    )  # fmt: skip


FAULTS: tuple[Kind, ...] = (
    _dies(
        "killed", How.OUTSIDE, "`kill -9` of a rank", _labels(Label.UNKNOWN), _actions(Action.RESTART),
    ),
    _dies(
        "exit", How.INSIDE, "a rank ends with an exit code, without a word (`os._exit`)",
        _labels(Label.USER_CODE, Label.UNKNOWN), _actions(Action.STOP_USER, Action.RESTART),
    ),
    _dies(
        "raise", How.INSIDE, "a rank raises an exception", _labels(Label.USER_CODE), _actions(Action.STOP_USER),
    ),
    _dies(
        "out-of-memory", How.INSIDE, "a rank raises for lack of memory of a GPU, as torch words it",
        _labels(Label.GPU_OOM), _actions(Action.STOP_USER),
    ),
    _dies(
        "segfault", How.INSIDE, "native code of a rank reads from address 0", _labels(Label.USER_CODE),
        _actions(Action.RESTART, Action.STOP_USER),
    ),
    _dies(
        "killed-for-memory", How.PLAYED,
        "`kill -9` of a rank, with the kernel's line and its count of such kills, as if a limit had been reached",
        _labels(Label.HOST_OOM), _actions(Action.STOP_USER),
    ),
    Kind(
        name="stopped", family=Family.FREEZE, how=How.OUTSIDE, what="SIGSTOP of a rank, wherever it is",
        whom=Whom.RANK, labels=_labels(Label.UNKNOWN), actions=_actions(Action.RESTART),
    ),
    Kind(
        name="stop-inside", family=Family.FREEZE, how=How.INSIDE,
        what="SIGSTOP of a rank that waits for the others in a collective", whom=Whom.RANK,
        labels=_labels(Label.UNKNOWN), actions=_actions(Action.RESTART),
    ),
    Kind(
        name="node-gone", family=Family.HARDWARE, how=How.PLAYED,
        what="all ranks of a node are stopped, and nothing is heard of the node any more", whom=Whom.NODE,
        labels=_labels(Label.HOST), actions=_actions(Action.EVICT), shapes=((2, 2), (2, 1), (1, 1, 1)), within_s=40.0,
    ),
    _hangs(
        "gil", "native code deadlocks while it holds Python's lock", _labels(Label.LIB_BUG, Label.UNKNOWN),
        _actions(Action.RESTART),
    ),
    _hangs(
        "hang-loader", "the data set of a rank gives no next batch", _labels(Label.DATALOADER),
        _actions(Action.RESTART),
    ),
    _hangs(
        "hang-io", "a rank writes its checkpoint to a pipe that nobody reads, or waits for an answer while it does",
        _labels(Label.STORAGE), _actions(Action.RESTART), plan={"save_every": 40},
    ),
    _hangs(
        "hang-compute", "a rank spins, sleeps, or waits for a lock in its own work",
        _labels(Label.UNKNOWN, Label.RANK_SKEW), _actions(Action.RESTART),
    ),
    _desync("skip-collective", "a rank leaves out a collective"),
    _desync("extra-collective", "a rank calls a collective that the others do not"),
    _desync("odd-collective", "a rank calls another operation, or with another shape (of which gloo aborts a rank)"),
    _slow("slow-rank", "the own work of a rank takes 25 to 60 % longer", Whom.RANK, Label.STRAGGLER, shapes=_THREE),
    _slow("slow-node", "so does that of all ranks of a node", Whom.NODE, Label.STRAGGLER, shapes=((2, 2),)),
    _slow("slow-job", "so does that of all ranks, after 40 s", Whom.NOBODY, Label.UNKNOWN, calm_s=(38.0, 42.0)),
    _slow(
        "neighbour", "a process that is not of the job takes the processor of a node", Whom.NODE, Label.CONTENTION,
        how=How.OUTSIDE, shapes=_PAIRS, pinned=True, plan={"work": "cpu"}, calm_s=(5.0, 7.0),
    ),
    _numbers(
        "nan-batch", "a NaN in the batches of a rank", Whom.RANK, Label.NAN, Action.ROLLBACK, plan={},
    ),
    _numbers(
        "inf-gradient", "an Inf in the own gradient of a rank, once", Whom.RANK, Label.NAN, Action.ROLLBACK, plan={},
    ),
    _numbers(
        "flip-gradient", "the highest bit of an exponent in the own gradient of a rank, once, or from then on (the"
        " first time it cannot be told from a bad batch)", Whom.RANK, (Label.SDC, Label.NAN), Action.EVICT,
        Action.ROLLBACK, plan={},
    ),
    _numbers(
        "flip-parameter", "a bit of a parameter of a rank, once: replicas differ silently", Whom.RANK, Label.SDC,
        Action.EVICT, plan={}, shapes=_THREE,
    ),
    _numbers(
        "diverges", "the targets of all ranks become noise, and stay it", Whom.NOBODY, Label.DIVERGENCE,
        Action.STOP_USER, plan={"size": 4.0}, calm_s=(8.0, 10.0), within_s=30.0,
    ),
    _numbers(
        "spike", "the targets of all ranks are noise for a second or two", Whom.NOBODY, Label.SPIKE_RECOVERED,
        Action.WARN, plan={"size": 4.0}, calm_s=(8.0, 10.0), within_s=25.0,
    ),
    _numbers(
        "metric-lost", "a metric vanishes from the log", Whom.NOBODY, Label.METRIC_LOST, Action.WARN, plan={},
        calm_s=(10.0, 12.0), within_s=40.0,
    ),
    _numbers(
        "bad-resume", "a second attempt goes on at the right step with fresh weights", Whom.NOBODY, Label.BAD_RESUME,
        Action.ROLLBACK, plan={}, calm_s=(8.0, 10.0), within_s=25.0,
    ),
    Kind(
        name="disk-fills", family=Family.RESOURCES, how=How.OUTSIDE,
        what="the file system (in memory, mounted for it) that a node saves to will be full in four minutes",
        whom=Whom.NODE, labels=_labels(Label.DISK_FULL), actions=_actions(Action.WARN), within_s=160.0,
    ),
    Kind(
        name="memory-fills", family=Family.RESOURCES, how=How.PLAYED,
        what="what a node says of its free memory falls, to nothing in four minutes", whom=Whom.NODE,
        labels=_labels(Label.HOST_OOM), actions=_actions(Action.WARN), within_s=160.0,
    ),
    Kind(
        name="clock-jump", family=Family.RESOURCES, how=How.PLAYED, what="the wall clock of a node is set off",
        whom=Whom.NODE, labels=_labels(Label.CLOCK), actions=_actions(Action.WARN), within_s=10.0,
    ),
    Kind(
        name="gpu-off-bus", family=Family.HARDWARE, how=How.PLAYED,
        what="the kernel of a node says that a GPU has fallen off the bus", whom=Whom.NODE,
        labels=_labels(Label.GPU_OFF_BUS), actions=_actions(Action.EVICT), within_s=12.0,
    ),
    Kind(
        name="gpu-memory", family=Family.HARDWARE, how=How.PLAYED,
        what="the kernel of a node tells of an uncorrectable memory error of a GPU", whom=Whom.NODE,
        labels=_labels(Label.GPU_ECC), actions=_actions(Action.EVICT), within_s=12.0,
    ),
    Kind(
        name="machine-check", family=Family.HARDWARE, how=How.PLAYED,
        what="the kernel of a node tells of an uncorrected error of the processor", whom=Whom.NODE,
        labels=_labels(Label.HOST), actions=_actions(Action.EVICT), within_s=12.0,
    ),
)  # fmt: skip
"""What has to be found."""


def _well(name: str, what: str, how: How = How.INSIDE, **more: Any) -> Kind:
    within_s = more.pop("within_s", 16.0)
    return Kind(name=name, family=Family.HEALTHY, how=how, what=what, within_s=within_s, **more)


HEALTHY: tuple[Kind, ...] = (
    _well("plain", "training, saves and evaluations", plan={"save_every": 60, "evaluate_every": 80}),
    _well(
        "long-save", "a save that is longer than a step may be", plan={"save_every": 60, "save_s": 14.0}, within_s=22
    ),
    _well("long-evaluation", "an evaluation that is", plan={"evaluate_every": 60, "evaluate_s": 14.0}, within_s=22),
    _well("compiles", "the first step is compiled", plan={"compiles": "aot_eager"}),
    _well("skew", "the work of each batch differs by 60 %, on each rank by itself", plan={"uneven": 0.6}),
    _well("paused", "all ranks of all nodes are stopped for 5 s, as a machine that is moved", How.OUTSIDE),
    _well("log-storm", "a rank prints 100,000 lines", plan={"size": 100_000.0}),
    _well("breakpoint", "a rank stands in a debugger", may_warn=True, within_s=20.0),
    _well("slow-start", "a rank comes 8 s later than the others", plan={"size": 8.0}, within_s=8.0),
    _well("slow-import", "a rank imports its libraries for 8 s", plan={"size": 8.0}, within_s=8.0),
    _well("resume", "a second attempt goes on from the state of the first", calm_s=(8.0, 9.0), within_s=14.0),
    _well("short-stall", "the data of a rank come 3 s late, once", plan={"size": 3.0}),
)
"""What has to be left alone."""

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (*FAULTS, *HEALTHY)}


def markdown() -> str:
    """The tables as they stand in the docs."""
    lines = ["| fault | what is done | how | right labels | names | right actions |", "|" + "---|" * 6]
    for kind in FAULTS:
        labels = ", ".join(f"`{each}`" for each in sorted(kind.labels))
        actions = ", ".join(f"`{each}`" for each in sorted(kind.actions))
        lines.append(f"| {kind.name} | {kind.what} | {kind.how} | {labels} | {kind.whom} | {actions} |")
    lines += ["", "| healthy | what happens | how |", "|---|---|---|"]
    lines += [
        f"| {kind.name} | {kind.what}{' (a warning is fair)' if kind.may_warn else ''} | {kind.how} |"
        for kind in HEALTHY
    ]
    return "\n".join(lines)
