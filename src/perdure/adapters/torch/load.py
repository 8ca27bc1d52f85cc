"""`perdure.load`: tensors of a committed step, whole, verified, without a process group."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence

import torch

from perdure.adapters.torch.target import TensorSink
from perdure.adapters.torch.tensors import torch_dtype
from perdure.checkpoint.restoring import read_catalog
from perdure.errors import BlobMissing, CallError
from perdure.events import Log, Notice
from perdure.state.index import CatalogTensor
from perdure.state.items import Held, TensorItem
from perdure.state.load import Match
from perdure.state.load import load as load_matches
from perdure.state.source import check_room
from perdure.store import Commit, Run, open_store

__all__ = ["load"]


def load(
    url: str | os.PathLike[str], *, names: str | Sequence[str] = ("*",), step: int | None = None
) -> dict[str, torch.Tensor]:
    """Return the tensors whose names match any of the patterns ``names``, on the CPU, as saved.

    ``step`` is a committed step of the current branch, the newest by default. Rank-local tensors are called
    ``name@rank3``. Every tile is verified; raises `BlobCorrupt` naming tensor and file, `BlobMissing` if there is no
    such step, `CallError` if a pattern matches nothing.

    >>> import tempfile, torch, perdure
    >>> ckpt = perdure.Checkpointer(folder := tempfile.mkdtemp(), agent=False)
    >>> _ = ckpt.save(7, {"w": torch.arange(3)}).committed()
    >>> perdure.load(folder)
    {'w': tensor([0, 1, 2])}
    >>> ckpt.close()
    """
    names = (names,) if isinstance(names, str) else names
    log = Log()
    run = Run.open(open_store(url), create=False, tell=lambda note: log.emit(Notice(text=note.message)))
    commit = _commit_of(run, step, os.fspath(url))
    wanted = None if "*" in names else list(names)
    catalog, packs = read_catalog(run, commit.slot, names=wanted)
    every: dict[str, CatalogTensor] = dict(catalog.tensors)
    every |= {alias: catalog.tensors[name] for alias, name in catalog.aliases.items()}
    every |= {f"{name}@rank{rank}": tensor for (rank, name), tensor in catalog.local_tensors.items()}
    chosen = {name: tensor for name, tensor in every.items() if any(fnmatch.fnmatchcase(name, p) for p in names)}
    for pattern in names:
        if pattern != "*" and not any(fnmatch.fnmatchcase(name, pattern) for name in every):
            there = sorted(read_catalog(run, commit.slot)[0].tensors)[:5]
            raise CallError(f"no tensor of step {commit.step} is called {pattern!r}; there are {', '.join(there)}, ...")
    found: dict[int, torch.Tensor] = {}
    matches = []
    for saved in {id(tensor): tensor for tensor in chosen.values()}.values():
        check_room(saved, packs)
        whole = torch.empty(saved.shape, dtype=torch_dtype(saved.dtype))
        found[id(saved)] = whole
        sink = TensorSink.of(saved.name, whole)
        held = tuple(Held(part.box, part.memory) for part in sink.parts)
        matches.append(Match(TensorItem(saved.name, saved.dtype, saved.shape, held), saved))
    load_matches(catalog, matches, lambda pack: [packs[pack]])
    return {name: found[id(tensor)] for name, tensor in chosen.items()}


def _commit_of(run: Run, step: int | None, url: str) -> Commit:
    """The newest commit, or that of ``step``, on the current branch."""
    if step is None:
        found = run.head()
        if found is None:
            raise BlobMissing(f"there is no committed step in {url}", step=None)
        return found
    gone = run.pruned()
    there = [commit for commit in run.chain() if commit.step == step]
    for commit in there:
        if commit.slot not in gone:
            return commit
    why = "was pruned" if there else "is not there"
    raise BlobMissing(f"the committed step {step} of {url} {why}; Checkpointer.steps() lists what is", step=step)
