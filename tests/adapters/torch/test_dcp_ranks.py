"""Real ranks that save and load through DCP: other meshes, full disks, kill -9; and a Checkpointer's runs."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict

from perdure.adapters.torch import dcp_writing
from perdure.adapters.torch.dcp import StorageReader, StorageWriter
from perdure.checkpoint import drain
from perdure.errors import (
    StorageFull,
    Superseded,
)
from perdure.store import Run

from . import gloo
from .dcp_runs import cause, command_line, refused, save, steps
from .test_meshes import Forms, contents, fsdp, fsdp_and_tp, saving, train, tree
from .trips import bits

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def states(of: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = get_state_dict(of["model"], of["optimizer"])
    return {"model": model, "optimizer": optimizer, "position": (7, "b")}


def dcp_saving(place: Path, cut: Forms | None, step: int) -> Callable[[], Any]:
    def work() -> Any:
        of = tree(cut, seed=1)
        for _ in range(2):
            train(of)
        save(place, states(of), step)
        return contents(of)

    return work


def dcp_loading(place: Path, cut: Forms | None) -> Callable[[], Any]:
    def work() -> Any:
        of = tree(cut, seed=2)
        state = states(of)
        state["position"] = None
        dcp.load(state, storage_reader=StorageReader(place))
        if state["position"] is not None:
            assert state["position"] == (7, "b")
        set_state_dict(
            of["model"], of["optimizer"], model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        return contents(of)

    return work


@pytest.mark.parametrize(
    ("before", "had", "others"),
    [
        (fsdp(2), 2, [(fsdp(3), 3), (None, 1)]),
        pytest.param(fsdp_and_tp, 4, [(fsdp(2), 2)], marks=pytest.mark.slow),
    ],
    ids=["2 to 3 and 1", "2x2 to 2"],
)
def test_what_one_mesh_saved_any_other_loads(
    tmp_path: Path, before: Forms, had: int, others: list[tuple[Forms | None, int]]
) -> None:
    saved = gloo.run(had, dcp_saving(tmp_path, before, 4))
    for after, has in others:
        found = gloo.run(has, dcp_loading(tmp_path, after))
        assert all(each == saved[0] for each in found)
    assert steps(tmp_path) == [4]
    assert command_line("verify", str(tmp_path)) == 0


def test_a_run_of_a_checkpointer_is_loaded_by_dcp_with_its_optimizer(tmp_path: Path) -> None:
    saved = gloo.run(2, saving(tmp_path, fsdp(2), 4))

    def work() -> Any:
        of = tree(fsdp(3), seed=2)
        model, optimizer = get_state_dict(of["model"], of["optimizer"])
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, storage_reader=StorageReader(tmp_path))
        set_state_dict(of["model"], of["optimizer"], model_state_dict=model, optim_state_dict=optimizer)
        return contents(of)

    assert all(each == saved[0] for each in gloo.run(3, work))


def test_a_checkpointer_restores_what_dcp_saved_under_the_same_names(tmp_path: Path, checkpointer: Any) -> None:
    def work() -> Any:
        of = tree(fsdp(2), seed=1)
        save(tmp_path, {"model": get_model_state_dict(of["model"]), "position": (7, "b")}, 4)
        return {name: bits(each.full_tensor()) for name, each in of["model"].named_parameters()}

    saved = gloo.run(2, work)[0]
    model = tree(None, seed=2)["model"]
    state = {"model": model, "position": None}
    assert checkpointer(tmp_path).restore(state) == 4
    assert state["position"] == (7, "b")
    assert {name: bits(each) for name, each in model.named_parameters()} == saved


def test_values_that_differ_between_ranks_and_steps_that_do_fail_on_all(tmp_path: Path) -> None:
    def work() -> Any:
        rank = torch.distributed.get_rank()
        with pytest.raises(CheckpointException) as caught:
            save(tmp_path, {"w": torch.ones(2), "seed": rank}, 1)
        said = [str(cause(caught.value))]
        with pytest.raises(CheckpointException) as caught:
            save(tmp_path, {"w": torch.ones(2)}, 1 + rank)
        return [*said, str(cause(caught.value))]

    for values, numbers in gloo.run(2, work):
        assert "the value seed differs between rank 0 and rank 1" in values
        assert "rank 1 saves step 2, rank 0 step 1" in numbers
    assert steps(tmp_path) == []


@pytest.mark.parametrize("many", [False, True], ids=["one writer", "a writer for each save"])
def test_a_full_disk_of_one_rank_costs_the_step_on_all_and_its_remains_go_with_the_next(
    tmp_path: Path, many: bool
) -> None:
    def work() -> Any:
        one, real = StorageWriter(tmp_path), drain.write_part

        def save_all(step: int) -> None:
            state = {"a": torch.full((300,), step), "b": torch.full((300,), -step)}
            writer = StorageWriter(tmp_path) if many else one
            dcp.save(state, checkpoint_id=f"{step}", storage_writer=writer)

        save_all(1)
        if torch.distributed.get_rank() == 1:
            drain.write_part = _full
        error = cause_of(refusal(lambda: save_all(2)), 1)
        drain.write_part = real
        gc.collect()  # the error had the writer in its frames
        save_all(3)
        return error

    assert gloo.run(2, work) == ["StorageFull"] * 2
    assert steps(tmp_path) == [3, 1]
    parts = [path.name for path in (tmp_path / "parts").rglob("*.jsonl")]
    assert len(parts) == 4, parts  # two of each committed step


def refusal(work: Callable[[], Any]) -> CheckpointException:
    try:
        work()
    except CheckpointException as error:
        return error
    raise AssertionError("it was saved")


def cause_of(error: CheckpointException, rank: int) -> str:
    return type(error.failures[rank][0]).__name__


def _full(*_: Any, **__: Any) -> Any:
    raise StorageFull("no room")


@pytest.mark.parametrize("moment", ["before its part", "before the commit"])
def test_kill_9_during_a_save_keeps_the_step_before(tmp_path: Path, moment: str) -> None:
    def work() -> Any:
        rank = torch.distributed.get_rank()
        save(tmp_path, {"w": torch.full((100,), 1.0), "v": torch.ones(100)}, 1)
        if moment == "before its part" and rank == 1:
            Run.write_part = _die  # type: ignore[method-assign, assignment]
        if moment == "before the commit":
            Run.commit = _die  # type: ignore[method-assign, assignment]
        save(tmp_path, {"w": torch.full((100,), 2.0), "v": torch.zeros(100)}, 2)

    with pytest.raises(AssertionError, match=r"died|rank"):
        gloo.run(2, work, timeout_s=20)
    assert steps(tmp_path) == [1]
    back = {"w": torch.zeros(100), "v": torch.zeros(100)}
    dcp.load(back, storage_reader=StorageReader(tmp_path))
    assert back["w"].unique().tolist() == [1]
    save(tmp_path, back, 2)
    assert steps(tmp_path) == [2, 1]


def _die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def test_of_two_trainings_the_older_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, {"w": torch.ones(2)}, 1)
    with monkeypatch.context() as other_process:
        other_process.setattr(dcp_writing, "_writings", {})
        dcp.load({"w": torch.zeros(2)}, storage_reader=StorageReader(tmp_path))
        save(tmp_path, {"w": torch.ones(2)}, 2)
    assert isinstance(refused(lambda: save(tmp_path, {"w": torch.zeros(2)}, 3)), Superseded)
    assert steps(tmp_path) == [2, 1]


def test_a_module_loads_in_place_onto_what_it_has(tmp_path: Path) -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save(tmp_path, {"model": one.state_dict()}, 1)
    weight = other.weight
    dcp.load({"model": other.state_dict()}, storage_reader=StorageReader(tmp_path))
    assert other.weight is weight
    assert bits(other.weight.detach()) == bits(one.weight.detach())
