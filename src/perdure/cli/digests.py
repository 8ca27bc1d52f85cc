"""Digests of what a commit holds, by kind of state and independent of the mesh that saved it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from perdure.checkpoint.restoring import read_catalog
from perdure.codec.digest import digest
from perdure.layout import Box
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.load import Match, load
from perdure.store import Run, open_store
from perdure.store.branch import commit_of

__all__ = ["CATEGORIES", "category_digests"]

# How attach names things; what is none of these is "other".
CATEGORIES = {
    "parameters": "model",
    "optimizer": "optimizer",
    "random generators": "rng",
    "schedule": "scheduler",
    "data position": "loader",
    "step count": "run",
}


def category_digests(url: str, *, step: int) -> dict[str, str]:
    """The digest of each kind of state in a commit of ``step``: names, dtypes, shapes, every byte, verified."""
    run = Run.open(open_store(url), create=False)
    commit = commit_of(run, step=step)
    catalog, packs = read_catalog(run, commit.slot)
    parts: dict[str, list[bytes]] = {name: [] for name in [*CATEGORIES, "other"]}
    tensors = [*catalog.tensors.values(), *catalog.local_tensors.values()]
    for tensor in sorted(tensors, key=lambda each: (each.name, each.rank or 0)):
        whole = np.zeros(tensor.nbytes, np.uint8)
        memory = Memory(int(whole.__array_interface__["data"][0]), whole.nbytes, whole)
        held = (Held(Box.whole(tensor.shape), memory),)
        item = TensorItem(tensor.name, tensor.dtype, tensor.shape, held)
        load(catalog, [Match(item, tensor)], lambda pack: [packs[pack]])
        facts = [tensor.name, tensor.rank, tensor.dtype, tensor.shape, digest(whole)]
        parts[_category(tensor.name)].append(msgspec.json.encode(facts))
    values: list[tuple[str, int | None, Any]] = [(key, None, value) for key, value in catalog.values.items()]
    values += [(key, rank, value) for (rank, key), value in catalog.local_values.items()]
    for key, rank, value in sorted(values, key=lambda each: (each[0], each[1] or 0)):
        parts[_category(key)].append(msgspec.json.encode([key, rank, value], order="sorted"))
    return {name: digest(b"\n".join(lines)) for name, lines in parts.items() if lines}


def _category(key: str) -> str:
    top = key.split(".")[0]
    return next((name for name, prefix in CATEGORIES.items() if top == prefix), "other")
