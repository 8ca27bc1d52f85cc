"""Every engine writes the bytes that a plain file has, whatever the chunks; and what it does when the disk refuses."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash

from perdure.errors import CallError, StorageError, StorageFull
from perdure.shm import Segment
from perdure.store import io_choice, stream
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.io_choice import Io, uring_refusal, usable
from perdure.testing.store import StoreContract

MIB = 1 << 20
NOISE = np.random.default_rng(5).integers(0, 256, 24 * MIB + 12_345, dtype=np.uint8)
WAYS = [
    f"{engine}:{cache}:{block}:{depth}"
    for engine in ("uring", "threads", "plain")
    for cache in ("direct", "buffered")
    for block, depth in (("64KiB", 3), ("1MiB", 16))
]
SIZES = [0, 1, 511, 4095, 4096, 4097, 65_536, 262_143, 262_144, 262_145, MIB, MIB + 1, 2 * MIB, 3 * MIB + 4096]


def the_way(text: str) -> Io:
    io = Io.parse(text)
    if not io_choice.NATIVE:
        pytest.skip("NOT TESTED: the native engines are not built")
    if io.engine == "uring" and uring_refusal():
        pytest.skip(f"NOT TESTED: io_uring: {uring_refusal()}")
    return io


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Io:
    return the_way(request.param)


class EveryBlobByAnEngine(StoreContract):
    """The contract of stores, with no blob too small for the engine."""

    WAY: str

    @pytest.fixture(autouse=True)
    def _none_is_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream, "SMALL_BYTES", 0)

    def make_store(self, tmp_path: Path) -> Store:
        return Disk(tmp_path / "run", io=the_way(self.WAY))


class TestUring(EveryBlobByAnEngine):
    WAY = "uring:direct:64KiB:16"


class TestThreads(EveryBlobByAnEngine):
    WAY = "threads:direct:64KiB:4"


class TestPlain(EveryBlobByAnEngine):
    WAY = "plain:buffered:64KiB:1"


def aligned(nbytes: int) -> np.ndarray:
    room = np.empty(nbytes + 4096, np.uint8)
    return room[-room.ctypes.data % 4096 :][:nbytes]


def pieces(random_: random.Random) -> list[np.ndarray]:
    """Some chunks of awkward sizes, in memory that lies awkwardly or well."""
    chunks = []
    for _ in range(random_.randrange(1, 9)):
        size = random_.choice([*SIZES, random_.randrange(5 * MIB)])
        start = random_.randrange(NOISE.size - size)
        if random_.random() < 0.5:
            chunk = aligned(size)
            chunk[:] = NOISE[start : start + size]
        else:
            chunk = NOISE[start : start + size]
        chunks.append(chunk)
    return chunks


def test_any_chunks_make_the_file_that_they_are_the_bytes_of(tmp_path: Path, way: Io) -> None:
    disk = Disk(tmp_path, io=way)
    random_ = random.Random(str(way))
    for turn in range(8):
        chunks = pieces(random_)
        disk.put(f"blob{turn}", [chunk.data for chunk in chunks])
        whole = np.concatenate(chunks)
        assert (tmp_path / f"blob{turn}").stat().st_size == whole.size
        assert np.array_equal(np.frombuffer((tmp_path / f"blob{turn}").read_bytes(), np.uint8), whole), turn


@pytest.mark.parametrize("size", [2 * MIB, 2 * MIB + 1, 4 * MIB + 4095, 4 * MIB + 4096, 4 * MIB + 4097, 20 * MIB + 64])
def test_one_large_chunk_of_shared_memory_arrives_whole(tmp_path: Path, way: Io, size: int) -> None:
    with Segment.create(size, label="stream") as segment:
        segment.view[:] = NOISE[:size].data
        Disk(tmp_path, io=way).put("pack", [segment.view])
    assert (tmp_path / "pack").read_bytes() == NOISE[:size].tobytes()


def test_a_generator_may_reuse_a_large_aligned_buffer(tmp_path: Path, way: Io) -> None:
    buffer = aligned(3 * MIB)

    def chunks() -> Iterator[memoryview]:
        for number in range(6):
            buffer[:] = number
            yield buffer.data[: 3 * MIB - number * 4096]

    Disk(tmp_path, io=way).put("a", chunks())
    found = np.frombuffer((tmp_path / "a").read_bytes(), np.uint8)
    assert np.array_equal(found, np.concatenate([np.full(3 * MIB - n * 4096, n, np.uint8) for n in range(6)]))


def test_chunks_that_fail_late_leave_nothing(tmp_path: Path, way: Io) -> None:
    def chunks() -> Iterator[memoryview]:
        yield aligned(8 * MIB).data
        yield NOISE[:MIB].data
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        Disk(tmp_path, io=way).put("a", chunks())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("engine", ["uring:direct:1MiB:8", "threads:direct:1MiB:4", "plain:buffered:1MiB:1"])
def test_a_full_disk_is_told_by_every_engine_and_leaves_what_was_there(small_ext4: Path, engine: str) -> None:
    disk = Disk(small_ext4 / "run", io=the_way(engine))
    disk.put("old", [NOISE[: 4 * MIB].data])
    large = aligned(24 * MIB)
    large[:] = NOISE[: 24 * MIB]
    for chunks in ([large.data], [NOISE[i * MIB : (i + 1) * MIB].data for i in range(24)]):
        with pytest.raises(StorageFull) as caught:
            disk.put("new", chunks)
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(small_ext4 / "run") == ["old"]
    assert bytes(disk.read("old")) == NOISE[: 4 * MIB].tobytes()
    disk.put("new", [NOISE[: 4 * MIB].data])  # the room of what failed is free again
    assert bytes(disk.read("new")) == NOISE[: 4 * MIB].tobytes()


@pytest.mark.parametrize("engine", ["uring:direct:1MiB:8", "threads:direct:1MiB:4", "plain:buffered:1MiB:1"])
def test_a_full_memory_file_system_is_told_too(small_tmpfs: Path, engine: str) -> None:
    disk = Disk(small_tmpfs, io=the_way(engine))
    with pytest.raises(StorageFull):
        disk.put("new", [aligned(8 * MIB).data])
    assert os.listdir(small_tmpfs) == []
    disk.put("new", [NOISE[: 3 * MIB].data])
    assert bytes(disk.read("new")) == NOISE[: 3 * MIB].tobytes()


@pytest.mark.parametrize("engine", ["uring:direct:1MiB:8", "threads:direct:1MiB:4", "plain:buffered:1MiB:1"])
def test_a_disk_that_goes_away_during_the_stream_fails_the_put(small_ext4: Path, engine: str) -> None:
    disk = Disk(small_ext4, io=the_way(engine))
    disk.put("old", [NOISE[:1000].data])

    def chunks() -> Iterator[memoryview]:
        yield aligned(4 * MIB).data
        shut_down(small_ext4)
        yield aligned(4 * MIB).data
        yield NOISE[: 4 * MIB].data

    with pytest.raises(StorageError) as caught:
        disk.put("new", chunks())
    assert caught.value.errno == errno.EIO
    assert not (small_ext4 / "new").exists()


def shut_down(mount: Path) -> None:
    """Make an ext4 refuse everything from now on, as it does when its disk is gone (FS_IOC_SHUTDOWN, no flush)."""
    fd = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 0x8004587D, struct.pack("I", 2))
    except OSError as error:
        pytest.skip(f"NOT TESTED: a disk that goes away: {error}")
    finally:
        os.close(fd)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path, "tmpfs", "tmpfs", "size=5m")


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """A real ext4 of 20 MiB on a loop device, which writes past the page cache as a disk does."""
    mkfs, losetup = shutil.which("mkfs.ext4", path="/sbin:/usr/sbin"), shutil.which("losetup", path="/sbin:/usr/sbin")
    if mkfs is None or losetup is None:
        pytest.skip("NOT TESTED: a really full ext4: mkfs.ext4 or losetup is missing")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(20 * MIB)
    subprocess.run([mkfs, "-q", "-O", "^has_journal", image], check=True, timeout=30)
    made = subprocess.run([losetup, "--find", "--show", image], capture_output=True, text=True, timeout=30)
    if made.returncode != 0:
        pytest.skip(f"NOT TESTED: a really full ext4: losetup: {made.stderr.strip()}")
    loop = made.stdout.strip()
    try:
        yield from mounted(tmp_path, loop, "ext4", "")
    finally:
        subprocess.run([losetup, "--detach", loop], check=True, timeout=30)


def mounted(tmp_path: Path, source: str, kind: str, options: str) -> Iterator[Path]:
    libc = ctypes.CDLL(None, use_errno=True)
    target = tmp_path / f"mounted-{kind}"
    target.mkdir()
    if libc.mount(source.encode(), os.fsencode(target), kind.encode(), 0, options.encode()) != 0:
        pytest.skip(f"NOT TESTED: a full file system; mounting a {kind}: {os.strerror(ctypes.get_errno())}")
    try:
        yield target
    finally:
        assert libc.umount2(os.fsencode(target), 0) == 0


WRITER = """
import sys
import numpy as np
from perdure.store.disk import Disk
from perdure.store.io_choice import Io
room = np.full((96 << 20) + 4096, 7, np.uint8)
data = room[-room.ctypes.data % 4096:][:96 << 20]
print("ready", flush=True)
for turn in range(200):
    Disk(sys.argv[1], io=Io.parse(sys.argv[2])).put(f"pack{turn}", [data.data[:48 << 20], data.data[1:], b"tail"])
    print(turn, flush=True)
"""


@pytest.mark.parametrize("engine", ["uring:direct:1MiB:8", "threads:direct:1MiB:4", "plain:buffered:1MiB:1"])
def test_a_writer_that_is_killed_leaves_whole_blobs_and_temporaries_only(tmp_path: Path, engine: str) -> None:
    the_way(engine)
    random_ = random.Random(engine)
    for turn in range(2):
        root = tmp_path / str(turn)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root), engine], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(random_.uniform(0.02, 0.3))
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=60)
        reported = len(rest.split("\n")) - 1
        names = Disk(root).names("")
        assert len(names) in (reported, reported + 1)
        assert all((root / name).stat().st_size == (144 << 20) + 3 for name in names)
        assert all(last in names or re.fullmatch(r"\.tmp-[0-9a-f]{32}", last) for last in os.listdir(root))
        shutil.rmtree(root)


def put_under_strace(tmp_path: Path, io: str, inject: str) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        from perdure.errors import StorageError
        from perdure.store.disk import Disk
        from perdure.store.io_choice import Io
        room = np.full((12 << 20) + 4096, 7, np.uint8)
        data = room[-room.ctypes.data % 4096:][:12 << 20]
        disk = Disk(sys.argv[1], io=Io.parse(sys.argv[2]))
        try:
            disk.put("pack", [data.data, data.data[1:], b"tail"])
        except StorageError as error:
            print("refused", error.errno, disk.names(""))
        else:
            print("written", disk.names(""))
        """
    )
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("NOT TESTED: failing system calls: strace is missing")
    command = [strace, "-f", "-o", os.devnull, "-e", f"inject={inject}"]
    return subprocess.run(
        [*command, sys.executable, "-c", script, str(tmp_path / "run"), io], capture_output=True, text=True, timeout=100
    )


@pytest.mark.slow
@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize(
    ("io", "call"),
    [
        ("threads:direct:1MiB:4", "pwrite64:error={}:when=2"),  # of every thread
        ("threads:buffered:1MiB:4", "pwrite64:error={}:when=2+"),
        ("plain:buffered:1MiB:1", "pwrite64:error={}:when=5"),
        ("plain:buffered:1MiB:1", "fsync:error={}:when=2"),  # the first is of the folder's own folder
        ("uring:direct:1MiB:8", "fsync:error={}:when=2"),
        ("threads:direct:1MiB:4", "ftruncate:error={}:when=1"),
    ],
)
def test_an_error_of_any_call_fails_the_put_and_leaves_no_target(tmp_path: Path, io: str, call: str, code: str) -> None:
    the_way(io)
    done = put_under_strace(tmp_path, io, call.format(code))
    assert done.stdout == f"refused {getattr(errno, code)} []\n", done.stdout + done.stderr
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("io", "inject"),
    [
        ("uring:direct:1MiB:8", "fallocate:error=EOPNOTSUPP"),
        ("threads:direct:1MiB:4", "fallocate:error=ENOSYS"),
        ("threads:direct:1MiB:4", "pwrite64:error=EINTR:when=2"),
        ("threads:direct:1MiB:4", "pwrite64:error=EAGAIN:when=2"),
        ("threads:direct:1MiB:4", "pwrite64:error=EINVAL:when=2"),
        ("plain:buffered:1MiB:1", "pwrite64:error=EINTR:when=2"),
        ("uring:direct:1MiB:8", "io_uring_setup:error=ENOMEM"),
        ("uring:direct:1MiB:8", "io_uring_enter:error=EINTR:when=2"),
        ("uring:direct:1MiB:8", "io_uring_register:error=ENOMEM"),
    ],
)
def test_what_is_not_an_error_of_the_disk_does_not_fail_the_put(tmp_path: Path, io: str, inject: str) -> None:
    the_way(io)
    if "io_uring_setup" in inject:  # the check of the constructor asks for a ring too, and must get it
        inject += ":when=2+"
    done = put_under_strace(tmp_path, io, inject)
    assert done.stdout == "written ['pack']\n", done.stdout + done.stderr
    assert (tmp_path / "run" / "pack").read_bytes() == b"\7" * (24 * MIB - 1) + b"tail"


def test_an_engine_that_is_forbidden_is_said_when_it_was_asked_for_and_replaced_when_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = the_way("threads:direct:1MiB:4")
    monkeypatch.setattr(io_choice._native, "uring_refused", lambda: errno.EPERM)
    with pytest.raises(CallError, match="io_uring cannot be used: it is forbidden here"):
        Disk(tmp_path, io=Io("uring", True, MIB, 8))
    assert usable(Io("uring", True, MIB, 8)) == Io("threads", True, MIB, 8)
    assert usable(io) == io


def test_without_the_native_code_the_same_bytes_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "NATIVE", False)
    chunks = [NOISE[: 3 * MIB + 5].data, b"", NOISE[7:9].data, NOISE[: 5 * MIB].data]
    Disk(tmp_path).put("a", chunks)
    assert (tmp_path / "a").read_bytes() == b"".join(bytes(chunk) for chunk in chunks)


def test_a_stream_checks_what_it_is_told(tmp_path: Path) -> None:
    the_way("plain:buffered:1MiB:1")
    native = io_choice._native
    for bad in (
        lambda: native.WriteStream(1, "fast", True, MIB, 4),
        lambda: native.WriteStream(1, "plain", True, 1000, 4),
        lambda: native.WriteStream(1, "plain", True, MIB, 0),
    ):
        with pytest.raises(ValueError, match="must be"):
            bad()
    with (tmp_path / "a").open("wb") as file:
        writer = native.WriteStream(file.fileno(), "plain", False, MIB, 1)
        writer.close()
        writer.close()
        with pytest.raises(ValueError, match="closed"):
            writer.append(b"x")


def read_only_stream(path: Path, io: Io) -> Callable[[], None]:
    def write() -> None:
        with path.open("rb") as file:
            stream.write_chunks(file.fileno(), [aligned(4 * MIB).data], path=str(path), io=lambda: io)

    return write


def test_a_write_that_the_kernel_refuses_is_told_with_its_errno(tmp_path: Path, way: Io) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        read_only_stream(tmp_path / "a", way)()
    assert caught.value.errno == errno.EBADF
    assert caught.value.file == str(tmp_path / "a")


def test_digests_of_what_was_written_are_those_of_the_memory(tmp_path: Path, way: Io) -> None:
    data = aligned(6 * MIB + 64)
    data[:] = NOISE[: data.size]
    disk = Disk(tmp_path, io=way)
    disk.put("a", [data.data])
    into = bytearray(data.size)
    found = disk.read_digested("a", start=0, nbytes=data.size, into=into, tile_bytes=MIB)
    assert found == b"".join(xxhash.xxh3_128_digest(data.data[i : i + MIB]) for i in range(0, data.size, MIB))
