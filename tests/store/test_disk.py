"""The store in a folder: durability, refusals, and what planted files can do."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.errors import BlobCorrupt, BlobMissing, CallError, StorageError, StorageFull
from perdure.store import atomic, stream
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.ram import Ram
from perdure.store.refusals import explain
from perdure.testing.store import StoreContract


class TestDisk(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Disk(tmp_path / "made" / "by the first write")


class TestDiskWithoutRename(StoreContract):
    """A file system, such as NFS, that has links only."""

    @pytest.fixture(autouse=True)
    def _no_rename(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(atomic, "_renameat2", None)

    def make_store(self, tmp_path: Path) -> Store:
        return Disk(tmp_path)


NAMES = st.sampled_from(["a", "b/1", "b/2", "b/c/1", "bc", "d/e/f/g"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, st.lists(st.binary(max_size=20), max_size=3)),
        st.tuples(st.just("create"), NAMES, st.binary(max_size=20)),
        st.tuples(st.just("delete"), NAMES, st.none()),
        st.tuples(st.just("names"), st.sampled_from(["", "b", "b/", "b/c/", "x"]), st.none()),
        st.tuples(st.just("read"), NAMES, st.tuples(st.integers(0, 25), st.none() | st.integers(0, 25))),
    ),
    max_size=20,
)


@pytest.mark.parametrize("make", [lambda path: Ram(), Disk], ids=["ram", "disk"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_store_is_a_dict_that_never_replaces(
    make: Callable[[str], Store], tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, object]]
) -> None:
    store = make(str(tmp_path_factory.mktemp("model")))
    model: dict[str, bytes] = {}
    for verb, name, given_ in steps:
        if verb == "put":
            chunks = list(given_)  # type: ignore[call-overload]
            if name in model:
                with pytest.raises(CallError):
                    store.put(name, chunks)
            else:
                store.put(name, chunks)
                model[name] = b"".join(chunks)
        elif verb == "create":
            assert isinstance(given_, bytes)
            assert store.create(name, given_) == (name not in model)
            model.setdefault(name, given_)
        elif verb == "delete":
            store.delete(name)
            model.pop(name, None)
        elif verb == "names":
            assert store.names(name) == sorted(known for known in model if known.startswith(name))
        else:
            assert isinstance(given_, tuple)
            check_read(store, model.get(name), name, *given_)
    assert {name: bytes(store.read(name)) for name in store.names("")} == model


def check_read(store: Store, blob: bytes | None, name: str, start: int, nbytes: int | None) -> None:
    if blob is None:
        with pytest.raises(BlobMissing):
            store.read(name, start=start, nbytes=nbytes)
    elif start + (nbytes or 0) > len(blob):
        with pytest.raises(BlobCorrupt):
            store.read(name, start=start, nbytes=nbytes)
    else:
        stop = len(blob) if nbytes is None else start + nbytes
        assert bytes(store.read(name, start=start, nbytes=nbytes)) == blob[start:stop]
        assert store.size(name) == len(blob)


def test_bytes_are_synced_before_the_name_and_every_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    real_sync, real_rename = os.fsync, atomic._rename_new

    def sync(fd: int) -> None:
        log.append(f"sync {os.path.relpath(os.readlink(f'/proc/self/fd/{fd}'), tmp_path)}")
        real_sync(fd)

    def rename(folder: int, temporary: str, last: str) -> None:
        log.append(f"name {last}")
        real_rename(folder, temporary, last)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(atomic, "_rename_new", rename)
    disk = Disk(tmp_path / "new" / "run")
    disk.put("a/b/blob", [b"1"])
    bytes_synced = next(i for i, line in enumerate(log) if ".tmp-" in line)
    above = [line for line in log[:bytes_synced] if line.startswith("sync ..")]  # up to the mount point
    assert log[:bytes_synced] == ["sync new", "sync .", *above, "sync new/run", "sync new/run/a"]
    assert log[bytes_synced + 1 :] == ["name blob", "sync new/run/a/b"]
    log.clear()
    disk.put("a/b/blob2", [b"1"])
    assert [line for line in log if ".tmp-" not in line] == ["name blob2", "sync new/run/a/b"]
    log.clear()
    assert not disk.create("a/b/blob", b"2")
    assert log == ["sync new/run/a/b"]  # what another process made may not have been durable yet


def test_a_file_server_that_repeats_a_link_does_not_deny_our_own_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link_twice(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)  # type: ignore[arg-type]
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(atomic, "_renameat2", None)
    monkeypatch.setattr(os, "link", link_twice)
    disk = Disk(tmp_path)
    assert disk.create("a", b"1")
    assert os.listdir(tmp_path) == ["a"]
    assert not disk.create("a", b"1")


def test_a_file_system_without_rename_and_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(atomic, "_renameat2", None)
    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(StorageError, match="hard links"):
        Disk(tmp_path).create("a", b"1")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageError), (errno.EACCES, StorageError)],
)
def test_any_failure_removes_the_temporary_and_names_file_and_errno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, error: type[StorageError]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    disk = Disk(tmp_path)
    disk.put("f/first", [b"1"])
    monkeypatch.setattr(atomic, "_renameat2", None)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError) as caught:
        disk.put("f/blob", [b"1"])
    assert type(caught.value) is error
    assert caught.value.errno == code
    assert caught.value.file == f"{tmp_path}/f/blob"
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path / "f")) == ["first"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENOTDIR, errno.ELOOP, errno.EBADMSG])
def test_every_refusal_says_what_to_do(code: int) -> None:
    error = explain(OSError(code, os.strerror(code)), "/x", "write")
    assert error.errno == code
    assert ";" in str(error)
    assert "/x" in str(error)


def test_a_full_disk_is_told_and_leaves_what_was_there(small_disk: Path) -> None:
    disk = Disk(small_disk / "run")
    disk.put("a/old", [b"x" * 100_000])
    with pytest.raises(StorageFull) as caught:
        disk.put("a/new", [b"y" * 300_000 for _ in range(10)])
    assert caught.value.errno == errno.ENOSPC
    assert "prune" in str(caught.value)
    assert os.listdir(small_disk / "run" / "a") == ["old"]
    assert bytes(disk.read("a/old")) == b"x" * 100_000
    disk.put("a/new", [b"y" * 300_000])  # the room of the failed blob is free again


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    libc = ctypes.CDLL(None, use_errno=True)
    target = str(tmp_path / "small")
    os.mkdir(target)
    if libc.mount(b"tmpfs", target.encode(), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip(f"NOT TESTED: a really full disk; mounting a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield Path(target)
    finally:
        assert libc.umount2(target.encode(), 0) == 0


@pytest.mark.parametrize("link_name", ["packs", "packs/inner"])
def test_a_link_that_leads_out_is_never_followed(tmp_path: Path, link_name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "packs").mkdir(parents=True)
    if link_name == "packs":
        (root / "packs").rmdir()
    os.symlink(outside, root / link_name)
    disk = Disk(root)
    name = f"{link_name}/secret"
    for verb in (
        lambda: disk.read(name),
        lambda: disk.size(name),
        lambda: disk.put(f"{link_name}/new", [b"x"]),
        lambda: disk.create(f"{link_name}/new", b"x"),
        lambda: disk.delete(name),
        lambda: disk.names(f"{link_name}/"),
    ):
        with pytest.raises(StorageError, match="symbolic link"):
            verb()
    assert disk.names("") == []
    assert os.listdir(outside) == ["secret"]


def test_a_linked_file_is_refused_and_a_pipe_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"1")
    os.symlink("target", tmp_path / "link")
    os.symlink("nowhere", tmp_path / "dangling")
    os.mkfifo(tmp_path / "pipe")
    disk = Disk(tmp_path)
    for name in ["link", "dangling", "pipe"]:
        with pytest.raises(BlobCorrupt, match="not a plain file"):
            disk.read(name)
        with pytest.raises(BlobCorrupt, match="not a plain file"):
            disk.size(name)
        with pytest.raises(BlobCorrupt, match="not a plain file"):
            disk.create(name, b"x")
    assert disk.names("") == ["dangling", "link", "pipe", "target"]  # who lists them reads them, and is told
    assert not (tmp_path / "nowhere").exists()


def test_the_root_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink("real", tmp_path / "alias")
    Disk(tmp_path / "alias").put("a/b", [b"1"])
    assert bytes(Disk(tmp_path / "real").read("a/b")) == b"1"


def test_a_name_that_is_a_folder_of_another_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.put("a/b", [b"1"])
    for name in ["a", "a/b/c"]:
        with pytest.raises(CallError, match="folder of another"):
            disk.put(name, [b"2"])
        with pytest.raises(CallError, match="folder of another"):
            disk.create(name, b"2")
    assert disk.names("") == ["a/b"]


def test_a_root_that_vanishes_is_not_made_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "mount")
    disk.put("a", [b"1"])
    (tmp_path / "mount" / "a").unlink()
    (tmp_path / "mount").rmdir()
    with pytest.raises(StorageError, match="vanished"):
        disk.put("b", [b"1"])
    assert not (tmp_path / "mount").exists()


def test_foreign_files_are_neither_listed_nor_touched(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.put("a/b", [b"1"])
    for foreign in ["my notes.txt", ".hidden", "a/.tmp-mine", "a/x y"]:
        (tmp_path / foreign).write_bytes(b"precious")
        os.utime(tmp_path / foreign, (0, 0))
    assert disk.names("") == ["a/b"]
    assert disk.sweep_temporaries() == []
    assert (tmp_path / "a" / ".tmp-mine").read_bytes() == b"precious"


def test_only_old_temporaries_of_this_format_are_swept_and_only_on_request(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.put("a/b", [b"1"])
    old, young = f".tmp-{'0' * 32}", f".tmp-{'1' * 32}"
    for last in [old, young]:
        (tmp_path / "a" / last).write_bytes(b"half")
    a_day_ago = time.time() - 86_401
    os.utime(tmp_path / "a" / old, (a_day_ago, a_day_ago))
    disk.put("a/c", [b"1"])
    assert disk.names("") == ["a/b", "a/c"]
    with pytest.raises(CallError, match="living writer"):
        disk.sweep_temporaries(older_than_s=3600)
    assert disk.stale_temporaries() == [f"a/{old}"]
    assert disk.sweep_temporaries(older_than_s=2 * 86_400) == []
    assert disk.sweep_temporaries() == [f"a/{old}"]
    assert sorted(os.listdir(tmp_path / "a")) == [young, "b", "c"]


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.put("a/b/c", [b"1"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        disk.create("a/b/c", b"2")
        disk.read("a/b/c")
        disk.size("a/x/c")
        disk.names("a/")
        for bad in (lambda: disk.read("a/b/d"), lambda: disk.put("a/b", [b""]), lambda: disk.read("a/b/c", start=5)):
            with pytest.raises((BlobMissing, CallError, BlobCorrupt)):
                bad()
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_small_and_large_chunks_arrive_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_WRITE_BYTES", 7)
    disk = Disk(tmp_path)
    chunks = [bytes([i % 251]) * (i % 40) for i in range(500)]
    disk.put("a", chunks)
    assert bytes(disk.read("a")) == b"".join(chunks)


def test_a_folder_that_vanishes_is_an_error_and_not_an_empty_store(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "run")
    disk.put("a", [b"1"])
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    for verb in (lambda: disk.read("a"), lambda: disk.size("a"), lambda: disk.names(""), lambda: disk.put("b", [b"2"])):
        with pytest.raises(StorageError, match="has vanished"):
            verb()
    assert not (tmp_path / "run").exists()
