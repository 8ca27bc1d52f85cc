"""Ranks of a real process group over gloo, as processes forked from the test: what they run may be any function."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from perdure.errors import PerdureError, from_wire, to_wire

__all__ = ["run"]

_FORK = multiprocessing.get_context("fork")


def run(world: int, work: Callable[[], Any], *, tcp: bool = False, timeout_s: float = 60.0) -> list[Any]:
    """Run ``work`` as each rank of a group of ``world``; return their plain results in rank order.

    The ranks meet in a file, or with ``tcp`` at the server that launchers have them use.
    Raises the error of a rank that failed. No process is left behind.
    """
    end = time.monotonic() + timeout_s
    handle, meeting = tempfile.mkstemp(prefix="perdure-test-gloo-")
    os.close(handle)
    ranks = []
    try:
        for rank in range(world):
            ours, theirs = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=_be, args=(rank, world, meeting, tcp, work, theirs, timeout_s))
            process.start()
            theirs.close()
            ranks.append((process, ours))
        told = [_hear(pipe, end) for _, pipe in ranks]
    finally:
        Path(meeting).unlink(missing_ok=True)
        for process, pipe in ranks:
            process.kill()
            process.join(10)
            pipe.close()
    for kind, value in told:
        if kind == "error":
            raise from_wire(value)
        assert kind == "result", value
    return [value for _, value in told]


def _hear(pipe: Connection, end: float) -> tuple[str, Any]:
    if not pipe.poll(max(0.0, end - time.monotonic())):
        return "late", "a rank did not end in time"
    try:
        told: tuple[str, Any] = pipe.recv()
    except EOFError:
        return "died", "a rank died without a word"
    return told


def _server(rank: int, meeting: dist.Store, within: timedelta) -> dist.Store:
    if rank == 0:
        own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=within)
        meeting.set("port", str(own.port))
        return own
    return dist.TCPStore("127.0.0.1", int(meeting.get("port")), is_master=False, timeout=within)


def _be(
    rank: int, world: int, meeting: str, tcp: bool, work: Callable[[], Any], pipe: Connection, timeout_s: float
) -> None:
    torch.set_num_threads(1)  # the threads of the parent did not come along
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        within = timedelta(seconds=timeout_s)
        file = dist.FileStore(meeting, world)
        file.set_timeout(within)
        store = _server(rank, file, within) if tcp else file
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        told = ("result", work())
        dist.barrier()  # nobody leaves while others still talk to it
    except PerdureError as error:
        told = ("error", to_wire(error))
    except BaseException as error:
        told = ("failed", f"rank {rank}: {type(error).__name__}: {error}")
    pipe.send(told)
    os._exit(0)  # not what the parent would do at its own end
