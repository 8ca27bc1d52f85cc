"""What cannot be attached, saved or filled is refused at once, in words; what went wrong half way is said."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import perdure
from perdure.adapters.torch.attach import attach
from perdure.errors import BlobCorrupt, CallError, StateMismatch

pytestmark = pytest.mark.usefixtures("unhooked")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scheduler": 3}, "scheduler is a int, which has no state_dict"),
        ({"extra": [1]}, "extra is a list"),
        ({"extra": {"f": {"value": lambda: 1}}}, "f.value is a builtins.function"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"to": 3}, "to is a int"),
        ({"model": None}, "model is a NoneType"),
        ({"optimizer": None}, "optimizer is a NoneType"),
        ({"optimizer": [None]}, "optimizer is a NoneType"),
        ({"optimizer": []}, "at least one optimizer"),
    ],
)
def test_what_cannot_be_attached_is_refused_before_anything_begins(
    ram_url: str, given: dict[str, Any], says: str
) -> None:
    model = nn.Linear(1, 1)
    usual: dict[str, Any] = {"model": model, "optimizer": torch.optim.SGD(model.parameters()), "to": ram_url}
    with pytest.raises(CallError, match=says):
        attach(**(usual | {"every": 1, "agent": False} | given))


def test_a_state_is_a_dict_with_text_for_names(ram_url: str) -> None:
    with closing(perdure.Checkpointer(ram_url, agent=False)) as ckpt:
        for tree, says in ((nn.Linear(1, 1), "this is a Linear"), (None, "this is a NoneType"), ({1: 2}, "1 is a int")):
            with pytest.raises(CallError, match=says):
                ckpt.save(1, tree)  # type: ignore[arg-type]
        ckpt.save(np.int64(5), {"x": torch.ones(1)}).committed()  # type: ignore[arg-type]
        assert ckpt.steps() == [5]


def test_who_fills_a_model_from_a_damaged_step_is_told_that_it_is_half_written(tmp_path: Path) -> None:
    with closing(perdure.Checkpointer(str(tmp_path), agent=False)) as ckpt:
        ckpt.save(1, {"a": torch.ones(1 << 20), "z": torch.ones(1 << 20)}).committed()
    (pack,) = (each for each in (tmp_path / "packs").rglob("*") if each.is_file())
    with open(pack, "r+b") as file:
        file.seek(-64, 2)
        file.write(bytes(8))
    with pytest.raises(BlobCorrupt, match="may be half written: do not use it"):
        perdure.load_into(str(tmp_path), {"a": torch.zeros(1 << 20), "z": torch.zeros(1 << 20)})


def test_another_scheduler_is_not_given_the_state_of_the_saved_one(ram_url: str) -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with closing(perdure.Checkpointer(ram_url, agent=False)) as ckpt:
        ckpt.save(1, {"s": torch.optim.lr_scheduler.StepLR(optimizer, 3)}).committed()
        with pytest.raises(StateMismatch, match="s is a CosineAnnealingLR here, which keeps T_max, eta_min"):
            ckpt.restore({"s": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)})
        same = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        assert ckpt.restore({"s": same}) == 1
        assert same.step_size == 3
