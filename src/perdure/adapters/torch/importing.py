"""Make a checkpoint of another format a committed step of a run.

The source is understood first, whole, without reading its data. Then the data is compared with the CRCs that the
source has, if it has any, and saved on the same path as a live state is: copied from the mapped files into the
segment that becomes the pack, digested, written, committed. So an import needs room for the tensors once in memory
(and again for those that are not contiguous), never twice.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.adapters.torch.dcp_files import METADATA, read_dcp_folder
from perdure.adapters.torch.foreign import Foreign, ForeignTensor, Mapped
from perdure.adapters.torch.hf_files import INDEX, SINGLE, read_safetensors_file, read_safetensors_folder
from perdure.adapters.torch.nested import TensorRef, put_tensors_back, references
from perdure.adapters.torch.tensors import held_now
from perdure.adapters.torch.torch_files import is_torch_file, read_torch_file
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.copying import Copier, HostCopier
from perdure.checkpoint.framework import Target
from perdure.codec.dtypes import nbytes as nbytes_of
from perdure.errors import BlobMissing, CallError, NotSerializable
from perdure.events import Log
from perdure.fabric import SoloFabric
from perdure.process.environ import Placement
from perdure.state.catalogs import Patterns
from perdure.state.index import Catalog
from perdure.state.items import Capture, TensorItem, ValueItem
from perdure.state.values import encode_value
from perdure.store import Run, StoreUrl, open_store

__all__ = ["Imported", "chosen", "import_checkpoint", "read_foreign"]

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: the step and slot, how many tensors and bytes, and what did not come along."""

    kind: str
    step: int
    slot: int
    n_tensors: int
    n_values: int
    nbytes: int
    notes: tuple[str, ...]


def read_foreign(source: str | os.PathLike[str], *, values: bool = True) -> Foreign:
    """Understand ``source``: a safetensors file, a Hugging Face or DCP folder, or a file of ``torch.save``.

    Only headers are read, and values; without ``values`` those of a DCP folder are not. Raises `FormatRefused` for what
    is none of these, malformed, or would need code to be run.
    """
    path = os.fspath(source)
    if os.path.isdir(path):
        if os.path.lexists(os.path.join(path, METADATA)):
            return read_dcp_folder(path, values=values)
        if os.path.lexists(os.path.join(path, INDEX)):
            return read_safetensors_folder(path)
        if os.path.lexists(os.path.join(path, SINGLE)):
            return read_safetensors_file(Mapped(os.path.join(path, SINGLE)))
        raise CallError(f"{path} is no checkpoint folder: it has no {METADATA}, {INDEX} or {SINGLE}", file=path)
    mapped = Mapped(path)
    return read_torch_file(mapped) if is_torch_file(mapped) else read_safetensors_file(mapped)


def chosen(foreign: Foreign, *, names: Sequence[str], under: str | None = None, skip_values: bool = False) -> Foreign:
    """Of ``foreign`` what matches any of the patterns ``names``, under the key ``under``; values that fit a manifest.

    Raises `CallError` if a pattern matches nothing, `NotSerializable` naming a value that has no place in a manifest;
    with ``skip_values`` no value comes along.
    """
    every = [name for tensor in foreign.tensors for name in (tensor.name, *tensor.aliases)] + list(foreign.values)
    patterns = Patterns(names)
    unmet = patterns.unmet(every) if every else names[0]
    if unmet is not None:
        known = ", ".join(sorted(every)[:5])
        raise CallError(f"nothing in the source is called {unmet!r}; there are {known}, ...")

    def renamed(name: str) -> str:
        return name if under is None else f"{under}.{name}"

    tensors: list[ForeignTensor] = []
    kept: set[str] = set()
    for tensor in foreign.tensors:
        mine = [name for name in (tensor.name, *tensor.aliases) if patterns.fit(name)]
        if mine:
            kept.update(mine)
            first, *others = map(renamed, mine)
            tensors.append(dataclasses.replace(tensor, name=first, aliases=tuple(others)))
    notes = list(foreign.notes)
    values: dict[str, Any] = {}
    left = []
    for key, value in foreign.values.items():
        if skip_values or not patterns.fit(key) or not kept.issuperset(references(value)):
            left.append(key)
            continue
        try:
            moved = put_tensors_back(value, lambda name: TensorRef(renamed(name)))
            values[renamed(key)] = encode_value(moved, key=key)
        except NotSerializable as error:
            raise NotSerializable(f"{error}; or leave all values out with --skip-values", **error.facts) from error
    if left:
        notes.append(f"values left out: {', '.join(left[:8])}{f' and {len(left) - 8} more' if len(left) > 8 else ''}")
    return Foreign(foreign.kind, tuple(tensors), values, tuple(notes))


def import_checkpoint(
    foreign: Foreign,
    url: str | os.PathLike[str],
    *,
    step: int | None = None,
    log: Log | None = None,
    tell: Callable[[str, int], None] = lambda phase, nbytes: None,
) -> Imported:
    """Save ``foreign`` (from `chosen`) as ``step`` of the run at ``url``, which may be new; durable on return.

    In a run that has steps, the new one goes on from its newest and must be given a number after that; in a new run it
    is 0 by default. ``tell`` hears of each phase, and the bytes of the tensors.
    """
    if not foreign.tensors and not foreign.values:
        raise CallError("there is nothing to import; see --names")
    nbytes = sum(nbytes_of(tensor.dtype, tensor.shape) for tensor in foreign.tensors)
    place = StoreUrl.parse(url)
    slot, newest = _head(place)
    if step is None and newest is not None:
        raise CallError(f"{place} has steps up to {newest} already; say with --step which one this is to be")
    step = 0 if step is None else step
    if newest is not None and step <= newest:
        raise CallError(f"{place} has step {newest} already; import as a later one with --step", step=step)
    tell("comparing checksums", 0)
    crcs = {crc: tensor.name for tensor in foreign.tensors for crc in tensor.crcs}
    for crc, name in crcs.items():
        crc.check(name)
    tell("copying", nbytes)
    ckpt = _Importer(place, log=log or Log(), parent=slot)
    try:
        saved = ckpt.save(step, {"source": foreign}, meta={"imported_from": foreign.kind})
        saved.staged()
        tell("writing", nbytes)
        made = saved.committed()
    finally:
        ckpt.close()
    return Imported(
        foreign.kind, step, made.slot, len(foreign.tensors), len(foreign.values), nbytes, foreign.notes
    )  # fmt: skip


def _head(place: StoreUrl) -> tuple[int | None, int | None]:
    """The newest slot of the run at ``place`` and its step; None twice if there is no run yet, or an empty one."""
    try:
        head = Run.open(open_store(place), create=False, tell=lambda note: None).head()
    except BlobMissing:
        return None, None
    return (None, None) if head is None else (head.slot, head.step)


class _Importer(Checkpointer):
    """The checkpointer of one process, which saves a `Foreign` as the child of ``parent``."""

    def __init__(self, place: StoreUrl, *, log: Log, parent: int | None) -> None:
        super().__init__(
            open_store(place),
            url=str(place),
            framework=_ForeignFramework(),
            fabric=SoloFabric(),
            placement=Placement(),
            start_agent=None,
            log=log,
            deadlines=Deadlines(stage_s=_DAY_S, commit_s=_DAY_S),
        )
        self._base_slot = parent


class _ForeignFramework:
    """Describes a `Foreign` to the checkpointer: `perdure.checkpoint.framework.Framework`, for saving only."""

    def capture(self, tree: Mapping[str, Any]) -> Capture:
        """Describe the blocks where they are mapped; only what is not contiguous is copied for it."""
        foreign: Foreign = tree["source"]
        return Capture(
            tuple(
                TensorItem(
                    name=tensor.name,
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    held=tuple(held_now(block)[0] for block in tensor.blocks),
                    aliases=tensor.aliases,
                )
                for tensor in foreign.tensors
            ),
            tuple(ValueItem(key, value) for key, value in foreign.values.items()),
        )

    def prepare(self, tree: Mapping[str, Any], catalog: Catalog) -> Target:
        """A file of another format is no target."""
        raise CallError("a checkpoint of another format cannot be restored to; export a step instead")

    def fence(self, tree: Mapping[str, Any], wait: Callable[[], None]) -> None:
        """Nothing here changes."""

    def copier(self, tell: Callable[[str], None]) -> Copier:
        """Files are mapped into the host's memory."""
        return HostCopier()
