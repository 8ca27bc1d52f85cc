"""A frozen model is not written with every step, not after a restart either, and comes back from where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import perdure
from perdure.store import Disk, Run

MIB = 1 << 20


def state(step: int) -> dict[str, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    frozen = {f"layer{i}": torch.randn(MIB // 4, generator=generator) for i in range(3)}
    return {"model": {**frozen, "adapter": torch.full((1000,), float(step))}}


def same(one: dict[str, dict[str, torch.Tensor]], other: dict[str, dict[str, torch.Tensor]]) -> bool:
    return all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


@pytest.mark.parametrize("agent", [False, True], ids=["alone", "agent"])
def test_a_frozen_model_is_written_once_in_two_sessions(
    tmp_path: Path, agent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []
    for session in (0, 10):
        ckpt = perdure.Checkpointer(tmp_path, agent=agent)
        restored = state(0)
        if session:
            assert ckpt.restore(restored) == 2
            assert same(restored, state(2))
        steps = (session + 1, session + 2)
        written += [ckpt.save(step, state(step)).committed().stored_nbytes for step in steps]
        ckpt.close()
    assert written[0] > 3 * MIB
    assert max(written[1:]) < MIB
    for step in (1, 2, 11, 12):
        found = perdure.load(tmp_path, step=step)
        assert same({"model": {name.removeprefix("model."): each for name, each in found.items()}}, state(step))
    run = Run.open(Disk(tmp_path), create=False)
    assert len(run.store.names("packs/")) == 5 - 1


def test_many_tensors_make_many_packs_and_come_back_from_memory_and_disk(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.tensor([i, i + 1]) for i in range(5000)}
    ckpt = perdure.Checkpointer(tmp_path)
    ckpt.save(1, {"model": tensors}).committed()
    assert len(Run.open(Disk(tmp_path), create=False).store.names("packs/")) == 2
    for each in tensors.values():
        each.zero_()
    assert ckpt.restore({"model": tensors}) == 1
    assert all(tensors[f"t{i}"].tolist() == [i, i + 1] for i in range(5000))
    ckpt.close()
    found = perdure.load(tmp_path, names=["model.t77", "model.t4?99"])
    assert {name: each.tolist() for name, each in found.items()} == {
        "model.t77": [77, 78],
        **{f"model.t4{d}99": [4099 + 100 * d, 4100 + 100 * d] for d in range(10)},
    }


@pytest.mark.parametrize("budget_bytes", [1, 4096])
def test_a_restore_within_a_tiny_budget_is_the_same_restore(tmp_path: Path, budget_bytes: int) -> None:
    saved = state(1)
    with_columns = {"model": {**saved["model"], "t": torch.arange(60_000).reshape(200, 300)}}
    ckpt = perdure.Checkpointer(tmp_path, agent=False, budget_bytes=budget_bytes)
    ckpt.save(1, with_columns).committed()
    found = {"model": {name: torch.zeros_like(each) for name, each in with_columns["model"].items()}}
    assert ckpt.restore(found) == 1
    assert same(found, with_columns)
    ckpt.close()


def test_a_budget_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(perdure.errors.CallError, match="budget_bytes is 0"):
        perdure.Checkpointer(tmp_path, agent=False, budget_bytes=0)
