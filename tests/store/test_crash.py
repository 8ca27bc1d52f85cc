"""A process dies at every point of a save; whoever comes next finds the old commit or the new one, whole."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lives import Life, Process

from perdure.errors import LinkLost, PerdureError, StorageFull
from perdure.store.api import Store
from perdure.store.disk import Disk
from perdure.store.faults import Crash, Crashed, Fail, Faults, Rule
from perdure.store.lineage import Run
from perdure.store.ram import Ram
from perdure.store.records import Commit

Save = Callable[..., Commit]
Check = Callable[[Run, Commit], None]
MAKERS = [pytest.param(lambda path: Ram(), id="ram"), pytest.param(Disk, id="disk")]


def points(save: Save, store: Store, verbs: set[str]) -> list[tuple[str, int]]:
    """Each call that a process makes from its start to its commit: verb, and its count among calls of that verb."""
    faults = Faults(store)
    restart_and_save(save, faults, Run.open(store, create=False).read_slot(1))
    called = [call.verb for call in faults.calls]
    return [(verb, called[: i + 1].count(verb)) for i, verb in enumerate(called) if verb in verbs]


def prepare(save: Save, store: Store) -> Commit:
    run = Run.open(store, create=True)
    return save(run, epoch=run.claim_epoch("first"), parent=None, step=10)


def restart_and_save(save: Save, store: Store, old: Commit) -> None:
    run = Run.open(store, create=True)
    save(run, epoch=run.claim_epoch("second"), parent=old.slot, step=20)


def check_next(save: Save, check: Check, store: Store, old: Commit) -> None:
    """Open the run as the next process does; go on from its head."""
    run = Run.open(store, create=False)
    head = run.head()
    assert head is not None
    assert head == old or (head.step, head.parent) == (20, old.slot)
    for commit in run.chain():
        check(run, commit)
    after = save(run, epoch=run.claim_epoch("next"), parent=head.slot, step=30)
    assert run.head() == after
    check(run, after)
    assert not [name for name in store.names("") if "tmp" in name]


@pytest.mark.parametrize("make", MAKERS)
def test_a_crash_at_any_point_leaves_the_old_or_the_new_commit(
    make: Callable[[Path], Store], tmp_path: Path, save_step: Save, assert_whole: Check
) -> None:
    trial = make(tmp_path / "trial")
    prepare(save_step, trial)
    # On disk only what writes can make a difference; in memory every call is cheap.
    verbs = {"put", "create"} if isinstance(trial, Disk) else {"put", "create", "read", "size", "names"}
    outcomes = set()
    for i, (verb, nth) in enumerate(points(save_step, trial, verbs)):
        for when in ("before", "during", "after"):
            store = make(tmp_path / f"{i}-{when}")
            old = prepare(save_step, store)
            dying = Faults(store, [Rule(verb, Crash(when), nth=nth)])  # type: ignore[arg-type]
            with pytest.raises(Crashed):
                restart_and_save(save_step, dying, old)
            outcomes.add(len(store.names("slots/")))
            check_next(save_step, assert_whole, store, old)
    assert outcomes == {1, 2}  # some crashes came before the commit and some after it


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("error", [StorageFull("no space is left", file="x"), LinkLost("cut")])
def test_an_error_at_any_write_leaves_the_old_or_the_new_commit(
    make: Callable[[Path], Store], error: PerdureError, tmp_path: Path, save_step: Save, assert_whole: Check
) -> None:
    trial = make(tmp_path / "trial")
    prepare(save_step, trial)
    for i, (verb, nth) in enumerate(points(save_step, trial, {"put", "create"})):
        store = make(tmp_path / str(i))
        old = prepare(save_step, store)
        failing = Faults(store, [Rule(verb, Fail(error, "after"), nth=nth, times=None)])  # type: ignore[arg-type]
        with pytest.raises(type(error)):
            restart_and_save(save_step, failing, old)
        check_next(save_step, assert_whole, store, old)


SAVER = """
import sys
sys.path.insert(0, sys.argv[2])
from conftest import save
from perdure.store.disk import Disk
from perdure.store.lineage import Run

run = Run.open(Disk(sys.argv[1]), create=True)
epoch = run.claim_epoch("saver")
head = run.head()
step, parent = (head.step, head.slot) if head else (0, None)
print("ready", flush=True)
for seq in range(1000):
    step += 1
    made = save(run, epoch=epoch, parent=parent, step=step, seq=seq, writers=1)
    parent = made.slot
    print(parent, flush=True)
"""


def test_kill_9_at_any_moment_keeps_every_commit_that_was_reported(tmp_path: Path, assert_whole: Check) -> None:
    random_ = random.Random(0)
    reported = 0
    for _ in range(5):
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
        )
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
        time.sleep(random_.uniform(0.0, 0.15))
        saver.send_signal(signal.SIGKILL)
        rest, _ = saver.communicate(timeout=30)
        lines = rest.split("\n")[:-1]
        reported = max([reported, *map(int, lines)])
        run = Run.open(Disk(tmp_path), create=False)
        head = run.head()
        assert (head.slot if head else 0) in (reported, reported + 1)
        chain = list(run.chain())
        assert [commit.slot for commit in chain] == list(range(len(chain), 0, -1))
        for commit in chain[:3]:
            assert_whole(run, commit)
        reported = len(chain)
    assert reported


def test_an_attempt_that_was_cut_off_lends_no_file_to_the_next(tmp_path: Path) -> None:
    """The same step again, with other bytes: of the packs and the part that are there already none is taken."""
    store = Disk(tmp_path / "run")
    life = Life()
    first = Process(life, Run.open(store, create=True), None)
    first.save(10)
    dying = Faults(store, [Rule("create", Crash("after"), match="parts/*rank0*")])
    second = Process(life, Run.open(dying, create=False), 1)
    with pytest.raises(Crashed):
        second.save(20)
    there = set(store.names(""))
    third = Process(life, Run.open(store, create=False), 1)
    made = third.save(20)
    named = {pack.name for ref in made.parts for pack in third.run.read_part(ref).packs}
    assert not (named | {ref.name for ref in made.parts}) & there
    life.check(store)


def test_a_save_that_failed_lends_no_file_to_the_next_of_the_same_process(tmp_path: Path) -> None:
    store = Disk(tmp_path / "run")
    life = Life()
    failing = Faults(store, [Rule("create", Fail(StorageFull("full"), "before"), match="slots/*", nth=2)])
    process = Process(life, Run.open(failing, create=True), None)
    process.save(10)
    with pytest.raises(StorageFull):
        process.save(20)
    there = set(store.names("packs/")) | set(store.names("parts/"))
    made = process.save(20)
    named = {pack.name for ref in made.parts for pack in process.run.read_part(ref).packs}
    first = {pack.name for ref in process.run.read_slot(1).parts for pack in process.run.read_part(ref).packs}
    assert not (named - first) & there  # what has not changed is of step 10, nothing of the attempt that failed
    life.check(store)


def test_a_stale_temporary_is_never_published(tmp_path: Path) -> None:
    store = Disk(tmp_path / "run")
    life = Life()
    Process(life, Run.open(store, create=True), None).save(10)
    stale = [tmp_path / "run" / folder / f".tmp-{'0' * 32}" for folder in ("slots", "packs/0000000001", ".")]
    for path in stale:
        path.write_bytes(b"half a file")
    life.check(store)
    assert all(path.read_bytes() == b"half a file" for path in stale)
