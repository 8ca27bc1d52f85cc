"""The life of a run, from its first claim to its last prune, and what must hold wherever it stops.

`Life` is what a job of two writers has done to a run and reported, and when ("when" is any number that rises: the calls
that a watched folder has seen). `Life.check` opens what is left as the next process does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perdure.checkpoint.drain import Order, commit, write_part
from perdure.checkpoint.restoring import read_catalog
from perdure.checkpoint.unchanged import Stored
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state.items import Held, TensorItem
from perdure.state.load import load, match
from perdure.store import Commit, Run, Store
from perdure.store.branch import branch
from perdure.testing.ranks import Bytes, bytes_of, memory_of, save_layout, whole_box
from perdure.upkeep.keep import Last
from perdure.upkeep.pruning import execute
from perdure.upkeep.retention import Retention

RANKS = {"frozen": 0, "moving": 0, "other": 1, "still": 1}
"""Each tensor, and the rank that holds it."""
SMALL = {"frozen": 5000, "moving": 3000, "other": 2000, "still": 200}
"""The bytes of each: what is frozen is referred to, what is still is too small for that."""
LARGE = {"frozen": 5 << 20, "moving": 3 << 20, "other": 4 << 20, "still": 200}
"""So large that a pack is written as a stream."""


@dataclass
class Life:
    """``when`` says how far the world has come; ``say`` is told all that `hear` needs to know it elsewhere."""

    when: Callable[[], int] = lambda: 0
    say: Callable[[str], None] = lambda line: None
    sizes: Mapping[str, int] = field(default_factory=lambda: SMALL)
    contents: dict[int, dict[str, int]] = field(default_factory=dict)  # save -> the save that changed each tensor last
    tried: list[tuple[int, int]] = field(default_factory=list)  # when a commit might have been made, and of which save
    reported: list[tuple[int, int, int]] = field(default_factory=list)  # when, in which slot, which save
    given_up: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    def tries(self, save: int, content: dict[str, int]) -> None:
        self.contents[save] = content
        self.tried.append((self.when(), save))
        self.say(json.dumps({"tries": save, "content": content}))

    def reports(self, slot: int, save: int) -> None:
        self.reported.append((self.when(), slot, save))
        self.say(json.dumps({"reports": slot, "save": save}))

    def gives_up(self, slots: Iterable[int]) -> None:
        slots = sorted(slots)
        self.given_up.append((self.when(), frozenset(slots)))
        self.say(json.dumps({"gives up": slots}))

    def hear(self, lines: Iterable[str]) -> None:
        """Take in what a life in another process has said."""
        for line in lines:
            told = json.loads(line)
            if "tries" in told:
                self.tries(told["tries"], told["content"])
            elif "reports" in told:
                self.reports(told["reports"], told["save"])
            else:
                self.gives_up(told["gives up"])

    def top(self, when: int) -> int:
        """The highest slot that was reported by then."""
        return max((slot for at, slot, _ in self.reported if at <= when), default=0)

    def check(self, store: Store, when: int = 0, *, go_on: bool = True) -> None:
        """Open what is left of a run that stopped ``when`` it did; with ``go_on`` save to it and prune it too."""
        notes: list[str] = []
        given_up = set().union(*(slots for at, slots in self.given_up if at <= when))
        reported = {slot: save for at, slot, save in self.reported if at <= when and slot not in given_up}
        tried = {save for at, save in self.tried if at <= when}
        run = Run.open(store, create=not reported, tell=lambda note: notes.append(note.message))
        head = run.head()
        top = self.top(when)
        assert top <= (head.slot if head else 0) <= len(tried), f"slot {top} was reported, {head} is the newest"
        for slot, save in reported.items():
            assert run.read_slot(slot).meta["save"] == save
        gone = run.pruned()
        assert not gone & reported.keys()
        assert head is None or head.slot not in gone, f"all was given up for a step newer than {head.step}: it is lost"
        for slot in range(1, (head.slot if head else 0) + 1):
            found = run.read_slot(slot)  # also of a dead branch, and what was made and not reported any more
            assert found.meta["save"] in tried, f"slot {slot} is there and nobody has made it"
            if slot not in gone:
                self.load(run, found)
        assert notes == []
        assert not [name for name in store.names("") if "tmp" in name]
        if go_on:
            self._go_on(run, head, gone)

    def load(self, run: Run, made: Commit) -> None:
        """Load all that ``made`` names, and compare each bit with what was saved."""
        catalog, packs = read_catalog(run, made.slot)
        wanted = {name: self.tensor(name, version) for name, version in self.contents[made.meta["save"]].items()}
        items = [
            TensorItem(name, "uint8", (len(data),), (Held(Box.whole((len(data),)), memory_of(np.zeros_like(data))),))
            for name, data in wanted.items()
        ]
        load(catalog, match(catalog, items, (), rank=0, world=1), lambda pack: [packs[pack]], threads=1)
        for item, data in zip(items, wanted.values(), strict=True):
            assert np.array_equal(bytes_of(item.held[0]), data), (
                f"{item.name} of step {made.step} is not what was saved"
            )

    def tensor(self, name: str, version: int) -> Bytes:
        """The bytes of a tensor as the save ``version`` has left it."""
        dice = np.random.default_rng([version, *name.encode()])
        return dice.integers(0, 256, (self.sizes[name], 1), dtype=np.uint8)

    def _go_on(self, run: Run, head: Commit | None, gone: frozenset[int]) -> None:
        after = Process(Life(sizes=self.sizes, contents=dict(self.contents)), run, head.slot if head else None)
        made = after.save(1000)
        assert run.head() == made
        assert made.parent == (head.slot if head else None)
        kept = [each for each in branch(run) if each.slot not in gone][:2]
        after.prune(keep=2)
        for each in kept:
            after.life.load(run, each)
        assert {made.slot for made in branch(run) if not run.is_pruned(made.slot)} == {each.slot for each in kept}


class Process:
    """One process that saves for both writers, going on from slot ``base``."""

    def __init__(self, life: Life, run: Run, base: int | None) -> None:
        self.life, self.run, self.base = life, run, base
        self.epoch = run.claim_epoch("a test")
        self.seq = 0
        self._stored: list[Stored | None] = [None, None]
        self._retention = Retention()

    def save(self, step: int, *, changes: Sequence[str] = ("moving", "other")) -> Commit:
        """Save a step in which ``changes`` are other than in the save before."""
        life = self.life
        number = len(life.contents)
        before = life.contents.get(number - 1, {})
        content = {name: before[name] if name in before and name not in changes else number for name in RANKS}
        life.tries(number, content)
        self.seq += 1
        order = Order(self.epoch, step, self.seq, self.base, meta={"save": number})
        layout = Layout(
            {
                name: TensorLayout((nbytes,), (Piece.alone(RANKS[name], whole_box((nbytes,))),), "uint8")
                for name, nbytes in life.sizes.items()
            }
        )
        wholes = {name: life.tensor(name, version) for name, version in content.items()}
        made = save_layout(layout, wholes, world=2)
        parts = [
            write_part(
                self.run,
                order,
                writer=f"rank{rank}",
                packs=[(made.indexes[f"pack{rank}"], memoryview(made.packs[f"pack{rank}"]))],
                stored=self._stored[rank],
            )
            for rank in (0, 1)
        ]
        done = commit(self.run, order, [part.ref for part in parts])
        life.reports(done.slot, number)
        self._stored = [part.stored(done.slot) for part in parts]
        return done

    def prune(self, *, keep: int) -> None:
        """Keep the last steps of the branch alone."""
        plan = self._retention.plan(self.run, rules=[Last(keep)])
        assert plan.blocked is None
        self.life.gives_up(slot for slot, _ in plan.give_up)
        execute(self.run, plan)


def play(start: Callable[[], Run], life: Life) -> None:
    """A whole life: three saves, a restart, a rollback, a lower step again, prunes, and what refers to what stays."""
    first = Process(life, start(), None)
    made = [first.save(step) for step in (10, 20, 30)]
    second = Process(life, start(), made[0].slot)  # back to step 10
    second.save(20, changes=["moving"])
    second.prune(keep=2)
    newest = second.save(15)  # a lower one than the newest
    third = Process(life, start(), newest.slot)
    third.save(40, changes=["moving", "other", "still"])
    third.save(50)
    third.prune(keep=1)


def play_at_random(start: Callable[[], Run], life: Life, dice: random.Random, *, acts: int) -> None:
    """A life of ``acts`` that nobody has thought of, going on from what is there."""
    run = start()
    head = run.head()
    process = Process(life, run, head.slot if head else None)
    for _ in range(acts):
        act = dice.random()
        if act < 0.15:
            there = [made for made in process.run.chain() if not process.run.is_pruned(made.slot)]
            process = Process(life, start(), dice.choice(there).slot if there else None)
        elif act < 0.3:
            process.prune(keep=dice.randint(1, 3))
        else:
            process.save(dice.randint(1, 60), changes=[name for name in RANKS if dice.random() < 0.4])
