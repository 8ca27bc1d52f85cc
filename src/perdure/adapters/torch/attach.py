"""`perdure.attach`: make a plain training loop survive, in one line before it. What happens in the loop: `run`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from perdure.adapters.torch import probe
from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.flat_slices import flat_slices
from perdure.adapters.torch.framework import TorchFramework
from perdure.adapters.torch.loader import is_resumable, make_resumable
from perdure.adapters.torch.rng import Rng
from perdure.adapters.torch.run import Run
from perdure.adapters.torch.tree import is_stateful
from perdure.adapters.torch.views import View
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.rhythm import GPU_HOURS_BETWEEN_FAILURES, Rhythm
from perdure.errors import CallError
from perdure.events import Notice
from perdure.state.scopes import RankLocal
from perdure.upkeep.keep import Keep

__all__ = ["attach"]


def attach(
    model: torch.nn.Module | View,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    *,
    to: str | os.PathLike[str],
    every: int | Literal["auto"],
    memory_every: int | None = None,
    between_failures_s: float | None = None,
    scheduler: Any = None,
    loader: Any = None,
    extra: Mapping[str, Any] | None = None,
    seed: int = 0,
    step: int | None = None,
    agent: bool = True,
    tiers: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    remote_every: int | None = None,
    remote_keep: Keep | None = None,
    remote_bytes_per_s: float | None = None,
    keep: Keep | None = None,
    coding: str = "raw",
    memory_bytes: int | None = None,
    drain_bytes_per_s: float | None = None,
    deadlines: Deadlines | None = None,
) -> Run:
    """Restore the newest step of the run at ``to`` if there is one, then save every ``every`` steps by itself.

    ``every="auto"`` chooses the interval that wastes the least time (Young, Daly), from what saves and steps are
    measured to cost here and from ``between_failures_s``, the mean time between failures of the whole job (by default
    that of Llama 3's training, scaled to the number of ranks). ``memory_every`` saves more often to the agents' memory
    alone, which costs no I/O and outlives ranks (and, of several nodes, any one node).

    Called once by every rank, after the process group, the model (wrapped, sharded) and the optimizer are made and
    before the loop. ``model`` may be a `View` of one; on the ranks of a pipeline it is a `Stage`, and ranks that draw
    from no loader call ``run.cut()`` at the end of each iteration. ``loader`` is a plain ``DataLoader`` (given a
    seeded, sharded, resumable sampler; ``seed`` orders it) or anything with ``state_dict``, which is
    rank-local: what it does in a world of another size is an error, or what ``RankLocal(loader, on_resize=...)`` says;
    ``scheduler`` and the values of ``extra`` are anything with ``state_dict``, tensors, or `RankLocal`. Random
    generators are saved rank by rank. ``step`` restores that step and no other.
    ``keep`` prunes older steps (``"last=3,every-steps=1000"`` or `perdure.keep` rules); by default every step stays.
    ``coding="lossless"`` stores tensors as small as they get, bit for bit, ``"auto"`` as what is durable soonest.
    ``memory_bytes`` bounds the checkpoint memory of each node's agent, ``drain_bytes_per_s`` what it writes.

    ``tiers=["s3://bucket/run7"]`` names a remote store behind ``to``: committed steps are carried there in the
    background, and what ``to`` has lost is restored from it. ``remote_every`` saves and carries the steps whose number
    it divides; by default the newest committed step goes whenever the one before has arrived. ``remote_keep`` and
    ``remote_bytes_per_s`` are those of `Checkpointer`.

    ``run.step`` counts completed optimizer steps (of several optimizers: when each has done one). On SIGTERM (and on
    the first Ctrl-C) all ranks save at one agreed step and exit with 128 + the signal. At a clean exit the last step
    is saved; call ``run.close()`` right after the loop if the script then changes the model.

    A launcher may say that there must be something to restore, roll back, or have batches left out: PERDURE_RESUME,
    PERDURE_RESTORE_BEFORE, PERDURE_SKIP.

    Raises `StateMismatch` where the checkpoint is of another model, `BlobMissing` for a ``step`` that is not there,
    `NeedsPerson` if the launcher says that there must be something and there is not.
    """
    optimizers = _checked(model, optimizer, scheduler=scheduler, extra=extra, seed=seed, to=to)
    rule = loader.on_resize if isinstance(loader, RankLocal) else "error"
    loader = loader.value if isinstance(loader, RankLocal) else loader
    if loader is not None and not isinstance(loader, DataLoader) and not is_stateful(loader):
        raise CallError(
            f"loader is a {type(loader).__name__}, whose position nobody knows; give a DataLoader, or what has "
            "state_dict() and load_state_dict()",
            key="loader",
        )
    ckpt = Checkpointer(
        to,
        agent=agent,
        tiers=tiers,
        remote_every=remote_every,
        remote_keep=remote_keep,
        remote_bytes_per_s=remote_bytes_per_s,
        keep=keep,
        coding=coding,
        memory_bytes=memory_bytes,
        drain_bytes_per_s=drain_bytes_per_s,
        deadlines=deadlines,
    )
    rng = Rng(ckpt.rank)
    tree: dict[str, Any] = {"model": model}
    for i, each in enumerate(optimizers):
        tree[f"optimizer{i or ''}"] = each
    if scheduler is not None:
        tree["scheduler"] = scheduler
    if loader is not None:
        if isinstance(loader, DataLoader):
            loader = make_resumable(loader, seed=seed, rank=ckpt.rank, world=ckpt.world)
        tree["loader"] = loader if is_resumable(loader) else RankLocal(loader, on_resize=rule)
    tree["rng"] = RankLocal(rng)
    for name, value in (extra or {}).items():
        if name in tree or name == "run":
            raise CallError(f"extra may not be called {name!r}; attach saves that itself", key=name)
        inner = value.value if isinstance(value, RankLocal) else value
        given = isinstance(inner, torch.nn.Module | View | torch.Tensor | dict) or bool(flat_slices(inner))
        if not given and not is_stateful(inner):
            raise CallError(
                f"extra[{name!r}] is a {type(inner).__name__}, which cannot be put back in place; hold it in a dict: "
                f"extra={{{name!r}: {{'value': ...}}}}",
                key=name,
            )
        if isinstance(inner, dict):
            TorchFramework().capture({name: value})  # what cannot be saved is an error now, not at the first save
        tree[name] = value
    if memory_every is not None and not agent:
        raise CallError(f"memory_every={memory_every} needs the node's agent, which agent=False does without")
    if between_failures_s is not None and every != "auto":
        raise CallError(f'between_failures_s is for every="auto"; with every={every} it says nothing')
    rhythm = Rhythm(
        every,
        memory_every,
        between_failures_s=between_failures_s
        if between_failures_s is not None
        else GPU_HOURS_BETWEEN_FAILURES * 3600 / ckpt.world,
        agree=lambda mine: list(ckpt.word_of_rank_0(mine, "all ranks to agree on the next save")),
        tell=lambda text: ckpt.tell(Notice(text=text)),
        remote_every=remote_every,
    )
    run = Run(ckpt, tree, rhythm=rhythm, rng=rng)
    probe.follow(run, model.module if isinstance(model, View) else model, record=lambda: run._record)
    run.begin(model.module if isinstance(model, View) else model, optimizers, loader, step=step, where=str(to))
    return run


def _checked(
    model: Any, optimizer: Any, *, scheduler: Any, extra: Any, seed: Any, to: Any
) -> list[torch.optim.Optimizer]:
    """The optimizers; raises `CallError` for what is not what it should be, before anything begins."""
    if not isinstance(to, str | os.PathLike):
        raise CallError(f'to is a {type(to).__name__}; give a path or a URL, such as "s3://bucket/run7"', key="to")
    if not isinstance(model, torch.nn.Module | View):
        raise CallError(f"model is a {type(model).__name__}; give a torch.nn.Module, or a View of one", key="model")
    given = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    found = list(given) if isinstance(given, Iterable) else [given]
    for each in found:
        if not isinstance(each, torch.optim.Optimizer):
            raise CallError(f"optimizer is a {type(each).__name__}; give one torch.optim.Optimizer or several")
    if not found:
        raise CallError("attach needs at least one optimizer")
    inner = scheduler.value if isinstance(scheduler, RankLocal) else scheduler
    if inner is not None and not isinstance(inner, torch.Tensor | dict) and not is_stateful(inner):
        raise CallError(
            f"scheduler is a {type(inner).__name__}, which has no state_dict() and load_state_dict(), so where it is "
            "in its schedule would be lost",
            key="scheduler",
        )
    if extra is not None and not isinstance(extra, Mapping):
        raise CallError(f"extra is a {type(extra).__name__}; give a dict of names to values", key="extra")
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise CallError(f"seed is {seed!r}; give a whole number", key="seed")
    return found
