"""A cluster that is only thought of: launchers that keep the lease, links that lose what is under way, and a controller
that is the real `Machine`, journaled and killed at will. Time passes when it is told to.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import msgspec

from perdure.supervisor import vocabulary as v
from perdure.supervisor.config import Spec
from perdure.supervisor.job import Job, NodeFacts
from perdure.supervisor.machine import Machine

TICK_S = 0.5


@dataclass
class Node:
    """A launcher and its ranks. ``heard`` is when it last heard the controller; ``cut`` that nothing gets through."""

    name: str
    nproc: int
    pid: int
    up: bool = True
    linked: bool = False
    cut: bool = False
    heard: float = 0.0
    attempt: int = -1
    running: set[int] = field(default_factory=set)
    ended: dict[int, v.RankEnded] = field(default_factory=dict)
    over: v.Over | None = None
    dying: bool = False
    terminated: bool = False
    deaf: bool = False
    to: deque[object] = field(default_factory=deque)
    back: deque[object] = field(default_factory=deque)

    def facts(self) -> NodeFacts:
        return NodeFacts(
            name=self.name, host="h", nproc=self.nproc, pid=self.pid, machine=self.name, port=1000 + self.pid
        )

    def holding(self) -> v.Holding:
        return v.Holding(attempt=self.attempt, ended=tuple(self.ended.values()), over=self.over)


class Cluster:
    """``n`` nodes. `act` what happens, `pass_time` to let things go on; `check` holds at every moment."""

    def __init__(self, spec: Spec, n: int, *, nproc: int = 2, seed: int = 0) -> None:
        self.spec, self.seed = spec, seed
        self.now = 100.0
        self.nodes = {f"n{i}": Node(f"n{i}", nproc, pid=i + 1) for i in range(n)}
        self._pids = n + 1
        self.journal = Job(name="job", run="r")
        self.machine: Machine | None = None
        self.exit_code: int | None = None
        self.starts: list[tuple[float, int]] = []
        self.step = 0
        self.duplicate = False
        self.start_controller(again=False)

    # --- the controller

    def start_controller(self, *, again: bool = True) -> None:
        if self.machine is not None or self.exit_code is not None:
            return
        # Through JSON, as the journal keeps it: what does not survive that is not known to the next controller.
        kept = msgspec.json.decode(msgspec.json.encode(self.journal), type=Job)
        job = msgspec.structs.replace(kept, term=kept.term + 1) if again else kept
        self.machine = Machine(self.spec, job, now=self.now, rng=random.Random(self.seed), again=again)

    def kill_controller(self) -> None:
        self.machine = None
        for node in self.nodes.values():
            self._unlink(node)

    def handle(self, event: v.Event) -> None:
        if self.machine is None:
            return
        actions = self.machine.handle(event, self.now, wall=self.now)
        self.journal = self.machine.job
        for action in actions:
            match action:
                case v.Start() | v.Terminate() | v.Kill() | v.Examine():
                    node = self.nodes[action.node]
                    if node.linked:
                        node.to.append(action)
                case v.Finish(code):
                    self.exit_code = code
                case _:
                    pass

    # --- launchers

    def _unlink(self, node: Node) -> None:
        node.linked = False
        node.to.clear()
        node.back.clear()

    def close_link(self, node: Node) -> None:
        if node.linked:
            self._unlink(node)
            self.handle(v.Left(node.name, "closed", self.now))

    def kill_launcher(self, node: Node) -> None:
        node.up = False
        node.running.clear()  # the guard sees to that
        self.close_link(node)

    def start_launcher(self, node: Node) -> None:
        if node.up:
            return
        self._pids += 1
        self.nodes[node.name] = Node(node.name, node.nproc, pid=self._pids, cut=node.cut, heard=self.now)

    def kill_rank(self, node: Node, local_rank: int, *, code: int | None, signal: int | None) -> None:
        if local_rank not in node.running:
            return
        node.running.discard(local_rank)
        event = v.RankEnded(
            node=node.name,
            attempt=node.attempt,
            local_rank=local_rank,
            code=code,
            signal=signal,
            tail=("ValueError: bad",) if code else (),
        )
        node.ended[local_rank] = event
        self._send(node, event)

    def _send(self, node: Node, event: object) -> None:
        if node.linked:
            node.back.append(event)
            if self.duplicate:
                node.back.append(event)

    def _obey(self, node: Node, order: object) -> None:
        match order:
            case v.Start():
                if order.attempt > node.attempt:
                    assert not node.running, "a launcher is told to start beside what it runs"
                    node.attempt, node.ended, node.over = order.attempt, {}, None
                    node.dying = node.terminated = False
                    node.running = set(range(node.nproc))
                    self.starts.append((self.now, order.attempt))
            case v.Terminate(_, attempt):
                if attempt == node.attempt:
                    node.terminated = True
            case v.Kill(_, attempt):
                if attempt == node.attempt:
                    node.dying = True
                    if node.over is not None:
                        self._send(node, node.over)
                elif attempt > node.attempt:
                    self._send(node, v.Over(node=node.name, attempt=attempt))
            case v.Examine():
                self._send(node, v.Examined(node=node.name, round=order.round))

    def _end_all(self, node: Node) -> None:
        for local_rank in list(node.running):
            self.kill_rank(node, local_rank, code=None, signal=9)
        if node.over is None and node.attempt >= 0:
            node.over = v.Over(node=node.name, attempt=node.attempt)
            self._send(node, node.over)
        node.dying = False

    # --- time

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            self._tick()
            self.check()

    def _tick(self) -> None:
        waits = self.spec.waits
        for node in list(self.nodes.values()):
            if not node.up:
                continue
            if self.machine is not None and not node.linked and not node.cut:
                node.linked, node.heard = True, self.now
                self.handle(v.Joined(node.facts(), node.holding()))
            if node.linked and not node.cut:
                node.heard = self.now
                while node.to:
                    self._obey(node, node.to.popleft())
            if node.terminated and not node.deaf:
                for local_rank in list(node.running):
                    self.kill_rank(node, local_rank, code=None, signal=15)
            if node.dying:
                self._end_all(node)
            silent = self.now - node.heard
            alone = self.machine is None and not node.cut  # its port refuses: it is dead, and that is known
            if node.running and silent >= (waits.orphan_s if alone else waits.lease_s):
                self._end_all(node)
            if node.linked and not node.cut:
                while node.back:
                    self.handle(node.back.popleft())  # type: ignore[arg-type]
            if node.linked and node.cut and silent >= waits.lease_s:
                heard = node.heard
                self._unlink(node)
                self.handle(v.Left(node.name, "silent", heard))
        self.handle(v.Tick())

    def progress(self) -> None:
        self.step += 1
        for node in self.nodes.values():
            if node.running:
                self._send(node, v.Progressed(node.name, node.attempt, self.step))

    # --- what must hold

    def check(self) -> None:
        live = {node.attempt for node in self.nodes.values() if node.running}
        assert len(live) <= 1, f"two attempts run at once: {live}"
        if self.journal.state.final:
            assert not live, "the job is over and ranks run"

    def settle(self, *, within_s: float = 400.0) -> None:
        """No more faults, all nodes come back, ranks finish: the job must come to its end."""
        self.duplicate = False
        self.start_controller()
        for node in list(self.nodes.values()):
            node.cut = node.deaf = False
            self.start_launcher(node)
        spent = 0.0
        while self.exit_code is None and spent < within_s:
            self.pass_time(1.0)
            spent += 1.0
            for node in self.nodes.values():
                node.deaf = False
                for local_rank in list(node.running):
                    self.kill_rank(node, local_rank, code=0, signal=None)
        assert self.exit_code is not None, f"the job is lost in {self.journal.state}"
