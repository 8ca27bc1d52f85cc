"""The process that looks at the ranks of a node beside its launcher: ``python -m perdure.cli.watch_eye FD``.

It alone asks drivers, disks and /proc, which may not answer. What it sees is put right by what the launcher knows:
which attempt it is, which ranks have ended and how, and that those which the launcher ends say nothing. The end of a
rank counts when the launcher has said so; until then its record is left out.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from perdure.cli.beside import Frames
from perdure.cli.watching import EyeSetup
from perdure.errors import ProtocolError
from perdure.supervisor.watching import MAX_LOOK_BYTES, Began, Ending, Gone, Said, Told, Wanted
from perdure.watcher.node_watch import NodeWatch
from perdure.watcher.samples import LogLine, NodeLook, RankSample

__all__ = ["Known", "as_known", "packed", "unpacked"]

_PERIOD_S: Final = 1.0
_SOONEST_S: Final = 0.05
_ROOM_BYTES: Final = MAX_LOOK_BYTES - 4096  # what cannot be made smaller grows a little
_PART_BYTES: Final = _ROOM_BYTES - 4096


@dataclass(frozen=True, slots=True)
class Known:
    """What the launcher has said of the attempt."""

    attempt: int = -1
    ranks: tuple[int, ...] = ()
    gone: dict[int, Gone] = field(default_factory=dict)
    ending: bool = False

    def after(self, told: Told) -> Known:
        """What is known after it has said ``told``."""
        match told:
            case Began(attempt=attempt, ranks=ranks):
                return Known(attempt, ranks)
            case Gone(rank=rank) if not self.ending:
                return replace(self, gone=self.gone | {rank: told})
            case Ending():
                return replace(self, ending=True)
            case _:
                return self

    def lines_of(self, said: Said, *, node: str, at_s: float) -> list[LogLine]:
        """What ranks have printed; once they are being ended, only what those say that had ended before."""
        return [
            LogLine(text=text, at_s=at_s, node=node, rank=rank)
            for rank, text in said.lines
            if text and (rank in self.gone or not self.ending)
        ]


def as_known(look: NodeLook, known: Known) -> NodeLook:
    """``look`` with what the launcher knows: the attempt, the ends of ranks, and nothing of ranks that it ends."""
    samples = []
    seen = {each.rank: each for each in look.samples if each.rank in known.ranks}
    for rank in known.ranks:
        sample, gone = seen.get(rank), known.gone.get(rank)
        if gone is not None:
            sample = sample or RankSample(rank=rank, node=look.node, at_s=time.monotonic(), pid=gone.pid)
            ended = {"state": "X", "exit_code": gone.code, "exit_signal": gone.signal}
            samples.append(msgspec.structs.replace(sample, **ended))
        elif sample is not None and not known.ending and sample.state not in ("X", "Z"):
            samples.append(sample)
    return msgspec.structs.replace(look, attempt=max(known.attempt, 0), samples=tuple(samples))


def packed(look: NodeLook) -> Iterator[bytes]:
    """``look`` as messages that fit, one if it does. A line or a stack that does not fit by itself is left out."""
    bare = NodeLook(node=look.node, attempt=look.attempt)
    looks = [look]
    if len(msgspec.msgpack.encode(look)) > _ROOM_BYTES:
        looks = [msgspec.structs.replace(bare, host=look.host)]
        for name in ("samples", "lines", "stacks"):
            looks += [msgspec.structs.replace(bare, **{name: part}) for part in _parts(getattr(look, name))]
    for each in looks:
        yield zlib.compress(msgspec.msgpack.encode(each), 1)


def unpacked(message: bytes) -> NodeLook:
    """The look in a message of `packed`. Raises `ProtocolError` if it is none."""
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(message, MAX_LOOK_BYTES)
        if not inflate.eof:
            raise ProtocolError(f"a look of a node is cut short, or longer than {MAX_LOOK_BYTES} bytes")
        return msgspec.msgpack.decode(data, type=NodeLook)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ProtocolError(f"a look of a node cannot be read: {error}") from error


def _parts(items: Sequence[msgspec.Struct]) -> Iterator[tuple[msgspec.Struct, ...]]:
    """``items`` in groups that fit into a message each."""
    part: list[msgspec.Struct] = []
    n_bytes = 0
    for item in items:
        size = len(msgspec.msgpack.encode(item))
        if part and n_bytes + size > _PART_BYTES:
            yield tuple(part)
            part, n_bytes = [], 0
        if size <= _PART_BYTES:
            part.append(item)
            n_bytes += size
    if part:
        yield tuple(part)


def main(fd: int) -> None:
    """Look until the launcher is gone."""
    frames = Frames(socket.socket(fileno=fd))
    waiting = _first(frames)
    setup = msgspec.json.decode(waiting.pop(0), type=EyeSetup)
    threading.Thread(target=_leave_with, args=(fd, setup.folder), name="perdure-leave", daemon=True).start()
    watch = NodeWatch(Path(setup.folder), node=setup.node, disks=setup.disks, family=setup.family)
    known, wanted, told_s = Known(), set[int](), 0.0
    lines: list[LogLine] = []
    fresh = False
    while True:
        for body in waiting:
            told = msgspec.json.decode(body, type=Told)
            if isinstance(told, Said):
                lines += known.lines_of(told, node=setup.node, at_s=time.monotonic())
            known, fresh = known.after(told), fresh or not isinstance(told, Wanted | Said)
            if isinstance(told, Wanted):
                wanted |= set(told.ranks)
        now = time.monotonic()
        if now - told_s >= _PERIOD_S or (fresh and now - told_s >= _SOONEST_S):
            told_s = now
            for message in packed(as_known(watch.look(stacks_of=sorted(wanted), lines=lines), known)):
                frames.send(message)
            wanted, lines, fresh = set(), [], False
        left_s = told_s + (_SOONEST_S if fresh else _PERIOD_S) - time.monotonic()
        watch.wait(max(left_s, 0.0), fd)
        waiting = frames.receive()


def _first(frames: Frames) -> list[bytes]:
    """What the launcher says first."""
    while not (found := frames.receive()):
        select.select([frames], [], [])
    return found


def _leave_with(fd: int, folder: str) -> None:
    """End with the launcher, whatever the main thread waits for, and leave no records: their ranks end with it too."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    poller.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except EOFError:
        time.sleep(1.0)  # the other thread sees to the end
