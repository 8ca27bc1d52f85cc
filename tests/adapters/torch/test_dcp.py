"""torch.distributed.checkpoint saves into runs and loads out of them; what it saves is a run like any other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict

from perdure.adapters.torch import dcp_writer, dcp_writing
from perdure.adapters.torch.dcp import StorageReader, StorageWriter
from perdure.adapters.torch.dcp_steps import step_of
from perdure.adapters.torch.load import load
from perdure.checkpoint import drain
from perdure.cli.main import main
from perdure.errors import (
    BlobCorrupt,
    CallError,
    NotSerializable,
    PerdureError,
    StateMismatch,
    StorageFull,
    Superseded,
)
from perdure.state.scopes import RankLocal
from perdure.store import Run, open_store
from perdure.store.branch import newest, standing

from . import gloo
from .test_meshes import Forms, contents, fsdp, fsdp_and_tp, saving, train, tree
from .trips import bits


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def run_of(url: str | Path) -> Run:
    return Run.open(open_store(str(url)), create=False)


def steps(url: str | Path) -> list[int]:
    return [commit.step for commit in standing(run_of(url))]


def save(url: str | Path, state: dict[str, Any], step: int, **options: Any) -> None:
    dcp.save(state, checkpoint_id=f"somewhere/step-{step}", storage_writer=StorageWriter(url, **options))


def command_line(*words: str) -> int:
    """The exit code of `perdure checkpoint ...`."""
    try:
        return main(["checkpoint", *words]) or 0
    except SystemExit as end:
        return int(end.code or 0)


def cause(error: CheckpointException) -> PerdureError:
    """The error of perdure inside DCP's."""
    found = [each for each, _ in error.failures.values()]
    assert isinstance(found[0], PerdureError), error
    return found[0]


def refused(work: Callable[[], Any]) -> PerdureError:
    with pytest.raises(CheckpointException) as caught:
        work()
    return cause(caught.value)


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


# --- what is refused --------------------------------------------------------------------------------------------------


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


# --- many ranks -------------------------------------------------------------------------------------------------------


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


def test_a_full_disk_of_one_rank_costs_the_step_on_all_and_its_remains_go_with_the_next(tmp_path: Path) -> None:
    def work() -> Any:
        writer, real = StorageWriter(tmp_path), drain.write_part
        state = {"a": torch.ones(300), "b": torch.ones(300)}
        dcp.save(state, checkpoint_id="1", storage_writer=writer)
        if torch.distributed.get_rank() == 1:
            dcp_writer.drain = type("Full", (), {"__getattr__": lambda self, name: getattr(drain, name)})()
            dcp_writer.drain.write_part = _full
        with pytest.raises(CheckpointException) as caught:
            dcp.save({name: each + 1 for name, each in state.items()}, checkpoint_id="2", storage_writer=writer)
        if torch.distributed.get_rank() == 1:
            dcp_writer.drain.write_part = real
        dcp.save({name: each + 2 for name, each in state.items()}, checkpoint_id="3", storage_writer=writer)
        return type(cause_of(caught.value, 1)).__name__

    assert gloo.run(2, work) == ["StorageFull"] * 2
    assert steps(tmp_path) == [3, 1]
    parts = [path.name for path in (tmp_path / "parts").rglob("*.jsonl")]
    assert len(parts) == 4, parts  # two of each committed step


def _full(*_: Any, **__: Any) -> Any:
    raise StorageFull("no room")


def cause_of(error: CheckpointException, rank: int) -> BaseException:
    return error.failures[rank][0]


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
