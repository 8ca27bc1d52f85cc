"""`perdure://`: a step as files for any reader of fsspec and safetensors, verified whatever range is asked for."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load as load_bytes
from torch import nn

import perdure
from perdure.adapters.fsspec.filesystem import PerdureFileSystem
from perdure.adapters.fsspec.step_files import StepFile, files_of
from perdure.errors import BlobCorrupt, CallError
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.testing import ranks


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(5, 3).to(torch.bfloat16))
    model[1].weight = model[0].weight
    return model


@pytest.fixture(scope="module")
def run() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        ckpt = perdure.Checkpointer(folder, agent=False)
        for step in (10, 9, 20):  # a rollback is no matter of numbers, but these are one branch
            tree: dict[str, Any] = {"model": make_model(), "ema/1": {"w": torch.full((3,), step)}, "n": step}
            tree["alone"] = torch.arange(step)
            ckpt.save(
                step, tree | {"cfg": {"betas": (0.9, 0.99)}, "z": torch.ones(2, dtype=torch.complex128)}
            ).committed()
        ckpt.close()
        yield folder


def read(url: str, **options: Any) -> bytes:
    with fsspec.open(url, **options) as file:
        data: bytes = file.read()
    return data


def test_a_run_lists_its_steps_and_a_step_its_files(run: str) -> None:
    fs, path = fsspec.url_to_fs(f"perdure://{run}")
    assert isinstance(fs, PerdureFileSystem)
    assert fs.ls(path, detail=False) == [f"{run}/step-{step}" for step in (10, 9, 20)]
    assert [Path(name).name for name in fs.ls(f"{path}/step-20", detail=False)] == [
        "alone.safetensors", "ema%2F1.safetensors", "model.safetensors", "z.safetensors", "values.json"
    ]  # fmt: skip
    assert fs.info(f"{path}/newest")["step"] == 20
    assert fs.isdir(path)
    assert fs.isdir(f"{path}/step-9")
    assert fs.isfile(f"{path}/step-9/model.safetensors")
    assert len(fs.find(path)) == 15
    assert fs.exists(f"{path}/step-9")
    assert not fs.exists(f"{path}/step-8")


def test_a_model_comes_out_as_its_own_state_dict_ties_included(run: str) -> None:
    other = make_model()
    with torch.no_grad():
        other[0].weight.zero_()
    other.load_state_dict(load_bytes(read(f"perdure://{run}/newest/model.safetensors")), strict=True)
    assert torch.equal(other[1].weight, make_model()[1].weight)
    assert torch.equal(other[0].weight, make_model()[1].weight)
    assert load_bytes(read(f"perdure://{run}/step-9/ema%2F1.safetensors"))["w"].tolist() == [9, 9, 9]
    assert load_bytes(read(f"perdure://{run}/step-9/alone.safetensors"))["alone"].tolist() == list(range(9))


def test_values_are_json(run: str) -> None:
    values = json.loads(read(f"perdure://{run}/step-10/values.json"))
    assert values["n"] == 10
    assert values["cfg.betas"] == {"$": "tuple", "v": [0.9, 0.99]}


def test_a_file_can_be_fetched_for_readers_that_map_files(run: str, tmp_path: Path) -> None:
    fs = fsspec.filesystem("perdure", run=run)
    fs.get("newest/model.safetensors", str(tmp_path / "m"))
    with safe_open(tmp_path / "m", "pt") as file:
        assert torch.equal(file.get_tensor("2.bias"), make_model()[2].bias)
    assert fs.ls("", detail=False) == ["step-10", "step-9", "step-20"]


def test_a_run_of_any_store_has_its_url_behind_the_protocol() -> None:
    ckpt = perdure.Checkpointer("ram://fsspec", agent=False)
    ckpt.save(3, {"m": {"w": torch.ones(2)}}).committed()
    ckpt.close()
    assert load_bytes(read("perdure://ram://fsspec/step-3/m.safetensors"))["w"].tolist() == [1, 1]
    fs = fsspec.filesystem("perdure")
    assert fs.glob("ram://fsspec/step-*/*.safetensors") == ["ram://fsspec/step-3/m.safetensors"]


def test_what_is_not_there_and_what_would_write_is_refused_by_name(run: str) -> None:
    for path, said in (
        (f"perdure://{run}/step-8/model.safetensors", "step 8"),
        (f"perdure://{run}/step-9/other.safetensors", "other.safetensors"),
        (f"perdure://{run}-not/step-9/model.safetensors", "no run"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            read(path)
    with pytest.raises(FileNotFoundError, match="step-<number>"):
        read("perdure://elsewhere", run=run)
    with pytest.raises(IsADirectoryError):
        read(f"perdure://{run}/step-9")
    with pytest.raises(CallError, match="for reading"), fsspec.open(f"perdure://{run}/step-9/new", "wb") as file:
        file.write(b"")


@pytest.mark.parametrize(
    ("verb", "more", "said"),
    [
        ("rm", {"recursive": True}, "prune"), ("rm_file", {}, "prune"), ("rmdir", {}, "prune"), ("delete", {}, "prune"),
        ("mkdir", {}, "save a step"), ("makedirs", {"exist_ok": True}, "save a step"), ("touch", {}, "save a step"),
        ("touch", {"truncate": False}, "save a step"), ("pipe_file", {"value": b"1"}, "save a step"),
        ("cp", {"path2": "step-30"}, "export"), ("cp_file", {"path2": "step-30"}, "export"),
        ("mv", {"path2": "step-30"}, "prune"), ("rename", {"path2": "step-30"}, "prune"),
    ],
)  # fmt: skip
def test_every_verb_that_writes_is_refused_with_what_to_do_instead(
    run: str, verb: str, more: dict[str, Any], said: str
) -> None:
    fs = fsspec.filesystem("perdure", run=run)
    with pytest.raises(CallError, match=rf"step-9.* is for reading; .*{said}"):
        getattr(fs, verb)("step-9", **more)
    assert fs.ls("", detail=False) == ["step-10", "step-9", "step-20"]


def test_a_file_cannot_be_put_into_a_run(run: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(CallError, match="is for reading"):
        fsspec.filesystem("perdure", run=run).put(str(tmp_path / "file"), "step-9/file")


def test_a_flipped_bit_is_refused_by_name(tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False)
    ckpt.save(1, {"m": {"good": torch.ones(4), "bad": torch.randn(3_000_000)}}).committed()
    ckpt.close()
    (pack,) = (tmp_path / "packs").rglob("*.safetensors")
    data = bytearray(pack.read_bytes())
    data[-5] ^= 4
    pack.chmod(0o644)
    pack.write_bytes(data)
    with pytest.raises(BlobCorrupt, match=r"m\.bad"):
        read(f"perdure://{tmp_path}/newest/m.safetensors")
    with fsspec.filesystem("perdure").open(f"{tmp_path}/newest/m.safetensors", block_size=1 << 20) as file:
        assert len(file.read(100_000)) == 100_000  # of another tile


def _cut(shape: tuple[int, int], at: int) -> TensorLayout:
    boxes = [Box((0, 0), (shape[0], at)), Box((0, at), shape)]
    return TensorLayout(shape, tuple(Piece.alone(rank, box) for rank, box in enumerate(boxes)), "float32")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_range_of_a_step_saved_in_columns_is_that_of_the_whole_file(data: st.DataObject) -> None:
    file, whole = _file(data.draw(st.integers(1, 6), label="cut"))
    assert file.nbytes == len(whole)
    start = data.draw(st.integers(0, len(whole) + 3), label="start")
    stop = data.draw(st.integers(start, len(whole) + 9), label="stop")
    assert file.read(start, stop) == whole[start:stop]
    tensors = load_bytes(whole)
    assert tensors["b"].shape == (5, 7)


def _file(at: int) -> tuple[StepFile, bytes]:
    wholes = {"m.a": ranks.random_bytes("float32", (3, 7), 1), "m.b": ranks.random_bytes("float32", (5, 7), 2)}
    saved = ranks.save_layout(Layout({"m.a": _cut((3, 7), at), "m.b": _cut((5, 7), at)}), wholes, world=2)
    file = files_of(saved.catalog, saved.sources)["m.safetensors"]
    head = file.read(0, file.nbytes)[: -sum(each.nbytes for each in wholes.values())]
    return file, head + wholes["m.a"].tobytes() + wholes["m.b"].tobytes()
