"""Ranks that save different things find out at the save, all of them, and soon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import perdure
from perdure.errors import PerdureError, StateMismatch

from .gloo import run


@pytest.mark.parametrize("extra", [torch.ones(3), 1.5], ids=["tensor", "value"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_name_that_one_rank_alone_has_is_refused_on_all(tmp_path: Path, extra: Any, who: int) -> None:
    def work() -> list[str]:
        ckpt = perdure.Checkpointer(tmp_path, agent=False)
        tree: dict[str, Any] = {"w": torch.ones(4), "n": 1}
        if dist.get_rank() == who:
            tree["extra"] = extra
        with pytest.raises(StateMismatch) as caught:
            ckpt.save(1, tree)
        ckpt.close()
        return [str(caught.value), str(ckpt.steps())]

    for said, steps in run(2, work):
        assert f"extra is in the state of rank {who} but not of rank {1 - who}" in said
        assert steps == "[]"


def test_a_rank_may_keep_a_name_of_its_own_as_rank_local(tmp_path: Path) -> None:
    def work() -> int | None:
        ckpt = perdure.Checkpointer(tmp_path, agent=False)
        tree: dict[str, Any] = {"w": torch.ones(4)}
        if dist.get_rank() == 1:
            tree["mine"] = perdure.RankLocal(torch.ones(3))
        ckpt.save(1, tree).committed()
        found = ckpt.restore(tree)
        ckpt.close()
        return found

    assert run(2, work) == [1, 1]


def test_ranks_without_an_agent_that_save_different_steps_hear_of_it_at_once(tmp_path: Path) -> None:
    def work() -> tuple[str, float]:
        ckpt = perdure.Checkpointer(tmp_path, agent=False)
        tree = {"w": torch.ones(4)}
        ckpt.save(1, tree).committed()
        began = time.monotonic()
        with pytest.raises(PerdureError) as caught:
            ckpt.save(2 + dist.get_rank(), tree).committed()
        took_s = time.monotonic() - began
        ckpt.save(5, tree).committed()  # and the next one is none the worse
        ckpt.close()
        return str(caught.value), took_s

    for said, took_s in run(2, work, tcp=True):
        assert "step 2 on other ranks but step 3 on rank 1" in said
        assert took_s < 20.0
