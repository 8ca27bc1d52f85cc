"""A training job that exists only in mind: nodes, ranks, groups, steps, phases, and a fault at a random moment.

Everything follows from one seed. Each rank is a generator that works and calls collectives; a collective ends when all
members of its group have come to that number with the same call. Ranks write a record about once a second, nodes look
at records and processes once a second with clocks of their own, and the analyser is fed what has arrived. What peers
do after a fault (errors within seconds, or silence) follows what real gloo jobs were seen to do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from perdure.progress import phase_deadlines
from perdure.watcher.analyser import Analyser, Settings
from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.labels import Action, Label
from perdure.watcher.samples import GroupState, LogLine, NodeSample, RankSample, Stack

TICK_S = 0.1
DEADLINE_S = 40.0
FRAMES = {
    "collective": ("torch/distributed/distributed_c10d.py:2501 all_reduce", "train.py:40 step"),
    "loading": ("torch/utils/data/dataloader.py:1133 _try_get_data", "train.py:31 batch"),
    "io": ("/usr/lib/python3.11/socket.py:706 readinto", "store.py:12 fetch", "train.py:55 main"),
    "work": ("model.py:88 forward", "train.py:36 step"),
    "debugger": ("/usr/lib/python3.11/pdb.py:369 interaction", "train.py:36 step"),
}


@dataclass(frozen=True)
class Truth:
    """What a verdict should say. ``labels`` are all that are right; ``rank`` None: nobody is to be named."""

    labels: frozenset[Label]
    actions: frozenset[Action]
    rank: bool = True


def _truth(labels: str, actions: str, rank: bool = True) -> Truth:
    return Truth(
        frozenset(Label(each) for each in labels.split()), frozenset(Action(each) for each in actions.split()), rank
    )


FAULTS: Mapping[str, Truth] = {
    "killed": _truth("transient.unknown", "restart"),
    "oom": _truth("infra.host_oom", "stop_user"),
    "crashed": _truth("sw.user_code", "restart"),
    "raised": _truth("sw.user_code", "stop_user"),
    "stopped-inside": _truth("transient.unknown", "restart"),
    "stopped-outside": _truth("transient.unknown", "restart"),
    "gil": _truth("sw.lib_bug", "restart"),
    "loading": _truth("sw.dataloader", "restart"),
    "io": _truth("infra.storage", "restart"),
    "kernel": _truth("infra.storage", "restart"),
    "work": _truth("transient.unknown", "restart"),
    "skipped-one": _truth("sw.desync", "stop_user"),
    "skipped-all": _truth("sw.desync", "stop_user"),
    "extra": _truth("sw.desync", "stop_user"),
    "odd-shape": _truth("sw.desync", "stop_user"),
    "odd-abort": _truth("sw.desync sw.user_code", "stop_user restart"),  # without its lines it is a crash
    "nan": _truth("train.nan", "rollback"),
    "replica": _truth("hw.sdc", "evict"),
    "below": _truth("sw.lib_bug transient.unknown", "restart", rank=False),
}
HEALTHY = (
    "plain", "skew", "long-save", "evaluation", "compile", "machine-paused", "node-paused", "slow-step", "late-looks",
    "storm", "preempted", "clock", "debugger", "overflow", "slow-start",
)  # fmt: skip


@dataclass
class _Rank:
    rank: int
    node: int
    program: Iterator[tuple[object, ...]]
    phase: str = "starting"
    phase_since: float = 0.0
    step: int = 0
    groups: dict[str, list[object]] = field(default_factory=dict)
    until: float = 0.0
    waiting: tuple[str, int] | None = None
    where: str = "work"
    held: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    fails_at: float | None = None
    finished: bool = False
    beat: int = 0
    bad_step: int | None = None
    wrong: bool = False
    writes_at: float = 0.0
    record: RankSample | None = None

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or self.exit_signal is not None


class JobInMind:
    """One life of a job. `run` lives it before an analyser, and returns what that has told."""

    def __init__(self, seed: int, what: str) -> None:
        self.dice = random.Random(f"{seed} {what}")
        dice = self.dice
        self.what = what
        self.n_nodes, self.per_node = dice.choice([(2, 2), (2, 4), (4, 2), (3, 2), (4, 4), (8, 1)])
        self.n = self.n_nodes * self.per_node
        self.node_names = [f"node-{number}" for number in range(self.n_nodes)]
        self.clock = [dice.uniform(1e3, 1e6) for _ in range(self.n_nodes)]
        self.step_s = dice.uniform(0.15, 0.8)
        self.fault_step = dice.randrange(12, 40)
        self.steps = self.fault_step + dice.randrange(10, 40)
        self.culprit = dice.randrange(self.n)
        self.compile_s = dice.uniform(1, 10) if what != "compile" else dice.uniform(40, 100)
        self.evaluates_each = dice.choice([15, 25])
        self.saves_each = dice.choice([10, 30])
        self.members: dict[str, list[int]] = {"world": list(range(self.n))}
        if self.per_node > 1:
            for node in range(self.n_nodes):
                ranks = range(node * self.per_node, (node + 1) * self.per_node)
                self.members[f"tp{node}"] = list(ranks)
            for local in range(self.per_node):
                self.members[f"dp{local}"] = list(range(local, self.n, self.per_node))
        self.calls: dict[tuple[str, int], dict[int, tuple[str, str]]] = {}
        self.now = 0.0
        self.faulted_at: float | None = None
        self.paused_until = 0.0
        self.paused_node: tuple[int, float] | None = None
        self.oom_kills = [0] * self.n_nodes
        self.gloo = dice.random() < 0.7
        self.ranks = [_Rank(rank, rank // self.per_node, self._program(rank)) for rank in range(self.n)]
        for each in self.ranks:
            each.groups = {name: [len(who), 0, 0, "", ""] for name, who in self.members.items() if each.rank in who}
            each.writes_at = dice.random()
        self.node_offset = [dice.random() for _ in range(self.n_nodes)]

    @property
    def ranks_of_nodes(self) -> dict[str, list[int]]:
        return {
            name: [each.rank for each in self.ranks if each.node == number]
            for number, name in enumerate(self.node_names)
        }

    # What ranks do.

    def _program(self, rank: int) -> Iterator[tuple[object, ...]]:
        dice, what = self.dice, self.what
        yield "work", dice.uniform(2, 4) + (dice.uniform(0, 50) if what == "slow-start" else 0), "starting", "work"
        yield "call", "world", "barrier", "", "starting"
        yield "work", dice.uniform(0.5, 3), "restoring", "io"
        for step in range(self.steps):
            mine = rank == self.culprit and step == self.fault_step
            yield "work", dice.uniform(0.01, 0.05), "forward", "loading"
            if mine and what in ("loading", "io", "kernel", "work", "gil", "stopped-outside", "raised", "debugger"):
                yield "fault", what
            if mine and what == "skew":
                yield "work", dice.uniform(8, 30), "forward", "loading"
            compute = self.step_s * dice.uniform(0.8, 1.2)
            if step == 0:
                compute += self.compile_s * dice.uniform(0.8, 1.2)
            if step == self.fault_step and what == "slow-step":
                compute *= 3
            yield "work", compute, "forward", "work"
            if (mine and what == "nan") or (what == "nan" and step > self.fault_step and self._bad()):
                yield "bad", step
            if mine and what in ("killed", "oom", "crashed"):
                yield "fault", what
            if mine and what == "overflow":
                yield "bad", step
            if mine and what == "extra":
                yield "call", "world", "broadcast", "[1] int64", "forward"
            for name in self.members:
                if rank in self.members[name] and name != "world":
                    shape = "[512] float32" if name.startswith("tp") else "[2048] float32"
                    yield "call", name, "all_reduce", shape, "forward"
            skipped = rank == self.culprit and (
                (what == "skipped-one" and step == self.fault_step)
                or (what == "skipped-all" and step >= self.fault_step)
            )
            if skipped and self.faulted_at is None:
                yield ("mark",)
            if not skipped:
                odd = mine and what in ("odd-shape", "odd-abort")
                inside = mine and what == "stopped-inside"
                shape = "[7] float32" if odd else "[1024, 4] float32"
                yield "call", "world", "all_reduce", shape, "step", ("odd" if odd else "inside" if inside else "")
            if what == "below" and step == self.fault_step:
                yield ("mark",)
                yield "call", "world", "all_reduce", "[1] float32", "step", "below"
            yield ("stepped",)
            if what == "overflow" and mine:
                yield ("good",)
            if step % self.saves_each == self.saves_each - 1 or (what == "long-save" and step == self.fault_step):
                long = what == "long-save" and step == self.fault_step and rank == 0
                yield "work", dice.uniform(40, 100) if long else dice.uniform(0.2, 2), "saving", "io"
                yield "call", "world", "barrier", "", "step"
            if step % self.evaluates_each == self.evaluates_each - 1:
                for _ in range(3):
                    longest = 25 if what == "evaluation" else 1
                    yield "work", dice.uniform(0.3, 1.0) * longest, "evaluating", "work"
                    yield "call", "world", "all_reduce", "[1] float32", "evaluating"
            if what in ("machine-paused", "node-paused", "preempted") and step == self.fault_step:
                yield ("event",)
                if what == "preempted":
                    break
        yield "work", dice.uniform(0.1, 4), "closing", "io"
        yield ("left",)

    def _bad(self) -> bool:
        return any(each.bad_step is not None for each in self.ranks)

    def _go_on(self, each: _Rank) -> None:
        """Let a rank do what it can do now."""
        while not each.ended and not each.held and each.until <= self.now:
            if each.waiting is not None:
                if not self._complete(each, *each.waiting):
                    return
                group = each.groups[each.waiting[0]]
                group[2] = each.waiting[1]
                each.waiting, each.where = None, "work"
            self._do(each, next(each.program))

    def _do(self, each: _Rank, what: tuple[object, ...]) -> None:
        match what:
            case ("work", seconds, phase, where):
                self._enter(each, str(phase))
                each.until, each.where = self.now + float(str(seconds)), str(where)
            case ("call", name, op, shape, phase, *more):
                self._enter(each, str(phase))
                group = each.groups[str(name)]
                group[1] = int(str(group[1])) + 1
                group[3:] = [op, shape]
                self.calls.setdefault((str(name), int(str(group[1]))), {})[each.rank] = (str(op), str(shape))
                each.waiting, each.where = (str(name), int(str(group[1]))), "collective"
                if more and more[0]:
                    self._inside(each, str(more[0]))
                if op == "broadcast":
                    self.faulted_at = self.faulted_at or self.now
            case ("stepped",):
                each.step += 1
                self._enter(each, "forward", anew=True)
            case ("bad", step):
                if self.what == "nan":
                    self.faulted_at = self.faulted_at or self.now
                each.bad_step = each.bad_step if each.bad_step is not None else int(str(step))
            case ("good",):
                each.bad_step = None
            case ("mark",):
                self.faulted_at = self.faulted_at or self.now
            case ("event",):
                self._event()
            case ("left",):
                each.finished = self.dice.random() < 0.5
                each.exit_code = 0
                each.phase = "finished" if each.finished else each.phase
                self._write(each)
                self._notice(each)
            case ("fault", kind):
                self._fail(each, str(kind))
            case _:
                raise AssertionError(what)

    def _inside(self, each: _Rank, how: str) -> None:
        self.faulted_at = self.faulted_at or self.now
        if how == "inside":
            each.held = "T"
        elif how == "odd" and self.what == "odd-abort":
            each.fails_at = self.now + 0.5
        elif how == "below":
            self.calls[each.waiting or ("", 0)][-1] = ("never", "")

    def _fail(self, each: _Rank, kind: str) -> None:
        self.faulted_at = self.faulted_at or self.now
        if kind in ("killed", "oom"):
            each.exit_signal = 9
            self.oom_kills[each.node] += kind == "oom"
        elif kind == "crashed":
            each.exit_signal = 11
        elif kind == "raised":
            each.exit_code = 1
        elif kind == "debugger":
            each.until, each.where = self.now + self.dice.uniform(15, 30), "debugger"
            each.held = self.dice.choice(["", "t", "T"])
            self.held_until = each.until
        else:
            each.held = {"stopped-outside": "T", "gil": "G", "kernel": "D"}.get(kind, "H")
            each.where = kind if kind in ("loading", "io") else "io" if kind == "kernel" else "work"
        if each.ended:
            self._notice(each)

    def _notice(self, gone: _Rank) -> None:
        """Peers of a rank that is gone fail within seconds, where they wait for it, or for ever wait."""
        if self.gloo and gone.exit_code != 0:
            for each in self.ranks:
                if not each.ended and each.fails_at is None:
                    each.fails_at = self.now + self.dice.uniform(2, 6)

    def _event(self) -> None:
        if self.paused_until or self.paused_node:
            return
        self.faulted_at = self.now
        if self.what == "machine-paused":
            self.paused_until = self.now + 10.0
        elif self.what == "node-paused":
            self.paused_node = (self.dice.randrange(self.n_nodes), self.now + self.dice.uniform(8, 11))

    def _enter(self, each: _Rank, phase: str, *, anew: bool = False) -> None:
        if phase != each.phase or anew:
            each.phase, each.phase_since = phase, self.now

    def _complete(self, each: _Rank, name: str, number: int) -> bool:
        calls = self.calls.get((name, number), {})
        who = self.members[name]
        if -1 in calls or any(rank not in calls for rank in who) or len(set(calls.values())) > 1:
            return False
        inside = [self.ranks[rank] for rank in who]
        return not any(
            (peer.held and peer.waiting == (name, number)) or peer.exit_signal is not None for peer in inside
        )

    # What is seen.

    def _write(self, each: _Rank) -> None:
        each.beat += 1
        groups = tuple(
            GroupState(
                group=name,
                size=int(str(size)),
                enqueued=int(str(enqueued)),
                completed=int(str(completed)),
                op=str(op),
                shape=str(shape),
            )
            for name, (size, enqueued, completed, op, shape) in each.groups.items()
        )
        each.record = RankSample(
            rank=each.rank,
            node=self.node_names[each.node],
            at_s=0.0,
            pid=1000 + each.rank,
            beat=each.beat,
            step=each.step,
            phase=each.phase,
            in_collective=each.waiting is not None,
            groups=groups,
            local_finite=each.bad_step is None,
            local_bad_step=each.bad_step,
            local_norm=self.dice.uniform(0.8, 1.3),
            checksum="odd" if each.wrong else "even",
            checksum_step=each.step // 10 * 10 or None,
            replicas="all",
        )

    def _sample(self, each: _Rank) -> RankSample | None:
        if each.record is None:
            return None
        state = {"T": "T", "t": "t", "D": "D"}.get(each.held, "S" if each.waiting else "R")
        return replace(
            each.record,
            at_s=self.now + self.clock[each.node],
            phase_s=max(0.0, self.now - each.phase_since),
            state="" if each.ended else state,
            exit_code=each.exit_code,
            exit_signal=each.exit_signal,
            finished=each.finished,
        )

    def _paused(self, node: int) -> bool:
        return self.paused_node is not None and self.paused_node[0] == node and self.now < self.paused_node[1]

    def _tick(self) -> None:
        for each in self.ranks:
            if self._paused(each.node):
                continue
            if each.fails_at is not None and self.now >= each.fails_at and not each.ended:
                if each.waiting is not None or self.what in ("killed", "crashed", "raised", "oom"):
                    if self.what == "odd-abort" and each.rank == self.culprit:
                        each.exit_signal = 6
                    else:
                        each.exit_code = 1
                    self._notice(each)
                else:
                    each.fails_at = None
            if self.what == "debugger" and each.held and self.now >= self.held_until:
                each.held = ""
            if self.what == "replica" and each.rank == self.culprit and each.step == self.fault_step:
                each.wrong = True
                self.faulted_at = self.faulted_at or self.now
            self._go_on(each)
            if self.now >= each.writes_at and not each.ended and each.held not in ("T", "t", "G"):
                self._write(each)
                each.writes_at = self.now + 1.0

    held_until = 0.0

    def run(self, analyser: Analyser, *, most_s: float = 400.0, after_s: float = DEADLINE_S + 12) -> list[Verdict]:
        """Live until the end of the job, or until ``after_s`` after the fault, or until something was acted on."""
        told: list[Verdict] = []
        arrived: list[RankSample] = []
        looks_at = list(self.node_offset)
        feeds_at, asked, acted_at = 1.0, (), None
        wall_jump = 0.0
        while self.now < most_s:
            self.now = round(self.now + TICK_S, 6)
            if self.now < self.paused_until:
                continue
            self._tick()
            for node in range(self.n_nodes):
                if self.now >= looks_at[node] and not self._paused(node):
                    looks_at[node] = self.now + 1.0
                    seen = (self._sample(each) for each in self.ranks if each.node == node)
                    arrived += [sample for sample in seen if sample is not None]
            if self.now < feeds_at:
                continue
            feeds_at = self.now + (1.0 if self.what != "late-looks" else self.dice.choice([1.0, 1.0, 2.5, 7.0]))
            if self.what == "clock" and self.now > 20:
                wall_jump = 3600.0
            nodes = [
                NodeSample(
                    node=name,
                    at_s=self.now + self.clock[number],
                    wall_s=1e9 + self.now + wall_jump,
                    oom_kills=self.oom_kills[number],
                )
                for number, name in enumerate(self.node_names)
                if not self._paused(number)
            ]
            lines = (
                [LogLine(text=f"debug {n}", at_s=self.now, rank=0) for n in range(500)] if self.what == "storm" else []
            )
            stacks = [self._stack(rank) for rank in asked]
            told += analyser.feed(arrived, nodes, lines, stacks, now_s=self.now + 5e4)
            arrived = []
            asked = analyser.wants_stacks()
            if acted_at is None and any(
                each.stage is Stage.VERDICT and each.action is not Action.WARN for each in told
            ):
                acted_at = self.now
            if acted_at is not None and self.now > acted_at + 4:
                break
            if (
                self.faulted_at is not None
                and self.what in FAULTS
                and self.now > self.faulted_at + after_s + self.steps
            ):
                break
            if all(each.ended for each in self.ranks) and self.now > 5:
                over = getattr(self, "_over", None) or self.now
                self._over = over
                if self.now > over + 5:
                    break
        return told

    def _stack(self, rank: int) -> Stack:
        each = self.ranks[rank]
        where = "collective" if each.waiting else each.where
        return Stack(rank=rank, node=self.node_names[each.node], at_s=self.now, frames=FRAMES[where])


@dataclass(frozen=True)
class Outcome:
    """How a life was judged."""

    job: JobInMind
    told: tuple[Verdict, ...]

    @property
    def truth(self) -> Truth | None:
        return FAULTS.get(self.job.what)

    @property
    def acted(self) -> Verdict | None:
        """The last verdict that something is to be done."""
        done = [each for each in self.told if each.stage is Stage.VERDICT and each.action is not Action.WARN]
        return done[-1] if done else None

    @property
    def warned(self) -> list[Verdict]:
        return [each for each in self.told if each.stage is Stage.VERDICT and each.action is Action.WARN]

    def first_naming(self, *, of_stage: Stage | None = None) -> float | None:
        """Seconds from the fault to the first verdict that names the culprit."""
        for each in self.told:
            if self.job.culprit in each.ranks and (of_stage is None or each.stage is of_stage):
                return each.at_s - 5e4 - (self.job.faulted_at or 0.0)
        return None

    def right(self, verdict: Verdict) -> bool:
        """Whether label and accused are right."""
        truth = self.truth
        if truth is None:
            return False
        named = (self.job.culprit,) if truth.rank else ()
        return verdict.label in truth.labels and verdict.ranks == named

    @property
    def accused_node(self) -> bool:
        """Whether a node was accused that is not the culprit's."""
        own = self.job.node_names[self.job.ranks[self.job.culprit].node]
        return any(
            set(each.nodes) - ({own} if self.truth is not None else set())
            for each in self.told
            if each.stage is Stage.VERDICT
        )


def live(seed: int, what: str) -> Outcome:
    """Live one life of a job before a new analyser."""
    job = JobInMind(seed, what)
    deadlines = phase_deadlines(f"step={DEADLINE_S},first-step=200")
    analyser = Analyser(job.ranks_of_nodes, Settings(phase_deadlines=deadlines))
    return Outcome(job, tuple(job.run(analyser)))
