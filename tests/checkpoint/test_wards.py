"""What an agent keeps for another node, and what a rank reads there: verified, bounded, and never another step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from perdure.checkpoint.memory_packs import headers_digest
from perdure.checkpoint.messages import PROTOCOL, Generation, Packed, Terms
from perdure.checkpoint.peer_messages import Deposit, PeerMessage, Reader
from perdure.checkpoint.peer_packs import PeerPacks, serve_packs
from perdure.checkpoint.peer_server import PeerServer
from perdure.checkpoint.wards import Wards, give
from perdure.clock import Deadline
from perdure.errors import BlobCorrupt, BlobMissing, PerdureError, StorageError, StorageFull, Superseded
from perdure.layout import Layout, Piece, TensorLayout
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.store.pack import PackEntry
from perdure.testing.ranks import random_bytes, save_layout, whole_box
from perdure.wire import Address, NodeLink, connect_node

SECRET = b"k" * 32
SHAPE = (300, 5000)


def soon(seconds: float = 20.0) -> Deadline:
    return Deadline.after(seconds, "a test")


def sealed(seed: int, *, shape: tuple[int, int] = SHAPE) -> tuple[RankIndex, memoryview]:
    """A rank's pack of a tensor (of 6 MB) and a small one."""
    layout = Layout(
        {
            name: TensorLayout(each, (Piece.alone(0, whole_box(each)),), "float32")
            for name, each in (("w", shape), ("b", (7,)))
        }
    )
    wholes = {"w": random_bytes("float32", shape, seed), "b": random_bytes("float32", (7,), seed)}
    saved = save_layout(layout, wholes, world=1)
    return saved.indexes["pack0"], memoryview(saved.packs["pack0"])


def deposit(step: int, packs: list[tuple[RankIndex, memoryview]], *, epoch: int = 1, rank: int = 0) -> Deposit:
    facts = Generation(id=1, session="s", seq=step, step=step, epoch=epoch, world=2, ranks=[rank], slot=None, run="r")
    announced = [
        Packed(number=number, nbytes=view.nbytes, index=index, headers=headers_digest(index, view))
        for number, (index, view) in enumerate(packs)
    ]
    many = len(announced)
    return Deposit(
        protocol=PROTOCOL, url="u", node=0, facts=facts, packs=announced, terms=Terms(), said=[{}] * many,
        raw_nbytes=[0] * many,
    )  # fmt: skip


def make(nbytes: int) -> Segment:
    return Segment.create(nbytes, label="test")


class Partner:
    """An agent that keeps copies and lets others read them."""

    def __init__(self, make: Callable[[int], Segment] = make) -> None:
        self.wards = Wards(make)
        self.server = PeerServer({"s": SECRET}.get, self._serve)
        self.address: Address = ("127.0.0.1", self.server.listen("127.0.0.1"))

    def _serve(self, link: NodeLink, first: object) -> None:
        if isinstance(first, Deposit):
            self.wards.take(link, first)
        elif isinstance(first, Reader):
            serve_packs(link, [each for ward in self.wards.of(first.save) for each in ward.views()])

    def give(self, what: Deposit, views: list[memoryview]) -> None:
        link = connect_node(
            self.address, name="s", secret=SECRET, deadline=soon(), type=PeerMessage, max_body_bytes=1 << 24
        )
        with link:
            give(link, what, views.__getitem__)

    def read(self, step: int) -> PeerPacks:
        return PeerPacks(
            self.address, session="s", secret=SECRET, url="u", save=("s", step), file="a peer", silent_s=10.0
        )


@pytest.fixture
def partner() -> Iterator[Partner]:
    one = Partner()
    yield one
    one.server.close()


def test_a_copy_is_kept_and_read_byte_for_byte(partner: Partner) -> None:
    index, view = sealed(1)
    partner.give(deposit(3, [(index, view)]), [view])
    packs = partner.read(3)
    found = packs.index()
    assert {entry.key for entry in found.entries} == {"w", "b"}
    for entry in found.entries:
        assert packs.fetch(entry.start, entry.nbytes) == view[entry.start : entry.start + entry.nbytes]
        assert packs.read_digested(entry.start, entry.nbytes, memoryview(bytearray(entry.nbytes)), found.tile_bytes)
    packs.close()


def test_many_threads_read_at_once(partner: Partner) -> None:
    index, view = sealed(1)
    partner.give(deposit(3, [(index, view)]), [view])
    packs = partner.read(3)
    entry = packs.index().entry("w")
    wrong: list[int] = []

    def read(part: int) -> None:
        at, size = part * 100_000, 100_000
        if packs.fetch(entry.start + at, size) != view[entry.start + at : entry.start + at + size]:
            wrong.append(part)

    threads = [threading.Thread(target=read, args=(part,)) for part in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    packs.close()
    assert not wrong


@pytest.mark.parametrize("where", ["header", "tile"])
def test_what_was_altered_on_its_way_is_refused_and_the_copy_before_it_stays(partner: Partner, where: str) -> None:
    index, view = sealed(1)
    partner.give(deposit(3, [(index, view)]), [view])
    other, fresh = sealed(2)
    what = deposit(6, [(other, fresh)])
    altered = bytearray(fresh)
    altered[100 if where == "header" else len(altered) - 1000] ^= 1
    with pytest.raises(PerdureError) as caught:
        partner.give(what, [memoryview(altered)])
    assert isinstance(caught.value, BlobCorrupt)
    assert [ward.facts.step for ward in partner.wards] == [3]


def test_the_newest_two_copies_are_kept_in_turn_under_ids_of_their_own(partner: Partner) -> None:
    ids = []
    for step in (3, 6, 9, 12):
        index, view = sealed(step)
        partner.give(deposit(step, [(index, view)]), [view])
        assert [ward.facts.step for ward in partner.wards] == [each for each in (step - 3, step) if each]
        ids.append(max(partner.wards, key=lambda ward: ward.facts.step).id)
        packs = partner.read(step)
        entry = entry_of(packs)
        assert packs.fetch(entry.start, entry.nbytes) == view[entry.start : entry.start + entry.nbytes]
        packs.close()
    assert len(set(ids)) == 4
    assert max(ids) < 0
    assert partner.read(3).packs == []


def test_every_copy_but_the_first_goes_to_memory_that_is_there() -> None:
    made: list[Segment] = []

    def counted(nbytes: int) -> Segment:
        made.append(make(nbytes))
        return made[-1]

    partner = Partner(counted)
    for step in (3, 6, 9, 12):
        index, view = sealed(step)
        partner.give(deposit(step, [(index, view)]), [view])
        give_up = time.monotonic() + 20
        while step == 3 and not partner.wards._spare:  # beside its answer, so the next copy may come before it is there
            assert time.monotonic() < give_up
            time.sleep(0.001)
    assert len(made) == 2
    partner.server.close()


def test_no_room_for_the_copy_after_the_first_is_no_fault_of_the_first() -> None:
    made: list[Segment] = []

    def one(nbytes: int) -> Segment:
        if made:
            raise StorageFull("no memory", file="memory")
        made.append(make(nbytes))
        return made[-1]

    partner = Partner(one)
    index, view = sealed(3)
    partner.give(deposit(3, [(index, view)]), [view])
    other, fresh = sealed(6)
    with pytest.raises(StorageFull):
        partner.give(deposit(6, [(other, fresh)]), [fresh])
    assert [ward.facts.step for ward in partner.wards] == [3]
    partner.server.close()


def test_copies_of_attempts_long_gone_are_given_up(partner: Partner) -> None:
    for epoch in (1, 2, 3):
        index, view = sealed(epoch)
        partner.give(deposit(epoch, [(index, view)], epoch=epoch, rank=epoch), [view])
    assert sorted(ward.facts.epoch for ward in partner.wards) == [2, 3]


def test_a_copy_of_an_earlier_attempt_that_comes_late_replaces_no_later_one(partner: Partner) -> None:
    """Its giver was stopped in the middle, and another node has taken its place meanwhile."""
    late, view = sealed(1)
    index, fresh = sealed(2)
    partner.give(deposit(9, [(index, fresh)], epoch=2), [fresh])
    with pytest.raises(Superseded, match="of a later attempt: this writer must stop"):
        partner.give(deposit(12, [(late, view)], epoch=1), [view])
    assert [ward.facts.step for ward in partner.wards] == [9]


def test_what_is_to_become_durable_is_not_overwritten_by_later_copies(partner: Partner) -> None:
    index, view = sealed(1)
    partner.give(deposit(3, [(index, view)], rank=index.rank), [view])
    (given,) = partner.wards.adopt(("s", 3), [index.rank])
    for step in (6, 9, 12):
        other, fresh = sealed(step)
        partner.give(deposit(step, [(other, fresh)], rank=index.rank), [fresh])
    assert given.view == view
    assert partner.wards.adopt(("s", 3), [index.rank]) == [given]
    partner.wards.let_go(("s", 3))
    with pytest.raises(BlobMissing, match="what rank 0 saved"):
        partner.wards.adopt(("s", 3), [index.rank])


def test_memory_that_is_not_there_is_refused_and_named() -> None:
    def none(nbytes: int) -> Segment:
        raise StorageFull(f"no memory for {nbytes} bytes", file="memory")

    partner = Partner(none)
    index, view = sealed(1)
    with pytest.raises(StorageFull, match="no memory"):
        partner.give(deposit(3, [(index, view)]), [view])
    assert not list(partner.wards)
    partner.server.close()


def test_a_reader_believes_only_the_headers_that_were_announced(partner: Partner) -> None:
    index, view = sealed(1)
    partner.give(deposit(3, [(index, view)]), [view])
    (ward,) = partner.wards
    packs = partner.read(3)
    ward.packs[0][1].view[100] ^= 1  # behind the agent's back, after it has announced
    with pytest.raises(BlobCorrupt):
        packs.index()
    packs.close()


def test_what_lies_beyond_a_pack_is_not_read(partner: Partner) -> None:
    index, view = sealed(1)
    partner.give(deposit(3, [(index, view)]), [view])
    packs = partner.read(3)
    with pytest.raises(StorageError, match="cannot be read"):
        packs.fetch(view.nbytes - 5, 10)
    packs.close()


def entry_of(packs: PeerPacks) -> PackEntry:
    return packs.index().entry("w")


def test_a_peer_that_leaves_is_an_error_of_storage_with_its_name(partner: Partner) -> None:
    index, view = sealed(1)
    partner.give(deposit(3, [(index, view)]), [view])
    packs = partner.read(3)
    entry = entry_of(packs)
    partner.server.close()
    for link in packs._idle:
        link.shutdown()
    with pytest.raises(StorageError, match="a peer cannot be read"):
        packs.fetch(entry.start, 10)
    packs.close()
