"""Shared segments: what two holders see, what a sealed size is worth, and that nothing leaks."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from perdure.errors import CallError, FormatRefused, StorageError, StorageFull
from perdure.shm import Segment, segment

PAGE = mmap.PAGESIZE


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_two_holders_see_the_same_bytes() -> None:
    with Segment.create(3 * PAGE + 5, label="t") as ours, Segment.attach(ours.fd, writable=True) as theirs:
        assert ours.nbytes == theirs.nbytes == len(ours.view) == 3 * PAGE + 5
        assert not any(ours.view)
        ours.view[-5:] = b"hello"
        assert bytes(theirs.view[-5:]) == b"hello"
        theirs.view[0] = 7
        assert ours.view[0] == 7
        assert ours.fd != theirs.fd
        assert ours.address != theirs.address
        assert ours.address % PAGE == 0


def test_the_address_is_that_of_the_views_first_byte() -> None:
    with Segment.create(PAGE, label="t") as ours, Segment.attach(ours.fd, writable=False) as theirs:
        for one in (ours, theirs):
            assert np.frombuffer(one.view, np.uint8).ctypes.data == one.address
            gc.collect()


def test_a_read_only_holder_cannot_write() -> None:
    with Segment.create(PAGE, label="t") as ours, Segment.attach(ours.fd, writable=False) as theirs:
        assert theirs.view.readonly
        assert not ours.view.readonly
        with pytest.raises(TypeError):
            theirs.view[0] = 1


def test_another_process_writes_into_a_segment_that_it_was_handed() -> None:
    code = (
        "import sys; from perdure.shm import Segment\n"
        "with Segment.attach(int(sys.argv[1]), writable=True) as s: s.view[:4] = b'mine'; s.populate()"
    )
    with Segment.create(PAGE, label="t") as ours:
        command = [sys.executable, "-c", code, str(ours.fd)]
        source = str(Path(segment.__file__).parents[2])
        environment = {"PYTHONPATH": source, "PATH": ""}
        subprocess.run(command, pass_fds=[ours.fd], check=True, timeout=60, env=environment)
        assert bytes(ours.view[:4]) == b"mine"


def test_memory_outlives_the_holder_that_made_it() -> None:
    ours = Segment.create(PAGE, label="t")
    ours.view[:2] = b"ok"
    theirs = Segment.attach(ours.fd, writable=False)
    ours.close()
    assert bytes(theirs.view[:2]) == b"ok"
    theirs.close()


def test_no_holder_can_change_the_size_or_the_seals() -> None:
    with Segment.create(PAGE, label="t") as ours:
        for size in (0, PAGE - 1, PAGE + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(ours.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(ours.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_descriptors_whose_size_is_not_sealed_are_refused() -> None:
    unsealed = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, PAGE)
    half = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.ftruncate(half, PAGE)
    fcntl.fcntl(half, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    empty = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(empty, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    read, write = os.pipe()
    before = n_descriptors()
    with tempfile.TemporaryFile() as file:
        file.write(bytes(PAGE))
        file.flush()
        for fd in (unsealed, half, empty, read, file.fileno()):
            with pytest.raises(FormatRefused, match="sealed size"):
                Segment.attach(fd, writable=False)
    for fd in (unsealed, half, empty, read, write):
        os.close(fd)
    assert n_descriptors() == before - 5
    for bad in (-1, 10**6):
        with pytest.raises(CallError, match="descriptor"):
            Segment.attach(bad, writable=False)


def test_descriptors_are_not_inherited_and_name_nothing_in_a_file_system() -> None:
    with Segment.create(PAGE, label="a/b\0c" + "x" * 500) as ours, Segment.attach(ours.fd, writable=True) as theirs:
        for fd in (ours.fd, theirs.fd):
            assert not os.get_inheritable(fd)
            assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:perdure:a/b?c")
            assert os.fstat(fd).st_nlink == 0


def test_populate_takes_all_memory_and_keeps_the_content() -> None:
    with Segment.create(8 << 20, label="t") as ours:
        ours.view[PAGE : PAGE + 3] = b"abc"
        assert os.fstat(ours.fd).st_blocks * 512 < 8 << 20
        ours.populate()
        assert os.fstat(ours.fd).st_blocks * 512 == 8 << 20
        assert bytes(ours.view[PAGE : PAGE + 3]) == b"abc"
        with Segment.attach(ours.fd, writable=False) as theirs:
            theirs.populate()


@pytest.mark.parametrize("writable", [True, False])
def test_populate_reserves_and_touches_where_the_kernel_has_no_call_for_it(
    monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    monkeypatch.setattr(segment, "_advise", lambda *_: errno.EINVAL)
    monkeypatch.setattr(segment, "_CHUNK_BYTES", 3 << 20)
    with Segment.create((8 << 20) + 1, label="t") as ours, Segment.attach(ours.fd, writable=writable) as one:
        ours.view[PAGE : PAGE + 3] = b"abc"
        one.populate()
        assert os.fstat(ours.fd).st_blocks * 512 >= (8 << 20) + 1
        assert bytes(one.view[PAGE : PAGE + 3]) == b"abc"


def test_an_interrupted_populate_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [errno.EINTR, 0, errno.EINTR, 0]
    asked: list[int] = []

    def advise(address: int, nbytes: int, advice: int) -> int:
        asked.append(address)
        return answers.pop(0)

    with Segment.create(4 << 20, label="t") as ours:
        monkeypatch.setattr(segment, "_CHUNK_BYTES", 2 << 20)
        monkeypatch.setattr(segment, "_advise", advise)
        ours.populate()
        assert [at - ours.address for at in asked] == [0, 0, 2 << 20, 2 << 20]


def test_a_lack_of_memory_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with Segment.create(PAGE, label="t") as ours:
        monkeypatch.setattr(segment, "_advise", lambda *_: errno.ENOMEM)
        with pytest.raises(StorageFull, match="populate"):
            ours.populate()
        assert bytes(ours.view[:1]) == b"\0"


def test_a_file_that_may_not_be_mapped_for_writing_is_refused() -> None:
    with Segment.create(PAGE, label="t") as ours:
        read_only = os.open(f"/proc/self/fd/{ours.fd}", os.O_RDONLY)
        before = n_descriptors()
        with pytest.raises(StorageError, match="map"):
            Segment.attach(read_only, writable=True)
        assert n_descriptors() == before
        Segment.attach(read_only, writable=False).close()
        os.close(read_only)


@pytest.mark.parametrize("nbytes", [0, -1, 1 << 63])
def test_sizes_that_no_memory_has_are_refused(nbytes: int) -> None:
    with pytest.raises(CallError):
        Segment.create(nbytes, label="t")


def test_close_twice_is_fine_and_a_closed_segment_says_so() -> None:
    before = n_descriptors()
    one = Segment.create(PAGE, label="t")
    one.close()
    one.close()
    assert one.closed
    assert one.nbytes == PAGE
    assert "closed" in repr(one)
    for name in ("fd", "view", "address"):
        with pytest.raises(CallError, match="closed"):
            getattr(one, name)
    with pytest.raises(CallError, match="closed"):
        one.populate()
    assert n_descriptors() == before


def test_close_is_refused_while_arrays_live_and_goes_through_when_they_are_gone() -> None:
    one = Segment.create(PAGE, label="t")
    array, part = np.frombuffer(one.view, np.uint8), one.view[1:3]
    with pytest.raises(CallError, match="still in use"):
        one.close()
    array[1] = 9
    assert part[0] == 9
    assert one.view[1] == 9
    assert not one.closed
    del array
    with pytest.raises(CallError, match="still in use"):
        one.close()
    part.release()
    one.close()
    assert one.closed


def test_a_forgotten_segment_gives_its_descriptors_back_and_living_arrays_stay_valid() -> None:
    before = n_descriptors()
    one = Segment.create(PAGE, label="t")
    array = np.frombuffer(one.view, np.uint8)
    del one
    gc.collect()
    array[:] = 5
    assert array.sum() == 5 * PAGE
    del array
    gc.collect()
    assert n_descriptors() == before
