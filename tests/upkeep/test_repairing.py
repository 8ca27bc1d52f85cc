"""A repair takes good copies from other stores, tile by tile, bit for bit, and touches nothing that verifies."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from small import BIG, LAYOUT, original, small_run, wholes
from test_verifying import FIRST, FLIPS, MARKER, OTHER, PART, place_of

from perdure.errors import BlobMissing, CallError, StorageError
from perdure.store import Ram, Run, Store
from perdure.store.places import slot_name
from perdure.store.records import encode
from perdure.testing.runs import blobs_of, copy_of, cut, flip, save_step
from perdure.upkeep.repairing import RepairPlan, carry_out, plan_repair
from perdure.upkeep.verifying import REPAIRS, verify


def repair(store: Store, *others: Store, step: int | None = None) -> RepairPlan:
    plan = plan_repair(store, others, step=step)
    carry_out(store, others, plan)
    return plan


class Recorder(Ram):
    """Notes what is written and deleted; the call number ``fail_at`` fails before it is made."""

    def __init__(self, blobs: dict[str, bytes]) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fail_at: int | None = None
        for name, data in blobs.items():
            super().put(name, [data])

    def put(self, name: str, chunks: Iterable[bytes]) -> None:  # type: ignore[override]
        self._call(f"put {name}")
        super().put(name, chunks)

    def delete(self, name: str) -> None:
        if self.size(name) is not None:
            self._call(f"delete {name}")
        super().delete(name)

    def _call(self, what: str) -> None:
        if self.fail_at == len(self.calls):
            raise StorageError("the power went", file=what)
        self.calls.append(what)


@pytest.mark.parametrize("what", FLIPS)
def test_whatever_bit_was_flipped_the_run_is_mended_bit_for_bit(what: str) -> None:
    name, at, *_ = FLIPS[what]
    store = small_run()
    flip(store, name, at())
    plan = repair(store, small_run())
    assert ([fix.name for fix in plan.fixes], plan.lost) == ([name], [])
    assert blobs_of(store) == original()


@pytest.mark.parametrize("name", [*original()])
def test_whatever_file_was_deleted_or_cut_it_comes_back(name: str) -> None:
    if name != slot_name(3):
        store = small_run()
        store.delete(name)
        assert [fix.name for fix in repair(store, small_run()).fixes] == [name]
        assert blobs_of(store) == original()
    store = small_run()
    cut(store, name, store.size(name) * 2 // 3)  # type: ignore[operator]
    assert [fix.name for fix in repair(store, small_run()).fixes] == [name]
    assert blobs_of(store) == original()


def test_a_file_with_bytes_at_its_end_loses_them_without_any_other_copy() -> None:
    store = small_run()
    store.delete(OTHER)
    store.put(OTHER, [original()[OTHER] + b"more"])
    empty = Ram()
    empty.put(MARKER, [original()[MARKER]])
    assert [fix.copied_bytes for fix in repair(store, empty).fixes] == [{}]
    assert blobs_of(store) == original()


def test_a_pack_that_is_damaged_everywhere_is_put_together_from_the_good_tiles() -> None:
    start = place_of(FIRST, BIG)
    stores = [small_run() for _ in range(3)]
    for number, store in enumerate(stores):
        flip(store, FIRST, start + number * (4 << 20))  # each has another bad tile
    flip(stores[1], FIRST, 100)  # and no header
    plan = repair(stores[0], stores[1], stores[2])
    (fix,) = plan.fixes
    assert fix.copied_bytes == {1: 4 << 20}
    assert blobs_of(stores[0]) == original()
    flip(stores[0], FIRST, 100)
    (fix,) = repair(stores[0], stores[1], stores[2]).fixes
    assert [*fix.copied_bytes] == [2]
    assert blobs_of(stores[0]) == original()


def test_a_part_is_put_together_from_its_leaves_too() -> None:
    name = PART.format(1, 0)
    stores = [small_run() for _ in range(2)]
    flip(stores[0], name, 50)
    flip(stores[1], name, len(original()[name]) - 5)
    (fix,) = repair(stores[0], stores[1]).fixes
    assert fix.name == name
    assert blobs_of(stores[0]) == original()


def test_everything_at_once_is_mended_from_two_copies() -> None:
    store, other, third = small_run(), small_run(), small_run()
    for number, name in enumerate(original()):
        if number % 3 == 0:
            store.delete(name)
        elif number % 3 == 1:
            flip(store, name, 60)
        if number % 2:
            other.delete(name)
        elif name != MARKER:
            flip(third, name, 60)
    repair(store, other, third, step=3 if store.size(slot_name(3)) is None else None)
    repair(store, other, third)
    assert blobs_of(store) == original()


def test_what_verifies_is_not_touched() -> None:
    store = Recorder(original())
    assert repair(store, small_run()).fixes == []
    assert store.calls == []
    flip(store, OTHER, 5000 - 4096)
    store.calls.clear()
    repair(store, small_run())
    assert {call.split(" ")[1].removeprefix(REPAIRS) for call in store.calls} == {OTHER}


def test_a_plan_is_made_without_writing() -> None:
    store = Recorder(original())
    flip(store, OTHER, 10)
    store.calls.clear()
    plan = plan_repair(store, [small_run()])
    assert [fix.why for fix in plan.fixes] == ["its header is damaged"]
    assert store.calls == []


def test_another_run_is_refused() -> None:
    other = Run.open(Ram(), create=True)
    with pytest.raises(CallError, match="only copies of the same run"):
        plan_repair(small_run(), [other.store])


def test_what_is_good_nowhere_is_said_and_the_rest_is_mended() -> None:
    store, other = small_run(), small_run()
    at = place_of(FIRST, BIG)
    for each in (store, other):
        flip(each, FIRST, at)
    flip(store, MARKER, 100)
    plan = repair(store, other)
    assert [fix.name for fix in plan.fixes] == [MARKER]
    (lost,) = plan.lost
    assert lost.name == FIRST
    assert "tile 0 of tensor 'big'" in lost.message
    assert [(damage.file, damage.tile) for damage in verify(store, every=True).damages] == [(FIRST, 0)]


@pytest.mark.parametrize("name", [FIRST, PART.format(2, 0), slot_name(2), MARKER])
def test_a_repair_that_is_cut_anywhere_is_ended_by_the_next(name: str) -> None:
    for fail_at in range(10):
        store = Recorder(original())
        flip(store, name, 70)
        store.calls.clear()
        store.fail_at = fail_at
        try:
            repair(store, small_run())
        except StorageError:
            pass
        else:
            break
        store.fail_at = None
        assert set(blobs_of(store)) - {REPAIRS + name, name} == set(original()) - {name}
        if store.size(name) is None:  # the one moment at which it is not there: the mended one is
            assert bytes(store.read(REPAIRS + name)) == original()[name]
        repair(store, small_run())
        assert {k: v for k, v in blobs_of(store).items() if not k.startswith(REPAIRS)} == original()
    assert fail_at == 4, "put beside, delete, put in place, delete beside"
    assert blobs_of(store) == original()


def test_newer_commits_of_a_copy_are_told_and_taken_only_if_asked_for() -> None:
    store = small_run()
    for name in (slot_name(3), slot_name(2)):
        store.delete(name)
    plan = repair(store, small_run())
    assert plan.fixes == []
    assert "2 newer commits (steps 2, 3)" in plan.notes[0]
    repair(store, small_run(), step=3)
    assert blobs_of(store) == original()


def test_copies_that_went_on_in_different_ways_do_not_decide() -> None:
    store, other = small_run(), small_run()
    run = Run.open(other, create=False)
    commit = run.read_slot(2)
    other.delete(slot_name(3))
    run.commit(epoch=1, parent=2, step=9, parts=commit.parts, meta={})
    cut(store, slot_name(3), 10)
    plan = plan_repair(store, [other, small_run()])
    assert [lost.name for lost in plan.lost] == [slot_name(3)]
    assert "do not agree" in plan.lost[0].message


def trained_on(seed: int, *, claimed: bool = True) -> Ram:
    """The run, and another step by a session of its own: two of these have the same names and other bytes."""
    store = small_run()
    run = Run.open(store, create=False)
    epoch = run.claim_epoch(f"session {seed}") if claimed else 2
    save_step(run, 4, LAYOUT, wholes(seed), world=2, epoch=epoch, base=3, values={"seed": seed})
    return store


FOURTH = (
    slot_name(4),
    "epochs/0000000002.json",
    *(PART.format(4, writer).replace("/0000000001/", "/0000000002/") for writer in (0, 1)),
)


@pytest.mark.parametrize("n_damaged", [1, 2, 3, 4])
def test_what_another_training_made_of_a_copy_takes_the_place_of_nothing(n_damaged: int) -> None:
    """The user's case: our packs are perfect, our slot is not; the copy has one of that number, step and names."""
    store, other = trained_on(1), trained_on(2)
    assert set(blobs_of(store)) == set(blobs_of(other))
    for name in FOURTH[:n_damaged]:
        flip(store, name, 100)
    before = blobs_of(store)
    plan = repair(store, other)
    assert plan.fixes == []
    assert slot_name(4) in [lost.name for lost in plan.lost]
    assert "the copy's is of another training" in plan.lost[0].message
    assert blobs_of(store) == before
    assert "from epoch 2 on it is another training" in plan.notes[0]


def test_an_epoch_that_another_training_claimed_is_not_taken() -> None:
    store, other = trained_on(1), trained_on(2)
    flip(store, FOURTH[1], 100)
    before = blobs_of(store)
    plan = repair(store, other)
    assert (plan.fixes, [lost.name for lost in plan.lost]) == ([], [FOURTH[1]])
    assert blobs_of(store) == before


def test_steps_of_another_training_are_not_taken_by_name_either() -> None:
    store, other = trained_on(1), trained_on(2)
    save_step(Run.open(other, create=False), 5, LAYOUT, wholes(3), world=2, epoch=2, base=4)
    before = blobs_of(store)
    with pytest.raises(BlobMissing, match="step 5"):
        plan_repair(store, [other], step=5)
    assert blobs_of(store) == before


@pytest.mark.parametrize("names", [FOURTH[:1], FOURTH[:2], FOURTH])
def test_a_mirror_of_the_same_training_mends_the_same_damage(names: tuple[str, ...]) -> None:
    store = trained_on(1)
    whole, mirror = blobs_of(store), copy_of(store, Ram())
    for name in names:
        flip(store, name, 100)
    for others in ([mirror], [trained_on(2), mirror]):
        assert {fix.name for fix in plan_repair(store, others).fixes} == set(names)
    assert repair(store, mirror).lost == []
    assert blobs_of(store) == whole


def test_what_is_whole_by_any_record_here_is_not_replaced_by_what_another_one_says() -> None:
    """A commit here names parts of the copy's bytes, whoever made it so: ours, which a commit names too, stay."""
    store, other = trained_on(1), trained_on(2)
    theirs = Run.open(other, create=False).read_slot(4)
    made = msgspec.structs.replace(Run.open(store, create=False).read_slot(4), slot=5, parent=4, parts=theirs.parts)
    store.put(slot_name(5), [encode(made)])
    before = blobs_of(store)
    plan = repair(store, other)
    assert plan.fixes == []
    assert {lost.name for lost in plan.lost} == set(FOURTH[2:])
    assert "it stays as it is" in plan.lost[0].message
    assert blobs_of(store) == before


def test_what_was_there_before_two_trainings_parted_is_mended_from_either() -> None:
    store = trained_on(1)
    whole = blobs_of(store)
    for name in (slot_name(2), PART.format(2, 0), FIRST, MARKER, "epochs/0000000001.json"):
        flip(store, name, 100)
    assert repair(store, trained_on(2)).lost == []
    assert blobs_of(store) == whole


def test_steps_that_a_copy_went_on_to_alone_are_taken_with_their_epoch() -> None:
    store, other = small_run(), trained_on(2)
    assert repair(store, other, step=4).lost == []
    assert blobs_of(store) == blobs_of(other)


def test_without_claims_a_slot_that_differs_makes_a_copy_another_training() -> None:
    store, other = trained_on(1, claimed=False), trained_on(2, claimed=False)
    for each, seed in ((store, 1), (other, 2)):
        save_step(Run.open(each, create=False), 5, LAYOUT, wholes(seed), world=2, epoch=2, base=4)
    flip(store, slot_name(4), 100)
    before = blobs_of(store)
    assert slot_name(4) in [lost.name for lost in repair(store, other).lost]
    assert blobs_of(store) == before


def test_a_slot_that_was_given_up_is_mended_if_it_can_be_and_else_not_missed() -> None:
    store = small_run()
    Run.open(store, create=False).give_up_slot(2, step=None)
    whole, other = blobs_of(store), small_run()
    flip(store, slot_name(2), 100)
    other.delete(slot_name(2))
    assert repair(store, other).lost == []
    assert [fix.name for fix in repair(store, small_run()).fixes] == [slot_name(2)]
    assert blobs_of(store) == whole


def test_a_copy_that_changes_after_the_plan_does_no_harm() -> None:
    store, other = small_run(), small_run()
    flip(store, FIRST, place_of(FIRST, BIG))
    before = blobs_of(store)
    plan = plan_repair(store, [other])
    flip(other, FIRST, place_of(FIRST, BIG) + 1)
    with pytest.raises(Exception, match="has changed since the repair was planned"):
        carry_out(store, [other], plan)
    assert blobs_of(store) == before
