"""Multipart uploads that were cut: unseen, found, and taken away, each in its own run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="NOT TESTED: object stores; pip install 'perdure[objectstore]'")

from perdure.adapters.objectstore import ObjectStore, Upload, uploads
from perdure.errors import CallError, StorageError, TryAgain

from .seaweed import Seaweed

MIB = 1 << 20
WRITER = """
import sys, time
from perdure.adapters.objectstore import ObjectStore

def chunks():
    for i in range(4):
        yield bytes([i]) * (5 << 20)
    print("sent", flush=True)
    time.sleep(60)

ObjectStore(sys.argv[1]).put("packs/cut", chunks())
"""


@pytest.fixture
def any_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MIN_AGE_S", -60.0)


def cut_one(place: str) -> None:
    """Let a process die in the middle of an upload."""
    with subprocess.Popen([sys.executable, "-c", WRITER, place], stdout=subprocess.PIPE, env=os.environ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"sent\n"
        writer.send_signal(signal.SIGKILL)


def test_the_upload_of_a_process_that_died_is_unseen_found_and_swept(place: str, any_age: None) -> None:
    store, other = ObjectStore(place), ObjectStore(place.replace("?", "-other?"))
    cut_one(place)
    cut_one(place.replace("?", "-other?"))
    assert store.size("packs/cut") is None
    assert store.names("") == []
    assert store.abandoned_uploads(older_than_s=3600) == []  # a living writer's may be as young as this
    found = store.abandoned_uploads(older_than_s=-60)
    assert [upload.name for upload in found] == ["packs/cut"]
    assert abs(datetime.now(UTC) - found[0].begun) < timedelta(minutes=2)
    assert store.sweep_uploads(older_than_s=-60) == found
    assert store.abandoned_uploads(older_than_s=-60) == []
    assert [upload.name for upload in other.abandoned_uploads(older_than_s=-60)] == ["packs/cut"]
    store.put("packs/cut", [b"whole"])
    assert bytes(store.read("packs/cut")) == b"whole"


def test_an_upload_whose_chunks_fail_is_aborted(place: str, any_age: None) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(4):
            yield b"x" * (5 * MIB)
        raise OSError("the source broke")

    store = ObjectStore(place)
    with pytest.raises(OSError, match="the source broke"):
        store.put("packs/a", chunks())
    assert store.abandoned_uploads(older_than_s=-60) == []
    assert store.size("packs/a") is None


def test_a_blob_that_appears_during_a_long_upload_is_not_replaced(place: str, any_age: None) -> None:
    store = ObjectStore(place)

    def chunks() -> Iterator[bytes]:
        yield b"x" * (11 * MIB)
        store.put("packs/a", [b"the other's"])

    with pytest.raises(CallError, match="exists"):
        store.put("packs/a", chunks())
    assert bytes(store.read("packs/a")) == b"the other's"
    assert store.abandoned_uploads(older_than_s=-60) == []


def test_chunks_may_come_from_the_same_store(place: str) -> None:
    store = ObjectStore(place)
    data = os.urandom(17 * MIB)
    store.put("packs/a", [data])
    store.put("packs/b", (store.read("packs/a", start=i * MIB, nbytes=MIB) for i in range(17)))
    assert store.read("packs/b") == data


def test_uploads_younger_than_a_day_are_not_asked_for(place: str) -> None:
    with pytest.raises(CallError, match="living writer"):
        ObjectStore(place).sweep_uploads(older_than_s=3600)


def test_age_decides_and_the_oldest_comes_first() -> None:
    now = datetime(2026, 1, 10, tzinfo=UTC)
    made = [Upload(f"a{hours}", "id", now - timedelta(hours=hours)) for hours in (1, 30, 23, 50)]
    assert [upload.name for upload in uploads.stale(made, now=now, older_than_s=86_400)] == ["a50", "a30"]


@pytest.mark.parametrize(("url", "why"), [("gs://bucket/run", "lifecycle"), ("az://c/run?account=a", "by itself")])
def test_a_store_that_lists_no_uploads_says_what_to_do_instead(url: str, why: str) -> None:
    with pytest.raises(CallError, match=why):
        ObjectStore(url).abandoned_uploads()


def test_a_server_that_is_killed_during_an_upload_shows_nothing_of_it(tmp_path: Path, any_age: None) -> None:
    seaweed = Seaweed(tmp_path / "server")
    try:
        seaweed.start()
        store = ObjectStore(seaweed.url("bucket/run"))
        assert store.create("slots/1", b"committed")

        def chunks() -> Iterator[bytes]:
            for i in range(8):
                if i == 6:
                    seaweed.kill()
                yield bytes([i]) * (5 * MIB)

        with pytest.raises(TryAgain):
            store.put("packs/cut", chunks())
        seaweed.start()
        assert store.names("") == ["slots/1"]
        assert bytes(store.read("slots/1")) == b"committed"
        assert [upload.name for upload in store.sweep_uploads(older_than_s=-60)] == ["packs/cut"]
        assert store.abandoned_uploads(older_than_s=-60) == []
    finally:
        seaweed.stop()


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.2, 0.5, 0.9])
def test_a_server_that_is_killed_among_writes_keeps_what_it_said(tmp_path: Path, after_s: float) -> None:
    seaweed = Seaweed(tmp_path / "server")
    told: list[str] = []
    try:
        seaweed.start()
        store = ObjectStore(seaweed.url("bucket/run"))
        assert store.create("slots/1", b"committed")

        def write() -> None:
            i = 0
            while store.create(f"slots/x{i}", str(i).encode()):
                told.append(f"slots/x{i}")
                i += 1

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            time.sleep(after_s)
            seaweed.kill()
            assert isinstance(writing.exception(60), TryAgain)
        seaweed.start()
        there = store.names("slots/x")
        assert told
        assert set(told) <= set(there)
        assert len(there) <= len(told) + 1
        for name in there:
            assert bytes(store.read(name)) == name.removeprefix("slots/x").encode()
    finally:
        seaweed.stop()


def test_without_keys_of_its_own_a_listing_says_what_it_needs(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in Seaweed.environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StorageError, match="boto3"):
        ObjectStore(place).abandoned_uploads()
