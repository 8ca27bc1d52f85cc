"""A full disk, a folder that was taken away: an error that says what to do, and what can be read is read."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.clock import Deadline
from perdure.errors import BlobMissing, StorageFull
from perdure.memory import Memory, document_writer, lexical, settle
from perdure.process.lock import FileLock


def full(*_args: Any, **_more: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refused(*_args: Any, **_more: Any) -> Any:
    raise StorageFull("no space is left", file="x", errno=errno.ENOSPC)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    memory = Memory(tmp_path)
    memory.observe("Anna lives in Lisbon. Bob likes tea.")
    memory.consolidate()
    return memory


DO: list[Callable[[Memory], object]] = [
    lambda memory: memory.consolidate(),
    lambda memory: memory.forget(fact=1, mode="purge"),
    lambda memory: memory.topics(),
]


@pytest.mark.parametrize("do", DO)
@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_lock_on_a_full_disk_is_told_and_is_not_kept(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, do: Callable[[Memory], object], call: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StorageFull, match="make room"):
            do(memory)
    do(memory)  # nobody holds it


def test_a_document_on_a_full_disk_is_told(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.observe("Anna sings.")
    with monkeypatch.context() as patch:
        patch.setattr(document_writer, "stage", full)
        with pytest.raises(StorageFull):
            memory.consolidate()
    memory.topics()
    assert "Anna sings." in memory.show("Anna")


@pytest.mark.parametrize("do", DO)
def test_a_folder_that_was_taken_away_is_missing(memory: Memory, do: Callable[[Memory], object]) -> None:
    shutil.rmtree(memory.folder)
    with pytest.raises(BlobMissing, match="taken away"):
        do(memory)
    assert [each.kind for each in memory.doctor()] == ["ledger"]


def test_search_answers_where_neither_index_nor_settling_can_be_written(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.search("Lisbon")
    memory.observe("Anna lives in Faro now.")
    monkeypatch.setattr(lexical, "follow", refused)
    monkeypatch.setattr(settle, "_settle_batch", refused)
    assert "Anna lives in Lisbon." in [hit.fact.text for hit in memory.search("Where does Anna live?")]
    assert "Lisbon" in memory.ask("Where does Anna live?").text
    monkeypatch.undo()
    assert memory.search("Where does Anna live?")[0].fact.text == "Anna lives in Faro now."


def test_a_lock_that_could_not_be_written_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="space"):
            FileLock.try_acquire(tmp_path / "lock")
    FileLock.acquire(tmp_path / "lock", deadline=Deadline.after(0.0, "a lock")).release()
