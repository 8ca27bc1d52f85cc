"""The power goes, or the process is killed, at every call that a carry makes of the operating system.

As in `tests/store/test_crash_points.py`: what may be left of the copy after each call is laid out and opened. Whatever
it holds as a step verifies, and what was said to be there is.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_carrying import opened, tiny_run

from perdure.store import Disk, Run, Store, disk
from perdure.store.branch import standing
from perdure.store.places import MARKER
from perdure.testing.power import Everything, Nothing, Only, Some, Survivors, lay_out
from perdure.testing.watched import Killed, WatchedFolder
from perdure.upkeep.carrying import carry
from perdure.upkeep.verifying import verify


@dataclass
class Bench:
    """A watched folder in memory, in which a copy lies; ``reported`` says when a step was said to be there."""

    folder: Path
    patch: pytest.MonkeyPatch

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.watched = WatchedFolder(str(self.folder / "watched"))
        os.mkdir(self.watched.top)
        self.reported: list[tuple[int, int]] = []

    def carry(self, here: Store, slot: int) -> None:
        """Carry as a process that has just started."""
        done = carry(opened(here), Disk(f"{self.watched.top}/far"), slot)
        self.reported.append((len(self.watched.ops), done.step))

    def check(self, *, first: int = 0, seed: int = 0) -> int:
        """Cut at every point from ``first`` on; how many different disks were opened."""
        dice, seen = random.Random(seed), set[tuple[int, frozenset[tuple[str, bytes | None]]]]()
        for point in self.watched.points(first=first):
            last = self.watched.ops[point.done - 1] if point.done else None
            ways: list[Survivors] = [Everything(), Nothing(), Some(dice, 0.5, dice.choice((0.0, 0.5, 1.0)))]
            if last is not None and last.kind == "rename":
                ways.append(Only(last))
            due = {step for at, step in self.reported if at <= point.done}
            for way in ways:
                tree = self.watched.after_cut(point, way)
                known = (len(due), frozenset(tree.items()))
                if known in seen:
                    continue
                seen.add(known)
                place = str(self.folder / "left")
                lay_out(tree, place)
                assert due <= steps_of(Disk(f"{place}/far")), f"after {point} and {type(way).__name__}"
                shutil.rmtree(place)
        return len(seen)


def steps_of(store: Disk) -> set[int]:
    if store.size(MARKER) is None:
        assert not store.names("slots/")
        return set()
    report = verify(store, every=True)
    assert report.damages == []
    return {commit.step for commit in standing(Run.open(store, create=False))}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    memory = Path("/dev/shm")
    place = memory / f"perdure-carry-{os.getpid()}" if os.access(memory, os.W_OK) else tmp_path / "bench"
    try:
        yield Bench(place, monkeypatch)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def carried(bench: Bench, kill_at: int | None = None) -> bool:
    """Steps 1 and 3 are carried; a process is killed at a call, and the next one does it again. Whether it was."""
    here = tiny_run()
    bench.begin()
    with bench.watched.watching(bench.patch):
        bench.watched.kill_at = kill_at
        try:
            bench.carry(here, 1)
            bench.carry(here, 3)
        except Killed:
            bench.watched.revive()
            bench.carry(here, 3)
            return True
    return False


def test_no_cut_at_any_call_leaves_a_step_that_is_not_whole_or_loses_one_that_had_arrived(bench: Bench) -> None:
    carried(bench)
    assert bench.check() >= 50


def before_syncs(bench: Bench) -> list[int]:
    """Where the first file of a folder has its name and nothing has made that durable yet, and at the last slot."""
    carried(bench)
    named = {at + 1: op for at, op in enumerate(bench.watched.ops) if op.kind == "rename"}
    first = {op.folder: at for at, op in reversed(named.items())}
    return sorted({*first.values(), max(named)})


def before_syncs_of_packs(bench: Bench) -> list[int]:
    carried(bench)
    ops = enumerate(bench.watched.ops)
    return [at + 1 for at, op in ops if op.kind == "rename" and op.name.endswith(".safetensors")][-1:]


def all_calls(bench: Bench) -> list[int]:
    carried(bench)
    return list(range(len(bench.watched.ops)))


@pytest.mark.parametrize("where", [before_syncs, pytest.param(all_calls, marks=pytest.mark.slow)])
def test_what_a_killed_carrier_left_unsynced_costs_the_next_one_nothing(bench: Bench, where: object) -> None:
    kills = where(bench)  # type: ignore[operator]
    assert len(kills) >= 6
    for kill_at in kills:
        assert carried(bench, kill_at)
        bench.check(first=kill_at, seed=kill_at)


@pytest.mark.parametrize("precaution", ["_sync_names_of", "sync_folder"])
def test_a_copy_whose_names_nobody_syncs_is_caught(bench: Bench, precaution: str) -> None:
    with bench.patch.context() as patch:
        patch.setattr(disk, precaution, lambda *args, **options: None)
        with pytest.raises(AssertionError):  # noqa: PT012
            carried(bench)
            bench.check()


def test_a_pack_that_is_there_is_made_durable_before_it_is_relied_on(bench: Bench) -> None:
    kills = before_syncs_of_packs(bench)
    with bench.patch.context() as patch:
        patch.setattr("perdure.upkeep.carrying._is_there", lambda there, ref: there.size(ref.name) == ref.nbytes)
        with pytest.raises(AssertionError):  # noqa: PT012
            for kill_at in kills:
                carried(bench, kill_at)
                bench.check(first=kill_at, seed=kill_at)
