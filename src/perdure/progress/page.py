"""The progress page: one record a local rank, in memory that every process of the attempt on this node maps.

The page is a memfd that cannot change its size, so whoever has the descriptor can map it and nobody can make a reader
fault. It is an array of 64-bit words, each written by one aligned store and by one process at a time: a record by its
rank, the control words by the arbiter of `perdure.progress.stop`, ``term`` also by whoever asks a rank to stop. A
reader may see a record between two stores; it never sees half a word.

Times are CLOCK_MONOTONIC in nanoseconds, which all processes of a Linux machine share.

    words 0 .. 63        magic, format, local ranks, words a record, proposed, firm, zeros
    words 64 + 16 i ..   record of local rank i: pid, rank, step, phase, phase_since, deadline, beat, term,
                         expendable, began, zeros
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from perdure.errors import CallError, ProtocolError

__all__ = ["MAX_LOCAL_RANKS", "Page", "Phase", "Record", "Snapshot"]

MAX_LOCAL_RANKS = 256

_MAGIC = 0x5044_5041_4745_3030  # "PDPAGE00"
_FORMAT = 0
_HEADER_WORDS = 64
_RECORD_WORDS = 16
_PROPOSED, _FIRM = 4, 5
_PID, _RANK, _STEP, _PHASE, _SINCE, _DEADLINE, _BEAT, _TERM, _EXPENDABLE, _BEGAN = range(10)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Phase(enum.IntEnum):
    """What a rank is doing. ``ABSENT`` is a record that no rank has claimed."""

    ABSENT = 0
    STARTING = 1
    RESTORING = 2
    FORWARD = 3
    STEP = 4
    COPYING = 5
    SAVING = 6
    EVALUATING = 7
    CLOSING = 8
    FINISHED = 9


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A record at one moment. ``deadline_ns`` is 0 if the phase has none."""

    local_rank: int
    rank: int
    pid: int
    step: int
    phase: Phase
    phase_since_ns: int
    deadline_ns: int
    beat: int
    term: bool
    began: int = 0

    def overdue(self, now_ns: int) -> bool:
        """Whether the phase has run past its deadline."""
        return 0 < self.deadline_ns < now_ns


class Record:
    """The record of one local rank. Its rank writes it, from one thread; everybody may read."""

    __slots__ = ("_at", "_words", "local_rank")

    def __init__(self, words: memoryview, local_rank: int) -> None:
        self._words = words
        self._at = _HEADER_WORDS + _RECORD_WORDS * local_rank
        self.local_rank = local_rank

    def claim(self, *, rank: int, pid: int | None = None, step: int = 0) -> None:
        """Say that this process is ``rank``, at ``step``; the phase becomes ``STARTING``."""
        self._words[self._at + _RANK] = rank
        self._words[self._at + _PID] = os.getpid() if pid is None else pid
        self.expendable, self.began = False, step
        self.step = step
        self.enter(Phase.STARTING)

    @property
    def pid(self) -> int:
        """Process of the rank; 0 if unclaimed."""
        return int(self._words[self._at + _PID])

    @property
    def rank(self) -> int:
        """Global rank."""
        return int(self._words[self._at + _RANK])

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return int(self._words[self._at + _STEP])

    @step.setter
    def step(self, step: int) -> None:
        self._words[self._at + _STEP] = step

    @property
    def phase(self) -> Phase:
        """What the rank is doing; a value that this release does not know reads as ``STARTING``."""
        value = self._words[self._at + _PHASE]
        return Phase(value) if 0 <= value <= Phase.FINISHED else Phase.STARTING

    @property
    def phase_since_ns(self) -> int:
        """When the phase began."""
        return int(self._words[self._at + _SINCE])

    @property
    def deadline_ns(self) -> int:
        """When the phase should be over; 0 if it has no deadline."""
        return int(self._words[self._at + _DEADLINE])

    @property
    def beat(self) -> int:
        """Counts `tick`; a probe thread that still runs makes it grow."""
        return int(self._words[self._at + _BEAT])

    @property
    def term(self) -> bool:
        """Whether this rank was asked to stop."""
        return bool(self._words[self._at + _TERM])

    @property
    def expendable(self) -> bool:
        """Whether nothing is lost if this rank is killed once its attempt has failed: nobody but perdure hears its
        SIGTERM, no copy of its state is under way, and it is not about to say what its own failure is.
        """
        return bool(self._words[self._at + _EXPENDABLE])

    @expendable.setter
    def expendable(self, expendable: bool) -> None:
        self._words[self._at + _EXPENDABLE] = expendable

    @property
    def began(self) -> int:
        """The step that this attempt of it goes on from; 0 if it told none."""
        return int(self._words[self._at + _BEGAN])

    @began.setter
    def began(self, step: int) -> None:
        self._words[self._at + _BEGAN] = step

    def ask_to_stop(self) -> None:
        """Set ``term``: one store, fit for a signal handler."""
        self._words[self._at + _TERM] = 1

    def tick(self) -> None:
        """Add one to ``beat``."""
        self._words[self._at + _BEAT] += 1

    def enter(self, phase: Phase, *, deadline_s: float | None = None) -> None:
        """Begin ``phase``, to be over within ``deadline_s`` (None: no deadline). About a microsecond."""
        words, at = self._words, self._at
        now = time.monotonic_ns()
        words[at + _DEADLINE] = (
            0  # a reader between two stores may see no deadline, but not the old one with the new phase
        )
        words[at + _PHASE] = phase
        words[at + _SINCE] = now
        if deadline_s is not None:
            words[at + _DEADLINE] = now + int(deadline_s * 1e9)

    @contextmanager
    def during(self, phase: Phase, *, deadline_s: float | None = None) -> Iterator[None]:
        """Be in ``phase`` for a block; the phase before it and its deadline come back afterwards."""
        before, deadline_ns = self.phase, self.deadline_ns
        self.enter(phase, deadline_s=deadline_s)
        try:
            yield
        finally:
            self.enter(before)
            self._words[self._at + _DEADLINE] = deadline_ns

    def snapshot(self) -> Snapshot:
        """Read all of the record."""
        return Snapshot(
            local_rank=self.local_rank,
            rank=self.rank,
            pid=self.pid,
            step=self.step,
            phase=self.phase,
            phase_since_ns=self.phase_since_ns,
            deadline_ns=self.deadline_ns,
            beat=self.beat,
            term=self.term,
            began=self.began,
        )


class Page:
    """The page of one attempt on one node. Made by one process; others `attach` to its descriptor."""

    def __init__(self, fd: int, local_world: int) -> None:
        self.fd = fd
        self.local_world = local_world
        self._map = mmap.mmap(fd, page_bytes(local_world))
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, local_world: int) -> Page:
        """Make a page for ``local_world`` ranks (1 to 256), all absent; ``fd`` is what to hand over."""
        if not 1 <= local_world <= MAX_LOCAL_RANKS:
            raise CallError(f"a progress page has room for 1 to {MAX_LOCAL_RANKS} ranks of a node, not {local_world}")
        fd = os.memfd_create("perdure-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, page_bytes(local_world))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            page = cls(fd, local_world)
        except BaseException:
            os.close(fd)
            raise
        page._words[0:4] = memoryview(_pack(_MAGIC, _FORMAT, local_world, _RECORD_WORDS)).cast("q")
        return page

    @classmethod
    def attach(cls, fd: int) -> Page:
        """Map the page behind ``fd``, which the page then owns. Raises `ProtocolError`, with ``fd`` closed, if it is no
        page.
        """
        try:
            local_world = _check(fd)
            return cls(fd, local_world)
        except BaseException:
            os.close(fd)
            raise

    def rank(self, local_rank: int) -> Record:
        """The record of ``local_rank``."""
        if not 0 <= local_rank < self.local_world:
            raise CallError(f"local rank {local_rank} has no record: the page is for {self.local_world} ranks")
        return Record(self._words, local_rank)

    def records(self) -> tuple[Record, ...]:
        """All records, by local rank."""
        return tuple(Record(self._words, local_rank) for local_rank in range(self.local_world))

    def snapshot(self) -> tuple[Snapshot, ...]:
        """All records as they are now."""
        return tuple(record.snapshot() for record in self.records())

    @property
    def proposed(self) -> int:
        """Step at which the arbiter would have all ranks stop; 0 if nobody asked."""
        return int(self._words[_PROPOSED])

    @proposed.setter
    def proposed(self, step: int) -> None:
        self._words[_PROPOSED] = step

    @property
    def firm(self) -> int:
        """Step at which all ranks do stop; 0 until it is agreed, and then it never changes."""
        return int(self._words[_FIRM])

    @firm.setter
    def firm(self, step: int) -> None:
        self._words[_FIRM] = step

    def close(self) -> None:
        """Unmap and close; records of this page cannot be used after it. Twice is fine."""
        if self.fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def page_bytes(local_world: int) -> int:
    """Bytes of a page for ``local_world`` ranks."""
    return 8 * (_HEADER_WORDS + _RECORD_WORDS * local_world)


def _pack(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little", signed=True) for word in words)


def _check(fd: int) -> int:
    """Return the local world of the page behind ``fd``; raise `ProtocolError` if it is none or may change its size."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("this descriptor is no progress page: it cannot be sealed") from error
    if seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) != fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW:
        raise ProtocolError("this descriptor is no progress page: its size could still change")
    nbytes = os.fstat(fd).st_size
    head = os.pread(fd, 32, 0)
    local_world = int.from_bytes(head[16:24], "little")
    if head[:16] != _pack(_MAGIC, _FORMAT) or head[24:] != _pack(_RECORD_WORDS):
        raise ProtocolError("this descriptor is no progress page of this release")
    if not 1 <= local_world <= MAX_LOCAL_RANKS or nbytes != page_bytes(local_world):
        raise ProtocolError(f"a progress page of {nbytes} bytes cannot hold {local_world} ranks")
    return local_world
