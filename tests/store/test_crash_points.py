"""The power goes, or the process is killed, at every call that the store makes of the operating system.

A life of a run (`lives.py`) is played once upon a watched folder. Then, for each of its calls, what may be left after
it is laid out and opened: all (the process was killed), nothing but what was synced, and random subsets of the rest
(`perdure.testing.power` says what a disk may forget). Whatever was reported as committed is there and loads bit for
bit; what is there was made; the next process goes on.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from lives import Life, Process, play, play_at_random

from perdure.errors import PerdureError
from perdure.store import Disk, Run, atomic, disk
from perdure.testing.power import Everything, Nothing, Only, Op, Point, Some, Survivors, Tree, lay_out
from perdure.testing.watched import Killed, WatchedFolder


@dataclass
class Bench:
    """A folder in memory, a watched one in it, and a life that is played there."""

    folder: Path
    patch: pytest.MonkeyPatch
    points: int = 0
    cuts: int = 0
    different: int = 0
    made: list[Op] = field(default_factory=list)

    def begin(self) -> tuple[WatchedFolder, Life]:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        watched = WatchedFolder(str(self.folder / "watched"))
        os.mkdir(watched.top)
        return watched, Life(lambda: len(watched.ops))

    def check(self, watched: WatchedFolder, life: Life, *, first: int = 0, seed: int = 0, subsets: int = 1) -> None:
        """Cut at every point from ``first`` on, in every way; each different disk that is left is opened."""
        dice = random.Random(seed)
        seen: set[tuple[int, frozenset[tuple[str, bytes | None]]]] = set()
        for point in watched.points(first=first):
            self.points += 1
            ways: list[Survivors] = [Everything(), Nothing()]
            ways += [Some(dice, dice.choice((0.1, 0.5, 0.9)), dice.choice((0.0, 0.5, 1.0))) for _ in range(subsets)]
            last = watched.ops[point.done - 1] if point.done else None
            if last is not None and last.kind in ("rename", "link"):
                ways.append(Only(last))
            for way in ways:
                self.cuts += 1
                tree = watched.after_cut(point, way)
                known = (len([at for at, *_ in life.reported if at <= point.done]), frozenset(tree.items()))
                if known in seen:
                    continue
                seen.add(known)
                self.different += 1
                try:
                    self.open(tree, lambda store, at=point.done: life.check(store, at, go_on=self.different % 6 == 0))  # type: ignore[misc]
                except Exception as error:
                    before = watched.ops[max(0, point.done - 1)]
                    error.add_note(f"cut at {point}, after {before.kind} {before.name}, {type(way).__name__} survived")
                    raise

    def open(self, tree: Tree, check: Callable[[Disk], None]) -> None:
        place = str(self.folder / "left")
        lay_out(tree, place)
        with self.patch.context() as here:
            here.setattr(os, "fsync", lambda fd: None)  # what comes after the cut needs not last
            check(Disk(f"{place}/run"))
        shutil.rmtree(place)

    def starter(self, watched: WatchedFolder) -> Callable[[], Run]:
        return lambda: Run.open(Disk(f"{watched.top}/run"), create=True)

    def say(self, capsys: pytest.CaptureFixture[str], what: str) -> None:
        with capsys.disabled():
            print(f"\n{what}: {self.points} crash points, {self.cuts} cuts, {self.different} different disks opened")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    memory = Path("/dev/shm")
    place = memory / f"perdure-test-{os.getpid()}" if os.access(memory, os.W_OK) else tmp_path / "bench"
    try:
        yield Bench(place, monkeypatch)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def no_rename(patch: pytest.MonkeyPatch) -> None:
    """A file system that does not know RENAME_NOREPLACE: names are given by hard links."""

    def refused(folder: int, old: str, new: str) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    patch.setattr(atomic, "_rename_new", refused)


def test_no_cut_at_any_call_loses_a_step_that_was_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for links in (False, True):
        watched, life = bench.begin()
        with monkeypatch.context() as patch:
            if links:
                no_rename(patch)
            with watched.watching(patch):
                play(bench.starter(watched), life)
        kinds = {op.kind for op in watched.ops}
        assert kinds == {"make", "write", "sync", "remove"} | ({"link"} if links else {"rename"})
        bench.check(watched, life, seed=links)
    bench.say(capsys, "every call of a life")
    assert bench.points >= 500


def after_a_kill(bench: Bench, kill_at: int, then: Callable[[Process], None], *, seed: int) -> bool:
    """A process is killed at a call of its first saves, the next does ``then``, and the power goes at any of its calls.

    Whether the process was killed: False if it has fewer calls.
    """
    watched, life = bench.begin()
    start = bench.starter(watched)
    with watched.watching(bench.patch):
        watched.kill_at = kill_at
        try:
            first = Process(life, start(), None)
            first.save(10)
            first.save(20)
        except Killed:
            pass
        if not watched.dead:
            return False
        watched.revive()
        run = start()
        head = run.head()
        then(Process(life, run, head.slot if head else None))
    bench.check(watched, life, first=kill_at, seed=seed)
    return True


def saves(process: Process) -> None:
    process.save(30)


def prunes(process: Process) -> None:
    process.prune(keep=1)


def all_calls(bench: Bench) -> list[int]:
    """Where a process can be killed that saves two steps."""
    watched, life = bench.begin()
    with watched.watching(bench.patch):
        process = Process(life, bench.starter(watched)(), None)
        process.save(10)
        process.save(20)
    bench.made = watched.ops
    return list(range(len(watched.ops)))


def before_syncs(bench: Bench) -> list[int]:
    """Where a record has its name, or a folder is made, and nothing has made that durable yet."""
    calls = all_calls(bench)
    return [at + 1 for at in calls if bench.made[at].is_folder or bench.made[at].name.endswith(".json")]


@pytest.mark.parametrize("then", [saves, prunes])
@pytest.mark.parametrize("where", [before_syncs, pytest.param(all_calls, marks=pytest.mark.slow)])
def test_what_a_killed_process_left_unsynced_costs_the_next_one_nothing(
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    then: Callable[[Process], None],
    where: Callable[[Bench], list[int]],
) -> None:
    kills = where(bench)
    for kill_at in kills:
        assert after_a_kill(bench, kill_at, then, seed=kill_at)
    bench.say(capsys, f"{len(kills)} kills, and what {then.__name__} after each")
    assert len(kills) >= 10


@pytest.mark.parametrize(
    ("precaution", "then"),
    [
        ((disk, "_sync_names_of"), saves),  # of folders that another process made
        ((disk, "sync_folder"), saves),
        ((Run, "make_durable"), prunes),  # of a head that another process made
        ((Run, "make_durable"), saves),
    ],
)
def test_each_precaution_against_what_others_left_is_needed(
    bench: Bench, precaution: tuple[object, str], then: Callable[[Process], None]
) -> None:
    bench.patch.setattr(*precaution, lambda *_, **__: None)
    with pytest.raises((AssertionError, PerdureError)):  # noqa: PT012  (one of them is enough)
        for kill_at in before_syncs(bench):
            after_a_kill(bench, kill_at, then, seed=kill_at)


def test_what_is_recorded_is_what_happened(bench: Bench) -> None:
    watched, life = bench.begin()
    with watched.watching(bench.patch):
        play(bench.starter(watched), life)
    there: Tree = {
        str(path.relative_to(watched.top)): None if path.is_dir() else path.read_bytes()
        for path in Path(watched.top).rglob("*")
    }
    assert watched.after_cut(Point(len(watched.ops)), Everything()) == there


@pytest.mark.parametrize("what", ["file", "folder", "top"])
def test_a_store_that_forgets_to_sync_is_caught(bench: Bench, what: str) -> None:
    """A save whose syncs of one kind do nothing: the tests above must see it."""
    watched, life = bench.begin()
    with watched.watching(bench.patch):
        Process(life, bench.starter(watched)(), None).save(10)
    kinds = {op.inode: "folder" if op.is_folder else "file" for op in watched.ops if op.kind == "make"} | {0: "top"}
    watched.ops = [replace(op, inode=-1) if op.kind == "sync" and kinds[op.inode] == what else op for op in watched.ops]
    with pytest.raises((AssertionError, PerdureError), match=r"cut at|reported|not there|corrupt"):
        bench.check(watched, life)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_cut_of_a_life_that_nobody_has_thought_of_loses_a_step(bench: Bench, seed: int) -> None:
    watched, life = bench.begin()
    with watched.watching(bench.patch):
        play_at_random(bench.starter(watched), life, random.Random(seed), acts=12)
    bench.check(watched, life, seed=seed, subsets=2)
