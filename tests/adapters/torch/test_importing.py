"""Checkpoints of other formats become steps: bit for bit, ties as ties, values as they were, nothing of them run."""

from __future__ import annotations

import collections
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.exporting import Source
from perdure.adapters.torch.importing import Imported, chosen, import_checkpoint, read_foreign
from perdure.adapters.torch.load import load
from perdure.codec.dtypes import DTYPES
from perdure.errors import BlobMissing, CallError, FormatRefused, NotSerializable
from perdure.state.values import decode_value

from . import gloo
from .trips import bits

SAVED_BY_TORCH = [name for name in DTYPES if not re.match(r"u?int[1-7]\Z", name)]  # it cannot save those


def bring(source: Any, url: str, step: int | None = None, **options: Any) -> Imported:
    return import_checkpoint(chosen(read_foreign(source), **{"names": ["*"]} | options), url, step=step)


def values_of(url: str) -> dict[str, Any]:
    return {key: decode_value(value) for key, value in Source(url).catalog.values.items()}


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.8, 0.95))
    model(torch.tensor([0, 1])).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("new", [True, False])
def test_a_training_checkpoint_of_torch_save_comes_whole(new: bool, tmp_path: Path, ram_url: str) -> None:
    model, optimizer = trained()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "best": math.nan,
         "args": {"lr": 1e-3}},
        tmp_path / "a.pt",
        _use_new_zipfile_serialization=new,
    )  # fmt: skip
    done = bring(tmp_path / "a.pt", ram_url)
    assert (done.step, done.kind) == (0, "torch.save")
    found = load(ram_url)
    for name, tensor in model.state_dict().items():
        assert bits(found[f"model.{name}"]) == bits(tensor)
    assert found["model.0.weight"] is found["model.1.weight"]
    assert bits(found["optimizer.state.0.exp_avg"]) == bits(optimizer.state_dict()["state"][0]["exp_avg"])
    values = values_of(ram_url)
    assert values["step"] == 3
    assert values["best"] != values["best"]
    assert values["args.lr"] == 1e-3
    assert values["optimizer.param_groups"] == optimizer.state_dict()["param_groups"]


def test_what_was_imported_is_restored_into_live_objects(tmp_path: Path, ram_url: str) -> None:
    model, _ = trained()
    torch.save({"model": model.state_dict(), "step": 3}, tmp_path / "a.pt")
    bring(tmp_path / "a.pt", ram_url, step=7)
    other, _ = trained()
    tree = {"model": other, "step": 0}
    ckpt = Checkpointer(ram_url, agent=False)
    assert ckpt.restore(tree) == 7
    ckpt.close()
    assert tree["step"] == 3
    assert all(
        bits(a) == bits(b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("name", SAVED_BY_TORCH)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_comes_bit_for_bit(name: str, tmp_path: Path, ram_url: str) -> None:
    width = DTYPES[name].itemsize
    raw = torch.arange(6 * width, dtype=torch.uint8) % (2 if name == "bool" else 251)
    tensor = raw.view(getattr(torch, name)).reshape(2, 3)
    torch.save({"t": tensor, "e": tensor[:0]}, tmp_path / "a.pt")
    bring(tmp_path / "a.pt", ram_url)
    found = load(ram_url)
    assert (found["t"].dtype, found["e"].shape) == (tensor.dtype, (0, 3))
    assert bits(found["t"]) == bits(tensor)


def test_views_come_as_what_they_show(tmp_path: Path, ram_url: str) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    tree = {
        "whole": whole, "t": whole.t(), "row": whole[1], "strided": whole[::2, 1::2],
        "expanded": whole[0, :1].expand(5),
        "conj": torch.tensor([1 + 2j]).conj(), "scalar": torch.tensor(3.5), "empty": torch.empty(0, 3),
        "neg": torch.tensor([1 + 2j]).conj().imag, "parameter": nn.Parameter(torch.ones(2)),
        "buffer": nn.Buffer(torch.ones(2)),
    }  # fmt: skip
    torch.save(tree, tmp_path / "a.pt")
    bring(tmp_path / "a.pt", ram_url)
    found = load(ram_url)
    assert found.keys() == tree.keys()
    for name, tensor in tree.items():
        assert torch.equal(found[name], tensor), name


def test_only_the_same_view_of_a_storage_is_a_tie(tmp_path: Path) -> None:
    a = torch.arange(4.0)
    torch.save({"a": a, "again": a, "detached": a.detach(), "half": a[:2], "other": a.clone()}, tmp_path / "a.pt")
    found = {t.name: t.aliases for t in read_foreign(tmp_path / "a.pt").tensors}
    assert found == {"a": ("again", "detached"), "half": (), "other": ()}


def test_values_of_all_plain_kinds_come_back(tmp_path: Path, ram_url: str) -> None:
    tree = {
        "size": torch.Size([1, 2]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"), "set": {1, "a"},
        "big": 10**30,
        "complex": 1j, "bytes": b"\0\xff", "tuple": (1, (None, True)), "list": [1.5, "é"], "numbers": {1: 2, (3, 4): 5},
        "default": collections.defaultdict(list, {1: 2}),
        "array": np.arange(6, dtype=">i4").reshape(2, 3, order="F"),
        "scalar": np.float32(2.5), "frozen": frozenset({2}),
        "state": np.random.RandomState(1).get_state(legacy=True)[:3],
        "buffer": bytearray(b"ab"), "range": range(1, 9, 2), "none": None,
    }  # fmt: skip
    torch.save(tree, tmp_path / "a.pt")
    bring(tmp_path / "a.pt", ram_url)
    values = values_of(ram_url)
    assert values.keys() == tree.keys()
    for name, value in tree.items():
        if name in ("array", "state"):
            np.testing.assert_equal(values[name], value)
        else:
            assert values[name] == value, name
    assert values["array"].dtype == np.dtype(">i4")


def test_a_lone_tensor_is_called_data(tmp_path: Path, ram_url: str) -> None:
    torch.save([torch.ones(2), 3], tmp_path / "a.pt")
    bring(tmp_path / "a.pt", ram_url)
    assert load(ram_url).keys() == {"data.0"}


def test_a_class_of_the_user_is_refused_by_its_name(tmp_path: Path) -> None:
    torch.save({"args": Imported("x", 1, 1, 1, 1, 1, ())}, tmp_path / "a.pt")
    with pytest.raises(FormatRefused, match=r"wants 'perdure.adapters.torch.importing.Imported'"):
        read_foreign(tmp_path / "a.pt")


def test_a_value_without_a_place_names_its_key_and_can_be_left_out(tmp_path: Path, ram_url: str) -> None:
    torch.save({"w": torch.ones(1), "deep": {"text": ["\ud800"]}}, tmp_path / "a.pt")
    with pytest.raises(NotSerializable, match=r"deep\.text.*--skip-values"):
        bring(tmp_path / "a.pt", ram_url)
    done = bring(tmp_path / "a.pt", ram_url, skip_values=True)
    assert (done.n_tensors, done.n_values) == (1, 0)
    assert "deep.text" in done.notes[0]


def test_names_choose_and_move(tmp_path: Path, ram_url: str) -> None:
    w = torch.ones(2)
    torch.save({"a": {"w": w, "n": 1}, "b": {"w": w, "l": [w, torch.zeros(1)]}}, tmp_path / "a.pt")
    done = bring(tmp_path / "a.pt", ram_url, names=["b.*"], under="model.x")
    assert load(ram_url).keys() == {"model.x.b.w", "model.x.b.l.0", "model.x.b.l.1"}
    assert values_of(ram_url).keys() == {"model.x.b.l"}
    assert done.notes == ("values left out: a.n",)
    with pytest.raises(CallError, match="'c"):
        bring(tmp_path / "a.pt", ram_url, names=["c*"])


def test_a_flipped_bit_in_a_tensor_is_noticed(tmp_path: Path, ram_url: str) -> None:
    torch.save({"w": torch.full((1000,), 7.0)}, tmp_path / "a.pt")
    raw = bytearray((tmp_path / "a.pt").read_bytes())
    raw[raw.index(torch.full((9,), 7.0).numpy().tobytes()) + 100] ^= 1
    (tmp_path / "a.pt").write_bytes(raw)
    with pytest.raises(FormatRefused, match=r"w in .* is corrupt"):
        bring(tmp_path / "a.pt", ram_url)
    with pytest.raises(BlobMissing):
        load(ram_url)


def test_an_import_goes_on_from_the_newest_step(tmp_path: Path, ram_url: str) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    assert bring(tmp_path / "a.safetensors", ram_url).step == 0
    with pytest.raises(CallError, match="--step"):
        bring(tmp_path / "a.safetensors", ram_url)
    with pytest.raises(CallError, match="later"):
        bring(tmp_path / "a.safetensors", ram_url, step=0)
    bring(tmp_path / "a.safetensors", ram_url, step=5)
    ckpt = Checkpointer(ram_url, agent=False)
    assert ckpt.steps() == [0, 5]
    ckpt.close()


def test_safetensors_come_from_a_file_and_from_a_folder_with_one(tmp_path: Path, ram_url: str) -> None:
    tensors = {
        "a": torch.arange(3, dtype=torch.int8),
        "b": torch.randn(2, 2).to(torch.bfloat16),
        "e": torch.empty(0, 2),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    for step, source in enumerate((tmp_path / "model.safetensors", tmp_path)):
        done = bring(source, ram_url, step=step)
        assert "no checksums" in done.notes[0]
        found = load(ram_url, step=step)
        assert all(bits(found[name]) == bits(tensor) for name, tensor in tensors.items())


def test_a_dcp_folder_of_one_process_comes_whole(tmp_path: Path, ram_url: str) -> None:
    model, optimizer = trained()
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "list": [1, torch.ones(2)]}
    dcp.save(tree, checkpoint_id=tmp_path / "dcp", no_dist=True)
    bring(tmp_path / "dcp", ram_url)
    found = load(ram_url)
    for name, tensor in model.state_dict().items():
        assert bits(found[f"model.{name}"]) == bits(tensor)
    assert bits(found["optimizer.state.0.exp_avg"]) == bits(optimizer.state_dict()["state"][0]["exp_avg"])
    assert bits(found["list.1"]) == bits(torch.ones(2))
    values = values_of(ram_url)
    assert (values["step"], values["list.0"]) == (3, 1)


@pytest.mark.parametrize("shape", [(7, 3), (1, 5), (8,)])
def test_a_dcp_folder_of_several_ranks_comes_whole(shape: tuple[int, ...], tmp_path: Path, ram_url: str) -> None:
    whole = torch.randn(*shape)

    def save() -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        assert isinstance(sharded, DTensor)
        last = distribute_tensor(whole, mesh, [Shard(whole.ndim - 1)])
        dcp.save({"w": sharded, "last": last, "same": torch.ones(3), "n": 4}, checkpoint_id=tmp_path / "dcp")

    gloo.run(2, save)
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2
    bring(tmp_path / "dcp", ram_url)
    found = load(ram_url)
    assert bits(found["w"]) == bits(whole) == bits(found["last"])
    assert bits(found["same"]) == bits(torch.ones(3))
    assert values_of(ram_url) == {"n": 4}


def test_a_value_of_dcp_that_would_need_code_is_named_and_can_be_left_out(tmp_path: Path, ram_url: str) -> None:
    tree = {"w": torch.ones(2), "args": Imported("x", 1, 1, 1, 1, 1, ()), "n": 3}
    dcp.save(tree, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(FormatRefused, match=r"the value 'args': .* wants 'perdure\.adapters.*--skip-values") as caught:
        read_foreign(tmp_path / "dcp")
    assert caught.value.facts["key"] == "args"
    foreign = chosen(read_foreign(tmp_path / "dcp", values=False), names=["*"], skip_values=True)
    notes = import_checkpoint(foreign, ram_url).notes
    assert len(notes) == 1
    assert all(name in notes[0] for name in ("args", "n"))
    assert load(ram_url).keys() == {"w"}
