"""One node looks at itself and its ranks, about once a second: what it sees is a `NodeLook`, and judges nobody.

It runs where the ranks are, in `perdure watch` or beside a launcher; a `JobWatch` takes the looks of all nodes. Stacks
are asked for at one look and read at the next, so that a rank which does not answer holds up nothing.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from perdure.clock import SYSTEM, Clock
from perdure.errors import ProtocolError
from perdure.progress.stacks import ask_for_stacks, main_frames, read_stacks
from perdure.watcher.host import Host
from perdure.watcher.kernel_log import KernelLog
from perdure.watcher.reading import Reading
from perdure.watcher.samples import LogLine, NodeLook, RankSample, Stack
from perdure.watcher.tailing import LogTail

__all__ = ["NodeWatch"]


class NodeWatch:
    """Looks at the ranks whose probes write into ``folder``, all on this node, which is called ``node``.

    ``disks`` are folders that the job writes to, ``family`` processes below which all is of the job, such as launchers;
    ``logs`` is a folder with logs of ranks (``rank-3.log``), ``kernel_log`` a device or a file with the kernel's; what
    is in them already is not read. `close` ends what runs beside.
    """

    def __init__(
        self,
        folder: Path,
        *,
        node: str,
        disks: Sequence[str | Path] = (),
        family: Sequence[int] = (),
        logs: Path | None = None,
        kernel_log: str | Path | None = "/dev/kmsg",
        clock: Clock = SYSTEM,
    ) -> None:
        self._node, self._clock = node, clock
        self._reading = Reading(folder, node=node)
        self._pids: dict[int, int] = {}
        self._known: set[int] = set()
        self._pidfds: dict[int, int] = {}
        self._host = Host(node=node, own=lambda: tuple(self._pids.values()), family=family, disks=disks, clock=clock)
        self._logs = None if logs is None else LogTail(logs, node=node, from_end=True)
        self._kernel = None if kernel_log is None else KernelLog(kernel_log, node=node)
        self._attempt = 0
        self._old: dict[int, int] = {}
        "Ranks whose process is that of the attempt before."
        self._asked: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have been seen."""
        return tuple(sorted(self._pids))

    def wait(self, seconds: float, *fds: int) -> None:
        """Wait until it is time for the next look: a rank's end is seen at once, as who fell first was at fault.

        ``fds`` are others that end the waiting once they are readable.
        """
        poller = select.poll()
        for fd in (*fds, *self._pidfds.values()):
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(seconds * 1000):
            for pid in [pid for pid, own in self._pidfds.items() if own == fd]:
                os.close(self._pidfds.pop(pid))

    def look(self, *, stacks_of: Sequence[int] = (), lines: Sequence[LogLine] = ()) -> NodeLook:
        """Look once. ``stacks_of``: ranks that are asked for their stacks, which the next look has.

        ``lines`` were read beside, and are passed on. A rank with another pid than before begins a new attempt.
        """
        now_s = self._clock.monotonic()
        samples = self._reading.look(at_s=now_s)
        self._note_pids(samples)
        stacks = self._answers(now_s)
        self._asked = tuple(rank for rank in stacks_of if self._ask(rank))
        return NodeLook(
            node=self._node,
            attempt=self._attempt,
            samples=samples,
            host=self._host.sample(),
            lines=(*self._read_lines(now_s), *lines),
            stacks=tuple(stacks),
        )

    def _read_lines(self, now_s: float) -> Iterator[LogLine]:
        if self._kernel is not None:
            yield from self._kernel.read(now_s)
        if self._logs is not None:
            yield from self._logs.read(now_s)

    def _note_pids(self, samples: Sequence[RankSample]) -> None:
        pids = {each.rank: each.pid for each in samples}
        changed = {rank for rank, pid in pids.items() if self._pids.get(rank, pid) != pid}
        # Ranks of one restart do not all show in one look: who still had its old process when it began is of it.
        late = {rank for rank in changed if self._old.pop(rank, None) == self._pids[rank]}
        if changed - late:
            self._attempt += 1
            self._old = {rank: pid for rank, pid in self._pids.items() if rank not in changed}
            self._asked = ()
        self._pids = pids
        for pid in set(pids.values()) - self._known:
            self._known.add(pid)
            with suppress(OSError):  # it is gone already
                self._pidfds[pid] = os.pidfd_open(pid)

    def _ask(self, rank: int) -> bool:
        known = self._reading.record(rank)
        return known is not None and ask_for_stacks(*known)

    def _answers(self, now_s: float) -> list[Stack]:
        found = []
        for rank in self._asked:
            known = self._reading.record(rank)
            if known is None:
                continue
            try:
                frames = main_frames(read_stacks(*known))
            except (ProtocolError, OSError):
                continue  # it is gone, or has written something else there
            if frames:
                found.append(Stack(rank=rank, node=self._node, at_s=now_s, frames=frames))
        return found

    def close(self) -> None:
        """End what runs beside."""
        self._host.close()
        if self._logs is not None:
            self._logs.close()
        if self._kernel is not None:
            self._kernel.close()
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds.clear()
