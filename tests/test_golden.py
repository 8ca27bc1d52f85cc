"""Runs that releases wrote are read for ever, and today's code writes what the release of this format wrote."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize, safe_open

from perdure.checkpoint.restoring import read_catalog
from perdure.codec.digest import digest
from perdure.codec.dtypes import DTYPES
from perdure.errors import FormatRefused
from perdure.state.index import CatalogTensor
from perdure.state.items import Held, TensorItem
from perdure.state.load import Match, load
from perdure.state.values import decode_value
from perdure.store import Commit, Disk, Epoch, Marker, Part, Pruned, Run, parse_header
from perdure.store.branch import branch
from perdure.store.pack import CODES
from perdure.store.records import FORMAT, decode, digest_of
from perdure.testing.ranks import memory_of, whole_box

GOLDEN = Path(__file__).parent / "golden"
FORMATS = sorted(path.name for path in GOLDEN.iterdir() if path.name.startswith("format-") and path.is_dir())
RUNS = [(form, path.name) for form in FORMATS for path in sorted((GOLDEN / form).iterdir())]
TODAY = f"format-{FORMAT}"


def script(form: str) -> ModuleType:
    """The script that wrote the runs of a format."""
    path = GOLDEN / f"make_{form.replace('-', '_')}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def opened(form: str, name: str) -> Run:
    return Run.open(Disk(GOLDEN / form / name), create=False)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def read_slot(run: Run, slot: int) -> dict[str, list[Any]]:
    """Dtype, shape and digest of every tensor of a commit."""
    catalog, packs = read_catalog(run, slot)
    every: list[tuple[str, CatalogTensor, bool]] = [(name, each, False) for name, each in catalog.tensors.items()]
    every += [(f"{name}@rank{rank}", each, True) for (rank, name), each in catalog.local_tensors.items()]
    matches, wholes = [], {}
    for name, each, local in every:
        wholes[name] = np.full(each.nbytes, 0xAA, np.uint8)
        held = Held(whole_box(each.shape), memory_of(wholes[name]))
        matches.append(Match(TensorItem(each.name, each.dtype, each.shape, (held,), local=local), each))
    load(catalog, matches, lambda pack: [packs[pack]])
    return {name: [each.dtype, list(each.shape), digest(wholes[name])] for name, each, _ in every}


def test_there_are_runs_of_this_format_and_they_are_small() -> None:
    assert TODAY in FORMATS
    assert sum(len(data) for data in files(GOLDEN / TODAY).values()) < 200_000


@pytest.mark.parametrize(("form", "name"), RUNS)
def test_every_tensor_of_every_release_is_read_as_it_was_saved(form: str, name: str) -> None:
    expected = json.loads((GOLDEN / f"{form}.json").read_text("utf-8"))[name]
    run = opened(form, name)
    for slot, wanted in expected.items():
        assert run.read_slot(int(slot)).step == wanted["step"]
        assert read_slot(run, int(slot)) == wanted["tensors"]


def test_the_lineage_of_format_1_is_read() -> None:
    run = opened("format-1", "four")
    assert [(each.slot, each.step, each.epoch, each.parent) for each in branch(run)] == [
        (4, 25, 2, 3), (3, 15, 2, 1), (1, 10, 1, None),
    ]  # fmt: skip
    assert run.read_slot(2).parent == 1
    assert run.pruned() == {3}
    head = run.head()
    assert head is not None
    assert (head.metric, head.pinned, head.meta) == (0.25, True, {"note": "best", "tags": ["a", 1.5]})
    catalog, packs = read_catalog(run, 4)
    assert {name.split("/")[2][:12] for name in packs} == {"000000000015", "000000000025"}  # refers to older packs
    assert catalog.world == 4
    assert catalog.aliases == {"lm_head": "embedding", "tied.weight": "embedding"}
    assert catalog.values == {"lr": 2.5}
    assert catalog.local_values == {(rank, "cursor"): {"rank": rank, "step": 25} for rank in range(4)}


def test_the_values_of_format_1_are_read_as_they_were_saved() -> None:
    catalog, _ = read_catalog(opened("format-1", "one"), 1)
    wanted = script("format-1").VALUES
    found = {key: decode_value(value, key=key) for key, value in catalog.values.items()}
    assert found.keys() == wanted.keys()
    assert struct.pack("<d", found["nan"]) == struct.pack("<d", wanted["nan"])
    for key in wanted.keys() - {"nan", "np arrays"}:
        assert found[key] == wanted[key], key
        assert type(found[key]) is type(wanted[key]), key
    for one, other in zip(found["np arrays"], wanted["np arrays"], strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    assert [math.copysign(1, each) for each in found["floats"][:2]] == [1, -1]
    assert list(found["ordered"]) == ["z", "a"]


def test_the_same_input_gives_the_same_bytes_today(tmp_path: Path) -> None:
    """Spelling is part of the format: two writers of one format write alike."""
    script(TODAY).make(tmp_path / TODAY)
    found, wanted = files(tmp_path / TODAY), files(GOLDEN / TODAY)
    assert sorted(found) == sorted(wanted)
    for name, data in wanted.items():
        assert found[name] == data, name


def test_what_is_expected_follows_from_the_script_and_not_from_what_was_written() -> None:
    assert script(TODAY).expected() == json.loads((GOLDEN / f"{TODAY}.json").read_text("utf-8"))


def test_runs_of_format_1_hold_every_dtype_there_was() -> None:
    told = json.loads((GOLDEN / "format-1.json").read_text("utf-8"))["one"]["1"]["tensors"]
    assert {dtype for dtype, _, _ in told.values()} >= {
        "float8_e4m3fn",
        "float4_e2m1fn_x2",
        "uint1",
        "int7",
        "complex32",
    }
    assert DTYPES.keys() - {dtype for dtype, _, _ in told.values()} == set()


RECORDS = {"perdure.json": Marker, "epochs": Epoch, "parts": Part, "slots": Commit, "pruned": Pruned}


def records() -> Iterator[tuple[str, Any, bytes]]:
    for name, data in files(GOLDEN / TODAY / "four").items():
        if not name.startswith("packs"):
            yield name, RECORDS[name.split("/")[0]], data.split(b"\n")[0] + b"\n"


def test_a_future_format_is_refused_with_both_numbers_named() -> None:
    kinds = set()
    for name, kind, data in records():
        body = data[data.index(b'"body":') + 7 : -2]
        of = digest_of(f"{kind.__name__.lower()}\n{FORMAT + 1}\n".encode() + body)
        head = f'{{"perdure":"{kind.__name__.lower()}","format":{FORMAT + 1},"digest":"{of}","body":'
        with pytest.raises(
            FormatRefused, match=f"written by format {FORMAT + 1}; this release reads {FORMAT}"
        ) as caught:
            decode(head.encode() + body + b"}\n", kind, file=name)
        assert (caught.value.found, caught.value.reads, caught.value.file) == (FORMAT + 1, FORMAT, name)
        kinds.add(kind)
    assert len(kinds) == len(RECORDS)
    pack = next(path for path in (GOLDEN / TODAY / "four").rglob("*.safetensors"))
    data = pack.read_bytes().replace(f'"perdure":"{FORMAT}"'.encode(), f'"perdure":"{FORMAT + 1}"'.encode(), 1)
    with pytest.raises(FormatRefused, match=f"written by format {FORMAT + 1}; this release reads {FORMAT}"):
        parse_header(lambda start, nbytes: data[start : start + nbytes], len(data), file=pack.name)


PACKS = [path for form in FORMATS for path in sorted((GOLDEN / form).rglob("*.safetensors"))]


@pytest.mark.parametrize("path", PACKS, ids=[str(path.relative_to(GOLDEN)) for path in PACKS])
def test_the_safetensors_library_reads_the_same_bytes_from_every_pack(path: Path) -> None:
    data = path.read_bytes()
    index = parse_header(lambda start, nbytes: data[start : start + nbytes], len(data), file=path.name)
    found = {key: each for key, each in deserialize(data) if not key.startswith("__pad.")}
    assert found.keys() == {entry.key for entry in index.entries}
    for entry in index.entries:
        each = found[entry.key]
        assert (each["dtype"], tuple(each["shape"])) == (CODES[entry.dtype][0], entry.shape)
        assert bytes(each["data"]) == data[entry.start : entry.start + entry.nbytes]
    with safe_open(path, framework="np") as other:
        assert set(other.keys()) >= found.keys()
