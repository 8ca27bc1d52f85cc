"""Retention while a run is trained: with an agent and without, cut off, refused, and by real processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
import torch
from retained import Writer, assert_loads, tensors_of

import perdure
from conftest import Place, await_that
from perdure.errors import BlobMissing, StorageError
from perdure.events import Log
from perdure.store import Disk, Ram, Run, Store
from perdure.store.faults import Fail, Faults, Rule
from perdure.store.places import pruned_name, slot_name
from perdure.store.records import Pruned, encode
from perdure.upkeep.keep import Last, parse
from perdure.upkeep.retention import Retention


def facts_of(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def live(place: Place) -> list[int]:
    run = place.open()
    gone = run.pruned()
    return [commit.step for commit in place.commits() if commit.slot not in gone]


# --- one process, no agent -------------------------------------------------------------------------------------------


def save_steps(ckpt: perdure.Checkpointer, last: int, *, first: int = 1) -> None:
    for step in range(first, last + 1):
        ckpt.save(step, {"w": torch.full((1000,), float(step)), "frozen": torch.ones(9000)}, metric=-step).committed()


def test_a_checkpointer_keeps_what_its_rules_say(tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, keep=[perdure.keep.Last(2), perdure.keep.EverySteps(4)])
    save_steps(ckpt, 10)
    ckpt.close()
    assert ckpt.steps() == [1, 4, 8, 9, 10]
    assert len(list((tmp_path / "packs").rglob("*.safetensors"))) == 5  # one each; the first holds what never changes
    for step in ckpt.steps():
        found = perdure.load(tmp_path, step=step)
        assert torch.equal(found["w"], torch.full((1000,), float(step)))
        assert torch.equal(found["frozen"], torch.ones(9000))
    with pytest.raises(BlobMissing, match="pruned"):
        perdure.load(tmp_path, step=5)


def test_a_checkpointer_without_rules_deletes_nothing(tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False)
    save_steps(ckpt, 4)
    ckpt.close()
    assert ckpt.steps() == [1, 2, 3, 4]
    assert not (tmp_path / "pruned").exists()


def test_what_training_went_on_from_stays_until_the_first_commit_after_it(tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, keep="last=3")
    save_steps(ckpt, 5)
    ckpt.close()
    tree = {"w": torch.zeros(1000), "frozen": torch.zeros(9000)}
    again = perdure.Checkpointer(tmp_path, agent=False, keep="last=2")
    assert again.restore(tree, step=3) == 3
    assert again.steps() == [3, 4, 5]
    save_steps(again, 4, first=4)
    again.close()
    assert again.steps() == [3, 4]  # 4 and 5 of the branch that was left are gone
    assert torch.equal(perdure.load(tmp_path, step=4)["w"], torch.full((1000,), 4.0))


def test_a_training_that_begins_from_scratch_in_the_same_folder_deletes_nothing_of_the_earlier_one(
    tmp_path: Path,
) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, keep="last=3")
    save_steps(ckpt, 3)
    ckpt.close()
    again = perdure.Checkpointer(tmp_path, agent=False, keep="last=1")
    save_steps(again, 6, first=4)  # and nobody has restored
    again.close()
    run = Run.open(Disk(tmp_path), create=False)
    assert [run.read_slot(slot).parent for slot in (1, 4)] == [None, None]
    assert run.pruned() == {4, 5}
    reasons = {each.slot: each.reasons for each in Retention().plan(run, rules=parse("last=1")).kept}
    assert reasons == {**dict.fromkeys((1, 2, 3), ("of another training",)), 6: ("head", "last 1")}


@pytest.mark.parametrize("verb", ["delete", "create", "names"])
def test_a_retention_that_fails_is_told_and_fails_no_save(tmp_path: Path, verb: str) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, keep="last=1", log=Log(str(tmp_path / "events")))
    match = {"delete": "*", "create": "pruned/*", "names": "packs/*"}[verb]
    refused = Fail(StorageError("the server refuses it", file="x"))
    ckpt._run._store = Faults(Disk(tmp_path), [Rule(verb, refused, match=match, times=None)])  # type: ignore[arg-type]
    save_steps(ckpt, 4)
    ckpt.close()
    assert ckpt.latest() == 4
    assert "older steps could not be pruned (the server refuses it)" in facts_of(tmp_path / "events")
    assert torch.equal(perdure.load(tmp_path)["w"], torch.full((1000,), 4.0))


def test_rules_that_are_none_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rule"):
        perdure.Checkpointer(tmp_path, agent=False, keep="newest=3")
    assert list(tmp_path.iterdir()) == []


# --- real processes --------------------------------------------------------------------------------------------------


def test_the_agent_keeps_what_the_rules_say(place: Place) -> None:
    ranks = place.train("--steps", "12", "--every", "2", "--keep", "last=2,every-steps=6", world=1)
    await_that(lambda: live(place) == [2, 6, 10, 12], f"pruning: {live(place)}")
    assert not [said for said in ranks.said(0) if "prune" in said], ranks.text()
    again = place.train("--steps", "13", "--every", "2", "--keep", "last=1", world=1)
    assert again.began_at() == [12]
    await_that(lambda: live(place) == [13], f"pruning: {live(place)}")


def test_the_agent_tells_that_it_cannot_prune_and_goes_on_saving(place: Place) -> None:
    place.train("--steps", "4", "--every", "2", world=1)
    record = place.run_dir / slot_name(1)
    os.chmod(record, 0o644)
    record.write_bytes(record.read_bytes().replace(b'"step":2', b'"step":3'))
    ranks = place.train("--steps", "8", "--every", "2", "--keep", "last=1", world=1)
    assert [said for said in ranks.said(0) if "older steps are not pruned" in said and "slot 1" in said], ranks.text()
    assert live_above(place, 1) == [4, 6, 8]


def live_above(place: Place, slot: int) -> list[int]:
    run = place.open()
    gone = run.pruned()
    return [run.read_slot(each).step for each in range(slot + 1, place.slots() + 1) if each not in gone]


def test_an_agent_killed_in_the_middle_of_a_prune_leaves_the_rest_to_the_ranks(place: Place) -> None:
    place.start_agent({"verb": "delete", "match": "packs/*", "nth": 1, "do": "die before"})
    ranks = place.train("--steps", "12", "--every", "3", "--keep", "last=1")
    assert [said for said in ranks.said(0) if said.startswith("lost the agent")], ranks.text()
    assert live(place) == [12]
    assert len({path.name.partition("-")[0] for path in (place.run_dir / "packs").rglob("*.safetensors")}) <= 2


# --- what it costs ---------------------------------------------------------------------------------------------------


class Counted(Faults):
    """A store that counts what is asked of it."""

    def asked(self, verb: str, prefix: str = "") -> int:
        return sum(call.verb == verb and call.name.startswith(prefix) for call in self.calls)


def long_run(store: Store, n: int) -> Writer:
    """A run of ``n`` commits of which all but the last are given up, and nothing is left of them."""
    writer = Writer(store)
    made = writer.save(1)
    for step in range(2, n + 1):
        made = writer.run.commit(epoch=writer.epoch, parent=made.slot, step=step, parts=made.parts, meta={})
        writer.run.give_up_slot(made.slot - 1, step=step - 1)
    return writer


def test_after_the_first_look_a_prune_reads_only_what_is_new() -> None:
    store = Counted(Ram())
    writer = long_run(store, 100)
    retention = Retention()
    store.calls.clear()
    assert retention.keep(writer.run, (Last(2),)) is None
    assert store.asked("read", "slots/") == 100
    store.calls.clear()
    writer.save(101)
    store.calls.clear()
    assert retention.keep(writer.run, (Last(2),)) is None
    assert (store.asked("read", "slots/"), store.asked("read", "parts/"), store.asked("names")) == (1, 1, 5)


def test_a_slot_that_was_planted_far_above_is_refused_and_not_counted_up_to() -> None:
    writer = Writer(Ram())
    writer.save(1)
    writer.run.store.put(slot_name(9_999_999_998), [b"{}"])
    told = Retention().keep(writer.run, (Last(1),))
    assert told is not None
    assert "remove slots/9999999998.json" in told


def test_a_run_that_was_removed_and_begun_again_is_another_run() -> None:
    retention = Retention()
    for _ in range(2):
        writer = Writer(Ram())
        for step in (1, 2, 3):
            writer.save(step, frozen=step)
        assert retention.keep(writer.run, parse("last=1")) is None
        assert len(writer.run.store.names("packs/")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_with_ten_thousand_commits_a_prune_after_the_first_takes_little(kind: str, tmp_path: Path) -> None:
    store: Store = Ram() if kind == "ram" else Disk(tmp_path)
    writer = Writer(store)
    made = writer.save(1)
    record = Pruned(run=writer.run.marker.run, slot=1, step=1, created=0.0)
    for step in range(2, 10_001):
        made = msgspec.structs.replace(made, slot=step, parent=step - 1, step=step, token=f"{step:032x}")
        put_fast(store, slot_name(step), encode(made))
        if step < 9_998:
            put_fast(store, pruned_name(step), encode(msgspec.structs.replace(record, slot=step, step=step)))
    retention = Retention()
    taken_s = []
    for step in range(10_001, 10_004):
        began = time.perf_counter(), time.process_time()
        assert retention.keep(writer.run, (Last(3),)) is None
        taken_s.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        writer.stored = None
        writer.save(step, frozen=5)
    print(f"{kind}: first, second, third prune (wall, processor): {taken_s}")
    assert taken_s[2][1] < 0.3 * taken_s[0][1]
    assert_loads(writer.run, 10_003, tensors_of(5, 10_003))


def put_fast(store: Store, name: str, data: bytes) -> None:
    """Put a blob without waiting for the disk."""
    if isinstance(store, Disk):
        Path(store.root, name).parent.mkdir(exist_ok=True)
        Path(store.root, name).write_bytes(data)
    else:
        store.put(name, [data])
