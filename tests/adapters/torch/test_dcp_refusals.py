"""What DCP would save or load in silence, or as a pickle, is refused by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from perdure.adapters.torch import dcp_reader, dcp_writer
from perdure.adapters.torch.dcp import StorageReader, StorageWriter
from perdure.checkpoint.config import Deadlines
from perdure.clock import SystemClock
from perdure.errors import (
    BlobCorrupt,
    BlobMissing,
    CallError,
    DeadlineExceeded,
    NotSerializable,
    StateMismatch,
    StorageFull,
)
from perdure.state.scopes import RankLocal
from perdure.store import Run, Store, open_store
from perdure.store.faults import Delay, Faults, Rule

from .dcp_runs import refused, save, steps

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_a_flipped_bit_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, {"good": torch.ones(5), "bad": torch.randn(100_000)}, 1)
    (pack,) = (path for path in (tmp_path / "packs").rglob("*") if path.is_file())
    data = bytearray(pack.read_bytes())
    data[-1000 if data[-1000:] else 0] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    back = {"good": torch.zeros(5), "bad": torch.zeros(100_000)}
    error = refused(lambda: dcp.load(back, storage_reader=StorageReader(tmp_path)))
    assert isinstance(error, BlobCorrupt)
    assert "bad" in str(error)


@pytest.mark.parametrize(("wanted", "said"), [("77", "step 77"), (None, "no run")])
def test_a_step_or_run_that_is_not_there_is_named_by_our_own_error(
    tmp_path: Path, wanted: str | None, said: str
) -> None:
    if wanted is not None:
        save(tmp_path, {"w": torch.ones(2)}, 1)
    reader = StorageReader(tmp_path)
    error = refused(lambda: dcp.load({"w": torch.zeros(2)}, checkpoint_id=wanted, storage_reader=reader))
    assert isinstance(error, BlobMissing)
    assert said in str(error)
    metadata = reader.read_metadata()  # for whoever asks without DCP
    with pytest.raises(BlobMissing, match=said):
        metadata.state_dict_metadata.get("w")


def test_what_the_planner_refuses_by_itself_is_an_error_of_torch_with_the_name(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.ones(2)}, 1)
    for state, kind, name in (({"v": torch.zeros(2)}, RuntimeError, "v"), ({"w": torch.zeros(3)}, ValueError, "w")):
        with pytest.raises(CheckpointException) as caught:
            dcp.load(state, storage_reader=StorageReader(tmp_path))
        error = caught.value.failures[0][0]
        assert type(error) is kind
        assert f" {name}" in str(error)


def test_another_dtype_is_refused_unless_a_cast_is_asked_for(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.tensor([1.5, 2.5])}, 1)
    back = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    error = refused(lambda: dcp.load(back, storage_reader=StorageReader(tmp_path)))
    assert isinstance(error, StateMismatch)
    assert error.dtype == ["w"]
    dcp.load(back, storage_reader=StorageReader(tmp_path, cast=True))
    assert back["w"].tolist() == [1.5, 2.5]


def test_a_value_without_a_place_is_refused_by_name(tmp_path: Path) -> None:
    error = refused(lambda: save(tmp_path, {"deep": {"odd": object()}}, 1))
    assert isinstance(error, NotSerializable)
    assert "deep.odd" in str(error)
    assert isinstance(refused(lambda: save(tmp_path, {"r": RankLocal(1)}, 1)), NotSerializable)


def test_a_planner_that_fails_again_and_again_costs_no_memory_for_the_next(tmp_path: Path) -> None:
    class Fails(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return torch.zeros(3)

    for _ in range(4):  # more than there are segments
        writer = StorageWriter(tmp_path)
        error = refused(
            lambda: dcp.save({"w": torch.ones(2)}, checkpoint_id="1", storage_writer=writer, planner=Fails())  # noqa: B023
        )
        assert "w is torch.float32[3], but float32[2] was planned" in str(error)
    save(tmp_path, {"w": torch.ones(2)}, 1)
    assert steps(tmp_path) == [1]


def test_names_that_would_collide_are_refused(tmp_path: Path) -> None:
    error = refused(lambda: save(tmp_path, {"a": (torch.ones(1),), "a.0": torch.ones(1)}, 1))
    assert "a.0" in str(error)


class _Pickles(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: Any) -> None:
        raise AssertionError("nobody gives bytes")


def test_planners_that_want_pickles_or_cache_plans_are_refused(tmp_path: Path) -> None:
    save(tmp_path, {"n": 1}, 1)
    reader = StorageReader(tmp_path)
    error = refused(lambda: dcp.load({"n": 0}, storage_reader=reader, planner=_Pickles()))
    assert "_Pickles wants the value n" in str(error)
    caching = DefaultSavePlanner(enable_plan_caching=True)
    writer = StorageWriter(tmp_path)
    error = refused(lambda: dcp.save({"n": 1}, checkpoint_id="2", storage_writer=writer, planner=caching))
    assert "enable_plan_caching=False" in str(error)
    with pytest.raises(CallError, match="use_collectives"):
        dcp.save({"n": 1}, checkpoint_id="2", storage_writer=writer, use_collectives=False)


def test_a_full_disk_costs_the_step_and_leaves_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, {"w": torch.ones(5)}, 1)

    def full(*_: Any, **__: Any) -> Any:
        raise StorageFull("no room")

    writer = StorageWriter(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Run, "commit", full)
        again = lambda: dcp.save({"w": torch.zeros(5)}, checkpoint_id="2", storage_writer=writer)  # noqa: E731
        assert isinstance(refused(again), StorageFull)
    assert steps(tmp_path) == [1]
    dcp.save({"w": torch.full((5,), 3.0)}, checkpoint_id="3", storage_writer=writer)
    assert steps(tmp_path) == [3, 1]
    assert len(list((tmp_path / "parts").rglob("*.jsonl"))) == 2


class _Gate(SystemClock):
    """Time that stands still until the test is over."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def sleep(self, seconds: float) -> None:
        assert self.opened.wait(seconds), "the test forgot its gate"


@pytest.fixture
def hung() -> Iterator[Callable[[Any, str], Store]]:
    """What opens a store of which one verb hangs, until the test is over."""
    gate = _Gate()

    def opened(verb: Any, match: str) -> Callable[[Any], Store]:
        rule = Rule(verb, Delay(60.0, gate), match=match, times=None)
        return lambda place: Faults(open_store(place), [rule])

    yield opened
    gate.opened.set()


def test_a_store_that_hangs_is_given_up_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: Any) -> None:
    save(tmp_path, {"w": torch.ones(2)}, 1)
    short = Deadlines(stall_s=0.3, commit_s=0.3)
    monkeypatch.setattr(dcp_reader, "open_store", hung("read", "packs/*"))
    error = refused(lambda: dcp.load({"w": torch.zeros(2)}, storage_reader=StorageReader(tmp_path, deadlines=short)))
    assert isinstance(error, DeadlineExceeded)
    assert "reading tensors of file://" in str(error)
    monkeypatch.setattr(dcp_writer, "open_store", hung("put", "packs/*"))
    writer = StorageWriter(tmp_path, step=2, deadlines=short)
    error = refused(lambda: dcp.save({"w": torch.zeros(2)}, storage_writer=writer))
    assert isinstance(error, DeadlineExceeded)
    assert "writing step 2" in str(error)
    assert steps(tmp_path) == [1]
