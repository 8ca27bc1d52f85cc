"""Writers that meet in the store: packs and parts first, one commit, and what is left behind when that fails."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from perdure.checkpoint.drain import Order, await_commit, await_parts, commit, find_commit, withdraw, write_part
from perdure.checkpoint.restoring import read_catalog
from perdure.checkpoint.unchanged import Division
from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, LinkLost, RankFailed, StorageFull, Superseded
from perdure.layout import Layout, Piece, TensorLayout
from perdure.state.catalogs import catalog_of
from perdure.state.index import Catalog, RankIndex
from perdure.state.part_reader import PartReader
from perdure.store import Commit, Ram, Run
from perdure.store.branch import branch
from perdure.store.faults import Corrupt, Fail, Faults, Rule
from perdure.store.places import slot_name
from perdure.store.retry import Retry
from perdure.testing.ranks import random_bytes, save_layout, whole_box

if TYPE_CHECKING:
    from typing_extensions import Buffer

FULL = StorageFull("no space left", file="x")
SHAPE = (4, 6)
Packs = list[tuple[RankIndex, memoryview]]


def sealed(world: int = 1) -> list[Packs]:
    """The one pack of each rank of a job; rank 0 holds all of ``w``, each other one of ``v1``, ``v2`` and so on."""
    names = ["w", *(f"v{rank}" for rank in range(1, world))]
    whole = {
        name: TensorLayout(SHAPE, (Piece.alone(rank, whole_box(SHAPE)),), "float32") for rank, name in enumerate(names)
    }
    wholes = {name: random_bytes("float32", SHAPE, 1) for name in names}
    made = save_layout(Layout(whole), wholes, world=world, values={"lr": 0.1})
    return [[(made.indexes[name], memoryview(made.packs[name]))] for name in sorted(made.packs)]


def opened(*rules: Rule) -> tuple[Run, Faults]:
    store = Faults(Ram(), rules)
    return Run.open(store, create=True), store


def order(step: int = 10, *, epoch: int = 1, seq: int = 1, base: int | None = None, **more: Any) -> Order:
    return Order(epoch, step, seq, base, **more)


def made(run: Run, what: Order, *, writer: str = "node0") -> Commit:
    """Write and commit a step by one writer."""
    return commit(run, what, [write_part(run, what, writer=writer, packs=sealed()[0]).ref])


def soon(seconds: float = 5.0) -> Deadline:
    return Deadline.after(seconds, "step 10")


@pytest.fixture
def ticking() -> Iterator[list[threading.Timer]]:
    """Timers that a test starts; they are over when it ends."""
    timers: list[threading.Timer] = []
    yield timers
    for timer in timers:
        timer.join(5)


# --- what is written -------------------------------------------------------------------------------------------------


def test_what_was_written_and_committed_is_read_back() -> None:
    run, _ = opened()
    run.claim_epoch("test")
    (packs,) = sealed()
    what = order(meta={"note": "x"}, metric=0.5, pinned=True)
    done = commit(run, what, [write_part(run, what, writer="node0", packs=packs).ref])
    head = run.head()
    assert head == done
    assert (done.slot, done.step, done.epoch, done.parent) == (1, 10, 1, None)
    assert (done.meta, done.metric, done.pinned) == ({"note": "x"}, 0.5, True)
    catalog, sources = read_catalog(run, done.slot)
    assert sorted(catalog.tensors) == ["w"]
    assert catalog.values == {"lr": 0.1}
    (pack,) = sources.values()
    entry = next(each for each in pack.index().entries if each.key == "w")
    assert bytes(pack.fetch(entry.start, entry.nbytes)) == random_bytes("float32", SHAPE, 1).tobytes()


def test_writing_the_part_again_is_a_call_under_another_seq() -> None:
    run, store = opened()
    (packs,) = sealed()
    write_part(run, order(seq=1), writer="node0", packs=packs)
    write_part(run, order(seq=2), writer="node0", packs=packs)
    assert len(store.names("parts/")) == 2


@pytest.mark.parametrize("rule", [Rule("create", Fail(FULL), match="parts/*"), Rule("put", Fail(FULL), nth=2)])
def test_after_a_failure_no_pack_is_left_behind(rule: Rule) -> None:
    run, store = opened(rule)
    packs = [pack for of_rank in sealed(2) for pack in of_rank]
    with pytest.raises(StorageFull):
        write_part(run, order(), writer="node0", packs=packs)
    assert store.names("packs/") == []
    assert store.names("parts/") == []


@pytest.mark.parametrize("in_a_pack_of_its_own", [False, True])
def test_packs_whose_link_breaks_are_written_again(in_a_pack_of_its_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaks(Ram):
        broke = 0

        def put(self, name: str, chunks: Iterable[Buffer]) -> None:
            if name.startswith("packs/") and self.broke < 2:
                self.broke += 1
                next(iter(chunks))
                raise LinkLost("the link broke")
            super().put(name, chunks)

    store = Breaks()
    run = Run.open(Retry(store, first_wait_s=0.0), create=True)
    (packs,) = sealed()
    if in_a_pack_of_its_own:  # as large unchanged tensors are: built anew, not as it lies in memory
        monkeypatch.setattr("perdure.checkpoint.drain.divide", lambda entries, _: Division((), tuple(entries), {}))
    written = write_part(run, order(), writer="node0", packs=packs)
    assert store.broke == 2
    for ref in run.read_part(written.ref).packs:
        assert run.open_pack(ref).total_nbytes == ref.nbytes == store.size(ref.name)


def test_the_first_error_counts_even_if_cleaning_up_fails_too() -> None:
    run, _ = opened(Rule("create", Fail(FULL), match="parts/*"), Rule("delete", Fail(LinkLost("gone"))))
    with pytest.raises(StorageFull):
        write_part(run, order(), writer="node0", packs=sealed()[0])


def test_what_is_withdrawn_is_gone_and_nothing_else() -> None:
    run, store = opened()
    run.claim_epoch("test")
    kept = made(run, order(10))
    before = [store.names(folder) for folder in ("packs/", "parts/")]
    ref = write_part(run, order(20, seq=2), writer="node0", packs=sealed()[0]).ref
    withdraw(run, ref)
    assert [store.names(folder) for folder in ("packs/", "parts/")] == before
    withdraw(run, ref)  # again: nothing to do, and no error
    assert run.head() == kept
    read_catalog(run, kept.slot)


# --- the parent ------------------------------------------------------------------------------------------------------


def test_the_first_commit_of_an_epoch_follows_what_training_went_on_from() -> None:
    run, _ = opened()
    for epoch in (1, 2):
        assert run.claim_epoch("test") == epoch
        if epoch == 1:
            for seq, step in enumerate((10, 20, 30)):
                made(run, order(step, epoch=1, seq=seq))
    back = made(run, order(11, epoch=2, base=1))
    assert (back.slot, back.parent) == (4, 1)
    assert [each.step for each in branch(run)] == [11, 10]


def test_later_commits_follow_the_last_one_of_their_epoch_whatever_the_base() -> None:
    run, _ = opened()
    run.claim_epoch("test")
    first = made(run, order(10, base=None))
    second = made(run, order(20, seq=2, base=None))
    assert (first.parent, second.parent) == (None, first.slot)


def test_without_a_base_the_first_commit_of_an_epoch_begins_a_branch() -> None:
    run, _ = opened()
    run.claim_epoch("old")
    made(run, order(10))
    run.claim_epoch("new")
    assert made(run, order(1, epoch=2)).parent is None
    assert [each.step for each in branch(run)] == [1]


def test_a_writer_of_an_older_epoch_is_refused_and_told() -> None:
    run, store = opened()
    run.claim_epoch("old")
    run.claim_epoch("new")
    with pytest.raises(Superseded) as caught:
        made(run, order(epoch=1))
    assert (caught.value.epoch, caught.value.newer) == (1, 2)
    assert store.names("slots/") == []


# --- waiting for the others ------------------------------------------------------------------------------------------


def test_the_parts_of_all_writers_are_named_in_their_order() -> None:
    run, _ = opened()
    run.claim_epoch("test")
    ranks = sealed(2)
    refs = {
        rank: write_part(run, order(), writer=f"rank{rank}", packs=packs).ref
        for rank, packs in reversed([*enumerate(ranks)])
    }
    found = await_parts(run, order(), writers=["rank0", "rank1"], deadline=soon())
    assert found == [refs[0], refs[1]]
    done = commit(run, order(), found)
    catalog, _ = read_catalog(run, done.slot)
    assert catalog.world == 2


def test_a_writer_that_comes_later_is_waited_for(ticking: list[threading.Timer]) -> None:
    run, _ = opened()
    ranks = sealed(2)
    write_part(run, order(), writer="rank0", packs=ranks[0])
    late = threading.Timer(0.05, lambda: write_part(run, order(), writer="rank1", packs=ranks[1]))
    ticking.append(late)
    late.start()
    found = await_parts(run, order(), writers=["rank0", "rank1"], deadline=soon())
    assert len(found) == 2


def test_a_writer_that_does_not_come_is_named() -> None:
    run, _ = opened()
    ranks = sealed(3)
    write_part(run, order(), writer="rank1", packs=ranks[1])
    with pytest.raises(DeadlineExceeded) as caught:
        await_parts(run, order(), writers=["rank0", "rank1", "rank2"], deadline=soon(0.05))
    assert caught.value.missing == "rank0, rank2"


def test_the_part_of_another_save_is_not_taken_for_this_one() -> None:
    run, _ = opened()
    (packs,) = sealed()
    for other in (order(11), order(seq=2), order(epoch=2)):
        write_part(run, other, writer="rank0", packs=packs)
    with pytest.raises(DeadlineExceeded, match="rank0"):
        await_parts(run, order(), writers=["rank0"], deadline=soon(0.05))


def test_what_is_heeded_ends_the_wait_for_parts() -> None:
    run, _ = opened()

    def heed() -> None:
        raise RankFailed("rank 1: no space left", rank=1)

    with pytest.raises(RankFailed):
        await_parts(run, order(), writers=["rank0"], deadline=soon(60.0), heed=heed)


def test_parts_that_are_all_there_need_no_time_and_heed_nothing() -> None:
    run, _ = opened()
    ref = write_part(run, order(), writer="rank0", packs=sealed()[0]).ref

    def heed() -> None:
        raise RankFailed("too late to matter")

    assert await_parts(run, order(), writers=["rank0"], deadline=soon(0.0), heed=heed) == [ref]


# --- waiting for the commit ------------------------------------------------------------------------------------------


def test_the_commit_of_another_writer_is_found(ticking: list[threading.Timer]) -> None:
    run, _ = opened()
    run.claim_epoch("test")
    other = threading.Timer(0.05, lambda: made(run, order()))
    ticking.append(other)
    other.start()
    assert await_commit(run, order(), after=None, deadline=soon()).step == 10


def test_a_commit_that_does_not_come_is_an_error_with_its_writer() -> None:
    run, _ = opened()
    with pytest.raises(DeadlineExceeded) as caught:
        await_commit(run, order(), after=None, deadline=soon(0.05))
    assert caught.value.missing == "the commit of rank 0"


@pytest.mark.parametrize("heed", [None, lambda: (_ for _ in ()).throw(RankFailed("rank 0 has left"))])
def test_a_commit_that_was_made_counts_though_the_time_is_over_or_the_writer_gone(
    heed: Callable[[], None] | None,
) -> None:
    run, _ = opened()
    run.claim_epoch("test")
    done = made(run, order())
    assert await_commit(run, order(), after=None, deadline=soon(0.0), heed=heed or (lambda: None)) == done


def test_a_commit_is_of_the_save_only_if_epoch_and_step_fit_and_it_is_new() -> None:
    run, _ = opened()
    run.claim_epoch("test")
    first = made(run, order(10, seq=1))
    second = made(run, order(20, seq=2))
    assert find_commit(run, order(10), after=None) == first
    assert find_commit(run, order(20), after=first.slot) == second
    assert find_commit(run, order(10), after=first.slot) is None  # of an earlier save of the same step
    assert find_commit(run, order(10, epoch=2), after=None) is None
    assert find_commit(run, order(30), after=None) is None


def test_a_damaged_slot_below_does_not_hide_the_commit_above() -> None:
    run, _ = opened(Rule("read", Corrupt(at=-10), match=slot_name(1), times=None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.claim_epoch("test")
        made(run, order(10))
        assert find_commit(run, order(10), after=None) is None
        second = made(run, order(20, seq=2))
        assert find_commit(run, order(20), after=None) == second


def test_a_part_tells_all_that_the_ranks_of_its_writer_told() -> None:
    run, _ = opened()
    ranks = sealed(2)
    ref = write_part(run, order(), writer="node0", packs=[pack for of_rank in ranks for pack in of_rank]).ref
    part = run.read_part(ref)
    found = catalog_of([PartReader(part, lambda leaf: run.read_leaf(ref, leaf), file=ref.name)])
    told = Catalog.join((part.packs[rank].name, index) for rank, ((index, _),) in enumerate(ranks))
    assert found == told
    assert [pack.nbytes for pack in part.packs] == [ranks[0][0][1].nbytes, ranks[1][0][1].nbytes]
