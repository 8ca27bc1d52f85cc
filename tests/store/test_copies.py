"""Clocks that jump, files with any times, copies by any means, media that cannot be written, listings that come late,
readers and writers at once: steps, the latest and every bit are the same."""

from __future__ import annotations

import copy
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lives import Life, Process, play

from perdure.clock import SystemClock
from perdure.errors import BlobMissing, StorageError, Superseded
from perdure.store import Disk, Ram, Run, Store
from perdure.store.branch import branch

YEAR_S = 365 * 86_400.0


class JumpingClock(SystemClock):
    """A wall clock that is set anew by up to a year, back or forth, whenever somebody looks."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def wall(self) -> float:
        return 1.7e9 + self._dice.uniform(-YEAR_S, YEAR_S)


def lived(store: Store, **options: Any) -> Life:
    """A whole life, played upon ``store``."""
    life = Life()
    play(lambda: Run.open(store, create=True, **options), life)
    return life


def facts(store: Store) -> tuple[int | None, list[tuple[int, int]]]:
    """The newest step, and slot and step of each that is there, as the branch has them."""
    run = Run.open(store, create=False)
    head = run.head()
    return head and head.step, [(made.slot, made.step) for made in branch(run) if not run.is_pruned(made.slot)]


def files_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything that would show that something was written."""
    return {
        str(path.relative_to(folder)): (found.st_size, found.st_mtime_ns, found.st_ino)
        for path in [folder, *folder.rglob("*")]
        for found in [path.stat()]
    }


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Life]:
    folder = tmp_path_factory.mktemp("once") / "run"
    return folder, lived(Disk(folder))


@pytest.fixture
def disk(once: tuple[Path, Life], tmp_path: Path) -> tuple[Disk, Life]:
    """A run that has had a whole life, and that life."""
    folder, life = once
    shutil.copytree(folder, tmp_path / "run")
    return Disk(tmp_path / "run"), copy.deepcopy(life)


@pytest.mark.parametrize("seed", range(4))
def test_a_clock_that_jumps_changes_nothing(seed: int) -> None:
    expected, store = Ram(), Ram()
    lived(expected)
    life = lived(store, clock=JumpingClock(seed))
    assert facts(store) == facts(expected) == (50, [(7, 50)])
    life.check(store)


def test_file_times_say_nothing(disk: tuple[Disk, Life]) -> None:
    store, life = disk
    before = facts(store)
    dice = random.Random(0)
    for path in Path(store.root).rglob("*"):
        os.utime(path, (dice.uniform(0, 4e9), dice.uniform(0, 4e9)))
    assert facts(Disk(store.root)) == before
    life.check(Disk(store.root))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder of another file system."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("A COPY TO ANOTHER FILE SYSTEM IS NOT TESTED: there is no /dev/shm beside this one")
    folder = Path(tempfile.mkdtemp(prefix="perdure-test-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def test_a_copy_to_another_file_system_and_back_is_the_run(disk: tuple[Disk, Life], elsewhere: Path) -> None:
    store, life = disk
    before = facts(store)
    back = Path(store.root).with_name("back")
    subprocess.run(["cp", "-r", store.root, str(elsewhere / "copy")], check=True, timeout=60)
    assert facts(Disk(elsewhere / "copy")) == before
    shutil.rmtree(store.root)
    subprocess.run(["cp", "-r", str(elsewhere / "copy"), str(back)], check=True, timeout=60)
    assert facts(Disk(back)) == before
    life.check(Disk(elsewhere / "copy"))
    life.check(Disk(back))


def test_a_tar_in_any_order_is_the_run(disk: tuple[Disk, Life], tmp_path: Path) -> None:
    store, life = disk
    paths = [path for path in Path(store.root).rglob("*") if path.is_file()]
    random.Random(1).shuffle(paths)
    with tarfile.open(tmp_path / "run.tar", "w") as tar:
        for path in paths:
            member = tar.gettarinfo(path, str(path.relative_to(store.root)))
            member.mtime = 0
            with open(path, "rb") as file:
                tar.addfile(member, file)
    with tarfile.open(tmp_path / "run.tar") as tar:
        tar.extractall(tmp_path / "again", filter="data")
    assert facts(Disk(tmp_path / "again")) == facts(store)
    life.check(Disk(tmp_path / "again"))


def test_a_copy_without_its_marker_is_refused_and_never_begun_anew(disk: tuple[Disk, Life]) -> None:
    store, _ = disk
    os.unlink(f"{store.root}/perdure.json")
    for create in (False, True):
        with pytest.raises(BlobMissing, match=r"perdure\.json"):
            Run.open(Disk(store.root), create=create)


def test_a_copy_that_lost_its_epochs_still_refuses_the_old_writer(disk: tuple[Disk, Life]) -> None:
    store, life = disk
    zombie = Process(life, Run.open(store, create=False), 7)
    newer = Process(life, Run.open(store, create=False), 7)
    newer.save(60)
    shutil.rmtree(f"{store.root}/epochs")
    with pytest.raises(Superseded):
        zombie.save(70)
    assert Run.open(store, create=False).claim_epoch("next") > newer.epoch


def test_a_copy_that_is_cut_short_falls_back_to_what_is_whole(disk: tuple[Disk, Life]) -> None:
    """A copy made file by file while the run went on: the newest slot is there and a pack of it is not."""
    store, life = disk
    run = Run.open(store, create=False)
    process = Process(life, run, 7)
    process.save(60)
    for path in (Path(store.root) / "packs").rglob("*000000000060-*"):
        path.unlink()
    found = []
    for made in branch(run):
        if not run.is_pruned(made.slot):
            try:
                life.load(run, made)
            except BlobMissing as error:
                assert "000000000060-" in str(error)  # noqa: PT017
            else:
                found.append(made.step)
    assert found == [50]


def test_higher_steps_of_a_dead_branch_neither_win_nor_cost_the_new_ones(tmp_path: Path) -> None:
    """Trained on from step 1 again: 2 to 4 are the run now, whatever 100 to 102 were."""
    store = Disk(tmp_path / "run")
    life = Life()
    old = Process(life, Run.open(store, create=True), None)
    for step in (1, 100, 101, 102):
        old.save(step)
    new = Process(life, Run.open(store, create=False), 1)
    for step in (2, 3, 4):
        new.save(step)
        new.prune(keep=2)
        assert Run.open(store, create=False).head().step == step  # type: ignore[union-attr]
    assert facts(store) == (4, [(7, 4), (6, 3)])
    life.check(store)


def test_a_prune_goes_on_where_a_person_has_removed_folders_already(tmp_path: Path) -> None:
    store = Disk(tmp_path / "run")
    life = Life()
    old = Process(life, Run.open(store, create=True), None)
    old.save(1)
    new = Process(life, Run.open(store, create=False), 1)
    new.save(2)
    shutil.rmtree(tmp_path / "run" / "packs" / "0000000001")
    new.prune(keep=1)
    assert facts(store) == (2, [(2, 2)])
    life.check(store, go_on=False)


def test_media_that_cannot_be_written_are_read_and_not_written(disk: tuple[Disk, Life]) -> None:
    store, life = disk
    place = Path(store.root)
    mount = ["mount", "--bind", "-o", "ro", store.root, store.root]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=10)
    if done.returncode != 0:
        pytest.skip(f"READ-ONLY MEDIA ARE NOT TESTED: no bind mount ({done.stderr.strip()})")
    try:
        reads_without_writing(place, life)
    finally:
        subprocess.run(["umount", "-l", store.root], check=True, timeout=10)


def test_a_reader_without_the_right_to_write_reads_and_does_not_write(elsewhere: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("ANOTHER USER'S RUN IS NOT TESTED: that needs root")
    store = Disk(elsewhere / "run")
    life = lived(store)
    elsewhere.chmod(0o755)
    os.seteuid(65534)
    try:
        reads_without_writing(Path(store.root), life)
    finally:
        os.seteuid(0)


def reads_without_writing(place: Path, life: Life) -> None:
    before = files_of(place)
    assert facts(Disk(place)) == (50, [(7, 50)])
    life.check(Disk(place), go_on=False)
    run = Run.open(Disk(place), create=True)  # one that is there needs nothing
    with pytest.raises(StorageError, match=r"read-only|permission") as caught:
        run.claim_epoch("a reader")
    assert str(place) in caught.value.file
    assert files_of(place) == before


# --- others at the same time -----------------------------------------------------------------------------------------


class LateNames:
    """A store whose listings are those of a while ago, as a network file system's may be."""

    def __init__(self, store: Store, *, late_by: int) -> None:
        self.store = store
        self._late_by = late_by
        self._past: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def create(self, name: str, data: Any) -> bool:
        self._past.append(self.store.names(""))
        return self.store.create(name, data)

    def put(self, name: str, chunks: Any) -> None:
        self._past.append(self.store.names(""))
        self.store.put(name, chunks)

    def names(self, prefix: str) -> list[str]:
        seen = self._past[-self._late_by] if len(self._past) >= self._late_by else []
        return [name for name in seen if name.startswith(prefix)]


@pytest.mark.parametrize("late_by", [1, 3, 10, 1000])
def test_listings_that_come_late_hide_no_step_and_no_epoch(late_by: int) -> None:
    store = LateNames(Ram(), late_by=late_by)
    life = Life()
    first = Process(life, Run.open(store, create=True), None)
    made = [first.save(step) for step in (10, 20, 30)]
    second = Process(life, Run.open(store, create=True), made[0].slot)
    assert second.epoch == first.epoch + 1
    with pytest.raises(Superseded):
        first.save(40)
    life.tried.pop()
    second.save(15)
    assert facts(store) == (15, [(4, 15), (1, 10)])
    life.check(store, go_on=False)


@pytest.mark.parametrize("make", [lambda path: Ram(), Disk], ids=["ram", "disk"])
def test_a_reader_during_prunes_loads_a_step_or_hears_that_it_is_gone(
    make: Callable[[Path], Store], tmp_path: Path
) -> None:
    store = make(tmp_path / "run")
    life = Life()
    process = Process(life, Run.open(store, create=True), None)
    process.save(1)
    done = threading.Event()
    loaded: list[int] = []
    failures: list[str] = []

    def read() -> None:
        run = Run.open(store, create=False, tell=lambda note: failures.append(note.message))
        while not done.is_set():
            made = run.head()
            assert made is not None
            try:
                life.load(run, made)
                loaded.append(made.step)
            except BlobMissing as error:
                if not run.is_pruned(made.slot):
                    failures.append(f"step {made.step} is gone and was not given up: {error}")
            except Exception as error:
                failures.append(f"step {made.step}: {error!r}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    give_up = time.monotonic() + 20
    step = 1
    while (step < 25 or len(loaded) < 5) and time.monotonic() < give_up:
        step += 1
        process.save(step)
        process.prune(keep=1)
    done.set()
    for each in readers:
        each.join(20)
    assert failures == []
    assert len(loaded) >= 5
    life.check(store)


@pytest.mark.parametrize("make", [lambda path: Ram(), Disk], ids=["ram", "disk"])
def test_of_many_writers_at_once_one_owns_the_run_and_no_step_is_torn(
    make: Callable[[Path], Store], tmp_path: Path
) -> None:
    """Each claims an epoch and saves until it is told to stop; only one is never told."""
    store = make(tmp_path / "run")
    lives = [Life() for _ in range(4)]
    Run.open(store, create=True)
    gate = threading.Barrier(4)
    stopped: list[int] = []
    newer: list[bool] = []

    def write(number: int) -> None:
        life = lives[number]
        life.contents.update({save: {} for save in range(number * 100)})  # so that the numbers of saves differ
        process = Process(life, Run.open(store, create=False), None)
        gate.wait(20)
        try:
            for step in range(1, 9):
                process.save(step)
        except Superseded as error:
            newer.append(error.facts["newer"] > process.epoch)
            stopped.append(process.epoch)

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(stopped) == [1, 2, 3]
    assert all(newer)
    run = Run.open(store, create=False)
    reported = {slot: save for life in lives for _, slot, save in life.reported}
    contents = {save: content for life in lives for save, content in life.contents.items() if content}
    whole = Life(contents=contents)
    head = run.head()
    assert head is not None
    assert head.epoch == 4
    epochs = []
    for slot in range(1, head.slot + 1):
        made = run.read_slot(slot)
        epochs.append(made.epoch)
        assert reported.get(slot, made.meta["save"]) == made.meta["save"]
        whole.load(run, made)
    assert epochs == sorted(epochs)
    assert [made.step for made in branch(run)][:8] == [8, 7, 6, 5, 4, 3, 2, 1]
