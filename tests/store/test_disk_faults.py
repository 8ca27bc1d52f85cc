"""A disk that refuses: full, over quota, broken, or without what a store needs. The save fails by name, the step before
stays the latest, nothing that counts is left behind, and the next save works when the disk does."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from lives import SMALL, Life, Process

from perdure.errors import StorageError, StorageFull
from perdure.store import Disk, Run, atomic
from perdure.store.places import PACKS, PARTS
from perdure.testing.watched import WatchedFolder

SAYS = {
    errno.ENOSPC: (StorageFull, "no space is left on the device"),
    errno.EDQUOT: (StorageFull, "the quota is used up"),
    errno.EIO: (StorageError, "the device reports an input/output error"),
}


class _From(Mapping[int, int]):
    """Every call from ``first`` on is refused."""

    def __init__(self, first: int, code: int) -> None:
        self._first, self._code = first, code

    def __getitem__(self, call: int) -> int:
        if call < self._first:
            raise KeyError(call)
        return self._code

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError

    def __len__(self) -> int:
        return 1


def begin(folder: Path) -> tuple[WatchedFolder, Life]:
    folder.mkdir()
    return WatchedFolder(str(folder)), Life()


def check_refused(watched: WatchedFolder, process: Process, kind: type[StorageError], says: str) -> bool:
    """Save once more on the disk that refuses; whether that was noticed."""
    life, run = process.life, process.run
    before = run.head()
    assert before is not None
    refusal: StorageError | None = None
    try:
        process.save(20)
    except StorageError as error:
        refusal = error
    noticed = refusal is not None
    assert not noticed or (type(refusal) is kind and says in str(refusal))
    watched.fails = {}
    head = run.head()
    assert head is not None
    if noticed and head != before:  # its name is there and could not be synced: then it is whole all the same
        assert head.parent == before.slot
        life.reports(head.slot, head.meta["save"])
    after = process.save(30)
    assert after.parent == head.slot
    assert run.head() == after
    life.check(run.store, go_on=False)
    return noticed


def left_over(run: Run) -> list[str]:
    """Packs and parts of the newest epoch that no commit names; temporaries too."""
    named = {name for made in run.chain() for ref in made.parts for name in _names(run, ref)}
    there = [*run.store.names(PACKS), *run.store.names(PARTS)]
    temporaries = [str(path) for path in Path(run.store.root).rglob(".tmp-*")]  # type: ignore[attr-defined]
    return [name for name in there if name not in named] + temporaries


def _names(run: Run, ref: object) -> list[str]:
    return [ref.name, *(pack.name for pack in run.read_part(ref).packs)]  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize("code", SAYS, ids=errno.errorcode.get)
def test_a_disk_that_refuses_any_one_call_costs_that_save_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    kind, says = SAYS[code]
    noticed, nth = 0, 0
    while True:
        watched, life = begin(tmp_path / f"{nth}")
        with watched.watching(monkeypatch):
            process = Process(life, Run.open(Disk(f"{watched.top}/run"), create=True), None)
            process.save(10)
            first = watched.calls
            watched.fails = {first + nth: code}
            told = check_refused(watched, process, kind, says)
            if watched.calls <= first + nth or nth > 200:
                break
            noticed += told
            if not told:
                break
        nth += 1
    assert noticed == nth >= 20  # no refusal went by unnoticed until the save had no calls any more


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_that_refuses_everything_from_a_call_on_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    kind, says = SAYS[code]
    for nth in range(24):
        watched, life = begin(tmp_path / f"{nth}")
        with watched.watching(monkeypatch):
            process = Process(life, Run.open(Disk(f"{watched.top}/run"), create=True), None)
            process.save(10)
            watched.fails = _From(watched.calls + nth, code)
            assert check_refused(watched, process, kind, says)


def test_a_refused_save_leaves_nothing_that_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nth in range(12):  # every call up to the second pack
        watched, life = begin(tmp_path / f"{nth}")
        with watched.watching(monkeypatch):
            process = Process(life, Run.open(Disk(f"{watched.top}/run"), create=True), None)
            process.save(10)
            watched.fails = {watched.calls + nth: errno.ENOSPC}
            with pytest.raises(StorageFull):
                process.save(20)
            left = left_over(process.run)
            # A writer takes its own packs away; what another writer has stored of the step is taken away by it.
            assert not [name for name in left if name.endswith(".safetensors") and "rank1" in name]
            assert not [name for name in left if ".tmp-" in name]


def mounted(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "perdure-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    if done.returncode != 0:
        pytest.skip(f"A FULL DISK IS NOT TESTED: no tmpfs can be mounted ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "small", "size=256k")


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "few", "size=8m,nr_inodes=30")


def fill(process: Process) -> int:
    """Save until the disk is full; the last step that was reported."""
    for step in range(1, 100):
        try:
            process.save(step)
        except StorageFull:
            return step - 1
    raise AssertionError("it was never full")


@pytest.mark.parametrize("disk", ["small_disk", "few_inodes"])
def test_a_really_full_disk_keeps_the_last_step_and_takes_the_next_when_there_is_room(
    disk: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(disk)
    life = Life(sizes=SMALL)
    process = Process(life, Run.open(Disk(folder / "run"), create=True), None)
    last = fill(process)
    assert last > 1
    head = process.run.head()
    assert head is not None
    assert head.step == last
    life.check(process.run.store, go_on=False)
    with pytest.raises(StorageFull):
        process.save(99)
    life.check(process.run.store, go_on=False)
    for path in (folder / "run" / "packs").rglob("*00000001-*"):  # make room as a person would: of the oldest step
        path.unlink()
    for path in [*(folder / "run" / "packs").rglob("*00000002-*"), *(folder / "run" / "packs").rglob("*00000003-*")]:
        path.unlink()
    after = process.save(100)
    assert process.run.head() == after
    life.load(process.run, after)


def test_a_file_system_that_can_neither_rename_nor_link_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(atomic, "_rename_new", unsupported)
    monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(StorageError, match="can neither rename without replacing nor make hard links"):
        Run.open(Disk(tmp_path / "run"), create=True)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_renames_that_do_not_replace_is_written_by_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(atomic, "_rename_new", unsupported)
    life = Life()
    process = Process(life, Run.open(Disk(tmp_path / "run"), create=True), None)
    for step in (1, 2, 3):
        process.save(step)
    process.prune(keep=2)
    life.check(process.run.store)
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "run").rglob("*") if path.is_file())
