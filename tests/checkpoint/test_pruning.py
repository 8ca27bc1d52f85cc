"""Pruning: what is planned, what is deleted, and that whatever goes wrong every step that stays loads whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retained import Writer, assert_loads, assert_nothing_missing, live_steps, tensors_of

from perdure.checkpoint.drain import commit
from perdure.errors import BlobMissing, CallError, IntegrityError, LinkLost, PerdureError, StorageError
from perdure.store import Disk, Ram, Run, Store
from perdure.store.faults import Corrupt, Crash, Crashed, Fail, Faults
from perdure.store.faults import Rule as Fault
from perdure.store.places import slot_name
from perdure.upkeep.keep import Best, EverySteps, Last, Rule, parse
from perdure.upkeep.pruning import CommitFacts, InFlight, PrunePlan, Snapshot, execute, plan_prune
from perdure.upkeep.retention import Retention

# --- the plan, of a snapshot -----------------------------------------------------------------------------------------


def fact(slot: int, step: int | None = None, *, parent: int | None = None, **more: Any) -> CommitFacts:
    values: dict[str, Any] = {"epoch": 1, "metric": None, "pinned": False, "created": 0.0, "parts": ()} | more
    return CommitFacts(slot=slot, parent=parent, step=slot * 10 if step is None else step, **values)


def line(n: int, **more: Any) -> dict[int, CommitFacts]:
    return {slot: fact(slot, parent=slot - 1 or None, **more) for slot in range(1, n + 1)}


def plan(snapshot: Snapshot, text: str = "", **options: object) -> PrunePlan:
    return plan_prune(snapshot, lambda commit: (), rules=parse(text) if text else (), **options)  # type: ignore[arg-type]


def reasons(found: PrunePlan) -> dict[int, tuple[str, ...]]:
    return {each.step: each.reasons for each in found.kept}


def test_every_step_that_stays_says_why() -> None:
    commits = line(6)
    commits[2] = fact(2, parent=1, pinned=True)
    commits[3] = fact(3, parent=2, metric=0.5)
    found = plan(Snapshot(commits), "last=2,every-steps=50,best=1:min")
    assert reasons(found) == {
        10: ("every 50",),
        20: ("pinned",),
        30: ("best 1 (min)",),
        50: ("last 2", "every 50"),
        60: ("head", "last 2"),
    }
    assert found.give_up == ((4, 40),)


def test_after_a_rollback_the_branch_counts_and_not_the_numbers() -> None:
    """Steps up to 100 were made, then training went back to step 20 and on from there."""
    commits = line(10) | {11: fact(11, 30, parent=2, epoch=2), 12: fact(12, 40, parent=11, epoch=2)}
    found = plan(Snapshot(commits), "last=3")
    assert reasons(found) == {20: ("last 3",), 30: ("last 3",), 40: ("head", "last 3")}
    assert [slot for slot, _ in found.give_up] == [1, 3, 4, 5, 6, 7, 8, 9, 10]


def test_a_pin_on_a_dead_branch_holds() -> None:
    commits = line(3) | {4: fact(4, 20, parent=1, epoch=2)}
    commits[3] = fact(3, parent=2, pinned=True)
    assert reasons(plan(Snapshot(commits), "last=1")) == {30: ("pinned",), 20: ("head", "last 1")}


def test_a_step_that_was_saved_again_is_kept_as_it_is_now() -> None:
    commits = line(3) | {4: fact(4, 20, parent=3), 5: fact(5, 30, parent=4)}
    found = plan(Snapshot(commits), "last=9")
    assert [each.slot for each in found.kept] == [1, 4, 5]


def test_the_head_is_kept_whatever_the_rules_say() -> None:
    commits = line(3, metric=1.0) | {4: fact(4, parent=3)}
    assert 40 in reasons(plan(Snapshot(commits), "best=1:min"))


def test_without_rules_nothing_is_given_up() -> None:
    found = plan(Snapshot(line(3) | {4: fact(4, 5, parent=1, epoch=2)}))
    assert (found.give_up, len(found.kept)) == ((), 4)


def test_what_a_save_in_flight_refers_to_is_a_base_in_use() -> None:
    flying = InFlight("parts/0000000001/000000000060-000009-w.jsonl", 60, 2, frozenset())
    found = plan(Snapshot(line(5), in_flight=(flying,)), "last=1")
    assert reasons(found) == {20: ("base of step 60",), 50: ("head", "last 1")}


def test_an_empty_run_needs_no_plan() -> None:
    assert plan(Snapshot({}), "last=1") == PrunePlan()


def test_named_steps_are_given_up_but_for_pins_and_the_head() -> None:
    commits = line(4)
    commits[2] = fact(2, parent=1, pinned=True)
    snapshot = Snapshot(commits)
    assert plan(snapshot, steps=[10, 30]).give_up == ((1, 10), (3, 30))
    assert plan(snapshot, steps=[20], even_pinned=True).give_up == ((2, 20),)
    for step, kind in ((20, CallError), (40, CallError), (99, BlobMissing)):
        with pytest.raises(kind, match=str(step)):
            plan(snapshot, steps=[step])


def test_a_slot_that_cannot_be_read_stops_everything_until_it_is_given_up() -> None:
    commits = line(6)
    del commits[3]
    snapshot = Snapshot(commits, lost={3: "slots/0000000003.json is corrupt"})
    found = plan(snapshot, "last=1")
    assert found.blocked is not None
    assert "slot 3" in found.blocked
    assert (found.give_up, found.packs, found.parts) == ((), (), ())
    found = plan(snapshot, "last=1", lost=True)
    assert (found.blocked, found.give_up) == (None, ((3, None), (4, 40), (5, 50)))
    assert plan(snapshot, "last=1", slots=[3]) == found
    assert plan(snapshot, "last=1", slots=[3, 2]).give_up == ((2, 20), *found.give_up)


def test_a_training_that_began_from_scratch_in_the_folder_of_another_takes_nothing_of_it() -> None:
    commits = line(4)
    commits[2] = fact(2, parent=1, pinned=True)
    commits |= {5: fact(5, 10, epoch=2), 6: fact(6, 20, parent=5, epoch=2), 7: fact(7, 20, parent=5, epoch=3)}
    snapshot = Snapshot(commits, given_up=frozenset([1]))  # also over a parent that was pruned
    found = plan(snapshot, "last=1")
    assert [(each.slot, each.reasons) for each in found.kept] == [
        (2, ("pinned", "of another training")),
        (3, ("of another training",)),
        (4, ("of another training",)),
        (7, ("head", "last 1")),
    ]
    assert found.give_up == ((5, 10), (6, 20))  # the dead branch of this training goes
    assert plan(snapshot, "last=1", other_trainings=True).give_up == ((3, 30), (4, 40), (5, 10), (6, 20))
    assert plan(snapshot, other_trainings=True).give_up == ((3, 30), (4, 40))
    assert plan(snapshot, steps=[30], slots=[4]).give_up == ((3, 30), (4, 40))


def test_rules_do_not_count_what_another_training_has() -> None:
    commits = line(3, metric=0.0) | {4: fact(4, 5, metric=9.0), 5: fact(5, 15, parent=4, metric=8.0)}
    assert reasons(plan(Snapshot(commits), "best=1:min,every-steps=100"))[15] == ("head", "best 1 (min)")


def test_where_a_chain_is_broken_those_that_reach_the_same_place_are_one_training() -> None:
    commits = line(6) | {7: fact(7, parent=3), 8: fact(8, parent=6)}
    del commits[3]
    found = plan(Snapshot(commits, given_up=frozenset([3])), "last=1")
    assert [slot for slot, _ in found.give_up] == [4, 5, 6, 7]
    assert reasons(found)[10] == ("perhaps of another training: a slot between cannot be read",)


def test_a_slot_is_given_up_by_its_number_but_for_the_head_and_pins() -> None:
    snapshot = Snapshot(line(2) | {3: fact(3, 20, parent=1), 4: fact(4, pinned=True, parent=3), 5: fact(5, parent=4)})
    assert plan(snapshot, slots=[2]).give_up == ((2, 20),)
    assert plan(snapshot, slots=[4], even_pinned=True).give_up == ((4, 40),)
    for slot, kind in ((4, CallError), (5, CallError), (9, BlobMissing)):
        with pytest.raises(kind, match=f"slot {slot}"):
            plan(snapshot, slots=[slot])


def test_below_a_lost_slot_all_that_is_older_counts_as_of_the_branch() -> None:
    """Whose child slot 4 was nobody knows; so no older commit is taken for dead."""
    commits = line(6)
    del commits[4]
    commits[3] = fact(3, parent=1)
    found = plan(Snapshot(commits, given_up=frozenset([4])), "last=9")
    assert [each.slot for each in found.kept] == [1, 2, 3, 5, 6]


def test_a_part_that_cannot_be_read_stops_everything_if_its_step_is_to_stay() -> None:
    def packs_of(commit: CommitFacts) -> tuple[str, ...]:
        if commit.slot == 2:
            raise IntegrityError("it is corrupt")
        return ()

    def of(text: str, **options: object) -> PrunePlan:
        return plan_prune(Snapshot(line(4)), packs_of, rules=parse(text), **options)  # type: ignore[arg-type]

    blocked = of("last=3").blocked
    assert blocked is not None
    assert "step 20" in blocked
    assert of("last=2").give_up == ((1, 10), (2, 20))
    assert of("last=3", steps=[20]).give_up == ((1, 10), (2, 20))
    assert of("last=3", lost=True).give_up == ((1, 10), (2, 20))
    assert of("last=3", slots=[2]).give_up == ((1, 10), (2, 20))


# --- carried out -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["ram", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Ram() if request.param == "ram" else Disk(tmp_path)


def prune(run: Run, text: str = "last=1", **options: object) -> PrunePlan:
    found = Retention().plan(run, rules=parse(text) if text else (), measure=True, **options)  # type: ignore[arg-type]
    execute(run, found)
    return found


def packs(run: Run) -> list[str]:
    return run.store.names("packs/")


def test_what_is_given_up_is_deleted_and_what_stays_loads(store: Store) -> None:
    writer = Writer(store)
    for step in range(1, 6):
        writer.save(step, frozen=step)
    before = sum(store.size(name) or 0 for name in store.names("pa"))
    found = prune(writer.run, "last=2")
    after = sum(store.size(name) or 0 for name in store.names("pa"))
    assert found.freed_bytes == before - after > 0
    assert live_steps(writer.run) == [4, 5]
    assert (len(packs(writer.run)), len(store.names("parts/"))) == (2, 2)
    assert len(store.names("slots/")) == 5
    for slot in (4, 5):
        assert_loads(writer.run, slot, tensors_of(slot, slot))
    assert prune(writer.run, "last=2").packs == ()


def test_the_pack_of_a_given_up_step_stays_while_a_later_one_refers_to_it(store: Store) -> None:
    writer = Writer(store)
    for step in range(1, 6):
        writer.save(step)
    first = packs(writer.run)[0]
    prune(writer.run, "last=1")
    assert live_steps(writer.run) == [5]
    assert first in packs(writer.run)
    assert len(packs(writer.run)) == 2
    assert_loads(writer.run, 5)
    writer.save(6, frozen=6)  # nothing refers to it any more
    prune(writer.run, "last=1")
    assert len(packs(writer.run)) == 1
    assert_loads(writer.run, 6, tensors_of(6, 6))


def test_what_perdure_did_not_write_is_never_touched(store: Store) -> None:
    writer = Writer(store)
    foreign = [
        "notes.txt",
        "packs/notes.txt",
        "packs/0000000001/model.safetensors",
        "packs/0000000001/000000000001-000001-w-0.safetensors.bak",
        "packs/0000000099/000000000001-000001-w-0.safetensors",  # of an epoch that this run never had
        "parts/0000000001/copy.jsonl",
        "slots/copy.json",
        "pruned/readme",
        "optimizer-state/latest",
    ]
    for name in foreign:
        store.put(name, [b"mine"])
    for step in range(1, 4):
        writer.save(step, frozen=step)
    Writer(store, base=3).save(4, frozen=9)
    prune(writer.run, "last=1")
    assert [name for name in foreign if store.size(name) is None] == []
    assert live_steps(writer.run) == [4]


def test_what_a_dead_session_left_behind_goes_once_a_newer_one_has_committed(store: Store) -> None:
    old = Writer(store)
    old.save(1, frozen=1)
    old.write(2, frozen=2)  # and died before its commit
    store.put("packs/0000000001/000000000003-000003-w-0.safetensors", [b"and in the middle of this"])
    new = Writer(store, base=1)
    assert prune(new.run, "").packs == ()  # the old one might still commit
    assert len(packs(new.run)) == 3
    new.save(2, frozen=3)
    found = prune(new.run, "")
    assert (len(found.packs), len(found.parts), found.give_up) == (2, 1, ())
    assert live_steps(new.run) == [1, 2]
    assert_loads(new.run, 1, tensors_of(1, 1))
    assert_loads(new.run, 2, tensors_of(3, 2))


def test_a_late_writer_that_commits_after_a_newer_epoch_was_claimed_finds_its_packs(store: Store) -> None:
    """It had looked for newer epochs before there was one, and comes to create its slot only now."""

    class Late(Faults):
        """Lets a new session claim its epoch, and prune, at the last moment."""

        def create(self, name: str, data: object) -> bool:
            if name == slot_name(2):
                Writer(store, base=1)
                prune(Run.open(store, create=False), "last=1")
            return super().create(name, data)  # type: ignore[arg-type]

    old = Writer(Late(store))
    old.save(1, frozen=1)
    made = old.save(2, frozen=2)
    assert made.epoch < old.run.newest_epoch()
    assert_loads(old.run, made.slot, tensors_of(2, 2))


def test_a_save_in_flight_keeps_what_it_refers_to(store: Store) -> None:
    writer = Writer(store)
    for step in (1, 2, 3):
        writer.save(step)
    _, flying = writer.write(4)
    writer.save(5, frozen=5)
    writer.save(6, frozen=6)
    prune(writer.run, "last=1")
    for pack in writer.run.read_part(flying.ref).packs:
        assert store.size(pack.name) == pack.nbytes
    assert live_steps(writer.run) == [6]  # its writer has gone on, so its base is not in use


def test_the_base_of_a_save_in_flight_is_in_use(store: Store) -> None:
    writer = Writer(store)
    writer.save(1)
    stored = writer.stored
    writer.save(2, frozen=2)
    back = Writer(store, base=1, stored=stored, name="other")
    order, flying = back.write(3)
    found = prune(writer.run, "last=1")
    assert [each.reasons for each in found.kept] == [("base of step 3",), ("head", "last 1")]
    made = commit(back.run, order, [flying.ref])
    prune(back.run, "last=1")
    assert live_steps(writer.run) == [3]
    assert_loads(back.run, made.slot)


def test_a_writer_whose_base_is_given_up_while_it_writes_writes_everything_anew(store: Store) -> None:
    writer = Writer(store)
    writer.save(1)
    stored = writer.stored
    writer.save(2, frozen=2)

    class Meanwhile(Faults):
        """Prunes aggressively when the part is about to appear."""

        armed = True

        def create(self, name: str, data: object) -> bool:
            if name.startswith("parts/") and self.armed:
                Meanwhile.armed = False
                prune(Run.open(store, create=False), "last=1")
            return super().create(name, data)  # type: ignore[arg-type]

    other = Writer(Meanwhile(store), base=2, stored=stored)
    made = other.save(3)  # refers to step 1, which is given up just then
    assert live_steps(writer.run) == [2, 3]
    assert other.run.read_part(made.parts[0]).base is None
    assert_loads(writer.run, made.slot)


def test_two_prunes_at_once_do_no_harm_and_leave_nothing_behind(store: Store) -> None:
    writer = Writer(store)
    for step in range(1, 9):
        writer.save(step, frozen=step // 3, pinned=step == 2)
    run = writer.run
    plans = [Retention().plan(run, rules=parse(text)) for text in ("last=3", "last=1,every-steps=4")]
    threads = [threading.Thread(target=execute, args=(run, each)) for each in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert live_steps(run) == [2, 8]
    prune(run, "last=9")
    for slot in (2, 8):
        assert_loads(run, slot, tensors_of(slot // 3, slot))
    named = {pack.name for slot in (2, 8) for pack in run.read_part(run.read_slot(slot).parts[0]).packs}
    assert set(packs(run)) == named


class Overtaken(Faults):
    """Somebody else prunes, between our look at the run and our reading of what its commits name."""

    armed = False

    def size(self, name: str) -> int | None:
        if self.armed and name.startswith("parts/"):
            self.armed = False
            prune(Run.open(self, create=False), "last=1")
        return super().size(name)


def test_a_step_that_another_prune_gives_up_meanwhile_is_no_damage(store: Store) -> None:
    writer = Writer(store)
    for step in range(1, 6):
        writer.save(step, frozen=step)
    faults = Overtaken(store)
    slow = Run.open(faults, create=False)
    faults.armed = True
    assert Retention().keep(slow, parse("last=4")) is None
    assert not faults.armed
    assert live_steps(writer.run) == [5]
    assert_loads(writer.run, 5, tensors_of(5, 5))


def test_what_is_damaged_stops_pruning_and_says_so() -> None:
    inner = Ram()
    writer = Writer(inner)
    for step in range(1, 5):
        writer.save(step, frozen=step)
    part = writer.run.read_slot(3).parts[0].name
    for match in (part, slot_name(2)):
        bad = Run.open(Faults(inner, [Fault("read", Corrupt(at=-10), match=match, times=None)]), create=False)
        told = Retention().keep(bad, parse("last=2"))
        assert told is not None
        assert "cannot be read" in told
        assert len(packs(writer.run)) == 4
    assert Retention().keep(writer.run, parse("last=2")) is None
    assert len(packs(writer.run)) == 2


# --- crashes and faults ----------------------------------------------------------------------------------------------


def history(store: Store) -> Run:
    """A run with everything in it: references, a rollback, a pin, what a dead session left, an unfinished save."""
    first = Writer(store)
    for step in (1, 2, 3, 4):
        first.save(step, frozen=step // 3, pinned=step == 1)
    first.write(5)
    second = Writer(store, base=2)
    for step in (3, 4, 5):
        second.save(step, frozen=7)
    second.write(6, frozen=7)
    return second.run


def check_history(run: Run) -> None:
    """The head and the pin load whole, as they were saved."""
    assert_loads(run, 1, tensors_of(0, 1))
    assert_loads(run, 7, tensors_of(7, 5))
    for slot in (5, 6):
        if not run.is_pruned(slot):
            assert_loads(run, slot, tensors_of(7, slot - 2))
    assert_nothing_missing(run)


def points(store: Store) -> list[tuple[str, int]]:
    faults = Faults(store)
    history_run = Run.open(faults, create=False)
    faults.calls.clear()
    assert Retention().keep(history_run, parse("last=2")) is None
    called = [call.verb for call in faults.calls]
    return [(verb, called[: i + 1].count(verb)) for i, verb in enumerate(called)]


def test_a_crash_at_any_call_of_a_prune_leaves_every_step_that_stays_and_the_next_prune_finishes() -> None:
    history(trial := Ram())
    found = points(trial)
    assert len(found) > 50
    done = [trial.names(folder) for folder in ("packs/", "parts/", "pruned/")]
    for verb, nth in found:
        for when in ("before", "after") if verb in ("create", "delete") else ("before",):
            store = Ram()
            history(store)
            dying = Faults(store)
            dead = Run.open(dying, create=False)
            dying._rules, dying._hits = [Fault(verb, Crash(when), nth=nth)], [0]  # type: ignore[arg-type]
            with pytest.raises(Crashed):
                Retention().keep(dead, parse("last=2"))
            run = Run.open(store, create=False)
            check_history(run)
            assert Retention().keep(run, parse("last=2")) is None
            assert [store.names(folder) for folder in ("packs/", "parts/", "pruned/")] == done, (verb, nth, when)
            check_history(run)


@pytest.mark.parametrize("error", [StorageError("it is read-only", file="x"), LinkLost("cut")])
def test_an_error_at_any_call_is_told_and_the_next_prune_finishes(error: PerdureError) -> None:
    history(trial := Ram())
    found = points(trial)
    done = trial.names("")
    for verb, nth in found:
        store = Ram()
        history(store)
        faults = Faults(store)
        failing = Run.open(faults, create=False)
        faults._rules, faults._hits = [Fault(verb, Fail(error, "after"), nth=nth)], [0]  # type: ignore[arg-type]
        retention = Retention()
        told = retention.keep(failing, parse("last=2"))
        assert told is None or str(error) in told
        check_history(failing)
        assert retention.keep(failing, parse("last=2")) is None  # the same memory, after an error in any place
        assert store.names("") == done, (verb, nth)


def test_a_bug_is_told_and_not_raised() -> None:
    writer = Writer(Ram())
    writer.save(1)
    told = Retention().keep(writer.run, ["no rule"])  # type: ignore[list-item]
    assert told is not None
    assert "AttributeError" in told


# --- others at the same time -----------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Runs what it is given on a thread; whatever that raises fails the test at its end."""
    started: list[threading.Thread] = []
    failures: list[BaseException] = []

    def start(work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        started.append(threading.Thread(target=guarded))
        started[-1].start()

    yield start
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_a_reader_and_a_writer_with_references_go_on_while_everything_else_is_pruned(
    store: Store, threads: Callable[[Callable[[], None]], None]
) -> None:
    over = threading.Event()
    writer = Writer(store)
    writer.save(1)
    loads: list[int] = []
    refused: list[int] = []

    def read() -> None:
        run = Run.open(store, create=False)
        while not over.is_set():
            head = run.head()
            assert head is not None
            try:
                assert_loads(run, head.slot, tensors_of(head.step // 10, head.step))
            except IntegrityError:
                refused.append(head.slot)
            else:
                loads.append(head.step)

    def remove() -> None:
        while not over.is_set():
            execute(writer.run, Retention().plan(writer.run, rules=(Last(1),)))

    for work in (read, remove, remove):
        threads(work)
    try:
        for step in range(2, 40):
            writer.save(step, frozen=step // 10)
            assert_nothing_missing(writer.run) if step % 20 == 0 else None
    finally:
        over.set()
    for _ in range(2):
        prune(writer.run, "last=1")
    assert set(refused) <= writer.run.pruned()  # given up while they were read, and for no other reason
    assert live_steps(writer.run) == [39]
    assert_loads(writer.run, 39, tensors_of(3, 39))
    assert loads
    assert len(packs(writer.run)) <= 2


# --- against a model -------------------------------------------------------------------------------------------------

RULES: list[tuple[Rule, ...]] = [
    (Last(1),),
    (Last(3),),
    (EverySteps(3),),
    (Best(2, "min"), Last(1)),
    (EverySteps(4), Last(2), Best(1, "max")),
]
moves = st.one_of(
    st.tuples(st.just("save"), st.integers(0, 2), st.booleans(), st.integers(0, 9)),
    st.tuples(st.just("save"), st.just(0), st.just(False), st.integers(0, 9)),
    st.tuples(st.just("rollback"), st.integers(0, 30)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("abandon"), st.integers(0, 2)),
    st.tuples(st.just("prune"), st.integers(0, len(RULES) - 1)),
    st.tuples(st.just("give up"), st.integers(0, 30)),
    st.tuples(st.just("forget")),
)


class Model:
    """What a run must hold, worked out anew from its whole history each time."""

    def __init__(self) -> None:
        self.commits: dict[int, tuple[int | None, int, int, float, bool]] = {}  # parent, step, frozen, metric, pinned
        self.gone: set[int] = set()

    def branch(self) -> list[int]:
        slot = max(self.commits, default=None)
        found: list[int] = []
        while slot is not None:
            found.append(slot)
            slot = self.commits[slot][0]
        return found[::-1]

    def prune(self, rules: tuple[Rule, ...]) -> None:
        branch = [slot for slot in self.branch() if slot not in self.gone]
        newest = [s for s in branch if not any(self.commits[t][1] == self.commits[s][1] for t in branch if t > s)]
        facts = [fact(s, self.commits[s][1], metric=self.commits[s][3]) for s in newest]
        stays = {newest[at] for rule in rules for at in rule.keeps(facts)} | {max(self.commits)}
        stays |= {slot for slot, each in self.commits.items() if each[4]}
        self.gone |= self.commits.keys() - stays


@settings(max_examples=60, deadline=None)
@given(st.lists(moves, min_size=3, max_size=25))
def test_a_run_is_what_its_model_says_after_any_history(history_of: list[tuple[object, ...]]) -> None:
    store = Ram()
    writer = Writer(store)
    retention = Retention()
    model = Model()
    step, parent, in_flight = 0, None, False
    for move in history_of:
        match move:
            case ("save", int(frozen), bool(pinned), int(metric)):
                step += 1
                made = writer.save(step, frozen, metric=float(metric), pinned=pinned)
                model.commits[made.slot] = (parent, step, frozen, float(metric), pinned)
                parent, in_flight = made.slot, False
            case ("abandon", int(frozen)):
                writer.write(step + 1, frozen)
                in_flight = True
            case ("rollback", int(to)):
                there = [slot for slot in model.branch() if slot not in model.gone]
                if there:
                    parent = there[to % len(there)]
                    step = model.commits[parent][1]
                    writer = Writer(store, base=parent)
            case ("restart",):
                parent = model.branch()[-1] if model.commits else None
                writer = Writer(store, base=parent)
                step = model.commits[parent][1] if parent is not None else 0
            case ("prune", int(which)) if model.commits and not in_flight:
                assert retention.keep(writer.run, RULES[which]) is None
                model.prune(RULES[which])
            case ("give up", int(which)):
                head = max(model.commits, default=0)
                can = [
                    each[1]
                    for slot, each in model.commits.items()
                    if slot not in model.gone and each[1] != model.commits[head][1]
                ]
                if can:
                    wanted = can[which % len(can)]
                    execute(writer.run, retention.plan(writer.run, steps=[wanted], even_pinned=True))
                    model.gone |= {slot for slot, each in model.commits.items() if each[1] == wanted}
                    model.gone.discard(head)
            case ("forget",):
                retention = Retention()
            case _:
                pass
        run = Run.open(store, create=False)
        assert run.pruned() == model.gone
        for slot, (_, at, frozen, _, _) in model.commits.items():
            if slot not in model.gone:
                assert_loads(run, slot, tensors_of(frozen, at))
    if model.commits:
        last = Writer(store, base=max(model.commits))
        made = last.save(1000)
        model.commits[made.slot] = (made.parent, 1000, 0, 0.0, False)
        prune(last.run, "last=1")
        model.prune((Last(1),))
        assert last.run.pruned() == model.gone
        named = set()
        for slot in model.commits.keys() - model.gone:
            named |= {pack.name for ref in last.run.read_slot(slot).parts for pack in last.run.read_part(ref).packs}
        assert set(packs(last.run)) == named  # and nothing is left of all the rest
