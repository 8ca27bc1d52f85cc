"""Save and restore from one process, without an agent: steps, branches, failures, and what may change after a save."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perdure.adapters.torch import device_copy
from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.load import load
from perdure.errors import (
    BlobCorrupt,
    BlobMissing,
    CallError,
    DeadlineExceeded,
    StateMismatch,
    StorageError,
    StorageFull,
    Superseded,
)
from perdure.store import Ram, Run, open_store
from perdure.store.faults import Corrupt, Delay, Fail, Faults, Rule

from .trips import DTYPE_NAMES, assert_same, bits, filled

Make = Callable[..., Any]


def tree_of(fill: float = 0.0) -> dict[str, Any]:
    torch.manual_seed(int(fill))
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.05))
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "n": fill,
    }


def train(tree: dict[str, Any], steps: int = 1) -> None:
    for _ in range(steps):
        tree["model"](torch.randn(4, 3)).square().sum().backward()
        tree["optimizer"].step()
        tree["optimizer"].zero_grad()
        tree["n"] += 1


def contents(tree: dict[str, Any]) -> list[Any]:
    tensors = {name: bits(tensor) for name, tensor in tree["model"].state_dict().items()}
    moments = [{name: bits(value) for name, value in state.items()} for state in tree["optimizer"].state.values()]
    return [tensors, moments, float(tree["optimizer"].param_groups[0]["lr"]), tree["schedule"].last_epoch, tree["n"]]


# --- there and back --------------------------------------------------------------------------------------------------


def test_what_was_saved_is_restored_bit_for_bit(checkpointer: Make, ram_url: str) -> None:
    one = tree_of(1)
    train(one, 2)
    ckpt = checkpointer(ram_url)
    outcome = ckpt.save(2, one).committed()
    expected = contents(one)
    assert outcome.slot == 1
    assert outcome.raw_nbytes == ckpt.save(2, one).nbytes
    live = tree_of(5)
    assert checkpointer(ram_url).restore(live) == 2
    assert contents(live) == expected


def test_nothing_is_restored_from_an_empty_run_and_nothing_is_changed(checkpointer: Make, ram_url: str) -> None:
    live = tree_of(1)
    before = contents(live)
    ckpt = checkpointer(ram_url)
    assert ckpt.restore(live) is None
    assert contents(live) == before
    assert (ckpt.steps(), ckpt.latest()) == ([], None)


def test_a_place_without_a_run_has_no_steps(checkpointer: Make, tmp_path: Path) -> None:
    ckpt = checkpointer(tmp_path / "not there")
    assert (ckpt.steps(), ckpt.latest()) == ([], None)
    assert not (tmp_path / "not there").exists()


@pytest.mark.parametrize("place", ["plain path", "file url", "text"])
def test_a_folder_is_given_in_any_way(checkpointer: Make, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "a run"
    given: Any = {"plain path": folder, "file url": folder.as_uri(), "text": str(folder)}[place]
    checkpointer(given).save(1, {"w": torch.arange(3)}).committed()
    live = torch.zeros(3, dtype=torch.int64)
    assert checkpointer(str(folder)).restore({"w": live}) == 1
    assert live.tolist() == [0, 1, 2]


def test_steps_and_latest_tell_what_is_committed(checkpointer: Make, ram_url: str) -> None:
    ckpt, reader = checkpointer(ram_url), checkpointer(ram_url)
    for step in (1, 5, 9):
        ckpt.save(step, {"w": torch.full((2,), step)}).committed()
    assert (reader.steps(), reader.latest()) == ([1, 5, 9], 9)
    assert (ckpt.steps(), ckpt.latest()) == ([1, 5, 9], 9)


def test_a_step_is_asked_for_by_number_or_is_missing(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    for step in (1, 2, 3):
        ckpt.save(step, {"w": torch.full((2,), step)}).committed()
    live = {"w": torch.zeros(2, dtype=torch.int64)}
    assert ckpt.restore(live, step=2) == 2
    assert live["w"].tolist() == [2, 2]
    with pytest.raises(BlobMissing, match="step 7") as caught:
        ckpt.restore(live, step=7)
    assert caught.value.step == 7
    assert live["w"].tolist() == [2, 2]


def test_after_a_rollback_newest_follows_the_branch_and_not_the_highest_step(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    for step in (10, 20, 30):
        ckpt.save(step, {"w": torch.full((1,), step)}).committed()
    live = {"w": torch.zeros(1, dtype=torch.int64)}
    assert ckpt.restore(live, step=10) == 10
    for step in (11, 12):
        ckpt.save(step, {"w": torch.full((1,), -step)}).committed()
    again = checkpointer(ram_url)
    assert (again.latest(), again.steps()) == (12, [10, 11, 12])
    assert again.restore(live) == 12
    assert live["w"].item() == -12
    with pytest.raises(BlobMissing):
        again.restore(live, step=30)


def test_lower_steps_may_follow_higher_ones(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    for step in (5, 3):
        ckpt.save(step, {"w": torch.full((1,), step)}).committed()
    live = {"w": torch.zeros(1, dtype=torch.int64)}
    assert checkpointer(ram_url).restore(live) == 3
    assert live["w"].item() == 3


def test_the_same_step_saved_twice_is_restored_as_it_was_the_second_time(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    w = torch.ones(2)
    first = ckpt.save(5, {"w": w}).committed()
    w.fill_(2)
    second = ckpt.save(5, {"w": w}).committed()
    assert second.slot == first.slot + 1
    live = {"w": torch.zeros(2)}
    assert checkpointer(ram_url).restore(live) == 5
    assert live["w"].tolist() == [2, 2]


def test_saves_need_not_be_awaited_one_by_one(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    saves = [ckpt.save(step, {"w": torch.full((100,), step)}) for step in range(1, 8)]
    assert [each.committed().slot for each in saves] == list(range(1, 8))
    for step in range(1, 8):
        assert load(ram_url, step=step)["w"].tolist() == [step] * 100


def test_a_store_slower_than_the_loop_holds_the_loop_up_and_not_more_than_two_steps_in_memory(
    checkpointer: Make,
) -> None:
    slow = Faults(Ram(), [Rule("put", Delay(0.05), match="packs/*", times=None)])
    ckpt = checkpointer(slow)
    for step in range(1, 7):
        ckpt.save(step, {"w": torch.full((100,), step)})
        assert len(ckpt.in_flight) <= 3  # two whole ones, and the one whose end is being told
    ckpt.close()
    assert ckpt.steps() == [1, 2, 3, 4, 5, 6]


def test_a_closed_checkpointer_leaves_no_thread_and_no_memory(ram_url: str) -> None:
    before = set(threading.enumerate())
    ckpt = Checkpointer(ram_url, agent=False)
    model = nn.Linear(100, 100)
    ckpt.save(1, {"model": model}).committed()
    ckpt.close()
    known = weakref.ref(ckpt), weakref.ref(model)
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()
    del ckpt, model
    gc.collect()
    assert [each() for each in known] == [None, None]


def test_a_tree_may_change_between_saves(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    tree: dict[str, Any] = {"w": torch.ones(2)}
    ckpt.save(1, tree).committed()
    tree["more"] = torch.full((3,), 7)
    tree["v"] = "value"
    ckpt.save(2, tree).committed()
    del tree["w"]
    ckpt.save(3, tree).committed()
    assert set(load(ram_url, step=2)) == {"w", "more"}
    assert set(load(ram_url, step=3)) == {"more"}
    assert set(load(ram_url, step=1)) == {"w"}


def test_training_goes_on_from_a_restored_step_in_the_same_process(checkpointer: Make, ram_url: str) -> None:
    ckpt, tree = checkpointer(ram_url), tree_of(1)
    train(tree, 2)
    ckpt.save(2, tree).committed()
    expected = contents(tree)
    train(tree, 3)
    assert ckpt.restore(tree) == 2
    assert contents(tree) == expected
    train(tree)
    ckpt.save(3, tree).committed()
    expected = contents(tree)
    live = tree_of(9)
    assert checkpointer(ram_url).restore(live) == 3
    assert contents(live) == expected


def test_restore_waits_for_the_saves_that_are_under_way(checkpointer: Make, ram_url: str) -> None:
    ckpt, tree = checkpointer(ram_url), tree_of(1)
    train(tree)
    ckpt.save(1, tree)
    expected = contents(tree)
    train(tree)
    assert ckpt.restore(tree) == 1
    assert contents(tree) == expected


# --- facts beside the state ------------------------------------------------------------------------------------------


def test_meta_metric_and_pin_are_in_the_commit(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    ckpt.save(1, {"w": torch.ones(1)}, meta={"note": ["a", 1.5]}, metric=0.25, pin=True).committed()
    ckpt.save(2, {"w": torch.ones(1)}).committed()
    run = Run.open(open_store(ram_url), create=False)
    two, one = run.chain()
    assert (one.meta, one.metric, one.pinned) == ({"note": ["a", 1.5]}, 0.25, True)
    assert (two.meta, two.metric, two.pinned) == ({}, None, False)


def test_wait_for_returns_the_first_step_after_one_or_gives_up(checkpointer: Make, ram_url: str) -> None:
    ckpt, reader = checkpointer(ram_url), checkpointer(ram_url)
    with pytest.raises(DeadlineExceeded, match="a committed step after 0"):
        reader.wait_for(step_after=0, timeout_s=0.05)
    ckpt.save(4, {"w": torch.ones(1)}).committed()
    assert reader.wait_for(step_after=3, timeout_s=5) == 4
    with pytest.raises(DeadlineExceeded, match="the newest is 4"):
        reader.wait_for(step_after=4, timeout_s=0.05)


def test_the_handle_tells_how_far_a_save_is(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    saved = ckpt.save(3, {"w": torch.ones(1)})
    saved.staged()
    saved.reached("memory")
    saved.reached("disk")
    assert saved.settled
    assert repr(saved) == "Saved(step=3, committed)"
    assert ckpt.in_flight == []


def test_a_closed_checkpointer_has_finished_its_saves_and_takes_no_more(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    saves = [ckpt.save(step, {"w": torch.zeros(10_000)}) for step in (1, 2)]
    ckpt.close()
    ckpt.close()
    assert all(each.settled and each.error is None for each in saves)
    with pytest.raises(CallError, match="closed"):
        ckpt.save(3, {"w": torch.zeros(1)})
    with pytest.raises(CallError, match="closed"):
        ckpt.restore({"w": torch.zeros(1)})
    assert ckpt.latest() == 2


# --- what may change after a save ------------------------------------------------------------------------------------


@pytest.fixture
def slow_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may wait for the optimizer is copied only after a while."""
    finish = device_copy._Copying.finish

    def slow(copying: Any) -> None:
        time.sleep(0.2)
        finish(copying)

    monkeypatch.setattr(device_copy._Copying, "finish", slow)


def restored(place: Any, checkpointer: Make, like: dict[str, Any]) -> list[Any]:
    assert checkpointer(place).restore(like) == 1
    return contents(like)


@pytest.mark.usefixtures("slow_copy")
def test_an_optimizer_step_right_after_a_save_does_not_reach_the_saved_bytes(checkpointer: Make, ram_url: str) -> None:
    ckpt, tree = checkpointer(ram_url), tree_of(1)
    train(tree, 2)
    expected = contents(tree)
    saved = ckpt.save(1, tree)
    assert not saved.is_staged
    train(tree)
    assert saved.is_staged
    saved.committed()
    assert restored(ram_url, checkpointer, tree_of(3)) == expected


@pytest.mark.usefixtures("slow_copy")
def test_a_forward_and_a_schedule_right_after_a_save_do_not_reach_the_saved_bytes(
    checkpointer: Make, ram_url: str
) -> None:
    """Buffers change in the forward, a rate that is a tensor when the scheduler steps: both are copied at once."""
    ckpt, tree = checkpointer(ram_url), tree_of(1)
    train(tree, 2)
    expected = contents(tree)
    saved = ckpt.save(1, tree)
    tree["model"](torch.randn(4, 3))
    tree["schedule"].step()
    assert not saved.is_staged
    tree["n"] = -1
    saved.committed()
    assert restored(ram_url, checkpointer, tree_of(3)) == expected


@pytest.mark.usefixtures("slow_copy")
def test_optimizers_inside_dicts_wait_too(checkpointer: Make, ram_url: str) -> None:
    ckpt, tree = checkpointer(ram_url), tree_of(1)
    train(tree, 2)
    before = bits(tree["model"][0].weight)
    saved = ckpt.save(1, {"deep": {"model": tree["model"], "optimizers": {"a": tree["optimizer"]}}})
    train(tree)
    saved.committed()
    assert bits(load(ram_url)["deep.model.0.weight"]) == before


@pytest.mark.usefixtures("slow_copy")
def test_each_of_two_checkpointers_of_one_optimizer_is_waited_for(checkpointer: Make) -> None:
    tree = tree_of(1)
    train(tree, 2)
    first, second = Ram(), Ram()
    checkpointer(first).save(1, tree).committed()
    expected = contents(tree)
    saved = checkpointer(second).save(1, tree)
    train(tree)
    saved.committed()
    assert restored(second, checkpointer, tree_of(3)) == expected


@pytest.mark.usefixtures("slow_copy")
def test_without_an_optimizer_in_the_tree_all_is_copied_before_save_returns(checkpointer: Make, ram_url: str) -> None:
    ckpt, tree = checkpointer(ram_url), tree_of(1)
    before = bits(tree["model"][0].weight)
    saved = ckpt.save(1, {"model": tree["model"]})
    train(tree)
    assert bits(tree["model"][0].weight) != before
    saved.committed()
    assert bits(load(ram_url)["model.0.weight"]) == before


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        Rule("put", Fail(StorageFull("the disk is full", file="x")), match="packs/*"),
        Rule("create", Fail(StorageError("no permission", file="x")), match="parts/*"),
        Rule("create", Fail(StorageError("no permission", file="x")), match="slots/*"),
    ],
    ids=["the pack", "the part", "the commit"],
)
def test_a_save_that_fails_raises_and_leaves_the_previous_step_the_latest(checkpointer: Make, rule: Rule) -> None:
    store = Ram()
    checkpointer(store).save(1, {"w": torch.ones(2)}).committed()
    ckpt = checkpointer(Faults(store, [rule]))
    saved = ckpt.save(2, {"w": torch.full((2,), 2.0)})
    with pytest.raises(StorageError):
        saved.committed()
    with pytest.raises(StorageError):
        saved.committed()
    assert isinstance(saved.error, StorageError)
    saved.staged()
    assert repr(saved) == "Saved(step=2, failed)"
    assert ckpt.latest() == 1
    give_up = time.monotonic() + 5
    while "step 2" not in ckpt.said() and time.monotonic() < give_up:
        time.sleep(0.005)  # it is told after whoever waits has heard it
    assert "step 2" in ckpt.said()
    live = {"w": torch.zeros(2)}
    assert checkpointer(store).restore(live) == 1
    assert live["w"].tolist() == [1, 1]
    assert ckpt.save(3, {"w": torch.full((2,), 3.0)}).committed().slot == 2
    assert ckpt.steps() == [3]


def test_a_corrupt_step_is_passed_over_for_the_one_before_and_the_log_says_so(checkpointer: Make) -> None:
    store = Ram()
    writer = checkpointer(store)
    for step in (1, 2):
        writer.save(step, {"w": torch.full((2,), step)}).committed()
    newest = max(store.names("packs/"))
    ckpt = checkpointer(Faults(store, [Rule("read", Corrupt(at=-1), match=newest, times=None)]))
    live = {"w": torch.zeros(2, dtype=torch.int64)}
    assert ckpt.restore(live) == 1
    assert live["w"].tolist() == [1, 1]
    assert "step 2 could not be used" in ckpt.said()
    with pytest.raises(BlobCorrupt):
        ckpt.restore(live, step=2)


def test_a_corrupt_only_step_is_an_error_that_names_the_file(checkpointer: Make) -> None:
    store = Ram()
    checkpointer(store).save(1, {"w": torch.ones(2)}).committed()
    (pack,) = store.names("packs/")
    # the first read is that of the header
    ckpt = checkpointer(Faults(store, [Rule("read", Corrupt(at=-1), match=pack, nth=2, times=None)]))
    with pytest.raises(BlobCorrupt, match="no step can be restored") as caught:
        ckpt.restore({"w": torch.zeros(2)})
    assert (caught.value.tensor, caught.value.file) == ("w", pack)


def test_a_tree_that_does_not_fit_is_refused_before_anything_changes(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    ckpt.save(1, {"a": torch.ones(2), "b": torch.ones(2), "v": 1}).committed()
    live = {"a": torch.zeros(2), "b": torch.zeros(3), "v": 0}
    with pytest.raises(StateMismatch) as caught:
        checkpointer(ram_url).restore(live)
    assert caught.value.shape == ["b"]
    assert (live["a"].tolist(), live["v"]) == ([0, 0], 0)


def test_what_cannot_be_saved_raises_at_once_and_the_next_save_works(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    for _ in range(2):  # before and after the first save
        with pytest.raises(CallError, match="bad"):
            ckpt.save(1, {"w": torch.ones(2), "bad": object()})
        ckpt.save(2, {"w": torch.ones(2)}).committed()
    assert ckpt.steps() == [2]


def test_names_that_a_pack_cannot_hold_raise_at_once(checkpointer: Make, ram_url: str) -> None:
    with pytest.raises(CallError, match="__w"):
        checkpointer(ram_url).save(1, {"__w": torch.ones(2)})


def test_two_writers_the_older_one_is_told_to_stop(checkpointer: Make) -> None:
    store = Ram()
    old, new = checkpointer(store), checkpointer(store)
    old.save(1, {"w": torch.ones(1)}).committed()
    new.restore({"w": torch.zeros(1)})
    new.save(2, {"w": torch.ones(1)}).committed()
    saved = old.save(2, {"w": torch.ones(1)})
    with pytest.raises(Superseded):
        saved.committed()
    assert new.save(3, {"w": torch.ones(1)}).committed().slot == 3


def test_every_dtype_survives_a_real_folder(checkpointer: Make, tmp_path: Path) -> None:
    tree = {name: filled(name, (5, 3), seed=i) for i, name in enumerate(DTYPE_NAMES)}
    checkpointer(tmp_path).save(1, tree).committed()
    live = {name: filled(name, (5, 3), seed=99) for name in tree}
    assert checkpointer(tmp_path).restore(live) == 1
    assert_same(live, tree)
    assert_same(load(tmp_path), tree)


def test_what_cannot_be_a_step_is_refused_with_the_limits(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    for step in (10**12, -1, True, 1.0, "1"):
        with pytest.raises(CallError, match="from 0 to 999,999,999,999"):
            ckpt.save(step, {})
    ckpt.save(10**12 - 1, {}).committed()
    assert ckpt.steps() == [10**12 - 1]


@pytest.mark.parametrize("metric", ["a", True, float("nan"), float("inf"), 10**400, 1j, torch.ones(2), [1.0]])
def test_a_metric_that_is_no_finite_number_is_refused_before_anything_is_staged(
    checkpointer: Make, ram_url: str, metric: Any
) -> None:
    ckpt = checkpointer(ram_url)
    with pytest.raises(CallError, match=r"^metric is .*; give one finite number"):
        ckpt.save(1, {"w": torch.zeros(1)}, metric=metric)
    assert not ckpt.session  # it has not even met the others
    assert ckpt.in_flight == []


def test_numbers_of_any_kind_can_be_a_metric(checkpointer: Make, ram_url: str) -> None:
    ckpt = checkpointer(ram_url)
    for step, metric in enumerate((1, 0.5, np.float32(0.5), np.int64(3))):
        ckpt.save(step, {}, metric=metric).committed()
        head = Run.open(open_store(ram_url), create=False).head()
        assert head is not None
        assert (head.step, type(head.metric), head.metric) == (step, float, float(metric))


@pytest.mark.parametrize("option", ["memory_bytes", "budget_bytes"])
@pytest.mark.parametrize("given", ["1G", 0, 1.5, True])
def test_what_is_no_number_of_bytes_is_refused_at_once(tmp_path: Path, option: str, given: Any) -> None:
    with pytest.raises(CallError, match=f"{option} is {given!r}; give a whole number of bytes"):
        Checkpointer(tmp_path, **{option: given})


@pytest.mark.parametrize("log", ["events.jsonl", "", print, 0])
def test_a_log_that_is_none_is_refused_at_once(ram_url: str, log: Any) -> None:
    with pytest.raises(CallError, match=r"give a perdure\.events\.Log"):
        Checkpointer(ram_url, agent=False, log=log)
