"""Whoever commits, commits to the run that it was opened on, and to no other copy that was put in its place."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch

import perdure
from perdure.errors import NeedsPerson, PerdureError
from perdure.events import Log
from perdure.store import Disk, Run


def tree(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1000,), value)}


@pytest.mark.parametrize("agent", [False, True], ids=["alone", "agent"])
def test_a_writer_whose_run_was_replaced_by_a_copy_is_refused(tmp_path: Path, agent: bool) -> None:
    folder, copy = tmp_path / "run", tmp_path / "copy"
    first = perdure.Checkpointer(folder, agent=False)
    first.save(1, tree(1)).committed()
    first.close()
    shutil.copytree(folder, copy)
    old = perdure.Checkpointer(folder, agent=agent)
    assert old.restore(tree(0)) == 1
    old.save(1002, tree(1002)).committed()
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)  # as a backup is put back while the old job still hangs
    new = perdure.Checkpointer(folder, agent=False)
    assert new.restore(tree(0)) == 1
    new.save(2, tree(2)).committed()
    with pytest.raises(NeedsPerson, match="another copy of the run"):
        old.save(1003, tree(1003)).committed()
    new.save(3, tree(3)).committed()
    assert new.steps() == [1, 2, 3]
    assert perdure.load(folder)["w"][0] == 3
    for each in (old, new):
        each.close()


@pytest.mark.parametrize("agent", [False, True], ids=["alone", "agent"])
def test_a_writer_whose_run_was_begun_anew_by_another_is_refused(tmp_path: Path, agent: bool) -> None:
    folder = tmp_path / "run"
    old = perdure.Checkpointer(folder, agent=agent)
    old.save(1, tree(1)).committed()
    shutil.rmtree(folder)
    new = perdure.Checkpointer(folder, agent=False)
    new.save(10, tree(10)).committed()
    with pytest.raises(PerdureError):
        old.save(2, tree(2)).committed()
    new.save(11, tree(11)).committed()
    assert new.steps() == [10, 11]
    head = Run.open(Disk(folder), create=False).head()
    assert head is not None
    assert head.claim == Run.open(Disk(folder), create=False).token_of(head.epoch)
    for each in (old, new):
        each.close()


def test_a_training_that_forgets_to_restore_is_told(tmp_path: Path) -> None:
    with perdure_at(tmp_path) as ckpt:
        ckpt.save(1000, tree(1)).committed()
    said = tmp_path / "events"
    again = perdure.Checkpointer(tmp_path, agent=False, log=Log(str(said)))
    again.save(1, tree(2)).committed()
    again.close()
    assert "nothing was restored, but" in said.read_text()


def test_a_damaged_newest_step_leaves_the_newest_that_is_still_one(tmp_path: Path) -> None:
    with perdure_at(tmp_path) as ckpt:
        for step in range(1, 5):
            ckpt.save(step, tree(step), pin=step == 2).committed()
    run = Run.open(Disk(tmp_path), create=False)
    for slot in (1, 3):
        run.give_up(run.read_slot(slot))
    newest = tmp_path / "slots" / "0000000004.json"
    newest.write_bytes(newest.read_bytes().replace(b'"step":4', b'"step":5'))
    with perdure_at(tmp_path) as ckpt:
        assert ckpt.latest() == 2
        assert ckpt.steps() == [2]
        assert perdure.load(tmp_path)["w"][0] == 2
        with pytest.raises(perdure.errors.BlobMissing, match="was pruned"):
            perdure.load(tmp_path, step=3)


def test_a_step_of_a_branch_that_training_left_is_had_by_its_slot(tmp_path: Path) -> None:
    with perdure_at(tmp_path) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, tree(step)).committed()
    with perdure_at(tmp_path) as ckpt:
        assert ckpt.restore(tree(0), step=1) == 1
        ckpt.save(2, tree(20)).committed()
        assert ckpt.steps() == [1, 2]
        with pytest.raises(perdure.errors.BlobMissing, match="slot=3"):
            perdure.load(tmp_path, step=3)
        assert perdure.load(tmp_path, slot=3)["w"][0] == 3
        found = tree(0)
        assert ckpt.restore(found, slot=3) == 3
        assert found["w"][0] == 3
        ckpt.save(4, tree(4)).committed()
        assert ckpt.steps() == [1, 2, 3, 4]


class perdure_at:
    """A checkpointer of this process alone, closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.ckpt = perdure.Checkpointer(folder, agent=False)

    def __enter__(self) -> perdure.Checkpointer:
        return self.ckpt

    def __exit__(self, *error: object) -> None:
        self.ckpt.close()


def test_a_restore_while_steps_are_pruned_takes_a_newer_one(tmp_path: Path) -> None:
    writer = perdure.Checkpointer(tmp_path, agent=False, keep="last=1")
    writer.save(1, tree(1)).committed()
    over = threading.Event()

    def write() -> None:
        step = 1
        while not over.is_set():
            step += 1
            writer.save(step, tree(step)).committed()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with perdure_at(tmp_path) as ckpt:
            for _ in range(40):
                found = tree(0)
                assert ckpt.restore(found) == found["w"][0]
                loaded = perdure.load(tmp_path)["w"]
                assert bool((loaded == loaded[0]).all())
    finally:
        over.set()
        thread.join(60)
        writer.close()
