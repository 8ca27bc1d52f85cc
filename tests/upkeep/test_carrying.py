"""A step is carried to another store whole or not at all, and what lies there is the same run, by the spec."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from small import BIG, LAYOUT, small_run, wholes

from perdure.checkpoint.unchanged import Stored
from perdure.errors import BlobCorrupt, BlobMissing, CallError, LinkLost, StorageError, Superseded
from perdure.layout import Layout
from perdure.store import Ram, Run, Store
from perdure.store.branch import standing
from perdure.store.faults import Crash, Crashed, Fail, Faults, Rule
from perdure.store.places import pruned_name, slot_name
from perdure.testing.ranks import Bytes
from perdure.testing.runs import blobs_of, copy_of, flip, save_step
from perdure.upkeep.carrying import carry, catch_up
from perdure.upkeep.keep import Last
from perdure.upkeep.retention import Retention
from perdure.upkeep.verifying import verify

TINY = Layout({name: LAYOUT[name] for name in LAYOUT if name != BIG})


def opened(store: Store) -> Run:
    return Run.open(store, create=False, tell=lambda note: pytest.fail(note.message))


def tiny_run() -> Ram:
    """Three steps of a few hundred bytes, each in packs of its own."""
    run = Run.open(Ram(), create=True)
    run.claim_epoch("test")
    for step in (1, 2, 3):
        save_step(run, step, TINY, tiny(10 * step), world=2)
    assert isinstance(run.store, Ram)
    return run.store


def tiny(seed: int) -> dict[str, Bytes]:
    return {name: data for name, data in wholes(seed).items() if name != BIG}


def steps_of(store: Store) -> list[int]:
    """The steps of the run there, all of which verify."""
    report = verify(store, every=True)
    assert report.damages == []
    return [commit.step for commit in standing(opened(store))][::-1]


def save(store: Store, step: int, *, base: int | None, epoch: int = 1, stored: dict[str, Stored] | None = None) -> int:
    return save_step(opened(store), step, TINY, tiny(10 * step), world=2, epoch=epoch, base=base, stored=stored).slot


def test_what_was_carried_is_the_same_step_and_the_rest_is_history_alone() -> None:
    here, there = tiny_run(), Ram()
    done = carry(opened(here), there, 2)
    assert (done.step, steps_of(there)) == (2, [2])
    mine, theirs = blobs_of(here), blobs_of(there)
    assert all(mine[name] == data for name, data in theirs.items() if name != pruned_name(1))
    assert pruned_name(1) in theirs
    assert slot_name(3) not in theirs
    packs = {pack.name for ref in opened(here).read_slot(2).parts for pack in opened(here).read_part(ref).packs}
    assert packs == {name for name in theirs if name.startswith("packs/")}


def test_a_pack_that_is_there_is_not_sent_again_and_carrying_again_changes_nothing() -> None:
    here, there = small_run(), Ram()
    first = carry(opened(here), there, 1)
    second = carry(opened(here), there, 3)
    assert first.sent_nbytes > 9 << 20 > 100 * second.sent_nbytes > 0
    before = blobs_of(there)
    assert carry(opened(here), there, 3).sent_nbytes == 0
    assert (blobs_of(there), steps_of(there)) == (before, [1, 3])


class Points(Faults):
    """Counts the calls that change something; the process dies before or after one of them."""

    def __init__(self, store: Store, at: int = -1, when: str = "before") -> None:
        super().__init__(store)
        self.at, self.when, self.points = at, when, 0

    def put(self, name: str, chunks: Iterable[Any]) -> None:
        self._point(lambda: self.store.put(name, chunks))

    def create(self, name: str, data: Any) -> bool:
        return bool(self._point(lambda: self.store.create(name, data)))

    def delete(self, name: str) -> None:
        self._point(lambda: self.store.delete(name))

    def _point(self, call: Any) -> Any:
        self.points += 1
        if self.points - 1 == self.at and self.when == "before":
            raise Crashed
        found = call()
        if self.points - 1 == self.at:
            raise Crashed
        return found


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("newer", [False, True])
def test_a_carry_that_was_killed_anywhere_promises_nothing_and_is_done_again(when: str, newer: bool) -> None:
    here = tiny_run()
    begun = Ram()
    carry(opened(here), begun, 1)
    counted = Points(copy_of(begun, Ram()))
    carry(opened(here), counted, 3)
    for at in range(counted.points):
        there = copy_of(begun, Ram())
        with pytest.raises(Crashed):
            carry(opened(here), Points(there, at, when), 3)
        last = (at, when) == (counted.points - 1, "after")
        assert steps_of(there) == ([1, 3] if last else [1]), at
        work = copy_of(here, Ram()) if newer else here
        again = save(work, 4, base=3) if newer else 3
        carry(opened(work), there, again)
        assert steps_of(there) == ([1, 3, 4] if newer and last else [1, 4] if newer else [1, 3]), at


def test_what_is_cut_off_in_the_middle_of_a_pack_is_not_there() -> None:
    here, there = tiny_run(), Ram()
    with pytest.raises(Crashed):
        carry(opened(here), Faults(there, [Rule("put", Crash("during"))]), 1)
    assert not there.names("packs/")
    with pytest.raises(LinkLost):
        carry(opened(here), Faults(there, [Rule("create", Fail(when="after"), match="slots/*")]), 1)
    assert carry(opened(here), there, 1).sent_nbytes == 0
    assert steps_of(there) == [1]


@pytest.mark.parametrize("kind", ["packs/", "parts/", "slots/0000000002"])
def test_what_has_rotted_is_not_carried_and_named(kind: str) -> None:
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 1)
    run = Run.open(here, create=False, tell=lambda note: None)
    part = run.read_part(run.read_slot(2).parts[0])
    name = {
        "packs/": next(each.name for each in part.packs if there.size(each.name) is None),
        "parts/": run.read_slot(2).parts[0].name,
    }.get(kind, slot_name(2))
    flip(here, name, here.size(name) - 10)  # type: ignore[operator]
    with pytest.raises(BlobCorrupt, match=name):
        carry(run, there, 2)
    assert steps_of(there) == [1]
    carry(run, there, 3)  # a pack of step 2 is no part of it; its slot alone may be gone, which counts as given up
    assert [each.step for each in standing(Run.open(there, create=False, tell=lambda note: None))] == [3, 1]
    assert [each.file for each in verify(there, every=True).damages] == []


def test_a_rollback_is_carried_and_the_branch_that_was_left_is_no_step_of_it() -> None:
    here, there = tiny_run(), Ram()
    for slot in (1, 2):
        carry(opened(here), there, slot)
    opened(here).claim_epoch("after the rollback")
    carry(opened(here), there, save(here, 2, base=1, epoch=2))
    assert steps_of(there) == [1, 2]
    assert [commit.slot for commit in standing(opened(there))] == [4, 1]


def test_who_trains_from_a_copy_whose_carry_was_cut_takes_no_slot_that_is_given_up() -> None:
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 1)
    with pytest.raises(Crashed):
        carry(opened(here), Faults(there, [Rule("create", Crash("after"), match="pruned/*")]), 3)
    assert there.names("pruned/") == [pruned_name(2)]
    epoch = opened(there).claim_epoch("trains from the copy")
    assert save(there, 2, base=1, epoch=epoch) == 3
    assert save(there, 3, base=1, epoch=epoch) == 4
    assert (steps_of(there), [commit.slot for commit in opened(there).chain()]) == ([1, 2, 3], [4, 3, 1])
    assert Retention().keep(opened(there), [Last(1)]) is None
    assert steps_of(there) == [3]


def test_a_store_that_comes_back_from_a_copy_whose_carry_was_cut_takes_no_slot_that_is_given_up_there() -> None:
    here, there, home = tiny_run(), Ram(), Ram()
    carry(opened(here), there, 1)
    with pytest.raises(Crashed):
        carry(opened(here), Faults(there, [Rule("create", Crash("after"), match="pruned/*")]), 3)
    run = catch_up(home, opened(there))
    made = save(home, 2, base=1, epoch=run.claim_epoch("after the loss"))
    assert (made, steps_of(home)) == (3, [2])
    carry(opened(home), there, made)
    assert steps_of(there) == [1, 2]


def test_who_goes_on_from_the_copy_meets_no_pack_of_a_carry_that_was_cut_under_a_name_of_its_own() -> None:
    """The claim of an epoch that was carried in part is there, though no step of it is."""
    here, there, home = tiny_run(), Ram(), Ram()
    carry(opened(here), there, 1)
    made = save(here, 4, base=1, epoch=opened(here).claim_epoch("second"))
    with pytest.raises(Crashed):
        carry(opened(here), Faults(there, [Rule("create", Crash("before"), match="parts/*")]), made)
    run = catch_up(home, opened(there))
    again = save(home, 4, base=1, epoch=run.claim_epoch("after the loss"))
    assert run.read_slot(again).epoch == 3
    assert carry(opened(home), there, again).sent_nbytes > 0
    assert steps_of(there) == [1, 4]


def test_a_step_that_was_given_up_here_or_passed_over_there_is_not_carried() -> None:
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 3)
    with pytest.raises(BlobMissing, match="step 2 was passed over"):
        carry(opened(here), there, 2)
    opened(here).give_up_slot(1, step=1)
    with pytest.raises(BlobMissing, match="step 1 was pruned"):
        carry(opened(here), Ram(), 1)
    assert steps_of(there) == [3]


def test_another_run_there_is_refused_and_left_alone() -> None:
    there = Ram()
    save_step(Run.open(there, create=True), 1, TINY, tiny(1), world=2)
    before = blobs_of(there)
    with pytest.raises(CallError, match="another run"):
        carry(opened(tiny_run()), there, 1)
    assert blobs_of(there) == before


def test_what_was_trained_on_from_the_copy_is_never_written_to_by_the_old_place() -> None:
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 2)
    epoch = opened(there).claim_epoch("went on from the copy")
    before = blobs_of(there)
    with pytest.raises(Superseded, match="trained on apart"):
        carry(opened(here), there, 3)
    assert blobs_of(there) == before
    save(there, 5, base=2, epoch=epoch)
    opened(here).claim_epoch("went on here, with an epoch of the same number")
    before = blobs_of(there)
    with pytest.raises(Superseded, match="trained on apart"):
        carry(opened(here), there, save(here, 4, base=3, epoch=2))
    assert (blobs_of(there), steps_of(there)) == (before, [2, 5])


def test_a_lost_store_catches_up_with_its_copy_and_training_goes_on() -> None:
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 2)
    lost = Ram()
    run = catch_up(lost, opened(there))
    assert (run.marker, steps_of(lost)) == (opened(there).marker, [])
    epoch = run.claim_epoch("after the loss")
    made = save(lost, 3, base=2, epoch=epoch)
    assert (made, steps_of(lost)) == (3, [3])
    carry(opened(lost), there, made)
    assert steps_of(there) == [2, 3]
    assert [commit.slot for commit in opened(there).chain()] == [3, 2, 1]
    with pytest.raises(Superseded):  # what was lost turns up again, and its writer with it
        carry(opened(here), there, 3)


def test_an_older_copy_of_the_store_catches_up_and_one_that_was_trained_on_does_not() -> None:
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 1)
    old = copy_of(there, Ram())  # a backup of the first day, say
    carry(opened(here), there, 3)
    forked = copy_of(old, Ram())
    catch_up(old, opened(there))
    assert steps_of(old) == [1]
    assert opened(old).head() == opened(here).head()
    save(forked, 2, base=1, epoch=opened(forked).claim_epoch("apart"))
    before = blobs_of(forked)
    with pytest.raises(Superseded):
        catch_up(forked, opened(there))
    assert blobs_of(forked) == before


def test_a_catching_up_that_was_killed_anywhere_is_done_again() -> None:
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 3)
    counted = Points(Ram())
    catch_up(counted, opened(there))
    for at in range(counted.points):
        lost = Ram()
        with pytest.raises(Crashed):
            catch_up(Points(lost, at), opened(there))
        run = catch_up(lost, opened(there))
        assert (steps_of(lost), run.head()) == ([], opened(here).head()), at


def test_the_copy_is_pruned_by_rules_of_its_own_and_what_later_steps_need_stays() -> None:
    here, there = tiny_run(), Ram()
    for slot in (1, 2, 3):
        carry(opened(here), there, slot)
    there.put("notes.txt", [b"a person's"])
    assert Retention().keep(opened(there), [Last(1)]) is None
    assert steps_of(there) == [3]
    assert there.size("notes.txt") == 10
    assert steps_of(here) == [1, 2, 3]


def test_one_who_passes_over_a_slot_that_is_just_created_takes_it_back() -> None:
    """Two carry at once: the slow one creates slot 2 when the other has looked for it, and not made its own yet."""
    here, there = tiny_run(), Ram()
    carry(opened(here), there, 1)

    class Slow(Faults):
        def create(self, name: str, data: Any) -> bool:
            if name == pruned_name(2):
                carry(opened(here), self.store, 2)
            return super().create(name, data)

    carry(opened(here), Slow(there), 3)
    assert steps_of(there) == [1, 2, 3]


def test_a_pack_that_a_prune_deletes_while_its_step_is_carried_is_sent_again() -> None:
    here, there = tiny_run(), Ram()

    class Pruned(Faults):
        def create(self, name: str, data: Any) -> bool:
            if name.startswith("parts/"):
                for pack in self.store.names("packs/"):
                    self.store.delete(pack)
            return super().create(name, data)

    carry(opened(here), Pruned(there), 2)
    assert steps_of(there) == [2]


def test_a_copy_with_a_pack_of_another_size_is_told_and_an_empty_one_is_replaced() -> None:
    here, there = tiny_run(), Ram()
    run = opened(here)
    pack = run.read_part(run.read_slot(1).parts[0]).packs[0]
    there.put(pack.name, [b""])  # of one who was killed between a creation that should have been refused and its end
    carry(run, there, 1)
    assert steps_of(there) == [1]
    other = Ram()
    other.put(pack.name, [b"x"])
    with pytest.raises(BlobCorrupt, match=pack.name):
        carry(run, other, 1)


def test_the_pace_hears_of_every_byte_before_it_is_sent() -> None:
    here, there = small_run(), Ram()
    heard: list[int] = []
    done = carry(opened(here), there, 1, pace=heard.append)
    assert sum(heard) == done.sent_nbytes
    assert max(heard) < done.sent_nbytes
    assert all(nbytes > 0 for nbytes in heard)  # the first step has none below it


def test_a_store_that_refuses_fails_that_carry_alone() -> None:
    here, there = tiny_run(), Ram()
    with pytest.raises(StorageError):
        carry(opened(here), Faults(there, [Rule("put", Fail(StorageError("refused")), nth=2)]), 1)
    carry(opened(here), there, 2)
    assert steps_of(there) == [2]
