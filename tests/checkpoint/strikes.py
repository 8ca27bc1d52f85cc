"""What is done to processes, links, memory and clocks in a case of the fault campaign of several nodes."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fault_cases import DAY_S, LIVED_THROUGH, LONG_S, Case
from relay import Relay

from conftest import Place, Ranks, await_that, is_alive


class Wrong(AssertionError):
    """What must not be."""


def must(holds: bool, what: str, ranks: Ranks | None = None) -> None:
    if not holds:
        raise Wrong(what if ranks is None else f"{what}\n{ranks.text()}")


class Struck:
    """The nodes of a case, and the fault that befalls them."""

    def __init__(self, case: Case, place: Place, relay: Relay) -> None:
        self.case, self.place, self.relay = case, place, relay
        self.dice = random.Random(case.seed)
        self.nodes = ["a", "b", "c"] if case.fault == "kill two nodes" else ["a", "b"]
        self.victim = self.dice.randrange(len(self.nodes))
        alone = case.phase == "commit" or case.remote == "remote struck"  # what the first node does for all
        self.gated = 0 if alone else self.dice.randrange(len(self.nodes))
        self.through = case.fault in LIVED_THROUGH
        self.gone: set[int] = set()
        self.promised = self.newest = 0
        self.mesh = self.dice.choice(["first", "last", "more"])
        self.spoiled = case.fault in ("corrupt memory", "corrupt copy")
        self.asleep_until, self.frozen_rank = 0, -1
        self.asleep: list[int] = []  # processes that are stopped, and may not be killed by a launcher
        struck_later = case.phase == "restore" and case.fault in ("kill two nodes", "corrupt memory", "corrupt copy")
        self.agents_go = self.dice.random() < 0.5 and not struck_later  # with home; what is struck must be there
        self.lost = False  # whether home is

    @property
    def world(self) -> int:
        return len(self.nodes)

    def _strike(self, ranks: Ranks) -> None:
        time.sleep(self.dice.choice([0.0, 0.0, 0.02, 0.2]))
        {
            "kill rank": lambda: self._kill(ranks, agents=(), victims=[self.victim]),
            "kill agent": lambda: self._kill(ranks, agents=[self.victim], victims=()),
            "kill node": lambda: self._kill(ranks, agents=[self.victim], victims=[self.victim]),
            "kill two nodes": lambda: self._kill(ranks, agents=self._two(), victims=self._two()),
            "cut link": self.relay.cut_all,
            "silent link": lambda: self._silence(ranks),
            "slow link": lambda: setattr(self.relay, "slow_s", self.dice.choice([0.002, 0.01, 0.03])),
            "stop rank": lambda: self._stop(ranks.pids[self.victim % len(ranks.pids)]),
            "stop agent": lambda: self._stop(self._agent(self.victim)),
            "freeze agent": lambda: self._freeze(ranks, [self._agent(self.victim)]),
            "freeze node": lambda: self._freeze_node(ranks),
            "clock jump": self._jump,
            "corrupt memory": lambda: self._spoil(self.victim, r"\d+"),
            "corrupt copy": lambda: self._spoil(self.victim, "kept"),
            "full disk": lambda: None,
            "EIO": lambda: None,
            "no memory": lambda: None,
            "no memory for a copy": lambda: None,
        }[self.case.fault]()
        (self.place.folder / "go").touch()
        self.relay.go.set()

    def _two(self) -> list[int]:
        return sorted([self.victim, (self.victim + 1) % len(self.nodes)])

    def _kill(self, ranks: Ranks, *, agents: Sequence[int], victims: Sequence[int]) -> None:
        pids = [self._agent(each) for each in agents]
        pids += [ranks.pids[each] for each in victims if each < len(ranks.pids)]
        self.dice.shuffle(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.gone |= set(agents)

    def _lose_home(self) -> None:
        """The store that commits is gone, with or without all agents; each node that has none gets a new one."""
        if self.agents_go:
            pids = self.place.agent_pids()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            await_that(lambda: not any(map(is_alive, pids)), "agents to die")
            self.nodes, self.gone = [f"{name}2" for name in self.nodes], set()
        self.place.run_dir.rename(self.place.folder / "lost")
        self.lost = True

    def _agent(self, node: int) -> int:
        pid = self.place.agent_pid(self.nodes[node])
        must(pid is not None, f"node {self.nodes[node]} has no agent")
        assert pid is not None
        return pid

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        (self.place.folder / "go").touch()
        self.relay.go.set()
        time.sleep(self.dice.choice([0.1, 0.5, 1.5]))
        os.kill(pid, signal.SIGCONT)

    def _freeze(self, ranks: Ranks, pids: Sequence[int]) -> None:
        """Stop processes for longer than anybody waits for a sign of life; they come back when all have noticed."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        (self.place.folder / "go").touch()
        self.relay.go.set()
        self._await_noticed(ranks)
        if self.case.fault == "freeze agent":
            self.asleep = list(pids)
            self._wake(0)

    def _freeze_node(self, ranks: Ranks) -> None:
        self.frozen_rank = self.victim % len(ranks.pids)
        pids = [self._agent(self.victim), ranks.pids[self.frozen_rank]]
        self.dice.shuffle(pids)
        self.gone.add(self.victim)
        self.asleep = pids
        self.asleep_until = self.dice.choice([0, 1])  # before the attempt that recovers, or during it
        self._freeze(ranks, pids)

    def _await_noticed(self, ranks: Ranks) -> None:
        """Wait until a rank that is awake says that an agent is gone; it may have said so, or have ended, already."""
        awake = [rank for rank in range(len(ranks.pids)) if ranks.pids[rank] not in self.asleep]
        give_up = time.monotonic() + LONG_S
        while awake and not any("lost " in ranks.out(rank) or rank in ranks.poll() for rank in awake):
            must(time.monotonic() < give_up, "nobody notices", ranks)
            time.sleep(0.05)

    def _wake(self, when: int) -> None:
        if self.asleep and self.asleep_until <= when:
            time.sleep(self.dice.random() * when)
            for pid in self.asleep:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.asleep = []

    def _silence(self, ranks: Ranks) -> None:
        """Nothing arrives for longer than anybody waits for a sign of life; then it does, late, or at the very end."""
        self.relay.silent = True
        (self.place.folder / "go").touch()
        self.relay.go.set()
        self._await_noticed(ranks)
        if self.case.phase == "restore" or self.dice.random() < 0.5:
            self.relay.silent = False

    def _jump(self) -> None:
        jumped = self.dice.choice([-400 * DAY_S, -3600.0, 90.0, 400 * DAY_S, 30 * 365 * DAY_S])
        new = self.place.folder / "clock.new"
        new.write_text(str(jumped))
        os.replace(new, self.place.folder / "clock")

    def _spoil(self, node: int, label: str) -> None:
        """Flip a bit in each segment of that label, wherever in it."""
        pid, job = self._agent(node), re.escape(f"{self.place.job}@{self.nodes[node]}")
        done = set()
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(fd)
            inode = os.stat(fd).st_ino if re.match(rf"/memfd:perdure:{job}\.{label} ", name) else None
            if inode is None or inode in done:
                continue
            done.add(inode)
            with open(fd, "r+b") as file:
                start = self.dice.randrange(os.fstat(file.fileno()).st_size)
                byte = os.pread(file.fileno(), 1, start)
                os.pwrite(file.fileno(), bytes([byte[0] ^ (1 << self.dice.randrange(8))]), start)
        must(bool(done), f"the agent of {self.nodes[node]} has no memory of the kind {label}")
