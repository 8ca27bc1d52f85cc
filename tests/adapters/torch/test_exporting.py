"""Steps go out as others read them, as safetensors with an index or as DCP, bit for bit, and never over anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from perdure.adapters.torch import exporting, exporting_dcp
from perdure.adapters.torch.exporting import Source, export_hf, select
from perdure.adapters.torch.exporting_dcp import export_dcp
from perdure.adapters.torch.importing import chosen, import_checkpoint, read_foreign
from perdure.adapters.torch.load import load
from perdure.errors import BlobCorrupt, BlobMissing, CallError, NeedsPerson
from perdure.state.scopes import RankLocal
from perdure.store import open_store

from .trips import bits

Make = Callable[..., Any]


def make_model() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(5, 3).to(torch.bfloat16))
    model[1].weight = model[0].weight
    return model


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return make_model()


@pytest.fixture
def run(checkpointer: Make, ram_url: str, model: nn.Module) -> str:
    ckpt = checkpointer(ram_url)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model[0].weight]["momentum_buffer"] = torch.ones(5, 4)
    tree = {
        "model": model,
        "optimizer": optimizer,
        "mine": RankLocal({"t": torch.ones(())}),
        "n": 7,
        "cfg": {"a": (1, 2)},
    }
    ckpt.save(1, tree).committed()
    ckpt.save(2, tree).committed()
    return ram_url


def to_hf(run: str, folder: Path, **options: Any) -> exporting.Exported:
    source = Source(run, step=options.pop("step", None))
    chosen = select(source, names=options.pop("names", None), strip=options.pop("strip", None), values=False)
    return export_hf(source, chosen, folder, **options)


def all_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.parametrize("shard_bytes", [10, 90, 5_000_000_000])
def test_a_model_goes_out_in_shards_with_an_index(shard_bytes: int, run: str, model: nn.Module, tmp_path: Path) -> None:
    done = to_hf(run, tmp_path / "hf", shard_bytes=shard_bytes)
    found = all_of(tmp_path / "hf")
    assert found.keys() == {"0.weight", "2.weight", "2.bias"}
    assert all(bits(found[name]) == bits(model.state_dict()[name]) for name in found)
    index = json.loads((tmp_path / "hf/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == found.keys()
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "hf" / file, "pt") as shard:
            assert name in shard.keys()  # noqa: SIM118 (it is no dict)
            assert shard.metadata() == {"format": "pt"}
    assert index["metadata"] == {"total_size": 80 + 30 + 6, "perdure_aliases": {"1.weight": "0.weight"}}
    n_shards = {10: 3, 90: 2}.get(shard_bytes, 1)
    assert len(done.files) == n_shards + 1 == len(os.listdir(tmp_path / "hf"))
    assert (n_shards == 1) == (tmp_path / "hf/model.safetensors").exists()
    assert "RankLocal" in done.notes[0]


def test_what_went_out_comes_back_with_its_ties(run: str, model: nn.Module, tmp_path: Path, checkpointer: Make) -> None:
    to_hf(run, tmp_path / "hf", shard_bytes=50)
    foreign = chosen(read_foreign(tmp_path / "hf"), names=["*"], under="model")
    import_checkpoint(foreign, f"{run}-again", step=4)
    other = make_model()
    assert checkpointer(f"{run}-again").restore({"model": other}) == 4
    assert all(
        bits(a) == bits(b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True)
    )


def test_names_choose_and_prefixes_go(run: str, tmp_path: Path) -> None:
    to_hf(run, tmp_path / "a", names=["model.1.*", "*momentum_buffer"])
    assert all_of(tmp_path / "a").keys() == {"model.1.weight", "optimizer.state.0.weight.momentum_buffer"}
    to_hf(run, tmp_path / "b", names=["model.2.*"], strip="model.2.", step=1)
    assert all_of(tmp_path / "b").keys() == {"weight", "bias"}
    for names, strip, why in ((["modle.*"], None, "modle"), (["*"], "model.", "does not begin with")):
        with pytest.raises(CallError, match=why):
            to_hf(run, tmp_path / "c", names=names, strip=strip)
    with pytest.raises(BlobMissing, match="step 9"):
        to_hf(run, tmp_path / "c", step=9)
    assert not (tmp_path / "c").exists()


def test_nothing_is_ever_written_over(run: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    source = Source(run)
    for folder in (tmp_path / "full", tmp_path / "file"):
        with pytest.raises(CallError, match="new folder"):
            to_hf(run, folder)
        with pytest.raises(CallError, match="new folder"):
            export_dcp(source, select(source, names=None, strip=None, values=True), folder)
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]
    assert os.listdir(tmp_path / "full") == ["mine.txt"]


def test_a_dtype_that_safetensors_lacks_is_refused_or_goes_as_bytes(
    checkpointer: Make, ram_url: str, tmp_path: Path
) -> None:
    tree = {"c": torch.tensor([[1 + 2j]], dtype=torch.complex128), "f": torch.arange(4, dtype=torch.uint8)}
    tree["f"] = tree["f"].view(torch.float4_e2m1fn_x2)
    checkpointer(ram_url).save(1, tree).committed()
    with pytest.raises(CallError, match=r"complex128.*--as-bytes"):
        to_hf(ram_url, tmp_path / "a", names=["*"])
    to_hf(ram_url, tmp_path / "b", names=["*"], as_bytes=True)
    import_checkpoint(chosen(read_foreign(tmp_path / "b"), names=["*"]), f"{ram_url}-again")
    found = load(f"{ram_url}-again")
    assert torch.equal(found["c"], tree["c"])
    assert bits(found["f"]) == bits(tree["f"])


def test_names_with_signs_of_patterns_are_names(checkpointer: Make, ram_url: str, tmp_path: Path) -> None:
    tree = {"a[0]": torch.zeros(1), "a*": torch.ones(1), "a?": torch.full((1,), 2.0)}
    checkpointer(ram_url).save(1, tree).committed()
    to_hf(ram_url, tmp_path / "a", names=["*"])
    assert all(torch.equal(tree[name], tensor) for name, tensor in all_of(tmp_path / "a").items())


def test_a_damaged_tensor_stops_the_export_and_leaves_no_index(run: str, model: nn.Module, tmp_path: Path) -> None:
    store: Any = open_store(run)
    for name in list(store.names("")):
        raw = bytearray(store.read(name))
        at = raw.find(model[0].weight.detach().numpy().tobytes())
        if at >= 0:
            raw[at + 5] ^= 1
            store.delete(name)
            store.put(name, [raw])
    with pytest.raises(BlobCorrupt):
        to_hf(run, tmp_path / "hf", shard_bytes=50)
    assert not (tmp_path / "hf/model.safetensors.index.json").exists()
    source = Source(run)
    with pytest.raises(BlobCorrupt):
        export_dcp(source, select(source, names=None, strip=None, values=True), tmp_path / "dcp")
    assert os.listdir(tmp_path / "dcp") == []
    assert sorted(os.listdir(tmp_path)) == ["dcp", "hf"]


def test_a_step_that_is_saved_anew_meanwhile_stops_the_export(
    run: str, model: nn.Module, tmp_path: Path, checkpointer: Make
) -> None:
    source = Source(run, step=2)
    ckpt = checkpointer(run)
    ckpt.restore({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                  "mine": RankLocal({"t": torch.ones(())}), "n": 7, "cfg": {"a": (1, 2)}}, step=1)  # fmt: skip
    ckpt.save(2, {"model": model}).committed()
    with pytest.raises(NeedsPerson, match="saved anew"):
        export_hf(source, select(source, names=None, strip=None, values=False), tmp_path / "hf")


def test_torch_loads_an_exported_dcp_folder_into_a_model(run: str, model: nn.Module, tmp_path: Path) -> None:
    source = Source(run)
    done = export_dcp(source, select(source, names=None, strip=None, values=True), tmp_path / "dcp")
    other = make_model()
    state = {"model": other.state_dict(), "n": 0, "cfg": {"a": (0, 0)}}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert all(
        bits(a) == bits(b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True)
    )
    assert (state["n"], state["cfg"]) == (7, {"a": (1, 2)})
    assert any("tied" in note for note in done.notes)
    again = {t.name: t for t in read_foreign(tmp_path / "dcp").tensors}
    assert again.keys() == {name for name in load(run) if not name.startswith("mine.")}


def test_an_export_to_dcp_has_few_tensors_in_memory_at_a_time(
    checkpointer: Make, ram_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer(ram_url).save(1, {f"t{i}": torch.full((1000,), float(i)) for i in range(20)}).committed()
    monkeypatch.setattr(exporting, "_BATCH_BYTES", 8000)
    alive: list[int] = []
    given: list[torch.Tensor] = []
    lookup = exporting_dcp._Planner.lookup_object

    def counting(self: Any, index: Any) -> Any:
        found = lookup(self, index)
        given.append(found)
        alive.append(sum(each.untyped_storage().nbytes() > 0 for each in given))
        return found

    monkeypatch.setattr(exporting_dcp._Planner, "lookup_object", counting)
    source = Source(ram_url)
    export_dcp(source, select(source, names=None, strip=None, values=True), tmp_path / "dcp")
    assert len(alive) == 20
    assert max(alive) == 1
    state = {f"t{i}": torch.empty(1000) for i in range(20)}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert all((tensor == float(name[1:])).all() for name, tensor in state.items())
