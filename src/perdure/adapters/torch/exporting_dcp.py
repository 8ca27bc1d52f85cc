"""Write a committed step as a folder of ``torch.distributed.checkpoint``, with torch's own writer.

torch plans from tensors without bytes, and asks for the bytes of each when it writes it: they are loaded then, and let
go when the next one is asked for. The folder is made under another name and appears whole.
"""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

from perdure.adapters.torch.exporting import Exported, Selection, Source, Tell, Wanted, new_folder
from perdure.adapters.torch.tensors import torch_dtype
from perdure.errors import Bug, from_wire, to_wire
from perdure.store.refusals import explain, explained

__all__ = ["export_dcp"]


def export_dcp(
    source: Source, selection: Selection, folder: str | os.PathLike[str], *, tell: Tell = lambda nbytes, name: None
) -> Exported:
    """Write tensors and values so that ``torch.distributed.checkpoint.load`` reads them, under their dotted names.

    DCP knows no second name of a tensor: a tied tensor is written under each.
    """
    out = new_folder(folder)
    partial = f"{out}.partial-{secrets.token_hex(4)}"
    flat = [Wanted(name, each.saved) for each in selection.tensors for name in (each.name, *each.aliases)]
    shapes: dict[str, Any] = {
        each.name: torch.empty(each.saved.shape, dtype=torch_dtype(each.saved.dtype), device="meta") for each in flat
    }
    planner = _Planner(source, {each.name: each for each in flat}, tell)
    try:
        with explained(out, "write"):
            # One thread that copies nothing ahead: then torch asks for one tensor after the other.
            writer = FileSystemWriter(partial, thread_count=1, per_thread_copy_ahead=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that there is no process group
                save({**shapes, **selection.values}, storage_writer=writer, planner=planner, no_dist=True)
            source.check_unchanged()
            os.rename(partial, out)  # an empty folder is replaced
            _sync(os.path.dirname(out))
    except CheckpointException as error:  # what went wrong is inside
        for cause, _ in error.failures.values():
            if isinstance(cause, OSError):
                raise explain(cause, out, "write") from error
            raise from_wire(to_wire(cause)) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # gone already if all went well
    nbytes = sum(each.saved.nbytes for each in flat)
    tell(nbytes, "done")
    notes = list(selection.notes)
    if len(flat) > len(selection.tensors):
        notes.append(f"{len(flat) - len(selection.tensors)} further names of tied tensors are written as copies")
    return Exported(source.step, len(flat), nbytes, tuple(sorted(os.listdir(out))), tuple(notes))


class _Planner(DefaultSavePlanner):
    """Gives torch the bytes of a tensor when it writes it."""

    def __init__(self, source: Source, wanted: dict[str, Wanted], tell: Tell) -> None:
        super().__init__()
        self._wanted, self._tell = wanted, tell
        self._coming: Iterator[tuple[Wanted, torch.Tensor]] = source.read(list(wanted.values()))
        self._last: torch.Tensor | None = None
        self._done = 0

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The tensor or value that ``index`` names."""
        wanted = self._wanted.get(index.fqn)
        if wanted is None:
            return self.state_dict[index.fqn]
        if self._last is not None:
            self._last.untyped_storage().resize_(0)  # torch keeps what it has written until the file is complete
        self._tell(self._done, wanted.name)
        self._done += wanted.saved.nbytes
        each, self._last = next(self._coming)
        if each is not wanted:
            raise Bug(f"torch writes {wanted.name} where {each.name} was planned; report it with torch's version")
        return self._last


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
