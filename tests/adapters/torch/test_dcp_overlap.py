"""Saves through DCP that overlap: steps rise, and an older one that comes too late is refused by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from perdure.adapters.torch.dcp import StorageReader, StorageWriter
from perdure.adapters.torch.load import load
from perdure.checkpoint import drain
from perdure.errors import CallError, StorageFull

from .dcp_runs import cause, refused, run_of, save, steps

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

_PATIENCE_S = 60.0
Gated = Callable[[StorageWriter, int], "Future[Any]"]


class _Gates:
    """A step for which there is a gate says when it is about to be written, and waits to be let on."""

    def __init__(self) -> None:
        self.comes: dict[int, threading.Event] = {}
        self.may_go: dict[int, threading.Event] = {}
        self.fails: set[int] = set()

    def hold(self, step: int) -> None:
        self.comes[step], self.may_go[step] = threading.Event(), threading.Event()

    def passed(self, step: int) -> None:
        if step in self.comes:
            may_go = self.may_go[step]  # before the next of this step makes its own
            self.comes[step].set()
            assert may_go.wait(_PATIENCE_S), f"the test forgot step {step}"
        if step in self.fails:
            raise StorageFull("no room")


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Gates]:
    made, write = _Gates(), drain.write_part

    def late(run: Any, order: drain.Order, **more: Any) -> Any:
        made.passed(order.step)
        return write(run, order, **more)

    monkeypatch.setattr(drain, "write_part", late)
    yield made
    for gate in made.may_go.values():
        gate.set()


def begun(gates: _Gates, writer: StorageWriter, step: int) -> Future[Any]:
    """A save that is on its way: it has begun, and waits at its gate before it writes."""
    gates.hold(step)
    weight = torch.full((1000,), float(step))
    future = dcp.async_save({"w": weight}, checkpoint_id=f"step-{step}", storage_writer=writer)
    assert isinstance(future, Future)
    assert gates.comes[step].wait(_PATIENCE_S), f"step {step} did not begin: {future}"
    return future


def failed(future: Future[Any]) -> Exception:
    with pytest.raises(CheckpointException) as caught:
        future.result(_PATIENCE_S)
    return cause(caught.value)


def whole(url: Path) -> dict[int, list[float]]:
    """What is in each step, newest first."""
    return {step: load(url, step=step)["w"].unique().tolist() for step in steps(url)}


@pytest.fixture(params=["a writer for each", "one writer for all"])
def writers(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StorageWriter]:
    one = StorageWriter(tmp_path)
    return (lambda: one) if request.param == "one writer for all" else (lambda: StorageWriter(tmp_path))


def test_saves_that_overlap_and_end_in_order_are_both_there(
    tmp_path: Path, gates: _Gates, writers: Callable[[], StorageWriter]
) -> None:
    older, newer = begun(gates, writers(), 2), begun(gates, writers(), 3)
    for step, future in ((2, older), (3, newer)):
        gates.may_go[step].set()
        future.result(_PATIENCE_S)
    assert whole(tmp_path) == {3: [3], 2: [2]}


def test_a_save_that_a_later_one_has_overtaken_is_refused_before_its_commit(
    tmp_path: Path, gates: _Gates, writers: Callable[[], StorageWriter]
) -> None:
    older, newer = begun(gates, writers(), 2), begun(gates, writers(), 3)
    gates.may_go[3].set()
    newer.result(_PATIENCE_S)
    gates.may_go[2].set()
    error = failed(older)
    assert isinstance(error, CallError)
    assert "still on its way" in str(error)
    assert "when step 3 was saved" in str(error)
    assert "wait for the future of a save" in str(error)
    assert whole(tmp_path) == {3: [3]}
    save(tmp_path, {"w": torch.full((5,), 4.0)}, 4)
    assert whole(tmp_path) == {4: [4], 3: [3]}
    head = run_of(tmp_path).head()
    assert head is not None
    assert head.parent is not None


def test_a_save_whose_thread_comes_after_that_of_a_later_one_is_refused_before_it_writes(
    tmp_path: Path, gates: _Gates, writers: Callable[[], StorageWriter]
) -> None:
    save(tmp_path, {"w": torch.ones(5)}, 1)
    newer = begun(gates, writers(), 3)
    written = sorted(tmp_path.rglob("*"))
    weight = torch.full((1000,), 2.0)
    error = failed(dcp.async_save({"w": weight}, checkpoint_id="step-2", storage_writer=writers()))  # type: ignore[arg-type]
    assert isinstance(error, CallError)
    assert "step 2 was not saved: the later step 3 is still on its way" in str(error)
    assert "wait for the future of a save" in str(error)
    assert sorted(tmp_path.rglob("*")) == written
    gates.may_go[3].set()
    newer.result(_PATIENCE_S)
    assert whole(tmp_path) == {3: [3], 1: [1]}


@pytest.mark.parametrize("wins", [0, 1])
def test_of_two_saves_of_one_step_one_is_there(tmp_path: Path, gates: _Gates, wins: int) -> None:
    saves, may_go = [], []
    for _ in range(2):
        saves.append(begun(gates, StorageWriter(tmp_path), 2))
        may_go.append(gates.may_go[2])
    may_go[wins].set()
    saves[wins].result(_PATIENCE_S)
    may_go[1 - wins].set()
    assert "step 2 was not saved" in str(failed(saves[1 - wins]))
    assert whole(tmp_path) == {2: [2]}


def test_a_later_save_that_has_failed_is_in_nobodys_way(tmp_path: Path, gates: _Gates) -> None:
    gates.fails = {9}
    kept = StorageWriter(tmp_path)  # as an error keeps it, in its frames
    assert isinstance(
        refused(lambda: dcp.save({"w": torch.ones(5)}, checkpoint_id="9", storage_writer=kept)), StorageFull
    )
    save(tmp_path, {"w": torch.full((5,), 2.0)}, 2)
    with ThreadPoolExecutor(1) as pool:
        weight = {"w": torch.ones(5)}
        failing = pool.submit(dcp.save, weight, checkpoint_id="9", storage_writer=kept)
        assert isinstance(failed(failing), StorageFull)
    save(tmp_path, {"w": torch.full((5,), 3.0)}, 3)
    assert whole(tmp_path) == {3: [3], 2: [2]}


def test_a_save_under_way_is_in_nobodys_way_after_a_load(tmp_path: Path, gates: _Gates) -> None:
    save(tmp_path, {"w": torch.ones(1000)}, 1)
    left = begun(gates, StorageWriter(tmp_path), 9)
    dcp.load({"w": torch.zeros(1000)}, checkpoint_id="1", storage_reader=StorageReader(tmp_path))
    save(tmp_path, {"w": torch.full((5,), 2.0)}, 2)
    gates.may_go[9].set()
    assert "epoch 2" in str(failed(left))  # Superseded: of the training before the load
    assert whole(tmp_path) == {2: [2], 1: [1]}
