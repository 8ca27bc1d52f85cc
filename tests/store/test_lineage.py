"""Who may commit, what was committed, and which commit training is on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import BlobCorrupt, BlobMissing, CallError, FormatRefused, LinkLost, PerdureError, Superseded
from perdure.store.api import Store
from perdure.store.branch import standing
from perdure.store.counted import Anew
from perdure.store.disk import Disk
from perdure.store.faults import Crash, Delay, Fail, Faults, Rule
from perdure.store.lineage import Note, Run
from perdure.store.pack import PackItem, plan_pack
from perdure.store.places import MARKER, slot_name
from perdure.store.ram import Ram
from perdure.store.records import Commit, encode
from perdure.store.retry import Retry

if TYPE_CHECKING:
    from typing_extensions import Buffer

Save = Callable[..., Commit]


def begin(store: Store, notes: list[Note] | None = None) -> Run:
    return Run.open(store, create=True, tell=(notes if notes is not None else []).append)


def commit(run: Run, epoch: int, parent: int | None, step: int, **more: Any) -> Commit:
    return run.commit(epoch=epoch, parent=parent, step=step, parts=(), meta={}, **more)


def damage(ram: Ram, name: str) -> None:
    """Flip a bit in the middle of a blob."""
    blob = bytearray(ram.read(name))
    blob[len(blob) // 2] ^= 1
    ram.delete(name)
    ram.create(name, blob)


def epochs_by_slot(run: Run) -> list[int]:
    slots = run.store.names("slots/")
    assert slots == [slot_name(i + 1) for i in range(len(slots))]
    return [run.read_slot(i + 1).epoch for i in range(len(slots))]


# Opening


def test_a_run_is_begun_once_and_found_again() -> None:
    ram = Ram()
    with pytest.raises(BlobMissing, match="no run"):
        Run.open(ram, create=False)
    assert ram.names("") == []
    run = begin(ram)
    assert begin(ram).marker == Run.open(ram, create=False).marker == run.marker
    assert run.head() is None
    assert list(run.chain()) == []
    assert run.find(0) is None
    assert run.newest_epoch() == 0


def test_a_copy_without_its_marker_is_not_taken_for_an_empty_place() -> None:
    ram = Ram()
    commit(begin(ram), begin(ram).claim_epoch("a"), None, 1)
    ram.delete(MARKER)
    with pytest.raises(BlobMissing, match="a copy that is not whole"):
        begin(ram)


def test_a_copy_without_its_epochs_gives_an_epoch_that_may_commit() -> None:
    ram = Ram()
    run = begin(ram)
    for _ in range(3):
        epoch = run.claim_epoch("a")
    commit(run, epoch, None, 1)
    for name in ram.names("epochs/"):
        ram.delete(name)
    epoch = run.claim_epoch("b")
    assert epoch == 4
    assert commit(run, epoch, 1, 2).slot == 2


def test_many_openers_and_claimers_agree_on_the_run_and_on_no_epoch() -> None:
    ram = Ram()
    runs: list[str] = []
    epochs: list[int] = []
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait(10)
        run = begin(ram)
        runs.append(run.marker.run)
        epochs.extend(run.claim_epoch("x") for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(runs)) == 1
    assert sorted(epochs) == list(range(1, 41))


# The branch that training is on


def test_a_commit_is_the_head_and_its_parents_are_the_chain(save_step: Save, assert_whole: Callable[..., None]) -> None:
    run = begin(Ram())
    epoch = run.claim_epoch("a")
    parent = None
    for step in (10, 20, 30):
        made = save_step(run, epoch=epoch, parent=parent, step=step)
        assert run.head() == made
        parent = made.slot
    assert [found.step for found in run.chain()] == [30, 20, 10]
    for found in run.chain():
        assert_whole(run, found)


def test_after_a_rollback_newest_follows_the_branch_and_not_the_highest_step() -> None:
    run = begin(Ram())
    first = run.claim_epoch("a")
    for slot, step in enumerate((100, 200, 300)):
        commit(run, first, slot or None, step)
    second = run.claim_epoch("b")  # restored step 100, slot 1
    again = commit(run, second, 1, 150)
    assert again.slot == 4
    assert run.head() == again
    assert [found.step for found in run.chain()] == [150, 100]
    assert run.find(300) is None
    assert run.find(100) == run.read_slot(1)
    redone = commit(run, second, 4, 200)
    assert run.find(200) == redone != run.read_slot(2)


def test_training_from_scratch_in_an_old_place_does_not_see_old_steps() -> None:
    run = begin(Ram())
    commit(run, run.claim_epoch("a"), None, 9000)
    commit(run, run.claim_epoch("b"), None, 10)
    assert [found.step for found in run.chain()] == [10]


def test_the_parent_must_be_there() -> None:
    run = begin(Ram())
    epoch = run.claim_epoch("a")
    for parent in (1, 0, -1):
        with pytest.raises(CallError, match="parent"):
            commit(run, epoch, parent, 1)


# Who may commit


def test_a_writer_of_an_older_epoch_is_refused_and_told() -> None:
    run = begin(Ram())
    old = run.claim_epoch("old")
    commit(run, old, None, 1)
    new = run.claim_epoch("new")
    with pytest.raises(Superseded) as caught:
        commit(run, old, 1, 2)
    assert (caught.value.epoch, caught.value.newer) == (old, new)
    assert run.store.names("slots/") == [slot_name(1)]


def test_a_newer_slot_refuses_even_when_its_epoch_is_not_listed() -> None:
    ram = Ram()
    run = begin(ram)
    old, new = run.claim_epoch("old"), run.claim_epoch("new")
    commit(run, new, None, 1)
    for name in ram.names("epochs/"):
        ram.delete(name)
    with pytest.raises(Superseded) as caught:
        commit(run, old, None, 2)
    assert (caught.value.newer, caught.value.slot) == (new, 1)


class Meanwhile:
    """A clock whose sleep is somebody else's work."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.work()


def calls_of_a_commit() -> list[tuple[str, int]]:
    """Each store call of a second commit, as verb and count among its verb's calls."""
    faults = Faults(Ram())
    run = begin(faults)
    epoch = run.claim_epoch("a")
    commit(run, epoch, None, 1)
    faults.calls.clear()
    commit(run, epoch, 1, 2)
    verbs = [call.verb for call in faults.calls]
    return [(verb, verbs[: i + 1].count(verb)) for i, verb in enumerate(verbs)]


@pytest.mark.parametrize("commits", [0, 1, 2])
@pytest.mark.parametrize(("verb", "nth"), calls_of_a_commit())
def test_whenever_a_newer_writer_comes_in_between_the_order_of_epochs_holds(verb: str, nth: int, commits: int) -> None:
    ram = Ram()
    run = begin(ram)
    old = run.claim_epoch("old")
    commit(run, old, None, 1)
    newer: list[Commit] = []

    def newer_writer() -> None:
        epoch = run.claim_epoch("new")
        parent = 1
        for i in range(commits):
            newer.append(commit(run, epoch, parent, 50 + i))
            parent = newer[-1].slot

    slow = Faults(ram, [Rule(verb, Delay(1, Meanwhile(newer_writer)), nth=nth)])  # type: ignore[arg-type]
    try:
        late = commit(Run(slow, run.marker), old, 1, 2)
    except Superseded:
        late = None
    epochs = epochs_by_slot(run)
    assert epochs == sorted(epochs)
    assert all(found == run.read_slot(found.slot) for found in newer)
    if newer:
        assert late is None or late.slot < newer[0].slot  # it was made before they came
        assert list(run.chain()) == [*reversed(newer), run.read_slot(1)]
    # The newer writer goes on in any case, from the slot that it restored, over a late commit of the old one.
    after = commit(run, 2, newer[-1].slot if newer else 1, 99)
    assert run.head() == after
    assert late not in list(run.chain())


@pytest.mark.parametrize(("verb", "nth"), calls_of_a_commit())
def test_whenever_a_zombie_commits_in_between_the_newer_writer_gets_the_next_slot(verb: str, nth: int) -> None:
    ram = Ram()
    run = begin(ram)
    old = run.claim_epoch("old")
    commit(run, old, None, 1)
    zombie = commit_that_waits_before_creating(ram, run, old)
    new = run.claim_epoch("new")
    slow = Faults(ram, [Rule(verb, Delay(1, Meanwhile(zombie)), nth=nth)])  # type: ignore[arg-type]
    made = commit(Run(slow, run.marker), new, 1, 50)
    assert run.head() == made
    assert [found.step for found in run.chain()] == [50, 1]
    epochs = epochs_by_slot(run)
    assert epochs == sorted(epochs)


def commit_that_waits_before_creating(ram: Ram, run: Run, epoch: int) -> Callable[[], None]:
    """Prepare slot 2 as a writer that has made all its checks and was then suspended."""
    template = run.read_slot(1)
    late = msgspec.structs.replace(template, slot=2, parent=1, step=2, epoch=epoch, token="e" * 32)
    return lambda: void(ram.create(slot_name(2), encode(late)))


def void(_: object) -> None:
    pass


def test_another_writer_of_the_same_epoch_is_refused() -> None:
    ram = Ram()
    run = begin(ram)
    epoch = run.claim_epoch("a")
    commit(run, epoch, None, 1)
    twin = Meanwhile(lambda: commit(run, epoch, 1, 77))
    slow = Faults(ram, [Rule("create", Delay(1, twin), match="slots/*")])
    with pytest.raises(Superseded, match="another writer used epoch 1"):
        commit(Run(slow, run.marker), epoch, 1, 2)
    assert [found.step for found in run.chain()] == [77, 1]


@pytest.mark.parametrize("make", [lambda path: Ram(), Disk], ids=["ram", "disk"])
def test_of_threads_that_race_exactly_one_wins_each_slot(make: Callable[[Path], Store], tmp_path: Path) -> None:
    run = begin(make(tmp_path))
    won: list[Commit] = []
    lost: list[PerdureError] = []
    gate = threading.Barrier(6)

    def work(writer: int) -> None:
        gate.wait(10)
        epoch = run.claim_epoch(f"writer {writer}")
        try:
            for i in range(5):
                head = run.head()
                won.append(commit(run, epoch, head.slot if head else None, 100 * writer + i))
        except Superseded as error:
            lost.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(made.slot for made in won) == list(range(1, len(won) + 1))
    assert all(run.read_slot(made.slot) == made for made in won)
    epochs = epochs_by_slot(run)
    assert epochs == sorted(epochs)
    assert epochs[-5:] == [6] * 5
    assert len(lost) <= 5


RACER = """
import sys
from perdure.errors import Superseded
from perdure.store.disk import Disk
from perdure.store.lineage import Run

run = Run.open(Disk(sys.argv[1]), create=True)
sys.stdin.readline()
for i in range(6):
    epoch = run.claim_epoch(sys.argv[2])
    try:
        for step in range(4):
            head = run.head()
            made = run.commit(
                epoch=epoch, parent=head.slot if head else None, step=step, parts=(), meta={"by": sys.argv[2]}
            )
            print(made.slot, made.token, flush=True)
    except Superseded:
        pass
"""


def test_of_processes_that_race_exactly_one_wins_each_slot(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), f"r{i}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(3)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outputs = [racer.communicate(timeout=60)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    run = Run.open(Disk(tmp_path), create=False)
    claimed = dict(line.split() for output in outputs for line in output.splitlines())
    assert len(claimed) == sum(len(output.splitlines()) for output in outputs)
    epochs = epochs_by_slot(run)
    assert len(epochs) == len(claimed)
    assert epochs == sorted(epochs)
    for slot, token in claimed.items():
        assert run.read_slot(int(slot)).token == token


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["restart", "commit", "rollback"])), max_size=25))
def test_a_run_is_a_list_that_only_the_newest_writer_appends_to(steps: list[tuple[int, str]]) -> None:
    run = begin(Ram())
    model: list[tuple[int | None, int]] = []  # parent and step of each slot
    held: list[tuple[int, int | None]] = [(0, None)] * 3  # epoch and parent of each writer
    newest = 0
    for clock, (writer, action) in enumerate(steps):
        epoch, parent = held[writer]
        if action == "restart":
            newest = run.claim_epoch(str(writer))
            held[writer] = (newest, len(model) or None)
        elif action == "rollback" and parent is not None:
            held[writer] = (epoch, model[parent - 1][0])
        elif action == "commit" and epoch == newest and epoch:
            made = commit(run, epoch, parent, clock)
            model.append((parent, clock))
            held[writer] = (epoch, made.slot)
            assert made.slot == len(model)
        elif action == "commit" and epoch:
            with pytest.raises(Superseded):
                commit(run, epoch, parent, clock)
    chain, slot = [], len(model) or None
    while slot:
        chain.append(model[slot - 1][1])
        slot = model[slot - 1][0]
    assert [found.step for found in run.chain()] == chain


# Lost responses


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("match", [MARKER, "epochs/*", "parts/*", "slots/*"])
def test_a_lost_response_is_asked_for_again(match: str, when: Any, save_step: Save) -> None:
    ram = Ram()
    store = Faults(ram, [Rule("create", Fail(when=when), match=match)])
    run = begin(store)
    made = save_step(run, epoch=run.claim_epoch("a"), parent=None, step=5)
    assert (made.slot, made.epoch) == (1, 1)
    assert run.head() == made
    assert len(ram.names("slots/")) == len(ram.names("epochs/")) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_outcome_is_unknown_may_be_made_again(when: Any) -> None:
    ram = Ram()
    run = begin(ram)
    epoch = run.claim_epoch("a")
    cut = Faults(ram, [Rule("create", Fail(when=when), match="slots/*", times=None)])
    with pytest.raises(LinkLost):
        commit(Run(cut, run.marker), epoch, None, 1)
    made = commit(run, epoch, None, 1)
    assert made.slot == 1
    assert commit(run, epoch, None, 1) == made
    assert commit(run, epoch, 1, 2).slot == 2
    assert len(ram.names("slots/")) == 2


# Damage


def test_a_damaged_head_is_passed_over_and_told() -> None:
    ram = Ram()
    notes: list[Note] = []
    run = begin(ram, notes)
    epoch = run.claim_epoch("a")
    for slot in range(3):
        commit(run, epoch, slot or None, slot)
    damage(ram, slot_name(3))
    head = run.head()
    assert head is not None
    assert head.slot == 2
    assert [note.file for note in notes] == [slot_name(3)]
    assert slot_name(3) in notes[0].message
    made = commit(run, epoch, 2, 9)  # saving goes on, above the damaged slot
    assert made.slot == 4
    assert [found.slot for found in run.chain()] == [4, 2, 1]


def test_by_default_damage_is_a_warning() -> None:
    ram = Ram()
    run = Run.open(ram, create=True)
    commit(run, run.claim_epoch("a"), None, 1)
    damage(ram, slot_name(1))
    with pytest.warns(RuntimeWarning, match=slot_name(1)):
        assert run.head() is None


@pytest.mark.parametrize(("harm", "error"), [(damage, BlobCorrupt), (Ram.delete, BlobMissing)])
def test_the_chain_names_a_slot_that_cannot_be_read(
    harm: Callable[[Ram, str], None], error: type[PerdureError]
) -> None:
    ram = Ram()
    run = begin(ram)
    epoch = run.claim_epoch("a")
    for slot in range(4):
        commit(run, epoch, slot or None, slot)
    harm(ram, slot_name(2))
    chain = run.chain()
    assert [next(chain).slot, next(chain).slot] == [4, 3]
    with pytest.raises(error) as caught:
        next(chain)
    assert (caught.value.slot, caught.value.file) == (2, slot_name(2))
    assert [found.slot for found in run.chain(start=1)] == [1]
    found = run.find(2)  # before the damage on the way
    assert found is not None
    with pytest.raises(error):
        run.find(0)


def test_a_damaged_slot_does_not_let_an_older_writer_in() -> None:
    ram = Ram()
    run = begin(ram)
    old, new = run.claim_epoch("old"), run.claim_epoch("new")
    commit(run, new, None, 1)
    damage(ram, slot_name(1))
    with pytest.raises(Superseded):
        commit(run, old, None, 2)


def test_a_head_of_a_later_format_is_not_passed_over() -> None:
    ram = Ram()
    run = begin(ram)
    epoch = run.claim_epoch("a")
    commit(run, epoch, None, 1)
    digest = xxhash.xxh3_128_hexdigest(b"commit\n2\n{}")
    ram.create(slot_name(2), f'{{"perdure":"commit","format":2,"digest":"{digest}","body":{{}}}}'.encode())
    for verb in (run.head, lambda: commit(run, epoch, 1, 2), lambda: run.find(1)):
        with pytest.raises(FormatRefused, match="written by format 2"):
            verb()


def test_a_slot_of_another_run_or_another_number_is_refused() -> None:
    ram, other = Ram(), Ram()
    run, foreign = begin(ram), begin(other)
    commit(foreign, foreign.claim_epoch("a"), None, 1)
    commit(run, run.claim_epoch("a"), None, 1)
    ram.create(slot_name(2), other.read(slot_name(1)))
    with pytest.raises(FormatRefused, match="copied from elsewhere"):
        run.head()
    ram.delete(slot_name(2))
    ram.create(slot_name(2), ram.read(slot_name(1)))
    with pytest.raises(FormatRefused, match="holds slot 1"):
        run.head()


def test_what_is_not_in_the_store_cannot_be_committed(save_step: Save) -> None:
    ram = Ram()
    run = begin(ram)
    epoch = run.claim_epoch("a")
    made = save_step(run, epoch=epoch, parent=None, step=1)
    part = run.read_part(made.parts[0])
    ram.delete(made.parts[0].name)
    with pytest.raises(BlobMissing, match="before it is named"):
        run.commit(epoch=epoch, parent=1, step=2, parts=made.parts, meta={})
    ram.delete(part.packs[0].name)
    with pytest.raises(BlobMissing, match="before it is named"):
        run.write_part(part)


def test_damaged_parts_and_packs_are_named(save_step: Save) -> None:
    ram = Ram()
    run = begin(ram)
    made = save_step(run, epoch=run.claim_epoch("a"), parent=None, step=1)
    ref = made.parts[0]
    part = run.read_part(ref)
    pack = part.packs[0]
    good = bytes(ram.read(pack.name))
    for bad in (good[:-1], good[:100], b"", good[:50] + b"?" + good[51:], good + b"x"):
        ram.delete(pack.name)
        ram.create(pack.name, bad)
        with pytest.raises(BlobCorrupt) as caught:
            run.open_pack(pack)
        assert caught.value.file == pack.name
    ram.delete(pack.name)
    with pytest.raises(BlobMissing):
        run.open_pack(pack)
    damage(ram, ref.name)
    with pytest.raises(BlobCorrupt) as caught:
        run.read_part(ref)
    assert caught.value.file == ref.name


def test_a_part_of_the_same_attempt_is_written_once(save_step: Save) -> None:
    run = begin(Ram())
    made = save_step(run, epoch=run.claim_epoch("a"), parent=None, step=1)
    part = run.read_part(made.parts[0])
    assert run.write_part(part) == made.parts[0]
    with pytest.raises(CallError, match="seq"):
        run.write_part(msgspec.structs.replace(part, index=msgspec.Raw(b"{}")))


def test_a_pack_begins_with_its_whole_header() -> None:
    run = begin(Ram())
    for chunks in ([], [b""], [b"\xff" * 8], [(4088).to_bytes(8, "little"), bytes(4088)]):
        with pytest.raises(CallError, match="header"):
            run.write_pack(chunks, epoch=1, step=1, seq=0, writer="w")
    assert run.store.names("packs/") == []


class Breaks(Ram):
    """Loses the link in the middle of its first packs, once it took some chunks."""

    left = 2

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        if self.left and name.startswith("packs/"):
            self.left -= 1
            taken = iter(chunks)
            next(taken), next(taken)
            raise LinkLost("the link broke")
        super().put(name, chunks)


def test_a_pack_whose_link_broke_is_written_again_if_its_chunks_can_be() -> None:
    plan = plan_pack([PackItem("x", "uint8", (5000,), 5000)], tile_bytes=4096)
    data = bytes(range(250)) * 20
    header = plan.render_header(b"".join(xxhash.xxh3_128_digest(data[at : at + 4096]) for at in (0, 4096)))
    ram = Breaks()
    run = begin(Retry(ram, first_wait_s=0.0))
    whole = Anew(lambda: plan.chunks(header, [data]))
    ref = run.write_pack(whole, epoch=1, step=1, seq=0, writer="w")
    assert ram.left == 0
    assert ref.nbytes == ram.size(ref.name) == sum(chunk.nbytes for chunk in plan.chunks(header, [data]))
    assert run.open_pack(ref).entry("x").nbytes == 5000
    ram.left = 1
    with pytest.raises(LinkLost, match="once only"):
        run.write_pack(plan.chunks(header, [data]), epoch=1, step=1, seq=1, writer="w")


def test_a_pack_whose_answer_was_lost_is_known_by_its_bytes() -> None:
    plan = plan_pack([PackItem("x", "uint8", (3,), 3)], tile_bytes=4096)
    header = plan.render_header(xxhash.xxh3_128_digest(b"123"))
    ram = Ram()
    run = begin(Retry(Faults(ram, [Rule("put", Fail(when="after"), match="packs/*")]), first_wait_s=0.0))
    ref = run.write_pack(Anew(lambda: plan.chunks(header, [b"123"])), epoch=1, step=1, seq=0, writer="w")
    assert ref.nbytes == ram.size(ref.name)
    assert run.open_pack(ref).entry("x").nbytes == 3


@pytest.mark.parametrize("wrapped", [lambda store: store, Retry, lambda store: Faults(store, [])])
def test_a_place_without_a_run_is_named_as_its_user_wrote_it(tmp_path: Path, wrapped: Callable[[Store], Store]) -> None:
    with pytest.raises(BlobMissing) as caught:
        Run.open(wrapped(Disk(str(tmp_path))), create=False)
    assert f"there is no run in {tmp_path}:" in str(caught.value)


def test_the_head_of_ten_thousand_slots_costs_one_listing_and_one_read() -> None:
    ram = Ram()
    run = begin(ram)
    epoch = run.claim_epoch("a")
    first = commit(run, epoch, None, 0)
    for slot in range(2, 10_001):
        ram.create(slot_name(slot), encode(msgspec.structs.replace(first, slot=slot, parent=slot - 1, step=slot)))
    counted = Faults(ram)
    run = Run.open(counted, create=True)
    counted.calls.clear()
    head = run.head()
    assert head is not None
    assert head.step == 10_000
    assert sorted(call.verb for call in counted.calls) == ["names", "read", "size", "size"]


def test_a_dead_writer_stays_dead() -> None:
    run = begin(Faults(Ram(), [Rule("create", Crash("after"), match="epochs/*")]))
    with pytest.raises(BaseException, match="dies here"):
        run.claim_epoch("a")
    with pytest.raises(BaseException, match="is dead"):
        run.claim_epoch("a")


def test_a_slot_that_was_given_up_before_it_was_taken_is_no_step_and_the_next_one_is_taken() -> None:
    """What a carry to this store leaves behind that is cut off between a tombstone and its slot."""
    ram = Ram()
    run = begin(ram)
    epoch = run.claim_epoch("a")
    first = commit(run, epoch, None, 1)
    run.give_up_slot(2, step=7)
    made = commit(run, epoch, 1, 2)
    assert (made.slot, made.parent, run.head()) == (3, 1, made)
    assert commit(run, epoch, 1, 2) == made  # asked again, as after a lost response
    assert [each.slot for each in standing(run)] == [3, first.slot]
