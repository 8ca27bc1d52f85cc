"""A bucket as the remote store behind a folder: carried there, through a server that is killed, and back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="NOT TESTED: runs in object stores; pip install 'perdure[torch]'")
pytest.importorskip("obstore", reason="NOT TESTED: object stores; pip install 'perdure[objectstore]'")

import torch

import perdure
from perdure.store import Run, open_store
from perdure.upkeep.verifying import verify

from .seaweed import Seaweed


def state(seed: int) -> dict[str, torch.Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return {"w": torch.rand(3 << 20, generator=dice), "frozen": torch.ones(1 << 20)}  # a pack of several parts


def test_a_run_whose_folder_is_gone_comes_back_from_the_bucket(place: str, tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path / "run", tiers=place, keep="last=1", agent=False)
    for step in (1, 2):
        ckpt.save(step, state(step)).reached("remote")
    ckpt.close()
    report = verify(open_store(place), every=True)
    assert (report.damages, report.steps) == ([], [2])
    shutil.rmtree(tmp_path / "run")
    ckpt = perdure.Checkpointer(tmp_path / "run", tiers=place, keep="last=1", agent=False)
    tree = {"w": torch.zeros(3 << 20), "frozen": torch.zeros(1 << 20)}
    assert ckpt.restore(tree) == 2
    assert torch.equal(tree["w"], state(2)["w"])
    ckpt.save(3, state(3)).reached("remote")
    ckpt.close()
    far = Run.open(open_store(place), create=False)
    assert [commit.step for commit in far.chain()] == [3, 2, 1]
    assert torch.equal(perdure.load(place, names=["w"])["w"], state(3)["w"])


@pytest.mark.slow
def test_a_server_that_restarts_in_the_middle_costs_time_alone(server: Seaweed, place: str, tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path / "run", tiers=place, remote_bytes_per_s=20e6, agent=False)
    ckpt.save(1, state(1)).reached("remote")
    saved = ckpt.save(2, state(2))
    saved.committed()
    server.kill()
    try:
        ckpt.save(3, state(3)).committed()
    finally:
        server.start()
    ckpt.save(4, state(4)).reached("remote")
    ckpt.close()
    report = verify(open_store(place), every=True)
    assert report.damages == []
    assert {1, 4} <= set(report.steps)
