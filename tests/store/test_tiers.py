"""Several stores as one: home decides, copies help, and what goes wrong with a copy is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import BlobCorrupt, BlobMissing, CallError, LinkLost, PerdureError, StorageError, StorageFull
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.faults import Crash, Crashed, Fail, Faults, Rule
from perdure.store.lineage import Note, Run
from perdure.store.ram import Ram
from perdure.store.tiers import Tiers
from perdure.testing.store import StoreContract


class TestTiers(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Tiers([Ram(), Ram()], home=Ram(), tell=lambda note: None)


class TestTiersOfADiskThatIsLost(StoreContract):
    """A near store that fails at everything."""

    def make_store(self, tmp_path: Path) -> Store:
        gone = Fail(StorageError("the disk is gone"))
        rules = [Rule(verb, gone, times=None) for verb in ("put", "create", "read", "size", "names", "delete")]  # type: ignore[arg-type]
        return Tiers([Faults(Ram(), rules)], home=Ram(), tell=lambda note: None)


def test_what_is_written_is_at_home_and_near() -> None:
    near, home = Ram(), Ram()
    store = Tiers([near], home=home)
    store.put("packs/1", iter([b"1", b"2"]))  # read once: the copy is made from home
    assert store.create("slots/1", b"3")
    for each in (near, home):
        assert bytes(each.read("packs/1")) == b"12"
        assert bytes(each.read("slots/1")) == b"3"
    assert home.create("slots/2", b"theirs")
    assert not store.create("slots/2", b"ours")
    assert near.size("slots/2") is None
    assert bytes(store.read("slots/2")) == b"theirs"
    store.delete("packs/1")
    assert near.names("") == ["slots/1"]
    assert home.names("") == ["slots/1", "slots/2"]


def test_a_name_that_only_a_near_store_has_does_not_exist() -> None:
    near = Ram()
    near.create("slots/9", b"left over")
    notes: list[Note] = []
    store = Tiers([near], home=Ram(), tell=notes.append)
    assert store.names("") == []
    assert store.size("slots/9") is None
    assert store.create("slots/9", b"new")


def test_a_read_takes_the_nearest_and_falls_to_the_next() -> None:
    notes: list[Note] = []
    stores = [Ram(), Ram(), Ram()]
    for i, ram in enumerate(stores):
        ram.create("a", bytes([i]) * 4)
    nearest = Faults(
        stores[0],
        [
            Rule("read", Fail(BlobCorrupt("cut")), nth=2),
            Rule("read", Fail(StorageError("io")), nth=3),
            Rule("read", Fail(LinkLost("away")), nth=4),
        ],
    )
    store = Tiers([nearest, stores[1]], home=stores[2], tell=notes.append)
    buffer = bytearray(4)
    assert [bytes(store.read("a", into=buffer))[0] for _ in range(5)] == [0, 1, 1, 1, 0]
    assert [note.file for note in notes] == ["a"] * 3
    assert "further away" in notes[0].message
    stores[0].delete("a")
    assert bytes(store.read("a")) == b"\1" * 4
    assert len(notes) == 3  # a copy that was never made is nothing to tell
    with pytest.raises(CallError):
        store.read("a", nbytes=4, into=bytearray(1))
    stores[1].delete("a")
    stores[2].delete("a")
    with pytest.raises(BlobMissing):
        store.read("a")


@pytest.mark.parametrize("error", [StorageFull("full"), LinkLost("away"), CallError("a folder is in the way")])
@pytest.mark.parametrize("verb", ["put", "create", "delete"])
def test_trouble_near_is_told_and_fails_nothing(verb: str, error: PerdureError) -> None:
    notes: list[Note] = []
    near, home = Faults(Ram(), [Rule(verb, Fail(error))]), Ram()  # type: ignore[arg-type]
    store = Tiers([near], home=home, tell=notes.append)
    store.put("a", [b"1"])
    assert store.create("b", b"2")
    store.delete("a")
    assert home.names("") == ["b"]
    assert len(notes) == 1
    assert str(error) in notes[0].message


@pytest.mark.parametrize("verb", ["put", "create", "names", "delete"])
def test_trouble_at_home_is_trouble(verb: str) -> None:
    near = Ram()
    store = Tiers([near], home=Faults(Ram(), [Rule(verb, Fail(), times=None)]))  # type: ignore[arg-type]
    calls = {
        "put": lambda: store.put("a", [b"1"]),
        "create": lambda: store.create("a", b"1"),
        "names": lambda: store.names(""),
        "delete": lambda: store.delete("a"),
    }
    with pytest.raises(LinkLost):
        calls[verb]()
    assert near.names("") == []  # nothing is near that is not at home


def test_a_size_is_known_near_while_home_is_away_but_an_absence_is_not() -> None:
    notes: list[Note] = []
    near = Ram()
    near.create("a", b"123")
    store = Tiers([near], home=Faults(Ram(), [Rule("size", Fail(), times=None)]), tell=notes.append)
    assert store.size("a") == 3
    assert len(notes) == 1
    with pytest.raises(LinkLost):
        store.size("b")


def test_a_run_loads_whole_after_its_near_disk_is_lost_or_damaged(
    tmp_path: Path, save_step: object, assert_whole: object
) -> None:
    notes: list[Note] = []
    home = Ram()
    run = Run.open(Tiers([Disk(tmp_path / "near")], home=home, tell=notes.append), create=True)
    commit = save_step(run, epoch=run.claim_epoch("first"), parent=None, step=10)  # type: ignore[operator]
    assert Disk(tmp_path / "near").names("") == home.names("")
    for pack in Disk(tmp_path / "near").names("packs/"):
        path = tmp_path / "near" / pack
        path.write_bytes(path.read_bytes()[:100])
    run = Run.open(Tiers([Disk(tmp_path / "near")], home=home, tell=notes.append), create=False)
    assert_whole(run, commit)  # type: ignore[operator]
    assert notes
    run = Run.open(Tiers([Disk(tmp_path / "never made")], home=home), create=False)
    assert_whole(run, commit)  # type: ignore[operator]


def test_a_crash_between_home_and_near_leaves_home_whole() -> None:
    home = Ram()
    store = Tiers([Faults(Ram(), [Rule("put", Crash("before"))])], home=home)
    with pytest.raises(Crashed):
        store.put("a", [b"1"])
    assert bytes(home.read("a")) == b"1"
