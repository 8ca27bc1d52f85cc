"""Cases of the fault campaign of several nodes: what happens to which process at which moment, and what came of it.

Each case is a life of three attempts: one in which the fault happens, one that recovers (on the same mesh or another,
with new nodes for those that are gone), and one that restores with no memory left anywhere, so that the disk alone is
judged too. All that ranks hold after each step must be, bit for bit, what an uninterrupted run holds there; where the
number of ranks changes, one that stopped and went on from disk at the very same step. A remote tier is judged as the
disk is, and the disk may be lost as a whole before the attempt that recovers.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_cases import ARGV, DEADLINES, EVERY, LONG_S, OUTCOMES, SCRIPT, STEPS, STORE, Case
from relay import Relay
from strikes import Struck, Wrong, must

import perdure
from conftest import Forker, Place, Ranks, await_that, digests_in
from perdure.errors import PerdureError
from perdure.store import Disk, Run
from perdure.store.places import MARKER

Reference = tuple[dict[tuple[int, int], str], dict[int, str]]
CUT: dict[str, tuple[str, ...]] = {"shards": (), "stages": ("--staged",)}


@dataclass
class References:
    """Uninterrupted runs, made when they are first asked for."""

    folder: Path
    forker: Forker
    _known: dict[tuple[str, int, int, int], Reference] = field(default_factory=dict)

    def of(self, model: str, world: int, at: int = 0, then: int = 0) -> Reference:
        """``(rank, step)`` and ``step`` -> digest, of what each rank holds and of the whole.

        ``world`` ranks that cut the model so (`MODELS`), and from step ``at`` on ``then`` ranks.
        """
        key = (model, world, at, then)
        if key not in self._known:
            place = Place(_fresh(self.folder / "-".join(map(str, key))), self.forker)
            try:
                argv = (*ARGV, *CUT[model], "--no-agent")
                if then:
                    place.train(*argv, "--steps", str(at), "--every", str(at), world=world)
                ranks = place.train(*argv, "--every", "1000", world=then or world)
                self._known[key] = (ranks.digests(), wholes(ranks))
            finally:
                place.end()
        return self._known[key]


def wholes(ranks: Ranks) -> dict[int, str]:
    """``step`` -> digest of the whole state, upon which ranks must agree."""
    found: dict[int, str] = {}
    for rank in range(len(ranks.pids)):
        for step, digest in re.findall(r"^W (\d+) ([0-9a-f]+)$", ranks.out(rank), re.M):
            must(found.setdefault(int(step), digest) == digest, f"ranks differ in the whole of step {step}", ranks)
    return found


def steps_in(folder: Path) -> list[int]:
    """The committed steps of the branch that training is on, without those given up; none where there is no run."""
    if not (folder / MARKER).exists():
        return []
    run = Run.open(Disk(folder), create=False, tell=lambda note: None)
    gone = run.pruned()
    return [commit.step for commit in run.chain() if commit.slot not in gone][::-1]


def play(case: Case, place: Place, references: References) -> str:
    """Live through the case; say how it was recovered, one of `OUTCOMES`. Raises `Wrong`."""
    relay = Relay()
    try:
        return _Life(case, place, references, relay).live()
    except Wrong:
        raise
    except (AssertionError, PerdureError) as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
    finally:
        relay.end()


class _Life(Struck):
    def __init__(self, case: Case, place: Place, references: References, relay: Relay) -> None:
        super().__init__(case, place, relay)
        self.references = references
        self.argv = [*ARGV, *CUT[case.model]]
        self.home, self.far = place.run_dir, place.folder / "far"
        self.saving = ["--coding", case.coding]
        if case.remote != "no remote":
            self.saving += ["--tiers", f"file://{self.far}"]
            if case.remote != "home lost" and self.dice.random() < 0.5:
                self.saving += ["--remote-every", "6"]
        self.loses_home = case.remote == "home lost"
        self.ended: Ranks | None = None  # the last that came to a good end
        self.whole: dict[int, str] = {}

    def live(self) -> str:
        self._start_agents()
        ranks = self._first()
        attempts = [ranks]
        if self.case.phase == "restore":
            self._let_die(ranks)
            (self.place.folder / "held").unlink(missing_ok=True)
            (self.place.folder / "go").unlink(missing_ok=True)
            ranks = self._attempt(self._recovering(), gate="restore@0")
            attempts.append(ranks)
            self._await_held(ranks)
            self._strike(ranks)
        outcome = ""
        goes_on = self.case.phase == "restore" or (not self.loses_home and self.dice.random() < 0.5)
        if self.through and goes_on:
            (self.place.folder / "on").touch()
            (self.place.folder / "no memory").unlink(missing_ok=True)
            self._ends_well(ranks)
            if self.case.phase == "restore":
                outcome = self._judge(attempts)
        elif self.case.phase == "restore" and not self.asleep:
            ranks.kill_all()
        else:
            if self.through:
                time.sleep(self.dice.random() * 0.5)
            self._let_die(ranks)
        self._wake(0)
        self._mend()
        if steps_in(self.home)[-1:] != [STEPS]:
            again = self._attempt(self._recovering(), gate="")
            attempts.append(again)
            self._wake(1)
            self._ends_well(again)
            outcome = self._judge(attempts)
        self._compare(attempts)
        self._from_stores(attempts)
        return outcome or self._told_of_all(attempts)

    def _mend(self) -> None:
        (self.place.folder / "on").touch()
        (self.place.folder / "go").touch()
        (self.place.folder / "no memory").unlink(missing_ok=True)
        self.relay.heal()

    # --- the fault ---------------------------------------------------------------------------------------------------

    def _start_agents(self) -> None:
        of = (self.far if self.case.remote == "remote struck" else self.home).name
        rules: dict[int, list[dict[str, object]]] = {number: [] for number in range(len(self.nodes))}
        if self.case.fault in ("full disk", "EIO"):
            do = "full" if self.case.fault == "full disk" else self.dice.choice(["eio", "eio after"])
            rules[self.gated].append({**STORE[self.case.phase], "of": of, "do": do})
        elif self.case.phase in STORE:
            rules[self.gated].append({**STORE[self.case.phase], "of": of, "do": "hold"})
        if self.case.fault == "no memory for a copy":
            rules[1 - self.gated].append({"do": "no room"})
        if self.case.fault == "no memory":
            rules[self.victim].append({"do": "no memory"})
            if self.case.phase == "copy":  # from the start
                (self.place.folder / "no memory").touch()
        if self.case.fault == "clock jump":
            rules[self.victim].append({"do": "clock"})
        for number, those in rules.items():
            if those:
                self.place.start_agent(*those, node=self.nodes[number], script="faulty_agent.py")

    def _first(self) -> Ranks:
        phase, fault = self.case.phase, self.case.fault
        broken = fault in ("full disk", "EIO", "no memory", "no memory for a copy")
        if phase == "partner" and not broken:
            self.relay.hold_deposit = len(self.nodes) + 1 + self.dice.randrange(len(self.nodes))
        gate = "" if broken else {"forward": "forward@7", "copy": "copy@6"}.get(phase, "")
        ranks = self._attempt(self.nodes, gate=gate, hold=() if gate else ("--hold", f"7:{self.place.folder}/on"))
        if broken:
            if fault == "no memory" and phase == "idle":  # once the first save has what it needs
                ranks.await_line("committed step 3", within_s=LONG_S)
                (self.place.folder / "no memory").touch()
            ranks.await_line("^D 7 ", ranks=range(self.world), within_s=LONG_S)
            if fault != "no memory for a copy":
                ranks.await_line("could not save step 6|committed step 6", within_s=LONG_S)
        elif phase == "partner":
            await_that(self.relay.held.is_set, f"a copy for the partner\n{ranks.text()}", within_s=LONG_S)
            ranks.await_line("^D 7 ", ranks=range(self.world), within_s=LONG_S)
        elif phase in ("idle", "restore"):
            ranks.await_line("^D 7 ", ranks=range(self.world), within_s=LONG_S)
            ranks.await_line("committed step 6", within_s=LONG_S)
        else:
            self._await_held(ranks)
            if phase in STORE:
                ranks.await_line("^D 7 ", ranks=range(self.world), within_s=LONG_S)
        if self.spoiled and phase != "partner":
            ranks.await_line("^Q 2$", ranks=range(self.world), within_s=LONG_S)
        if self.loses_home and fault != "no memory":  # which may save nothing
            await_that(lambda: bool(steps_in(self.far)), f"a step in the remote tier\n{ranks.text()}", within_s=LONG_S)
        if phase != "restore":
            self._strike(ranks)
        return ranks

    def _attempt(self, nodes: Sequence[str], *, gate: str, hold: Sequence[str] = ()) -> Ranks:
        more = {"RELAY": str(self.relay.port), "GATE": gate, "GATE_RANK": str(self.gated % len(nodes))}
        if self.case.fault == "clock jump":
            more["CLOCK_RANK"] = str(self.victim % len(nodes))
        argv = (*self.argv, *self.saving, *DEADLINES, *hold)
        return self.place.start(*argv, world=len(nodes), nodes=nodes, script=SCRIPT, **more)

    def _await_held(self, ranks: Ranks) -> None:
        try:
            self.place.await_file("held", within_s=LONG_S)
        except AssertionError:
            raise Wrong(f"the moment does not come\n{ranks.text()}\n{ranks.stacks()}") from None

    # --- what comes of it --------------------------------------------------------------------------------------------

    def _let_die(self, ranks: Ranks) -> None:
        """The launcher stops all that is left, home may get lost; then note what ranks had been told before."""
        if self.case.fault in ("corrupt copy", "no memory for a copy") and self.case.phase != "restore":
            other = self._giver()
            self._kill(ranks, agents=[other], victims=[other])  # whose packs the spoilt copy is of
        if self.asleep:  # a node that is as silent as its rank
            for rank in range(len(ranks.pids)):
                if rank != self.frozen_rank and rank not in ranks.poll():
                    ranks.kill(rank)
            ranks.wait_for([rank for rank in range(len(ranks.pids)) if rank != self.frozen_rank])
        else:
            ranks.kill_all()
        loses = self.loses_home and not self.lost
        if loses:
            self._lose_home()
        out = ranks.out(0)
        told = [] if loses else [int(step) for step in re.findall(r"committed step (\d+)", out)]
        copied = [EVERY * int(seq) for seq in re.findall(r"^Q (\d+)$", out, re.M)]
        left = not self.gone or set(self.nodes) & set(self._recovering())  # else no node that has it takes part again
        if loses:
            left = left and not self.agents_go and self.case.phase != "restore"  # before whose end memory may go, too
        if left and len(self.gone) <= 1 and self.case.fault not in ("corrupt memory", "corrupt copy"):
            told += copied
        self.promised = max([self.promised, *told, *steps_in(self.home), *steps_in(self.far)])
        reached = [max(digests_in(ranks.out(rank)), default=0) for rank in range(len(ranks.pids))]
        self.newest = max(self.newest, self.promised, 0 if self.lost else (min(reached) - 1) // EVERY * EVERY)

    def _giver(self) -> int:
        """Whose copies the victim keeps; of two nodes the other one."""
        return 1 - (1 - self.gated if self.case.fault == "no memory for a copy" else self.victim)

    def _recovering(self) -> list[str]:
        """The nodes of the attempt that recovers."""
        nodes = [f"{name}2" if number in self.gone else name for number, name in enumerate(self.nodes)]
        if not self.case.new_mesh:
            return nodes
        if len(nodes) == 3:
            return nodes[:2]
        return {"first": nodes[:1], "last": nodes[1:], "more": [*nodes, "x"]}[self.mesh]

    def _ends_well(self, ranks: Ranks) -> None:
        codes = ranks.wait(within_s=LONG_S)
        must(codes == [0] * len(codes), f"ranks ended with {codes}", ranks)
        self.ended = ranks

    def _judge(self, attempts: Sequence[Ranks]) -> str:
        """How the last attempt has recovered."""
        ranks = attempts[-1]
        began = set(ranks.began_at())
        must(len(began) == 1, f"ranks began at {began}", ranks)
        at = began.pop() or 0
        if len(attempts) > 1 and at >= self.newest:
            return OUTCOMES[0]
        told = any("could not be used" in ranks.out(rank) for rank in range(len(ranks.pids)))
        failed = any("could not save step" in each.out(0) for each in attempts)
        if at < self.promised:
            must(told, f"step {self.promised} was promised, {at} came back, and nobody said why", ranks)
            must(self.spoiled, f"step {self.promised} was promised, {at} came back", ranks)
        return OUTCOMES[1] if told or failed else OUTCOMES[2]

    def _told_of_all(self, attempts: Sequence[Ranks]) -> str:
        """The attempt has gone on through the fault: each step is there, or all ranks were told that it is not."""
        missing = sorted(set(range(EVERY, STEPS + 1, EVERY)) - set(steps_in(self.home)))
        for step in missing:
            for rank in range(len(attempts[0].pids)):
                said = f"could not save step {step}" in attempts[0].out(rank)
                must(said, f"step {step} is not there, and rank {rank} was not told", attempts[0])
        return OUTCOMES[1] if missing else OUTCOMES[0]

    def _compare(self, attempts: Sequence[Ranks]) -> None:
        """Every line of every attempt with the uninterrupted run that it belongs to."""
        model = self.case.model
        mine, whole = self.references.of(model, self.world)
        moved = STEPS  # where the number of ranks changed
        for ranks in attempts:
            world, began = len(ranks.pids), [step for step in ranks.began_at() if step is not None]
            if not began:
                continue  # it ended before it had restored anything
            if world != self.world and began[0] < moved:
                moved = began[0]
                before = self.references.of(model, self.world)[1]
                mine, more = self.references.of(model, *((self.world, moved, world) if moved else (world,)))
                whole = more | {step: digest for step, digest in before.items() if 0 < step <= moved}
            found = {step: digest for step, digest in wholes(ranks).items() if step}
            wrong = sorted(step for step in found if whole.get(step) != found[step])
            must(not wrong, f"the whole differs from that of an uninterrupted run at steps {wrong}", ranks)
            pieces = sorted(key for key, digest in ranks.digests().items() if mine.get(key) != digest)
            must(not pieces, f"(rank, step) differ from an uninterrupted run: {pieces[:6]}", ranks)

        self.whole = whole

    def _from_stores(self, attempts: Sequence[Ranks]) -> None:
        """With no agent left anywhere: each store alone has its last step whole, and it is what it should be."""
        last = steps_in(self.home)[-1:]
        nothing_left = self.lost and not last and attempts[-1].began_at() == [STEPS] * len(attempts[-1].pids)
        must(last == [STEPS] or nothing_left, f"committed are {steps_in(self.home)}", attempts[-1])
        carried = self.case.remote != "no remote" and self.ended is attempts[-1]  # else it may have been killed before
        if carried:
            await_that(lambda: steps_in(self.far)[-1:] == [STEPS], "the last step to be carried", within_s=LONG_S)
        for pid in self.place.agent_pids():
            os.kill(pid, signal.SIGKILL)
        for store in (self.home, self.far):
            steps = steps_in(store)
            for step in steps:
                perdure.load(str(store), step=step)
            if steps:
                self._from_store(store, steps[-1], world=len(attempts[-1].pids))

    def _from_store(self, store: Path, step: int, *, world: int) -> None:
        argv = (*self.argv, "--to", str(store), "--steps", str(step), "--no-agent")
        last = self.place.start(*argv, world=world, script=SCRIPT)
        codes = last.wait(within_s=LONG_S)
        must(codes == [0] * len(codes), f"from {store.name}: ranks ended with {codes}", last)
        must(last.began_at() == [step] * len(last.pids), f"{store.name} gives {last.began_at()}, not {step}", last)
        must(wholes(last) == {step: self.whole[step]}, f"{store.name} gives another state", last)


def _fresh(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
