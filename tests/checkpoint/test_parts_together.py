"""A step of very many parts: read many at once, and once for all ranks; whatever goes wrong with it is told."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from perdure.checkpoint.parts_together import read_parts_together
from perdure.errors import BlobCorrupt, BlobMissing, StorageError
from perdure.fabric import Fabric
from perdure.fabric.threads import run as on_threads
from perdure.layout import Box
from perdure.state.ahead import read_ahead
from perdure.state.index import RankIndex, SavedGrid, SavedPiece, SavedTensor, SavedValue, piece_key
from perdure.state.manifest import write_index
from perdure.state.step_index import read_catalog
from perdure.store import PackItem, Part, PartRef, Ram, Run, plan_pack
from perdure.store.faults import Corrupt, Delay, Fail, Faults, Rule

PARTS = 70
NAMES = ("model.a.weight", "model.b.weight", "other.weight")


@functools.cache
def made() -> tuple[Ram, tuple[PartRef, ...]]:
    """A run whose one step has many parts, each of one rank."""
    store = Ram()
    run = Run.open(store, create=True)
    run.claim_epoch("test")
    refs = []
    for rank in range(PARTS):
        box = Box((rank,), (rank + 1,))
        pieces = {name: SavedPiece(piece_key(name, (PARTS,), box, None), box.lo, box.hi) for name in NAMES}
        plan = plan_pack([PackItem(piece.key, "float32", (1,), 4) for piece in pieces.values()])
        data = b"".join(plan.chunks(plan.render_header(bytes(16 * plan.n_tiles)), [bytes(4)] * len(NAMES)))
        pack = run.write_pack([data], epoch=1, step=1, seq=0, writer=f"rank{rank}")
        tensors = tuple(
            SavedTensor(name=name, dtype="float32", shape=(PARTS,), pieces=(piece,), layout=0)
            for name, piece in pieces.items()
        )
        values = (
            SavedValue(key="rng", value=[rank], local=True),
            *([SavedValue(key="lr", value=1)] if rank == 3 else []),
        )
        index = RankIndex(
            rank=rank, world=PARTS, tensors=tensors, values=values, layouts=(SavedGrid((PARTS,), 0, (1,)),)
        )
        written = write_index([index], {piece.key: 0 for piece in pieces.values()})
        part = Part(
            run=run.marker.run, writer=f"n{rank}", epoch=1, step=1, seq=0, base=None, packs=(pack,),
            index=written.index, leaves=written.refs,
        )  # fmt: skip
        refs.append(run.write_part(part, written.leaves))
    run.commit(epoch=1, parent=None, step=1, parts=refs, meta={})
    return store, tuple(refs)


def opened(*rules: Rule) -> tuple[Run, Faults]:
    store = Faults(made()[0], rules)
    return Run.open(store, create=False), store


def reads_of_parts(store: Faults) -> int:
    return sum(call.verb == "read" and call.name.startswith("parts/") for call in store.calls)


def test_a_part_is_read_in_one_request() -> None:
    run, store = opened()
    catalog, packs = read_catalog(run, 1)
    assert set(catalog.tensors) == set(NAMES)
    assert [len(catalog.tensors[name].pieces) for name in NAMES] == [PARTS] * 3
    assert len(packs) == PARTS
    assert catalog.local_values == {(rank, "rng"): [rank] for rank in range(PARTS)}
    assert reads_of_parts(store) == PARTS


def test_parts_are_read_many_at_once() -> None:
    run, _ = opened(Rule("read", Delay(0.05), match="parts/*", times=None))
    began = time.monotonic()
    read_catalog(run, 1)
    assert time.monotonic() - began < 0.5 * PARTS * 0.05


def test_one_rank_leaves_out_what_is_of_others_alone() -> None:
    run, _ = opened()
    catalog, _ = read_catalog(run, 1, rank=PARTS + 5)
    assert catalog.local_values == {(5, "rng"): [5]}
    assert catalog.values == {"lr": 1}
    assert catalog.tensors == read_catalog(run, 1)[0].tensors


def test_names_bring_the_same_tensors_as_all() -> None:
    run, _ = opened()
    every = read_catalog(run, 1)[0].tensors
    assert read_catalog(run, 1, names=["model.*"])[0].tensors == {name: every[name] for name in NAMES[:2]}
    assert read_catalog(run, 1, names=["other.weight"])[0].tensors == {NAMES[2]: every[NAMES[2]]}


def test_large_parts_are_read_by_the_leaves_that_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.state import ahead

    monkeypatch.setattr(ahead, "_WHOLE_BYTES", {True: 10, False: 10})
    run, store = opened()
    every = read_catalog(run, 1)[0]
    assert every == read_catalog(Run.open(made()[0], create=False), 1)[0]
    assert reads_of_parts(store) == 2 * PARTS  # records, and all leaves of a part together


@pytest.mark.parametrize("at", [0, 33, PARTS - 1])
def test_a_part_that_is_damaged_or_gone_is_named(at: int) -> None:
    name = made()[1][at].name
    run, _ = opened(Rule("read", Corrupt(at=-20), match=name, times=None))
    with pytest.raises(BlobCorrupt, match=name):
        read_catalog(run, 1)
    broken, _ = opened(Rule("read", Fail(StorageError("the disk is broken")), match=name, times=None))
    with pytest.raises(StorageError, match="the disk is broken"):
        read_catalog(broken, 1)
    store = Ram()
    for each in made()[0].names(""):
        if each != name:
            store.put(each, [made()[0].read(each)])
    with pytest.raises(BlobMissing, match=name):
        read_catalog(Run.open(store, create=False), 1)


def together(stores: Sequence[Faults], *, budget_bytes: int = 1 << 30) -> list[dict[str, memoryview]]:
    def rank(fabric: Fabric) -> dict[str, memoryview]:
        return read_parts_together(
            stores[fabric.rank], made()[1], fabric=fabric, agree_s=20, stall_s=20, budget_bytes=budget_bytes
        )

    return on_threads(len(stores), rank)


@pytest.mark.parametrize("world", [2, 3, 100])
def test_every_part_is_read_once_for_all_ranks(world: int) -> None:
    stores = [Faults(made()[0]) for _ in range(world)]
    found = together(stores)
    assert all(len(each) == PARTS for each in found)
    assert sum(map(reads_of_parts, stores)) == PARTS
    assert max(map(reads_of_parts, stores)) == -(-PARTS // world)
    run, store = opened()
    assert read_catalog(run, 1, known=found[-1])[0] == read_catalog(Run.open(made()[0], create=False), 1)[0]
    assert reads_of_parts(store) == 0


def test_what_a_rank_cannot_read_each_reads_for_itself() -> None:
    broken = Rule("read", Fail(StorageError("the disk is broken")), match="parts/*", times=None)
    found = together([Faults(made()[0]), Faults(made()[0], [broken])])
    assert [len(each) for each in found] == [PARTS // 2] * 2
    run, store = opened()
    assert len(read_catalog(run, 1, known=found[0])[1]) == PARTS
    assert reads_of_parts(store) == PARTS // 2


@pytest.mark.parametrize("at", [20, -20])
def test_what_another_rank_tells_wrongly_is_read_again(at: int) -> None:
    ref = made()[1][5]
    found = together([Faults(made()[0]), Faults(made()[0], [Rule("read", Corrupt(at=at), match=ref.name)])])
    run, store = opened()
    assert read_catalog(run, 1, known=found[0])[0] == read_catalog(Run.open(made()[0], create=False), 1)[0]
    assert reads_of_parts(store) == 1


def test_what_would_take_too_much_memory_is_read_by_each() -> None:
    assert together([Faults(made()[0]) for _ in range(2)], budget_bytes=1000) == [{}, {}]


def test_leaves_can_be_read_after_all_parts_have_been_looked_at() -> None:
    run, _ = opened()
    seen = list(read_ahead(run, made()[1]))
    assert [ref for _, ref, _ in seen] == list(made()[1])
    for view, ref, part in seen:
        for leaf in part.leaves:
            assert view.read_leaf(ref, leaf) == run.read_leaf(ref, leaf)
    assert seen[0][0] != run
    assert replace(seen[0][0], store=run.store) == run
