"""Reads of large spans: every way gives the bytes and the digests that the twin gives, and tells what is wrong."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

from perdure.errors import BlobCorrupt, BlobMissing, CallError
from perdure.store import spans
from perdure.store.api import DigestedReads
from perdure.store.digested import read_digested
from perdure.store.disk import Disk
from perdure.store.faults import Corrupt, Faults, Rule
from perdure.store.io_choice import Io, uring_refusal
from perdure.store.ram import Ram
from perdure.store.spans import FileCut, read_span, read_tiles

MIB = 1 << 20
NOISE = np.random.default_rng(9).integers(0, 256, 19 * MIB + 333, dtype=np.uint8)
DIRECT, BUFFERED = Io("plain", True, MIB, 1), Io("plain", False, MIB, 1)


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spans") / "blob"
    path.write_bytes(NOISE.tobytes())
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return path


def forget(path: Path) -> None:
    """Take the file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def digests(data: np.ndarray, tile_bytes: int) -> bytes:
    return b"".join(xxhash.xxh3_128_digest(data[i : i + tile_bytes].data) for i in range(0, data.size, tile_bytes))


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
@pytest.mark.parametrize("io", [DIRECT, BUFFERED], ids=["direct", "buffered"])
def test_any_span_at_any_alignment_has_its_bytes_and_its_digests_and_nothing_around_it(
    blob: Path, io: Io, cold: bool
) -> None:
    disk = Disk(blob.parent, io=io)
    random_ = random.Random(f"{io}{cold}")
    room = np.empty(NOISE.size + 8192, np.uint8)
    for _ in range(12):
        start = random_.choice([0, 1, 64, 4095, 4096, random_.randrange(NOISE.size)])
        nbytes = random_.choice([1, 240, 241, 4096, MIB - 1, MIB, 4 * MIB + 4097, NOISE.size - start])
        nbytes = min(nbytes, NOISE.size - start)
        lies = random_.choice([start % 4096, 64, 1, random_.randrange(4096)])  # the first: as the file does
        at = -room.ctypes.data % 4096 + lies
        into = room[at : at + nbytes]
        room[:] = 0xA5
        tile_bytes = random_.choice([4096, 65_536 + 64, MIB, 4 * MIB, 100 * MIB])
        if cold:
            forget(blob)
        if random_.random() < 0.7:
            found = disk.read_digested("blob", start=start, nbytes=nbytes, into=into.data, tile_bytes=tile_bytes)
            assert found == digests(NOISE[start : start + nbytes], tile_bytes)
        else:
            disk.read("blob", start=start, nbytes=nbytes, into=into.data)
        assert np.array_equal(into, NOISE[start : start + nbytes])
        assert (room[:at] == 0xA5).all()
        assert (room[at + nbytes :] == 0xA5).all()


def test_the_twin_gives_the_same(blob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = bytearray(9 * MIB), bytearray(9 * MIB)
    disk = Disk(blob.parent)
    native = disk.read_digested("blob", start=77, nbytes=9 * MIB, into=ours, tile_bytes=2 * MIB)
    monkeypatch.setattr(spans, "NATIVE", False)
    assert disk.read_digested("blob", start=77, nbytes=9 * MIB, into=theirs, tile_bytes=2 * MIB) == native
    assert ours == theirs
    assert spans.tile_digests(memoryview(ours), MIB) == digests(np.frombuffer(ours, np.uint8), MIB)


def test_a_large_blob_is_read_whole_into_memory_of_its_own(blob: Path) -> None:
    assert bytes(Disk(blob.parent).read("blob")) == NOISE.tobytes()


def test_no_bytes_have_no_digests(blob: Path) -> None:
    assert read_digested(Disk(blob.parent), "blob", start=5, nbytes=0, into=bytearray(), tile_bytes=4096) == b""


@pytest.mark.parametrize("io", [DIRECT, BUFFERED], ids=["direct", "buffered"])
def test_a_file_that_is_cut_is_told_before_and_during_the_read(tmp_path: Path, io: Io) -> None:
    (tmp_path / "blob").write_bytes(NOISE[: 3 * MIB + 5].tobytes())
    with pytest.raises(BlobCorrupt, match=f"{3 * MIB + 5} bytes where {4 * MIB} were saved"):
        Disk(tmp_path, io=io).read_digested("blob", start=0, nbytes=4 * MIB, into=bytearray(4 * MIB), tile_bytes=MIB)
    fd = os.open(tmp_path / "blob", os.O_RDONLY)
    direct_fd = os.open(tmp_path / "blob", os.O_RDONLY | os.O_DIRECT) if io.direct else -1
    for cold in (True, False):
        for start in (0, 64):
            forget(tmp_path / "blob") if cold else (tmp_path / "blob").read_bytes()
            with pytest.raises(FileCut):
                read_tiles(fd, direct_fd, start, memoryview(bytearray(4 * MIB)), MIB)
            with pytest.raises(FileCut):
                read_span(fd, direct_fd, start, memoryview(bytearray(4 * MIB)))
    os.close(fd)
    if direct_fd >= 0:
        os.close(direct_fd)


def test_a_blob_that_is_cut_between_the_look_and_the_read_is_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blob").write_bytes(bytes(8 * MIB))
    real = os.fstat

    def cut_after(fd: int) -> os.stat_result:
        found = real(fd)
        os.truncate(tmp_path / "blob", 5 * MIB)
        return found

    monkeypatch.setattr(os, "fstat", cut_after)
    for verb in (
        lambda: Disk(tmp_path).read("blob", nbytes=8 * MIB),
        lambda: Disk(tmp_path).read_digested("blob", start=0, nbytes=8 * MIB, into=bytearray(8 * MIB), tile_bytes=MIB),
    ):
        os.truncate(tmp_path / "blob", 8 * MIB)
        with pytest.raises(BlobCorrupt):
            verb()


def test_a_missing_blob_a_small_or_read_only_buffer_and_tiles_of_nothing_are_refused(blob: Path) -> None:
    disk = Disk(blob.parent)
    with pytest.raises(BlobMissing):
        disk.read_digested("nothing", start=0, nbytes=1, into=bytearray(1), tile_bytes=1)
    for into, tile_bytes in ((bytearray(9), 4096), (bytes(10), 4096), (bytearray(10), 0), (bytearray(10), -1)):
        with pytest.raises(CallError):
            read_digested(disk, "blob", start=0, nbytes=10, into=into, tile_bytes=tile_bytes)


def test_a_store_without_digested_reads_is_read_and_then_digested() -> None:
    ram = Ram()
    ram.put("a", [NOISE[: 3 * MIB].data])
    into = bytearray(2 * MIB + 9)
    found = read_digested(ram, "a", start=100, nbytes=2 * MIB + 5, into=into, tile_bytes=MIB)
    assert found == digests(NOISE[100 : 100 + 2 * MIB + 5], MIB)
    assert bytes(into[: 2 * MIB + 5]) == NOISE[100 : 100 + 2 * MIB + 5].tobytes()
    assert not isinstance(ram, DigestedReads)
    assert isinstance(Disk("/nowhere"), DigestedReads)


def test_what_a_wrapper_does_to_the_bytes_shows_in_the_digests(blob: Path) -> None:
    store = Faults(Disk(blob.parent), [Rule("read", Corrupt(at=MIB), match="blob")])
    found = read_digested(store, "blob", start=0, nbytes=3 * MIB, into=bytearray(3 * MIB), tile_bytes=MIB)
    right = digests(NOISE[: 3 * MIB], MIB)
    assert found[:16] == right[:16]
    assert found[16:32] != right[16:32]
    assert found[32:] == right[32:]


def test_the_kernel_checks_what_it_is_told(blob: Path) -> None:
    native = pytest.importorskip("perdure._native", reason="NOT TESTED: the kernels are not built")
    room = np.zeros(4096, np.uint8)
    at = room.ctypes.data
    rows = np.zeros((1, 16), np.uint8)
    good = {"fd": 0, "direct_fd": -1, "offset": 0, "nbytes": 4096, "into": at, "tile_bytes": 4096, "out": rows}
    good |= {"threads": 1, "depth": 1}
    for bad in (
        {"into": 0},
        {"into": (1 << 64) - 1},
        {"offset": (1 << 63) - 1},
        {"tile_bytes": 0},
        {"tile_bytes": 1024},  # four tiles, one row
        {"threads": 0},
        {"threads": 1025},
        {"depth": 0},
    ):
        with pytest.raises(ValueError, match=r"must|cannot|no file"):
            native.read_tiles(**{**good, **bad})
    with pytest.raises((TypeError, RuntimeError)):
        native.read_tiles(**{**good, "out": np.zeros((1, 16), np.int32)})
    with blob.open("rb") as file:
        assert native.read_tiles(**{**good, "fd": file.fileno()}) == 0
        assert native.read_tiles(**{**good, "fd": file.fileno(), "offset": NOISE.size - 1}) == -1
    assert native.read_tiles(**{**good, "fd": 1_000_000}) == errno.EBADF


FORKING = """
import os, sys, threading
import numpy as np
from perdure.store.disk import Disk
from perdure.store.io_choice import Io
disk = Disk(sys.argv[1], io=Io.parse(sys.argv[2]))
right = np.fromfile(f"{sys.argv[1]}/blob", np.uint8)
ended = threading.Event()

def fork() -> None:
    while not ended.is_set():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

thread = threading.Thread(target=fork)
thread.start()
try:
    for turn in range(3):
        fd = os.open(f"{sys.argv[1]}/blob", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        room = np.zeros(right.size + 8192, np.uint8)
        into = room[-room.ctypes.data % 4096 :][: right.size]
        disk.read_digested("blob", start=0, nbytes=right.size, into=into.data, tile_bytes=1 << 20)
        assert np.array_equal(into, right), turn
        disk.put(f"copy{turn}", [into.data[1:], into.data])
        copy = np.fromfile(f"{sys.argv[1]}/copy{turn}", np.uint8)
        assert np.array_equal(copy, np.concatenate([into[1:], into])), turn
        disk.delete(f"copy{turn}")
finally:
    ended.set()
    thread.join()
print("right")
"""


@pytest.mark.parametrize("io", ["uring:direct:1MiB:8", "threads:direct:1MiB:4"])
def test_a_process_may_fork_while_it_reads_and_writes_past_the_cache(blob: Path, io: str) -> None:
    if io.startswith("uring") and uring_refusal():
        pytest.skip(f"NOT TESTED: io_uring: {uring_refusal()}")
    command = [sys.executable, "-c", FORKING, str(blob.parent), io]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == "right\n", done.stderr


READER = """
import sys
from perdure.errors import StorageError
from perdure.store.disk import Disk
from perdure.store.io_choice import Io
disk = Disk(sys.argv[1], io=Io.parse(sys.argv[2]))
try:
    nbytes = int(sys.argv[3])
    disk.read_digested("blob", start=64, nbytes=nbytes, into=bytearray(nbytes), tile_bytes=1 << 20)
    print("read")
except StorageError as error:
    print("refused", error.errno, error.file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("io", ["plain:direct:1MiB:1", "plain:buffered:1MiB:1"])
@pytest.mark.parametrize("code", ["EIO", "ESTALE", "EINTR", "EINVAL"])
def test_an_error_while_reading_names_the_file_and_an_interruption_is_none(blob: Path, io: str, code: str) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("NOT TESTED: failing system calls: strace is missing")
    forget(blob)
    # Of every thread, the first call on this file; the interpreter reads others.
    command = [strace, "-f", "-o", os.devnull, "-P", str(blob), "-e", f"inject=pread64:error={code}:when=1"]
    nbytes = MIB if code == "EINVAL" else 16 * MIB  # one tile, one thread: others' calls would be plain by then
    arguments = [sys.executable, "-c", READER, str(blob.parent), io, str(nbytes)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=100)
    direct_refused = code == "EINVAL" and "direct" in io  # it is read through the cache instead
    expected = "read\n" if code == "EINTR" or direct_refused else f"refused {getattr(errno, code)} {blob}\n"
    assert done.stdout == expected, done.stderr
