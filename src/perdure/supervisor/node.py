"""The ranks of one attempt on one node: start them, look at them, end all of them.

Called from the launcher's main thread. What has to wait for processes to die does so on a thread of its own, so that
the launcher goes on to give signs of life.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from perdure.clock import SYSTEM, Clock
from perdure.events.facts import how_it_ended
from perdure.process.environ import Placement, child_env
from perdure.process.handle import is_stopped
from perdure.process.memory import oom_kills
from perdure.process.tree import Killed, Rank, kill_attempt
from perdure.progress import Page, Phase, Snapshot
from perdure.supervisor.messages import RankView
from perdure.supervisor.output import Output
from perdure.supervisor.vocabulary import Over, RankEnded, Start

__all__ = ["NodeAttempt"]

_KILL_S = 15.0
_OUTPUT_S = 2.0


class NodeAttempt:
    """The part of an attempt that runs here. ``mark`` is carried by each of its processes."""

    def __init__(self, order: Start, *, mark: str, clock: Clock = SYSTEM) -> None:
        self.order, self.mark = order, mark
        self._clock = clock
        self._ranks: list[Rank] = []
        self._ended: dict[int, RankEnded] = {}
        self._output: Output | None = None
        self._page: Page | None = None
        self._last: tuple[Snapshot, ...] = ()
        self._terminated = False
        self._killer: threading.Thread | None = None
        self._killed = Killed()
        self._kill_since_s = 0.0
        self._oom_kills = oom_kills()
        self.started = False
        self.over: Over | None = None

    @property
    def number(self) -> int:
        """Which attempt of the job this is."""
        return self.order.attempt

    def start(
        self,
        start: Callable[[Mapping[str, str]], Rank],
        *,
        nproc: int,
        placement: Placement,
        env: Mapping[str, str],
        max_restarts: int,
        stdout: BinaryIO,
        stderr: BinaryIO,
        log_dir: Path | None,
    ) -> None:
        """Start ``nproc`` ranks, each by ``start``, which is given its environment; ``placement`` is the first one's.

        Raises `CallError` if there is no such command.
        """
        self.started = True
        for local_rank in range(nproc):
            place = replace(placement, rank=placement.rank + local_rank, local_rank=local_rank)
            self._ranks.append(start(child_env(place, base=env, max_restarts=max_restarts)))
        base = self.order.base
        self._output = Output(
            stdouts={base + i: rank.stdout for i, rank in enumerate(self._ranks)},
            stderrs={base + i: rank.stderr for i, rank in enumerate(self._ranks)},
            to_stdout=stdout,
            to_stderr=stderr,
            log_dir=None if log_dir is None else log_dir / f"attempt-{self.number}",
        )

    def running_fds(self) -> Iterable[int]:
        """Descriptors that become readable when a rank dies."""
        return [rank.pidfd for rank in self._ranks if rank.ending is None and rank.pidfd >= 0]

    def pids(self) -> set[int]:
        """The ranks' processes."""
        return {rank.pid for rank in self._ranks}

    def pid_of(self, local_rank: int) -> int:
        """The process of a rank; 0 once nothing of the attempt is left."""
        return self._ranks[local_rank].pid if local_rank < len(self._ranks) else 0

    def new_lines(self) -> tuple[tuple[int, str], ...]:
        """What its ranks have printed since the last call."""
        return () if self._output is None else self._output.new_lines()

    @property
    def ending(self) -> bool:
        """Whether ranks have been told to end."""
        return self._terminated or self._killer is not None or self.over is not None

    def look(self, page: Page | None) -> None:
        """Read the progress page, if there is one."""
        self._page = page
        if page is not None and self._ranks:
            self._last = page.snapshot()

    @property
    def step(self) -> int:
        """What the furthest rank of the node has completed; 0 if none has since the attempt began."""
        return max((snapshot.step for snapshot in self._last if snapshot.step > snapshot.began), default=0)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """What the ranks were doing when they were looked at last."""
        return self._last

    def stopped(self) -> set[int]:
        """The global ranks whose process a signal or a debugger has stopped."""
        return {
            self.order.base + i for i, rank in enumerate(self._ranks) if rank.ending is None and is_stopped(rank.pid)
        }

    def poll(self, node: str) -> list[RankEnded]:
        """The ranks whose end had not been seen before."""
        found = []
        for local_rank, rank in enumerate(self._ranks):
            if local_rank in self._ended or (ending := rank.poll()) is None:
                continue
            snapshot = self._snapshot(local_rank)
            known = snapshot is not None and snapshot.phase is not Phase.ABSENT
            tail = () if self._output is None else self._output.tails().get(self.order.base + local_rank, ())
            event = RankEnded(
                node=node,
                attempt=self.number,
                local_rank=local_rank,
                code=ending.code,
                signal=ending.signal,
                finished=snapshot is not None and snapshot.phase is Phase.FINISHED,
                step=snapshot.step if snapshot is not None and known else None,
                tail=tail,
                out_of_memory=ending.signal == signal.SIGKILL and oom_kills() > self._oom_kills,
            )
            self._ended[local_rank] = event
            found.append(event)
        return found

    def _snapshot(self, local_rank: int) -> Snapshot | None:
        if self._page is not None and local_rank < self._page.local_world:
            return self._page.rank(local_rank).snapshot()
        return self._last[local_rank] if local_rank < len(self._last) else None

    @property
    def ended(self) -> tuple[RankEnded, ...]:
        """All ranks that have ended, in the order in which that was seen."""
        return tuple(self._ended.values())

    @property
    def may_start(self) -> bool:
        """Whether its ranks have yet to be started, and nobody has said that they are to end."""
        return not self.started and self._killer is None and self.over is None

    def terminate(self, *, failed: bool = False) -> None:
        """Ask every rank that still runs to stop, once. Ranks that have not been started never are.

        If the attempt has ``failed``, those that would only wait for a peer that is gone are killed.
        """
        if not self.started:
            self.kill()
        if self._terminated:
            return
        self._terminated = True
        expendable = {each.pid for each in self._page.records() if each.expendable} if failed and self._page else set()
        for rank in self._ranks:
            if rank.poll() is None:
                rank.send(signal.SIGKILL if rank.pid in expendable else signal.SIGTERM)

    def kill(self) -> None:
        """Begin to end everything of the attempt; `finish` tells when nothing is left. Twice is fine."""
        if self._killer is not None or self.over is not None:
            return
        sessions = [rank.pid for rank in self._ranks]
        self._kill_since_s = self._clock.monotonic()

        def end_all() -> None:
            self._killed = kill_attempt(self.mark, sessions=sessions, timeout_s=_KILL_S)

        self._killer = threading.Thread(target=end_all, name="perdure-kill", daemon=True)
        self._killer.start()

    def finish(self, node: str, *, wait_s: float = 0.0) -> Over | None:
        """Return what it took once nothing is left, else None. Ranks are reaped and their output is read to its end."""
        if self.over is not None or self._killer is None:
            return self.over
        self._killer.join(wait_s)
        if self._killer.is_alive():
            return None
        for rank in self._ranks:
            if rank.poll() is not None:
                rank.reap()
        tails: dict[int, tuple[str, ...]] = {}
        if self._output is not None:
            self._output.finish(timeout_s=_OUTPUT_S)
            tails = self._output.tails()
        for rank in self._ranks:
            rank.close()
        base = self.order.base
        self.over = Over(
            node=node,
            attempt=self.number,
            killed=len(self._killed.killed),
            left=self._killed.left,
            tails=tuple(tails.get(base + i, ()) for i in range(len(self._ranks))),
            seconds=self._clock.monotonic() - self._kill_since_s,
        )
        self._ranks = []
        return self.over

    def views(self, now_ns: int) -> tuple[RankView, ...]:
        """Each rank, for people."""
        views = []
        for local_rank, rank in enumerate(self._ranks):
            snapshot = self._last[local_rank] if local_rank < len(self._last) else None
            ended = self._ended.get(local_rank)
            known = snapshot is not None and snapshot.phase is not Phase.ABSENT
            views.append(
                RankView(
                    local_rank=local_rank,
                    pid=rank.pid,
                    step=snapshot.step if snapshot is not None and known else 0,
                    phase=snapshot.phase.name.lower() if snapshot is not None and known else "",
                    phase_s=(now_ns - snapshot.phase_since_ns) / 1e9 if snapshot is not None and known else 0.0,
                    ended="" if ended is None else how_it_ended(ended.code, ended.signal),
                )
            )
        return tuple(views)
