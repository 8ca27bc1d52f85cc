"""torch.distributed.checkpoint saves into runs and loads out of them; what it saves is a run like any other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from perdure.adapters.torch.dcp import StorageReader, StorageWriter
from perdure.adapters.torch.dcp_steps import step_of
from perdure.adapters.torch.load import load
from perdure.errors import (
    CallError,
)
from perdure.store.branch import newest

from . import gloo
from .dcp_runs import cause, command_line, refused, run_of, save, steps
from .trips import bits

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def any_tensors() -> dict[str, torch.Tensor]:
    """Every kind of tensor whose bytes could be lost on the way."""
    torch.manual_seed(3)
    nan = torch.tensor([0x7F800001, 0x7FC12345, -1], dtype=torch.int32).view(torch.float32)
    return {
        "nan": nan,
        "bf16": torch.randn(5, 3).to(torch.bfloat16),
        "fp8": torch.randn(7).to(torch.float8_e4m3fn),
        "turned": torch.arange(12.0).reshape(3, 4).t(),
        "every_other": torch.arange(10)[::2],
        "conj": torch.randn(4, dtype=torch.complex64).conj(),
        "complex128": torch.randn(2, 2, dtype=torch.complex128),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "flags": torch.tensor([True, False]),
    }


VALUES: dict[str, Any] = {
    "text": "a\u00e9",
    "big": 1 << 90,
    "tuple": (1, (2.5, None)),
    "with_tensor": (torch.arange(3), {"deep": [torch.ones(2, 2)]}),
    "nested": {"list": [1, 2], "more": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
}


def emptied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {name: emptied(each) for name, each in value.items()}
    return [emptied(each) for each in value] if isinstance(value, list) else None


def test_any_tensor_and_value_comes_back_bit_for_bit_and_the_run_is_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = any_tensors()
    save(tmp_path / "run", {"t": tensors, **VALUES}, 5, meta={"by": "dcp"}, metric=0.5, pin=True)
    back: dict[str, Any] = {"t": emptied(tensors), **emptied(VALUES)}
    dcp.load(back, storage_reader=StorageReader(tmp_path / "run"))
    saved = {name: bits(each.resolve_conj()) for name, each in tensors.items()}
    assert {name: bits(each) for name, each in back["t"].items()} == saved
    assert back["nested"] == VALUES["nested"]
    assert (back["text"], back["big"], back["tuple"]) == (VALUES["text"], VALUES["big"], VALUES["tuple"])
    assert bits(back["with_tensor"][0]) == bits(torch.arange(3))
    assert bits(back["with_tensor"][1]["deep"][0]) == bits(torch.ones(2, 2))
    loaded = load(tmp_path / "run", names="t.*")
    assert {name: bits(each) for name, each in loaded.items()} == {f"t.{n}": each for n, each in saved.items()}
    commit = newest(run_of(tmp_path / "run"))
    assert commit is not None
    assert (commit.step, commit.metric, commit.pinned, commit.meta) == (5, 0.5, True, {"by": "dcp"})
    for command in (["ls"], ["show"], ["verify"], ["export", str(tmp_path / "out"), "--to", "dcp"]):
        assert command_line(command[0], str(tmp_path / "run"), *command[1:]) == 0, capsys.readouterr()


def test_no_pickle_is_written_nor_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a pickle")

    monkeypatch.setattr(torch, "save", never)
    monkeypatch.setattr(torch, "load", never)
    state = {"a": (1, 2), "w": torch.ones(2)}
    save(tmp_path, state, 1)
    back: dict[str, Any] = {"a": None, "w": torch.zeros(2)}
    dcp.load(back, storage_reader=StorageReader(tmp_path))
    assert back["a"] == (1, 2)


@pytest.mark.parametrize(
    ("given", "step"), [("step-12", 12), ("/a/b2/epoch_3", 3), (Path("run/0007"), 7), (9, 9), ("s3://b/r/step-5/", 5)]
)
def test_the_step_is_the_number_at_the_end_of_the_checkpoint_id(given: Any, step: int) -> None:
    assert step_of(given) == step
    assert StorageWriter.validate_checkpoint_id(given)


def test_a_save_that_does_not_say_which_step_it_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="names no step"):
        dcp.save({"w": torch.ones(1)}, checkpoint_id="newest", storage_writer=StorageWriter(tmp_path))
    error = refused(lambda: dcp.save({"w": torch.ones(1)}, storage_writer=StorageWriter(tmp_path)))
    assert isinstance(error, CallError)
    assert "which step" in str(error)
    dcp.save({"w": torch.ones(1)}, storage_writer=StorageWriter(tmp_path, step=3))
    assert steps(tmp_path) == [3]


def test_steps_rise_and_a_load_begins_a_branch_where_it_loaded(tmp_path: Path) -> None:
    writer = StorageWriter(tmp_path)
    for step in (1, 2, 3):
        dcp.save({"w": torch.full((2,), step)}, checkpoint_id=f"step-{step}", storage_writer=writer)
    assert "not after step 3" in str(refused(lambda: save(tmp_path, {"w": torch.ones(2)}, 3)))
    back = {"w": torch.zeros(2, dtype=torch.int64)}
    dcp.load(back, checkpoint_id="step-2", storage_reader=StorageReader(tmp_path))
    assert back["w"].tolist() == [2, 2]
    save(tmp_path, {"w": torch.full((2,), 30)}, 30)
    assert steps(tmp_path) == [30, 2, 1]  # step 3 is on the branch that was left


def test_a_run_that_is_deleted_and_begun_again_is_another(tmp_path: Path) -> None:
    for _ in range(2):
        save(tmp_path / "run", {"w": torch.ones(2)}, 7)
        dcp.load({"w": torch.zeros(2)}, storage_reader=StorageReader(tmp_path / "run"))
        shutil.rmtree(tmp_path / "run")
    assert StorageReader(tmp_path / "run").latest() is None
    save(tmp_path / "run", {"w": torch.ones(2)}, 3)
    assert StorageReader(tmp_path / "run").latest() == 3


def test_ranks_that_find_another_newest_step_load_none(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, {"w": torch.full((2,), float(step))}, step)

    def work() -> Any:
        rank = torch.distributed.get_rank()  # as if step 2 had been committed between the looks of the two
        with pytest.raises(CheckpointException) as caught:
            dcp.load({"w": torch.zeros(2)}, storage_reader=StorageReader(tmp_path, step=None if rank else 1))
        return str(cause(caught.value))

    assert all("while ranks looked for the newest" in said for said in gloo.run(2, work))


def test_what_has_not_changed_is_referred_to(tmp_path: Path) -> None:
    frozen, moving = torch.randn(1 << 19), torch.randn(1 << 10)
    for step in (1, 2, 3):
        save(tmp_path, {"frozen": frozen, "moving": moving + step}, step)
    written = sum(path.stat().st_size for path in (tmp_path / "packs").rglob("*") if path.is_file())
    assert written < 2 * frozen.nbytes + (1 << 20)  # once, and once more in a pack of its own


def test_an_async_save_keeps_what_was_there_when_it_was_called(tmp_path: Path) -> None:
    weight = torch.zeros(1000)
    for step in (1, 2):
        weight.fill_(step)
        saving_ = dcp.async_save({"w": weight}, checkpoint_id=f"step-{step}", storage_writer=StorageWriter(tmp_path))
        weight.fill_(-1)
        saving_.result()
    assert steps(tmp_path) == [2, 1]
    assert load(tmp_path, step=1)["w"].unique().tolist() == [1]
    assert load(tmp_path)["w"].unique().tolist() == [2]


@pytest.mark.slow
def test_an_async_save_in_a_process_of_its_own_goes_on_from_what_was_loaded_here(tmp_path: Path) -> None:
    # In a new interpreter: the process that DCP starts imports its parent's main module.
    script = tmp_path / "saves.py"
    script.write_text(_IN_A_PROCESS)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path / "run") == [20, 2, 1]
    assert load(tmp_path / "run")["w"].unique().tolist() == [2]


_IN_A_PROCESS = """
import os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from perdure import dcp as ours

def save(state, step):
    kind = AsyncCheckpointerType.PROCESS
    writer = ours.StorageWriter(sys.argv[1])
    dcp.async_save(state, checkpoint_id=f"{step}", storage_writer=writer, async_checkpointer_type=kind).result()

if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weight = torch.zeros(10)
    for step in (1, 2, 3):
        save({"w": weight.fill_(step)}, step)
    dcp.load({"w": weight}, checkpoint_id="2", storage_reader=ours.StorageReader(sys.argv[1]))
    save({"w": weight}, 20)
"""
