"""`perdure.Checkpointer`: the checkpoint system put together with torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from perdure.adapters.torch.fabric import ProcessGroupFabric
from perdure.adapters.torch.framework import TorchFramework
from perdure.adapters.torch.notes import StoreNotes
from perdure.checkpoint.asked import checked_bytes
from perdure.checkpoint.checkpointer import Checkpointer as _Checkpointer
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.messages import Bounds
from perdure.checkpoint.remote import remote_of
from perdure.errors import CallError
from perdure.events import Log
from perdure.fabric import Fabric, SoloFabric
from perdure.process.environ import Placement
from perdure.store import StoreUrl, open_store
from perdure.upkeep.keep import Keep

__all__ = ["Checkpointer"]


class Checkpointer(_Checkpointer):
    """Save and restore a run at ``url`` (a folder, or a URL), from one process or from all ranks of a process group.

    >>> import tempfile, torch, perdure
    >>> model = torch.nn.Linear(4, 4)
    >>> ckpt = perdure.Checkpointer(tempfile.mkdtemp(), agent=False)
    >>> slot = ckpt.save(1, {"model": model}).committed().slot
    >>> before = model.weight.clone()
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> ckpt.restore({"model": model})
    1
    >>> bool((model.weight == before).all())
    True
    >>> ckpt.close()

    Make it after ``init_process_group``, on every rank. ``agent`` lets the node's agent keep checkpoint memory and
    write in the background of everything; without it this process writes by itself, on a thread. A `ram:` store is of
    this process and has no agent. ``keep`` says which steps stay once newer ones are committed (``"last=3,best=1:min"``
    or `perdure.keep` rules; docs/retention.md); by default every step does.

    ``tiers=["s3://bucket/run7"]`` names a remote store behind ``url``: committed steps are carried there in the
    background, and a restore takes from it what ``url`` has lost (docs/stores.md). ``remote_every`` carries the steps
    whose number it divides, by default the newest one whenever the one before has arrived; ``remote_keep`` are the
    rules of what stays there (those of ``keep`` by default, "all" for everything), ``remote_bytes_per_s`` bounds what
    is sent.

    ``budget_bytes`` is what a restore may take of memory beside the tensors themselves. ``coding="lossless"`` stores
    tensors as small as they get, bit for bit, ``"auto"`` as what is durable soonest (docs/codecs.md); by default they
    lie raw, for any safetensors reader.

    ``memory_bytes`` bounds the checkpoint memory of the node's agent: two steps, and with a coding a third one that
    deltas are made on if there is room; by default what the node has available does. ``drain_bytes_per_s`` bounds what
    the agent writes, so that others who share the store get their part.

    ``log`` (a `perdure.events.Log`) says where events go: by default to stderr as sentences, and to the file that
    ``PERDURE_EVENTS`` names as lines of JSON.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        agent: bool = True,
        tiers: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        remote_every: int | None = None,
        remote_keep: Keep | None = None,
        remote_bytes_per_s: float | None = None,
        keep: Keep | None = None,
        budget_bytes: int = 256 << 20,
        coding: str = "raw",
        memory_bytes: int | None = None,
        drain_bytes_per_s: float | None = None,
        deadlines: Deadlines | None = None,
        log: Log | None = None,
    ) -> None:
        place = StoreUrl.parse(url)
        placement = Placement.read()
        fabric: Fabric = SoloFabric()
        notes: StoreNotes | None = None
        if dist.is_available() and dist.is_initialized():
            if dist.get_world_size() > 1:
                fabric, notes = ProcessGroupFabric(), StoreNotes()
            if (fabric.rank, fabric.world) != (placement.rank, placement.world):
                placement = _of_group(placement, fabric)
        elif placement.world > 1:
            raise CallError(
                f"this is rank {placement.rank} of {placement.world}, but there is no process group yet; call "
                "torch.distributed.init_process_group() first"
            )
        command = [sys.executable, "-m", "perdure", "agent", "--job", placement.agent_job, "--url", str(place)]
        remote = remote_of(
            place,
            tiers,
            every=remote_every,
            keep=remote_keep,
            home_keep=keep,
            bytes_per_s=remote_bytes_per_s,
            agent=agent and place.scheme != "ram",
            open_store=open_store,
        )
        if memory_bytes is not None:
            memory_bytes = checked_bytes("memory_bytes", memory_bytes)
        limit: Any = drain_bytes_per_s
        if limit is not None and (not isinstance(limit, int | float) or not limit > 0 or not agent):
            raise CallError(
                f"drain_bytes_per_s={limit!r} is what the node's agent writes at most: a number above 0, and not with "
                "agent=False"
            )
        self.notes = notes
        """the board of this run's ranks (`perdure.checkpoint.notes`); None if there is one rank"""
        super().__init__(
            open_store(place),
            url=str(place),
            framework=TorchFramework(),
            fabric=fabric,
            placement=placement,
            start_agent=command if agent and place.scheme != "ram" else None,
            log=Log(placement.events, rank=fabric.rank if fabric.world > 1 else None) if log is None else log,
            notes=notes,
            deadlines=deadlines,
            keep=keep,
            budget_bytes=budget_bytes,
            coding=coding,
            bounds=Bounds(memory_bytes=memory_bytes, drain_bytes_per_s=drain_bytes_per_s),
            remote=remote,
        )


def _of_group(placement: Placement, fabric: Fabric) -> Placement:
    """The placement of a process group that was not made from a launcher's environment: all ranks on this node."""
    return Placement(
        rank=fabric.rank,
        world=fabric.world,
        local_rank=fabric.rank,
        local_world=fabric.world,
        job=placement.job,
        attempt=placement.attempt,
        mark=placement.mark,
        events=placement.events,
        node_name=placement.node_name,
        domain=placement.domain,
    )
