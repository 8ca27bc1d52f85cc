"""The analyser: what is seen of a job goes in, about once a second, and what is wrong with it comes out.

It is the watcher's one mutable controller, and does no I/O: whoever drives it hands in samples and the time, takes the
verdicts, and fetches the stacks that it asks for. It runs in the controller of a job, or alone. In order:

1. `Columns` remember the newest look at every rank, and for how long it has been looked at without change;
2. pure functions find evidence: who is dead or frozen (`liveness`), who waits for whom (`collectives`), whose numbers
   are bad or differ (`replicas`), and whatever detectors are plugged in;
3. `Incidents` put it together, ask the table (`verdicts`), and say what is new or has changed.

A rank is compared with its peers in the same group first, and with its own past only for how long is long (`Patience`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from perdure.progress import Allowance, Phase
from perdure.progress.lateness import LATE_LOOK_S
from perdure.watcher.collectives import all_wait_unlike, outside_by_stacks, who_waits
from perdure.watcher.columns import Columns, Floats, Mask
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.incidents import Incidents, Mute, Past
from perdure.watcher.labels import Label
from perdure.watcher.liveness import deaths, frozen, in_kernel, out_of_memory, silent_nodes
from perdure.watcher.odd_calls import aborted_by_size
from perdure.watcher.patience import Patience
from perdure.watcher.replicas import Replicas, far_norms, nan_source
from perdure.watcher.samples import LogLine, Looks, NodeSample, RankSample, Stack
from perdure.watcher.standing import Standing, standing

__all__ = ["Analyser", "Detector", "Settings"]

_ASK_AGAIN_S = 10.0
_ACCUSED_ASKED, _PEERS_ASKED, _ALL_ASKED = 8, 4, 64
_STACK_LASTS_S = 60.0
_SOON = 0.6
"""Who has stood still for this share of the time after which a rank is suspected waits with it."""
_STARVED, _STARVED_LASTS_S = 0.4, 5.0
"""A node on which a rank waits for this share of the time for a processor is starved, and so long after."""
_SAID_BY_STACK = frozenset({Standing.LOADING, Standing.IO, Standing.DEBUGGER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How patient the analyser is. ``phase_deadlines`` as of `perdure.progress.phase_deadlines`."""

    phase_deadlines: Mapping[Phase, Allowance] = field(default_factory=dict)
    "how long phases may take before something is done, where the defaults are not right"
    suspect_s: float = 6.0
    "a rank among steps is suspected after this long without progress, or later if steps take long"
    own_phase_s: float = 120.0
    "the same for a save, an evaluation, a restore"
    first_step_s: float = 600.0
    "the same for the first steps and phases of an attempt"
    node_gone_s: float = 60.0
    "a node of which nothing is heard for this long is gone"


class Detector(Protocol):
    """Something else that finds evidence: of slow ranks, losses, lines. Its `Evidence` meets the table by its kind."""

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """Take a look; return what was found in it. A condition is to be found again at every look while it holds."""
        ...

    def restarted(self, attempt: int) -> None:
        """The ranks are started again as ``attempt``."""
        ...


class Analyser:
    """Watches one job. ``ranks_of_nodes`` are its ranks by node; ranks that join later are taken in as they show.

    ``detectors`` are asked at every look, ``past`` is what was acted on before (`past` afterwards). Not thread-safe.
    """

    def __init__(
        self,
        ranks_of_nodes: Mapping[str, Sequence[int]],
        settings: Settings | None = None,
        *,
        detectors: Sequence[Detector] = (),
        past: Past | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._detectors = tuple(detectors)
        self._incidents = Incidents(past or Past())
        self._ranks_of_nodes = {node: tuple(ranks) for node, ranks in ranks_of_nodes.items()}
        self._oom_kills: dict[str, int] = {}
        self._looked_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._columns = Columns(self._ranks_of_nodes)
        self._patience = Patience(
            self._settings.phase_deadlines,
            suspect_s=self._settings.suspect_s,
            own_phase_s=self._settings.own_phase_s,
            first_step_s=self._settings.first_step_s,
        )
        self._replicas = Replicas()
        self._heard_s: dict[str, float] = {}
        self._starved_s: dict[str, float] = {}
        self._dead: Mask = np.zeros(len(self._columns), bool)
        self._aborted: set[int] = set()
        self._stuck: Mask = np.zeros(len(self._columns), bool)
        self._excused_s = self._allowed_s = -np.inf
        self._asked_s: dict[int, float] = {}
        self._stacks: dict[int, Stack] = {}
        self._stack_s: dict[int, float] = {}

    @property
    def past(self) -> Past:
        """What was acted on; to be given to the analyser after this one."""
        return self._incidents.past

    @property
    def open(self) -> tuple[Verdict, ...]:
        """All incidents that are open, as they were told last."""
        return self._incidents.open

    def restarted(self, attempt: int, ranks_of_nodes: Mapping[str, Sequence[int]] | None = None) -> None:
        """The ranks are started again, perhaps others on other nodes: forget the attempt before, and be armed anew.

        What was open of that attempt is told as cleared by the next `feed`. Mutes and the past stay.
        """
        if ranks_of_nodes is not None:
            self._ranks_of_nodes = {node: tuple(ranks) for node, ranks in ranks_of_nodes.items()}
        self._incidents.restarted(attempt)
        self._begin()
        for detector in self._detectors:
            detector.restarted(attempt)

    def mute(
        self,
        *,
        label: Label | None = None,
        node: str | None = None,
        rank: int | None = None,
        until_s: float | None = None,
    ) -> None:
        """Tell no verdicts that agree with all that is given. Raises `CallError` if nothing is."""
        self._incidents.mute(Mute(label, node, rank, until_s))

    def acknowledge(self, incident: str) -> None:
        """Tell of ``incident`` only when it is to be acted on more gravely, or over; `CallError` if it is not open."""
        self._incidents.acknowledge(incident)

    def feed(
        self,
        samples: Sequence[RankSample],
        nodes: Sequence[NodeSample] = (),
        lines: Sequence[LogLine] = (),
        stacks: Sequence[Stack] = (),
        *,
        now_s: float,
    ) -> list[Verdict]:
        """Take what was seen since the last call; return the incidents that are new or have changed.

        ``now_s`` is CLOCK_MONOTONIC of the caller. It is never compared with the times in the samples, which are their
        nodes' own. To be called about once a second, with whatever has arrived.
        """
        late = self._looked_s is not None and not 0 <= now_s - self._looked_s <= LATE_LOOK_S
        self._looked_s = now_s
        columns = self._columns
        columns.look(samples, now_s)
        self._grow()
        self._hear(samples, nodes, now_s, late)
        self._patience.learn(columns, most_s=now_s - self._excused_s)
        self._keep(stacks, now_s)
        looks = Looks(samples=samples, nodes=nodes, lines=lines, stacks=stacks)
        detected = [each for detector in self._detectors for each in detector.feed(looks, now_s=now_s)]
        self._aborted |= aborted_by_size(detected, columns)
        evidence = [*self._of_ranks(now_s), *self._of_numbers(samples, now_s)]
        evidence += out_of_memory(self._oom_kills, nodes, now_s)
        self._oom_kills.update({each.node: each.oom_kills for each in nodes if each.oom_kills is not None})
        evidence += detected
        told = self._incidents.feed(
            evidence,
            now_s,
            overdue=self._overdue(now_s),
            ranks_of_nodes=self._ranks_of_nodes,
            node_of=_NodeOf(columns),
        )
        if self._incidents.forgiven_s:
            self._patience.forgive(self._incidents.forgiven_s)
            self._incidents.forgiven_s = 0.0
        return told

    def wants_stacks(self) -> tuple[int, ...]:
        """The ranks whose stacks would help now; each is asked for once in a while, so ask before every look."""
        stop = self._incidents.stop
        if stop is None or self._looked_s is None or stop.stage is Stage.CLEARED or not self._stuck.any():
            return ()
        columns, now_s = self._columns, self._looked_s
        able = columns.alive(now_s) & ~columns.stopped & (columns.state != ord("D"))
        accused = [rank for each in stop.evidence for rank in each.ranks if rank in columns.row_of]
        first = list(dict.fromkeys(accused))[:_ACCUSED_ASKED]
        peers = [columns.ranks[row] for row in np.flatnonzero(self._stuck).tolist()]
        peers = [rank for rank in peers if rank not in first][: _PEERS_ASKED if first else _ALL_ASKED]
        wanted = [
            rank
            for rank in (*first, *peers)
            if able[columns.row_of[rank]] and now_s - self._asked_s.get(rank, -np.inf) >= _ASK_AGAIN_S
        ]
        self._asked_s.update(dict.fromkeys(wanted, now_s))
        return tuple(wanted)

    def _grow(self) -> None:
        """Take in ranks and nodes that were not there at the start."""
        if len(self._columns) == len(self._dead):
            return
        by_node: dict[str, list[int]] = {node: [] for node in self._columns.nodes}
        for row, rank in enumerate(self._columns.ranks):
            by_node[self._columns.node(row)].append(rank)
        self._ranks_of_nodes = {node: tuple(ranks) for node, ranks in by_node.items()}
        self._dead = self._columns.ended_badly & ~self._columns.ended_badly
        self._stuck = self._dead.copy()

    def _hear(self, samples: Sequence[RankSample], nodes: Sequence[NodeSample], now_s: float, late: bool) -> None:
        if late:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._heard_s.update(dict.fromkeys({each.node for each in samples}, now_s))
        self._heard_s.update(dict.fromkeys({each.node for each in nodes}, now_s))
        short = [each.node for each in nodes if each.cpu_wait is not None and each.cpu_wait >= _STARVED]
        self._starved_s.update(dict.fromkeys(short, now_s))

    def _keep(self, stacks: Sequence[Stack], now_s: float) -> None:
        for stack in stacks:
            self._stacks[stack.rank], self._stack_s[stack.rank] = stack, now_s
        for rank in [rank for rank, at_s in self._stack_s.items() if now_s - at_s > _STACK_LASTS_S]:
            del self._stacks[rank], self._stack_s[rank]

    def _of_ranks(self, now_s: float) -> list[Evidence]:
        columns = self._columns
        found = deaths(columns, self._dead, now_s)
        gone = columns.ended_badly | (columns.zombie & ~columns.left)
        died = bool((gone & ~self._dead).any())
        self._dead |= gone
        starved = [node for node, at_s in self._starved_s.items() if now_s - at_s <= _STARVED_LASTS_S]
        found += frozen(columns, now_s, starved=starved)
        found += silent_nodes(columns, self._heard_s, now_s)
        self._stuck = self._who_is_stuck(now_s)
        if not self._stuck.any() and not died and not self._dead.any():
            return found + all_wait_unlike(columns, now_s)
        waits = who_waits(columns, self._stuck, now_s, aborted=self._aborted)
        found += waits
        found += in_kernel(columns, self._stuck, now_s)
        found += self._of_stacks(waits, now_s)
        if self._dead.any():
            for each in waits:
                if each.kind == "behind":
                    text = "the others have given up waiting"
                    found.append(Evidence(kind="gave-up", at_s=now_s, ranks=each.ranks, sentence=text))
        return found

    def _who_is_stuck(self, now_s: float) -> Mask:
        columns = self._columns
        alive, in_steps = columns.alive(now_s), columns.in_steps
        suspect_s = self._patience.suspect_s(columns)
        if self._patience.busy(columns, suspect_s, now_s):
            self._excused_s = now_s
        still_s = self._still_s(self._excused_s, now_s)
        suspects = alive & (still_s > suspect_s)
        if (columns.waits[alive] == 1).all():  # nobody does anything of its own, whatever the phase is called
            past_start = alive & (columns.phase > Phase.RESTORING) & ~self._compiling()
            suspects |= past_start & (columns.still_s > self._patience.among_steps_s)
        if not suspects.any():
            return np.zeros(len(columns), bool)
        soon = alive & (still_s > _SOON * suspect_s)
        return suspects | soon if (suspects & in_steps).any() else suspects

    def _compiling(self) -> Mask:
        first: Mask = self._columns.in_steps & self._columns.at_first
        return first

    def _overdue(self, now_s: float) -> bool:
        columns = self._columns
        alive = columns.alive(now_s)
        allowed_s = self._patience.allowed_s(columns)
        if self._patience.busy(columns, allowed_s, now_s):
            self._allowed_s = now_s
        late = alive & (self._still_s(self._allowed_s, now_s) > allowed_s)
        if late.any() or (alive & columns.stopped & (columns.still_s > allowed_s)).any():
            return True
        silent = [now_s - at_s for at_s in self._heard_s.values()]
        return bool(silent) and max(silent) > self._settings.node_gone_s and min(silent) <= LATE_LOOK_S

    def _still_s(self, busy_s: float, now_s: float) -> Floats:
        """How long ranks have stood still; those among steps only since nobody was busy with something of its own."""
        columns = self._columns
        still_s: Floats = np.where(columns.in_steps, np.minimum(columns.still_s, now_s - busy_s), columns.still_s)
        return still_s

    def _of_stacks(self, waits: Sequence[Evidence], now_s: float) -> list[Evidence]:
        """What stacks say of those who are accused; and who is, where only stacks can tell."""
        stuck = {self._columns.ranks[row] for row in np.flatnonzero(self._stuck).tolist()}
        found: list[Evidence] = []
        if not waits or {each.kind for each in waits} & {"all-waiting", "no-progress"}:
            found += outside_by_stacks([stack for rank, stack in self._stacks.items() if rank in stuck], now_s)
        accused = {rank for each in (*waits, *found) for rank in each.ranks}
        for rank in sorted(accused & set(self._stacks)):
            stack = self._stacks[rank]
            place = standing(stack.frames)
            if place in _SAID_BY_STACK:
                text = f"rank {rank} stands at {stack.frames[0]}" if stack.frames else f"rank {rank} stands still"
                found.append(
                    Evidence(
                        kind=place.value, at_s=now_s, ranks=(rank,), nodes=(stack.node,), sentence=text,
                        raw=stack.frames[:8],
                    )
                )  # fmt: skip
        for rank in sorted(accused - set(self._stacks)):
            last = self._columns.last[self._columns.row_of[rank]]
            if last is not None and last.phase == "loading":
                text = f"rank {rank} says that it loads data"
                found.append(Evidence(kind=Standing.LOADING.value, at_s=now_s, ranks=(rank,), sentence=text))
        return found

    def _of_numbers(self, samples: Sequence[RankSample], now_s: float) -> list[Evidence]:
        found = self._replicas.feed(samples, now_s)
        found += far_norms(samples, now_s)
        if any(each.local_bad_step is not None for each in samples):
            newest = [each for each in self._columns.last if each is not None]
            over = bool(self._dead.any() or self._stuck.any())
            found += nan_source(newest, now_s, n_ranks=len(self._columns), over=over)
        return found


class _NodeOf(Mapping[int, str]):
    """The node of a rank, looked up in the columns when it is asked for."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __getitem__(self, rank: int) -> str:
        return self._columns.node(self._columns.row_of[rank])

    def __iter__(self) -> Iterable[int]:  # type: ignore[override]
        return iter(self._columns.ranks)

    def __len__(self) -> int:
        return len(self._columns)
