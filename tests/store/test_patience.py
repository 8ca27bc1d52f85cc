"""The store whose verbs end, whatever the disk does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.errors import CallError, DeadlineExceeded
from perdure.store import patience
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.faults import Delay, Faults, Rule
from perdure.store.patience import Patience
from perdure.store.ram import Ram
from perdure.testing.store import StoreContract

STALL_S = 0.15
VERBS = ("put", "create", "read", "size", "names", "delete")


class TestPatience(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Patience(Ram(), stall_s=30.0)


class Gate:
    """A clock whose sleep ends when the test says so: a disk that hangs and comes back."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        assert self.opened.wait(30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()
    for thread in threading.enumerate():
        if thread.name == "perdure-patience":
            thread.join(10)


def call(store: Store, verb: str) -> object:
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("a", [b"1"]),
        "create": lambda: store.create("a", b"1"),
        "read": lambda: store.read("b", nbytes=2),
        "size": lambda: store.size("b"),
        "names": lambda: store.names("b"),
        "delete": lambda: store.delete("b"),
    }
    return calls[verb]()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_gives_up_naming_store_verb_and_file(verb: str, gate: Gate) -> None:
    inside = Ram("far")
    inside.create("b", b"12")
    store = Patience(Faults(inside, [Rule(verb, Delay(1, gate))]), stall_s=STALL_S)  # type: ignore[arg-type]
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        call(store, verb)
    assert STALL_S <= time.monotonic() - begun < 5
    assert verb in str(caught.value)
    assert str(caught.value).startswith("ram://far ")
    assert caught.value.file == ("b" if verb in ("read", "size", "names", "delete") else "a")
    assert call(store, "size" if verb != "size" else "names")  # other calls go on


def test_a_store_that_moves_is_waited_for_however_long_it_takes() -> None:
    class Slow(Ram):
        def put(self, name, chunks):  # type: ignore[no-untyped-def]
            pieces = []
            for chunk in chunks:
                time.sleep(STALL_S / 3)
                pieces.append(bytes(chunk))
            super().put(name, pieces)

    inside = Slow()
    begun = time.monotonic()
    Patience(inside, stall_s=STALL_S).put("a", [b"x"] * 8)
    assert time.monotonic() - begun > 2 * STALL_S
    assert inside.size("a") == 8


def test_a_giant_chunk_shows_progress_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_PIECE_BYTES", 1000)

    class Slow(Ram):
        def put(self, name, chunks):  # type: ignore[no-untyped-def]
            sizes = []
            for chunk in chunks:
                sizes.append(len(chunk))
                time.sleep(len(chunk) * 5e-5)
            assert sizes == [1000] * 9 + [500]
            super().put(name, [bytes(sum(sizes))])

    store = Patience(Slow(), stall_s=STALL_S)
    store.put("a", [bytes(9500)])
    assert store.size("a") == 9500


def test_a_slow_caller_is_no_stalled_store() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"1"
        time.sleep(3 * STALL_S)
        yield b"2"

    store = Patience(Ram(), stall_s=STALL_S)
    store.put("a", chunks())
    assert store.size("a") == 2


def test_chunks_are_made_on_the_callers_own_thread() -> None:
    made_by: list[threading.Thread] = []

    def chunks() -> Iterator[bytes]:
        made_by.append(threading.current_thread())
        yield b"1"

    Patience(Ram(), stall_s=5.0).put("a", chunks())
    assert made_by == [threading.current_thread()]


def test_a_late_answer_never_lands_in_the_callers_buffer(gate: Gate) -> None:
    inside = Ram()
    inside.create("b", b"late")
    store = Patience(Faults(inside, [Rule("read", Delay(1, gate))]), stall_s=STALL_S)
    buffer = bytearray(b"....")
    with pytest.raises(DeadlineExceeded):
        store.read("b", into=buffer)
    buffer[:] = b"mine"
    gate.opened.set()
    deadline = time.monotonic() + 5
    while any(thread.name == "perdure-patience" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert buffer == b"mine"


def test_a_write_that_was_given_up_is_not_completed_later(gate: Gate) -> None:
    inside = Ram()

    class HangsOnce(Ram):
        def put(self, name, chunks):  # type: ignore[no-untyped-def]
            pieces = []
            for i, chunk in enumerate(chunks):
                if i == 1:
                    gate.sleep(1)
                pieces.append(bytes(chunk))
            inside.put(name, pieces)

    store = Patience(HangsOnce(), stall_s=STALL_S)
    with pytest.raises(DeadlineExceeded):
        store.put("a", [b"1", b"2", b"3"])
    gate.opened.set()
    time.sleep(STALL_S)
    assert inside.names("") == []
    store.put("a", [b"1"])
    assert bytes(inside.read("a")) == b"1"


def test_stuck_threads_do_not_pile_up_for_ever(gate: Gate) -> None:
    inside = Faults(Ram(), [Rule("size", Delay(1, gate), times=None)])
    store = Patience(inside, stall_s=0.02)
    for _ in range(16):
        with pytest.raises(DeadlineExceeded, match="no progress"):
            store.size("a")
    with pytest.raises(DeadlineExceeded, match="hangs"):
        store.names("")
    assert len(inside.calls) == 16
    gate.opened.set()
    deadline = time.monotonic() + 5
    while True:
        with contextlib.suppress(DeadlineExceeded):
            assert store.names("") == []
            break
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_patience_at_all_is_refused() -> None:
    with pytest.raises(CallError, match="more than 0"):
        Patience(Ram(), stall_s=0)


@pytest.mark.slow
def test_a_frozen_file_system_is_given_up_and_used_again_when_it_thaws(frozen: Path) -> None:
    disk = Patience(Disk(frozen), stall_s=1.0)
    disk.put("before", [b"x" * 3_000_000])
    assert subprocess.run(["fsfreeze", "-f", frozen], timeout=10).returncode == 0
    begun = time.monotonic()
    buffer = bytearray(b"mine" * 1_000_000)
    for verb in (lambda: disk.put("during", [buffer, buffer]), lambda: disk.create("slot", b"1")):
        with pytest.raises(DeadlineExceeded, match="made no progress"):
            verb()
    assert time.monotonic() - begun < 8
    assert disk.read("before") == b"x" * 3_000_000  # reading goes on
    deadline = time.monotonic() + 40
    while any(thread.name == "perdure-patience" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # What hung has ended: the slot was handed over whole, so it may be there; half of a pack may not.
    assert disk.size("during") is None or bytes(disk.read("during")) == bytes(buffer) * 2
    assert disk.create("after", b"2")


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, to be frozen by the test; whatever happens, it thaws 15 s after."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("fsfreeze", "mkfs.ext4", "mount"))):
        pytest.skip("NOT TESTED: a really frozen file system; it needs root, fsfreeze and mkfs.ext4")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=60)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, timeout=60)
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: a really frozen file system; mount: {mounted.stderr.strip()}")
    # In a process of its own, before anything is frozen: nothing that hangs can hold it up.
    thaw = subprocess.Popen(
        ["sh", "-c", 'sleep 15; fsfreeze -u "$1"', "thaw", folder], start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        yield folder
    finally:
        thaw.wait(60)
        for _ in range(50):
            if subprocess.run(["umount", folder], stderr=subprocess.DEVNULL, timeout=60).returncode == 0:
                break
            time.sleep(0.2)
        else:
            raise AssertionError(f"{folder} cannot be unmounted")
