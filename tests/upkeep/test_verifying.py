"""A verification names every damage, exactly it, and what it costs; what is as it was written it leaves in peace."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import xxhash
from small import BIG, CODE, LAYOUT, ROWS, original, small_run, wholes

from perdure.errors import BlobMissing, StorageError
from perdure.layout import Box
from perdure.state.coverage import claim_of
from perdure.state.geometry import geometry_of
from perdure.state.index import RankIndex, SavedGrid, SavedPiece, SavedTensor
from perdure.state.manifest import write_index
from perdure.store import Disk, PackItem, Part, Ram, Run, plan_pack
from perdure.store.pack import parse_header
from perdure.store.places import slot_name
from perdure.testing.runs import blobs_of, copy_of, cut, flip, save_step
from perdure.upkeep.repairing import carry_out, plan_repair
from perdure.upkeep.verifying import Damage, verify

PACK = "packs/0000000001/{0:012d}-{0:06d}-node{1}-0.safetensors"
PART = "parts/0000000001/{0:012d}-{0:06d}-node{1}.jsonl"
MARKER, EPOCH, SLOT = "perdure.json", "epochs/0000000001.json", slot_name(2)
FIRST, OTHER = PACK.format(1, 0), PACK.format(3, 1)


def place_of(pack: str, key: str) -> int:
    """The first byte of a tensor in a pack."""
    data = original()[pack]
    return parse_header(lambda start, n: data[start : start + n], len(data)).entry(key).start


def pad_of(pack: str) -> int:
    """A byte between two tensors."""
    data = original()[pack]
    first, second = parse_header(lambda start, n: data[start : start + n], len(data)).entries[:2]
    assert first.start + first.nbytes < second.start
    return second.start - 1


def found(store: Ram, **options: object) -> list[Damage]:
    return verify(store, **options).damages  # type: ignore[arg-type]


def test_a_run_as_it_was_written_has_no_damage_and_all_of_it_was_hashed() -> None:
    report = verify(small_run(), every=True)
    assert (report.damages, report.notes, report.steps) == ([], [], [3, 2, 1])
    packs = {name: data for name, data in original().items() if name.startswith("packs/")}
    assert report.n_packs == len(packs)
    assert report.hashed_bytes == sum(map(len, packs.values()))
    assert report.n_tensors == 3 * len(LAYOUT)


FLIPS: dict[str, tuple[str, Callable[[], int], str | None, int | None, tuple[int, ...]]] = {
    "length of a header": (OTHER, lambda: 2, None, None, (3,)),
    "digest table": (OTHER, lambda: 80, None, None, (3,)),
    "name in a header": (OTHER, lambda: original()[OTHER].index(b"phase"), None, None, (3,)),
    "first tile": (FIRST, lambda: place_of(FIRST, BIG), BIG, 0, (1, 2, 3)),
    "last tile": (FIRST, lambda: place_of(FIRST, BIG) + (9 << 20) - 1, BIG, 2, (1, 2, 3)),
    "small tensor": (OTHER, lambda: place_of(OTHER, CODE), CODE, 0, (3,)),
    "piece": (OTHER, lambda: place_of(OTHER, "rows[3:6,0:10]") + 119, "rows[3:6,0:10]", 0, (3,)),
    "pad": (OTHER, lambda: pad_of(OTHER), None, None, ()),
    "record of a part": (PART.format(2, 1), lambda: 100, None, None, (2,)),
    "leaf of a part": (PART.format(2, 1), lambda: len(original()[PART.format(2, 1)]) - 9, None, None, (2,)),
    "slot": (SLOT, lambda: 90, None, None, ()),
    "digest of a slot": (SLOT, lambda: 50, None, None, ()),
    "marker": (MARKER, lambda: 110, None, None, ()),
    "epoch": (EPOCH, lambda: 110, None, None, ()),
}


@pytest.mark.parametrize("what", FLIPS)
def test_a_flipped_bit_is_named_alone_with_the_steps_that_it_costs(what: str) -> None:
    name, at, tensor, tile, steps = FLIPS[what]
    store = small_run()
    flip(store, name, at())
    (damage,) = found(store, every=True)
    assert (damage.file, damage.tensor, damage.tile, damage.steps) == (name, tensor, tile, steps)
    assert name in damage.message
    assert damage.costs


@pytest.mark.parametrize("name", [*original()])
def test_a_file_that_was_deleted_or_cut_is_named(name: str) -> None:
    if name != slot_name(3):  # of the last slot nothing is left that could miss it
        store = small_run()
        store.delete(name)
        assert {damage.file for damage in found(store, every=True)} == {name}
    store = small_run()
    cut(store, name, store.size(name) // 2)  # type: ignore[operator]
    assert {damage.file for damage in found(store, every=True)} == {name}


def test_all_damages_are_found_at_once() -> None:
    store = small_run()
    for name, at, *_ in FLIPS.values():
        if "index" not in name and name != OTHER:
            flip(store, name, at())
    flip(store, OTHER, place_of(OTHER, CODE))
    flip(store, OTHER, place_of(OTHER, "rows[3:6,0:10]"))
    damages = found(store, every=True)
    assert {damage.file for damage in damages} == {MARKER, EPOCH, SLOT, FIRST, OTHER}
    assert {(each.tensor, each.tile) for each in damages if each.tensor} == {
        (BIG, 0),
        (BIG, 2),
        (CODE, 0),
        ("rows[3:6,0:10]", 0),
    }


def test_only_the_step_that_is_asked_for_is_read_but_the_damage_of_a_shared_pack_names_all() -> None:
    store = small_run()
    flip(store, PACK.format(1, 1), place_of(PACK.format(1, 1), CODE))
    assert found(store) == found(store, step=2) == []
    (damage,) = found(store, step=1)
    assert damage.steps == (1,)
    flip(store, FIRST, place_of(FIRST, BIG))
    (damage,) = found(store)
    assert damage.steps == (1, 2, 3)
    with pytest.raises(BlobMissing, match="step 7 is not there"):
        verify(store, step=7)


def test_without_data_headers_and_indexes_are_verified_alone() -> None:
    store = small_run()
    flip(store, FIRST, place_of(FIRST, BIG))
    flip(store, PART.format(3, 0), 200)
    report = verify(store, every=True, data=False)
    assert [damage.file for damage in report.damages] == [PART.format(3, 0)]
    assert report.hashed_bytes == 0


def test_a_hole_in_the_disk_is_a_damage_like_any_other() -> None:
    class Holed(Ram):
        def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into=None) -> memoryview:  # type: ignore[no-untyped-def]
            end = (self.size(name) or 0) if nbytes is None else start + nbytes
            if name == FIRST and start <= 8 << 20 < end:
                raise StorageError(f"{name}: input/output error", file=name)
            return super().read(name, start=start, nbytes=nbytes, into=into)

    store = Holed()
    for name, data in original().items():
        store.put(name, [data])
    (damage,) = found(store)
    assert (damage.tensor, damage.tile) == (BIG, 1)
    assert "input/output error" in damage.message


def test_what_is_not_of_the_run_is_noted_and_is_no_damage() -> None:
    store = small_run()
    store.put("notes.txt", [b"mine"])
    store.put("packs/0000000001/000000000009-000009-node0-0.safetensors", [b"left over"])
    store.put("repairs/perdure.json", [b"left over"])
    report = verify(store, every=True)
    assert not report.damages
    assert [note.split(" ", 1)[0] for note in report.notes] == ["1", "1", "1"]
    assert "of no commit" in report.notes[0]
    assert "notes.txt" in report.notes[1]
    assert "run the repair again" in report.notes[2]


def test_what_is_left_over_is_said_to_go_when_it_goes() -> None:
    store = small_run()
    store.put(PACK.format(9, 0), [b"left over"])
    assert "removes them when a later session has committed a step" in verify(store, every=True).notes[0]
    run = Run.open(store, create=False)
    save_step(run, 4, LAYOUT, wholes(4), world=2, epoch=run.claim_epoch("later"), base=3)
    assert verify(store, every=True).notes[0].endswith("`perdure checkpoint prune` removes them now")
    store.put("packs/0000000002/000000000009-000009-node0-0.safetensors", [b"a save under way"])
    note = verify(store, every=True).notes[0]
    assert note.endswith("removes 1 of them when a later session has committed a step, the others now")


def test_what_a_slot_that_cannot_be_read_may_name_is_not_said_to_be_left_over() -> None:
    store = small_run()
    flip(store, slot_name(3), 90)
    note = verify(store, every=True).notes[0]
    assert "may be of slot 3, which cannot be: leave them there" in note
    assert "prune" not in note


@pytest.mark.parametrize("step", [None, 2])
def test_a_slot_that_cannot_be_read_and_was_given_up_is_no_damage_any_more(step: int | None) -> None:
    store = small_run()
    flip(store, SLOT, 90)
    Run.open(store, create=False).give_up_slot(2, step=step)
    for every in (False, True):
        report = verify(store, every=every)
        assert report.damages == []
        assert f"{SLOT} cannot be read and was given up" in report.notes[0]
    store.delete(SLOT)
    assert verify(store, every=True).damages == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", [MARKER, EPOCH, slot_name(3), PART.format(3, 0), OTHER, FIRST])
def test_what_is_no_plain_file_is_a_damage_and_the_rest_is_verified(tmp_path: Path, name: str, kind: str) -> None:
    store = Disk(tmp_path / "run")
    copy_of(small_run(), store)
    other = PACK.format(2, 1)
    path = Path(store.path_of(other))
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    path = Path(store.path_of(name))
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved") if kind == "link" else os.mkfifo(path)
    found = verify(store, every=True).damages
    assert any("is not a plain file" in damage.message and name in damage.message for damage in found)
    assert other in {damage.file for damage in found}
    plan = plan_repair(store, [small_run()])
    assert {fix.name for fix in plan.fixes} == {name, other}
    carry_out(store, [small_run()], plan)
    assert blobs_of(store) == original()


def test_one_commit_is_verified_by_its_slot_on_a_dead_branch_too() -> None:
    store = small_run()
    run = Run.open(store, create=False)
    save_step(run, 2, LAYOUT, wholes(4), world=2, epoch=run.claim_epoch("rollback"), base=1)
    with pytest.raises(BlobMissing, match=r"is on a branch that training left \(--slot 3\)"):
        verify(store, step=3)
    assert verify(store, slot=3).steps == [3]
    assert verify(store, slot=2).steps == [2]
    with pytest.raises(BlobMissing, match="slot 9 is not there"):
        verify(store, slot=9)


def test_a_pruned_commit_may_be_gone() -> None:
    store = small_run()
    run = Run.open(store, create=False)
    run.give_up(run.read_slot(1))
    for name in (PART.format(1, 0), PART.format(1, 1), PACK.format(1, 1)):
        store.delete(name)
    report = verify(store, every=True)
    assert not report.damages
    assert report.steps == [3, 2]


def test_a_commit_that_is_pruned_meanwhile_is_no_damage() -> None:
    class Pruning(Ram):
        def size(self, name: str) -> int | None:
            if name == OTHER:
                self.create("pruned/0000000003.json", tombstone)
                self.delete(name)
            return super().size(name)

    other = Run.open(small_run(), create=False)
    other.give_up(other.read_slot(3))
    tombstone = bytes(other.store.read("pruned/0000000003.json"))
    store = Pruning()
    for name, data in original().items():
        store.put(name, [data])
    report = verify(store)
    assert report.damages == []
    assert report.notes == [f"{OTHER} was pruned while it was verified"]


def test_a_slot_of_a_number_that_no_run_has_takes_no_time() -> None:
    store = small_run()
    store.put("slots/9999999999.json", [b"{}"])
    store.put("epochs/9999999998.json", [b"{}"])
    files = {damage.file for damage in found(store)}
    assert {"slots/9999999999.json", "epochs/9999999998.json"} <= files
    assert len(files) == 4


def handmade(*tensors: SavedTensor, world: int = 2, stored: str = "float32") -> Ram:
    """A run of one commit with an index that no writer writes; every piece is stored as four floats."""
    run = Run.open(Ram(), create=True)
    run.claim_epoch("test")
    keys = [piece.key for tensor in tensors for piece in tensor.pieces]
    width = {"float32": 4, "int64": 8}[stored]
    plan = plan_pack([PackItem(key, stored, (4,), 4 * width) for key in keys])
    data = [bytes(4 * width)] * len(keys)
    header = plan.render_header(b"".join(xxhash.xxh3_128_digest(each) for each in data))
    pack = run.write_pack(plan.chunks(header, data), epoch=1, step=1, seq=0, writer="w")
    grids = (SavedGrid((2,), 0, (1,)),)
    ranks = [RankIndex(rank=0, world=world, tensors=tensors, values=(), layouts=grids)]
    made = write_index(ranks, dict.fromkeys(keys, 0))
    part = Part(
        run=run.marker.run, writer="w", epoch=1, step=1, seq=0, base=None,
        packs=(pack,), index=made.index, leaves=made.refs,
    )  # fmt: skip
    run.commit(epoch=1, parent=None, step=1, parts=[run.write_part(part, made.leaves)], meta={})
    assert isinstance(run.store, Ram)
    return run.store


def piece(name: str, lo: int, hi: int, of: int) -> SavedPiece:
    return SavedPiece(name if (lo, hi) == (0, of) else f"{name}[{lo}:{hi}]", (lo,), (hi,))


def tensor(name: str, shape: int, *pieces: SavedPiece, layout: int | None = None) -> SavedTensor:
    return SavedTensor(name=name, dtype="float32", shape=(shape,), pieces=pieces, layout=layout)


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (lambda: handmade(tensor("w", 8, piece("w", 0, 4, 8)), world=1), r"'w' is not whole: no block holds \[4:8\]"),
        (
            lambda: handmade(tensor("w", 6, piece("w", 0, 4, 6), piece("w", 2, 6, 6)), world=1),
            r"'w' is not whole: the blocks .* overlap",
        ),
        (
            lambda: handmade(tensor("w", 8, piece("w", 0, 4, 8), layout=0), world=2),
            r"1 of 2 blocks are there|rank 1 is not",
        ),
        (
            lambda: handmade(tensor("w", 4, piece("w", 0, 4, 4)), world=1, stored="int64"),
            r"does not hold 'w' of tensor 'w' with the dtype and shape",
        ),
    ],
    ids=["gap", "overlap", "a rank missing", "another dtype in the pack"],
)
def test_an_index_that_hashes_but_is_not_whole_is_a_damage(store: Callable[[], Ram], says: str) -> None:
    damages = found(store())
    assert damages
    for damage in damages:
        assert re.search(says, damage.message), damage.message
        assert damage.steps == (1,)


def test_a_commit_that_was_copied_from_another_run_is_a_damage() -> None:
    store = small_run()
    other = Run.open(Ram(), create=True)
    other.claim_epoch("other")
    for step in (1, 2, 3, 4):
        save_step(other, step, LAYOUT, wholes(step), world=2)
    name = slot_name(4)
    store.put(name, [other.store.read(name)])
    assert [damage.file for damage in found(store, every=True)] == [name]


def test_the_claim_of_a_block_and_of_its_entry_are_the_same() -> None:

    data = original()[OTHER]
    index = parse_header(lambda start, n: data[start : start + n], len(data))
    for name in (ROWS, CODE):
        whole = LAYOUT[name]
        box = Box((3, 0), (6, 10)) if name == ROWS else Box((0,), (3,))
        made = geometry_of(name, whole.dtype, whole.shape, [(1, box)], None)
        key = name + made.suffixes[0]
        assert claim_of(index.entry(key)) == hash((key, made.stored[0]))
    assert msgspec.structs.replace(index.entries[0], key="x") != index.entries[0]
