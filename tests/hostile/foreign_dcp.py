"""Hostile folders of DCP, made from one as it should be; see `foreign`."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, MetadataIndex

__all__ = ["CANARY", "DCP", "Runs", "dcp_folder"]

Make = Callable[[Path], Path]
CANARY = "canary"


class Runs:
    """An object whose pickle runs a shell command."""

    def __init__(self, folder: Path) -> None:
        self.command = f"touch {folder / CANARY}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def dcp_folder(folder: Path) -> Path:
    """A folder of DCP as it should be."""
    here = folder / "dcp"
    tree = {"w": torch.arange(6.0).reshape(2, 3), "v": torch.ones(2, dtype=torch.int16), "n": 3}
    dcp.save(tree, checkpoint_id=here, no_dist=True)
    return here


def with_metadata(change: Callable[[Any], Any]) -> Make:
    def make(folder: Path) -> Path:
        here = dcp_folder(folder)
        metadata = pickle.loads((here / ".metadata").read_bytes())  # noqa: S301 (made above)
        changed = change(metadata)
        (here / ".metadata").write_bytes(pickle.dumps(metadata if changed is None else changed))
        return here

    return make


def with_place(fqn: str, **fields: Any) -> Make:
    def change(metadata: Any) -> None:
        for index, info in metadata.storage_data.items():
            if index.fqn == fqn:
                metadata.storage_data[index] = dataclasses.replace(info, **fields)

    return with_metadata(change)


def chunks(*boxes: tuple[tuple[int, int], tuple[int, int]]) -> Make:
    def change(metadata: Any) -> None:
        old = next(index for index in metadata.storage_data if index.fqn == "w")
        metadata.state_dict_metadata["w"].chunks = [
            ChunkStorageMetadata(torch.Size(a), torch.Size(b)) for a, b in boxes
        ]
        for lo, _ in boxes:
            metadata.storage_data[MetadataIndex("w", torch.Size(lo))] = metadata.storage_data[old]

    return with_metadata(change)


def with_attribute(name: str, **values: Any) -> Make:
    def change(metadata: Any) -> None:
        for key, value in values.items():
            setattr(metadata.state_dict_metadata[name], key, value)

    return with_metadata(change)


def running(folder: Path) -> Path:
    here = dcp_folder(folder)
    (here / ".metadata").write_bytes(pickle.dumps(Runs(folder)))
    return here


def running_value(folder: Path) -> Path:
    here = folder / "dcp"
    dcp.save({"n": Runs(folder)}, checkpoint_id=here, no_dist=True)
    return here


def running_inside(folder: Path) -> Path:
    return with_metadata(lambda metadata: setattr(metadata, "planner_data", Runs(folder)))(folder)


def swapped(metadata: Any) -> None:
    places = {index.fqn: index for index in metadata.storage_data}
    metadata.storage_data[places["w"]] = metadata.storage_data[places["v"]]


DCP: dict[str, Make] = {
    "os.system for its metadata": running,
    "os.system in its metadata": running_inside,
    "os.system in a value": running_value,
    "a list for its metadata": with_metadata(lambda metadata: []),
    "a file that climbs": with_place("w", relative_path="../x.distcp"),
    "a file with an absolute name": with_place("w", relative_path="/etc/passwd"),
    "a file that is a number": with_place("w", relative_path=3),
    "a file that is not there": with_place("w", relative_path="__9_0.distcp"),
    "its own metadata as a file": with_place("w", relative_path=".metadata", offset=0, length=100),
    "a place beyond the file": with_place("w", offset=1 << 40),
    "a place longer than the file": with_place("w", length=1 << 40),
    "a negative place": with_place("w", offset=-1),
    "a place that is text": with_place("w", offset="0"),
    "a compressed place": with_place("w", transform_descriptors=["zstd"]),
    "a value for a tensor": with_metadata(lambda m: m.state_dict_metadata.update(w=BytesStorageMetadata())),
    "a tensor for a value": with_metadata(lambda m: m.state_dict_metadata.update(n=m.state_dict_metadata["v"])),
    "no places": with_metadata(lambda metadata: metadata.storage_data.clear()),
    "bytes of another tensor": with_metadata(swapped),
    "chunks that overlap": chunks(((0, 0), (2, 2)), ((0, 1), (2, 2))),
    "chunks that leave a gap": chunks(((0, 0), (1, 3))),
    "a chunk that is there twice": chunks(((0, 0), (2, 3)), ((0, 0), (2, 3))),
    "a chunk beyond the tensor": chunks(((0, 0), (2, 4))),
    "a chunk of a huge size": chunks(((0, 0), (1 << 40, 1 << 40))),
    "a chunk of other dims": with_metadata(
        lambda m: setattr(
            m.state_dict_metadata["w"], "chunks", [ChunkStorageMetadata(torch.Size([0]), torch.Size([2, 3]))]
        )
    ),
    "a tensor of a huge size": with_attribute("w", size=torch.Size([1 << 40, 1 << 40])),
    "a size that is text": with_attribute("w", size="23"),
    "chunks that are none": with_attribute("w", chunks=None),
    "no dtype": with_attribute("w", properties=None),
    "a name that is a number": with_metadata(lambda m: m.state_dict_metadata.update({7: m.state_dict_metadata["w"]})),
}
