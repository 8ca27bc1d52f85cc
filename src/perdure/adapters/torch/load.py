"""`perdure.load`: tensors of a committed step, whole, verified, without a process group."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from perdure.adapters.torch.regroup import regroup
from perdure.adapters.torch.target import TensorSink
from perdure.adapters.torch.tensors import torch_dtype
from perdure.adapters.torch.views import Fuses, Splits
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.stalls import unless_stalled
from perdure.errors import BlobMissing, CallError, IntegrityError
from perdure.events import Log, Notice
from perdure.state.catalogs import Patterns
from perdure.state.index import CatalogTensor
from perdure.state.items import Held, TensorItem
from perdure.state.load import Match
from perdure.state.load import load as load_matches
from perdure.state.source import check_room
from perdure.state.step_index import read_catalog
from perdure.store import Commit, Run, open_store
from perdure.store.branch import commit_of

__all__ = ["at_step", "load"]

Result = TypeVar("Result")
Work: TypeAlias = Callable[[Run, Commit, Log, Callable[[int], None]], Result]
_NEWER = 20  # times to look for a newer step because what was found was pruned meanwhile


def load(
    url: str | os.PathLike[str],
    *,
    names: str | Sequence[str] = ("*",),
    step: int | None = None,
    slot: int | None = None,
    split: Splits | None = None,
    fuse: Fuses | None = None,
) -> dict[str, torch.Tensor]:
    """Return the tensors whose names are among ``names`` or match a pattern there, on the CPU, as saved.

    In a pattern ``*`` is any text, ``?`` any letter, ``[ab]`` one of these letters, ``[!ab]`` any other. A name
    matches itself, so ``"a[1]"`` finds the tensor that is called so.

    ``step`` is a committed step of the current branch, the newest by default; ``slot`` a commit by its number, on
    whichever branch it is. Rank-local tensors are called ``name@rank3``.
    ``split={"qkv": {"q": 512, "k": 128, "v": 128}}`` gives a tensor of the checkpoint as several,
    ``fuse={"gate_up": ["gate", "up"]}`` several as one, as `View` says of live ones.

    Every tile is verified; raises `BlobCorrupt` naming tensor and file, `BlobMissing` if there is no such step,
    `CallError` if a pattern, or a key of ``split`` or ``fuse``, matches nothing, or parts do not make up what they are
    to be parts of.

    >>> import tempfile, torch, perdure
    >>> ckpt = perdure.Checkpointer(folder := tempfile.mkdtemp(), agent=False)
    >>> _ = ckpt.save(7, {"w": torch.arange(3)}).committed()
    >>> perdure.load(folder)
    {'w': tensor([0, 1, 2])}
    >>> ckpt.close()
    """
    given: Any = (names,) if isinstance(names, str) else names
    names = tuple(given) if isinstance(given, Iterable) else ()
    if not isinstance(given, Iterable) or not all(isinstance(each, str) for each in names):
        raise CallError(f"names is {repr(given)[:80]}; give a name or pattern, or a list of them")
    if not names:
        raise CallError("names is empty, so nothing would be read; give names or patterns, or leave it out for all")
    found = at_step(url, lambda run, commit, log, moved: _load(run, commit, names, log, moved), step=step, slot=slot)
    return regroup(found, split=split or {}, fuse=fuse or {}) if split or fuse else found


def at_step(url: str | os.PathLike[str], work: Work[Result], *, step: int | None, slot: int | None) -> Result:
    """``work(run, commit, log, moved)`` with the commit that is asked for, the newest by default; it calls ``moved``.

    Raises what `load` does, and what ``work`` does.
    """
    log = Log()
    return unless_stalled(
        lambda moved: _newest_or_asked(url, work, step=step, slot=slot, log=log, moved=moved),
        stall_s=Deadlines().stall_s,
        what=f"tensors of {os.fspath(url)}",
    )


def _newest_or_asked(
    url: str | os.PathLike[str],
    work: Work[Result],
    *,
    step: int | None,
    slot: int | None,
    log: Log,
    moved: Callable[[int], None],
) -> Result:
    run = Run.open(open_store(url), create=False, tell=lambda note: log.emit(Notice(text=note.message)))
    for _ in range(_NEWER):
        commit = commit_of(run, step=step, slot=slot)
        try:
            return work(run, commit, log, moved)
        except IntegrityError:
            if step is not None or slot is not None or not run.is_pruned(commit.slot):
                raise  # else somebody has pruned what was the newest a moment ago
    raise BlobMissing(f"steps of {os.fspath(url)} are pruned faster than they can be read; keep more of them")


def _load(
    run: Run, commit: Commit, names: Sequence[str], log: Log, moved: Callable[[int], None]
) -> dict[str, torch.Tensor]:
    wanted = None if "*" in names else list(names)
    catalog, packs = read_catalog(run, commit.slot, names=wanted)
    every: dict[str, CatalogTensor] = dict(catalog.tensors)
    every |= {alias: catalog.tensors[name] for alias, name in catalog.aliases.items()}
    every |= {f"{name}@rank{rank}": tensor for (rank, name), tensor in catalog.local_tensors.items()}
    patterns = Patterns(names)
    chosen = {name: tensor for name, tensor in every.items() if patterns.fit(name)}
    unmet = patterns.unmet(every)
    if unmet is not None:
        there = sorted(read_catalog(run, commit.slot)[0].tensors)[:5]
        raise CallError(f"no tensor of step {commit.step} is called {unmet!r}; there are {', '.join(there)}, ...")
    found: dict[int, torch.Tensor] = {}
    matches = []
    for saved in {id(tensor): tensor for tensor in chosen.values()}.values():
        check_room(saved, packs)
        whole = torch.empty(saved.shape, dtype=torch_dtype(saved.dtype))
        found[id(saved)] = whole
        sink = TensorSink.of(saved.name, whole)
        held = tuple(Held(part.box, part.memory) for part in sink.parts)
        matches.append(Match(TensorItem(saved.name, saved.dtype, saved.shape, held), saved))
    for note in load_matches(catalog, matches, lambda pack: [packs[pack]], on_bytes=moved).notes:
        log.emit(Notice(text=f"step {commit.step}: {note}"))
    return {name: found[id(tensor)] for name, tensor in chosen.items()}
