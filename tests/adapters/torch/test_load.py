"""`perdure.load`: whole tensors of a committed step, by name, without a process group."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perdure
from perdure.adapters.torch.load import load
from perdure.checkpoint.config import Deadlines
from perdure.errors import BlobCorrupt, BlobMissing, CallError, DeadlineExceeded
from perdure.state.scopes import RankLocal
from perdure.store import Disk, open_store
from perdure.store.faults import Delay, Faults, Rule

from .trips import bits

Make = Callable[..., Any]


@pytest.fixture
def run(checkpointer: Make, ram_url: str) -> str:
    """Two steps of a model with a tied weight, an optimizer, and tensors of one rank."""
    ckpt = checkpointer(ram_url)
    for step in (1, 2):
        model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
        model[1].weight = model[0].weight
        nn.init.constant_(model[0].weight, step)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.state[model[0].weight]["momentum_buffer"] = torch.full((3, 2), -float(step))
        tree = {"model": model, "optimizer": optimizer, "mine": RankLocal({"t": torch.full((), step)}), "n": step}
        ckpt.save(step, tree).committed()
    return ram_url


def test_all_tensors_of_the_newest_step_come_by_name(run: str) -> None:
    found = load(run)
    assert set(found) == {
        "model.0.weight",
        "model.1.weight",
        "optimizer.state.0.weight.momentum_buffer",
        "mine.t@rank0",
    }
    assert found["model.0.weight"].tolist() == [[2, 2]] * 3
    assert found["model.1.weight"] is found["model.0.weight"]
    assert found["mine.t@rank0"].item() == 2
    assert all(each.device.type == "cpu" and not each.requires_grad for each in found.values())


def test_an_older_step_comes_when_it_is_asked_for(run: str) -> None:
    assert load(run, step=1)["model.0.weight"].tolist() == [[1, 1]] * 3


def test_patterns_choose_names(run: str) -> None:
    assert set(load(run, names=["model.*"])) == {"model.0.weight", "model.1.weight"}
    assert set(load(run, names=["model.1.weight", "mine*"])) == {"model.1.weight", "mine.t@rank0"}
    assert set(load(run, names=["*.momentum_buffer"])) == {"optimizer.state.0.weight.momentum_buffer"}
    for wrong in (5, ["model.weight", 5], None):
        with pytest.raises(CallError, match="give a name or pattern"):
            load(run, names=wrong)  # type: ignore[arg-type]
    for option in ({"fuse": {"gate_up": ["gate", "up"]}}, {"split": {"gate_up": {"gate": 1, "up": 1}}}):
        with pytest.raises(CallError, match=r"'gate_up': \.\.\.}: no tensor here has '(gate' or 'up|gate_up)'"):
            load(run, **option)  # type: ignore[arg-type]
    with pytest.raises(CallError, match="names is empty"):
        load(run, names=[])


def test_a_name_matches_itself_whatever_letters_it_has(checkpointer: Make, ram_url: str) -> None:
    tree = {name: torch.full((), at) for at, name in enumerate(("a1", "a[1]", "b[2]", "what?", "all*"))}
    checkpointer(ram_url).save(1, tree).committed()
    assert set(load(ram_url, names=["b[2]"])) == {"b[2]"}
    assert set(load(ram_url, names=["a[1]"])) == {"a[1]", "a1"}
    assert set(load(ram_url, names=["a[[]1]"])) == {"a[1]"}
    assert set(load(ram_url, names=["what?", "all*"])) == {"what?", "all*"}
    assert set(load(ram_url, names=["a[!0]"])) == {"a1"}
    with pytest.raises(CallError, match=r"'c\[2\]'"):
        load(ram_url, names=["c[2]"])


def test_a_pattern_that_matches_nothing_is_refused_by_name(run: str) -> None:
    with pytest.raises(CallError, match="'modle"):
        load(run, names=["model.*", "modle.*"])


def test_a_step_or_a_run_that_is_not_there_is_missing(run: str) -> None:
    with pytest.raises(BlobMissing, match="step 9") as caught:
        load(run, step=9)
    assert caught.value.step == 9
    with pytest.raises(BlobMissing):
        load("ram://nothing-here")


def test_a_damaged_tensor_is_refused_by_name_and_file_and_others_still_come(run: str) -> None:
    store: Any = open_store(run)
    name = max(store.names("packs/"))
    pack = bytearray(store.read(name))
    at = pack.index(torch.full((3, 2), -2.0).numpy().tobytes())
    pack[at + 3] ^= 1
    store.delete(name)
    store.put(name, [pack])
    with pytest.raises(BlobCorrupt) as caught:
        load(run)
    assert (caught.value.tensor, caught.value.file) == ("optimizer.state.0.weight.momentum_buffer", name)
    assert set(load(run, names=["model.*"])) == {"model.0.weight", "model.1.weight"}


def test_what_comes_is_a_copy_of_its_own(run: str) -> None:
    first = load(run)["mine.t@rank0"]
    first.fill_(7)
    assert bits(load(run)["mine.t@rank0"]) != bits(first)


def test_a_store_that_hangs_is_given_up_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False)
    ckpt.save(1, {"w": torch.ones(3)}).committed()
    ckpt.close()
    module = importlib.import_module("perdure.adapters.torch.load")
    hung = Faults(Disk(tmp_path), [Rule("read", Delay(3.0), match="packs/*")])
    monkeypatch.setattr(module, "open_store", lambda url: hung)
    monkeypatch.setattr(module, "Deadlines", lambda: Deadlines(stall_s=0.3))
    with pytest.raises(DeadlineExceeded, match="tensors of"):
        perdure.load(tmp_path)


def test_what_a_load_has_to_say_is_told(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("perdure.adapters.torch.load")
    inner = module.load_matches

    def with_a_note(*args: Any, **options: Any) -> Any:
        report = inner(*args, **options)
        report.notes.append("v is lossy: relative error up to 0.002")
        return report

    load(run)
    assert "lossy" not in capsys.readouterr().err
    monkeypatch.setattr(module, "load_matches", with_a_note)
    load(run)
    assert "step 2: v is lossy: relative error up to 0.002" in capsys.readouterr().err
