"""How large blobs are written: as text, as a default, and as what is remembered for a file system."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import CallError, StorageError
from perdure.store import io_choice, remembered
from perdure.store.disk import Disk
from perdure.store.file_system import FileSystem, file_system_of
from perdure.store.io_choice import Io, default_io, uring_refusal, usable
from perdure.store.remembered import choose_io, recall, remember, remembered_file

WAY = Io.parse("threads:buffered:2MiB:3")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PERDURE_IO", raising=False)


@given(
    engine=st.sampled_from(["uring", "threads", "plain"]),
    direct=st.booleans(),
    pages=st.integers(1, 1 << 18),
    depth=st.integers(1, 1024),
)
def test_a_way_survives_being_written_as_text(engine: io_choice.Engine, direct: bool, pages: int, depth: int) -> None:
    io = Io(engine, direct, pages * 4096, depth)
    assert Io.parse(str(io)) == io


@pytest.mark.parametrize(
    "text",
    [
        *["", "fast", "uring:direct:8MiB", "uring:direct:8MB:4", "uring:cached:8MiB:4", "uring:direct:0MiB:4"],
        *["uring:direct:8MiB:0", "uring:direct:8MiB:1025", "uring:direct:5000:4", "uring:direct:2GiB:4"],
        "uring:direct:8MiB:4\n",
    ],
)
def test_what_is_no_way_to_write_is_refused(text: str) -> None:
    with pytest.raises(CallError, match=r"choose|use engine"):
        Io.parse(text)


def test_disks_are_written_past_the_cache_by_default_and_memory_and_the_unknown_through_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not default_io("tmpfs").direct
    assert not default_io("fuse.sshfs").direct
    if not io_choice.NATIVE:
        pytest.skip("NOT TESTED: the native engines are not built")
    assert default_io("ext4").direct
    assert default_io("xfs").engine == ("threads" if uring_refusal() else "uring")
    monkeypatch.setattr(io_choice._native, "uring_refused", lambda: errno.ENOSYS)
    assert default_io("xfs").engine == "threads"
    assert uring_refusal() == "this kernel, or the container's seccomp filter, does not have it"
    monkeypatch.setattr(io_choice._native, "uring_refused", lambda: errno.EMFILE)
    assert "Too many open files" in str(uring_refusal())
    monkeypatch.setattr(io_choice, "NATIVE", False)
    assert usable(Io("uring", True, 4096, 9)) == Io("plain", False, 4096, 1)
    assert "native code" in str(uring_refusal())


def test_the_file_system_of_a_folder_is_the_innermost_mount_and_the_last_one_there() -> None:
    mounts = "\n".join(
        [
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            "2 1 8:2 / /data rw shared:1 - xfs /dev/sdb rw",
            "3 1 8:3 / /data rw - btrfs /dev/sdc rw",
            "4 1 0:9 / /data/run\\040one rw - nfs4 server:/run rw",
            "nonsense",
        ]
    )
    found = {path: file_system_of(path, mounts=mounts).type for path in ("/", "/database", "/data", "/data/run one/a")}
    assert found == {"/": "ext4", "/database": "ext4", "/data": "btrfs", "/data/run one/a": "nfs4"}
    assert file_system_of("/x", mounts="") == FileSystem("unknown", "unknown", "/", "0:0")


def test_this_machine_names_the_file_system_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert file_system_of(str(tmp_path / "not" / "yet")) == file_system_of(str(tmp_path))


def test_the_environment_comes_before_what_was_found_and_that_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = file_system_of(str(tmp_path))
    assert choose_io(str(tmp_path)) == (default_io(system.type), "default")
    assert remember(system.key, WAY) == remembered_file()
    assert choose_io(str(tmp_path)) == (usable(WAY), "calibrated")
    monkeypatch.setenv("PERDURE_IO", "plain:buffered:64KiB:1")
    assert choose_io(str(tmp_path)) == (Io("plain", False, 65536, 1), "PERDURE_IO")
    assert Disk(tmp_path).io == Io("plain", False, 65536, 1)
    assert Disk(tmp_path, io=WAY).io == WAY
    monkeypatch.setenv("PERDURE_IO", "quickly")
    with pytest.raises(CallError, match="PERDURE_IO: 'quickly' is no way to write"):
        Disk(tmp_path).put("large", [bytes(3 << 20)])
    assert Disk(tmp_path).names("large") == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}', '{"key": "by magic"}', "\xff"])
def test_what_is_remembered_is_advice_and_nonsense_in_it_is_no_error(text: str) -> None:
    os.makedirs(os.path.dirname(remembered_file()))
    Path(remembered_file()).write_text(text, encoding="latin-1")
    assert recall("key") is None
    remember("key", WAY)
    assert recall("key") == WAY


def test_what_is_remembered_stays_small_and_is_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_LIMIT_ENTRIES", 3)
    for number in range(5):
        remember(f"key{number}", WAY)
    assert list(json.loads(Path(remembered_file()).read_text())) == ["key2", "key3", "key4"]
    assert os.listdir(os.path.dirname(remembered_file())) == ["io.json"]


def test_a_cache_folder_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    with pytest.raises(StorageError, match=r"cannot write /proc/perdure/io\.json"):
        remember("key", WAY)
