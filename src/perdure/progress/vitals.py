"""The vitals of a rank: one file of fixed size, which its probe writes and whoever watches reads.

`perdure.progress.page` is the launcher's page, which ranks share; this is a file of each rank's own, so that a job that
perdure did not start can be watched as well. It is mapped by its writer alone, who stores aligned 64-bit words and
doubles. What belongs together (a step and its times) stands in one section behind a counter: odd while the section is
written, and one pair higher afterwards. A reader takes the file twice and keeps the sections whose counter stood still
and is even; the others it looks at again, and leaves out if they never come to rest. It reads the file and does not map
it, so that nobody can make it fault by cutting the file short, and it believes nothing: sizes are checked, words are
bounded, texts are decoded with replacements.

Times are CLOCK_MONOTONIC in nanoseconds, which all processes of a Linux machine share.

    words  0 ..   9      magic, format, bytes, pid, start of the process (clock ticks, as in /proc), rank, world,
                         signal that asks for stacks, identity of the main thread, start of the probe
    words 16 ..  22      counter, beat, its time, phase, its begin, what the main thread's frames say of a collective,
                         when the phase should be over, as the rank said (0: it did not)
    word  32             since when the main thread waits in a collective; 0 if it does not
    words 40 ..  49      counter, steps, end of the last, its time, own work and wait, steps timed and sums of the three
    words 56 ..  59      counter, step of a loss, the loss, step since which losses are not finite (-1: they are)
    words 64 ..  69      counter, step, norm, finite, step since which not, steps between checks: gradients before
    words 72 ..  77      the same of gradients after they were reduced
    words 80 ..  90      counter, step, digest of the parameters (2), replicas (8 words of text)
    words 96 .. 673      counter, groups, and for each of up to 32: name, size, enqueued, completed, operation, shape
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perdure.errors import CallError, ProtocolError
from perdure.progress.page import Phase

__all__ = ["LOADING", "MAX_GROUPS", "NBYTES", "GroupVitals", "Vitals", "VitalsFile", "start_ticks", "vitals_files"]

NBYTES: Final = 8192
MAX_GROUPS: Final = 32
"""Groups that a record holds; of more, those that moved last."""

LOADING: Final = "loading"
"""The phase in which the main thread waits for a batch; the others are those of `Phase`, in lower case."""

_MAGIC = 0x5044_5649_5441_4C30  # "PDVITAL0"
_FORMAT = 0
_PHASES = (*(phase.name.lower() for phase in Phase), LOADING)
_HEAD = struct.Struct("@10q")
_SIGNAL, _WAITING = 7, 32
_BEAT, _STEP, _LOSS, _LOCAL, _GLOBAL, _SUM, _GROUPS = 16, 40, 56, 64, 72, 80, 96
_SECTIONS = {
    _BEAT: struct.Struct("@6q"),
    _STEP: struct.Struct("@9q"),
    _LOSS: struct.Struct("@qdq"),
    _LOCAL: struct.Struct("@qdqqq"),
    _GLOBAL: struct.Struct("@qdqqq"),
    _SUM: struct.Struct("@q16s64s"),
    _GROUPS: struct.Struct("@q" + "48sqqq24s48s" * MAX_GROUPS),
}
_NO_GROUP = (b"", 0, 0, 0, b"", b"")
_TRIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVitals:
    """What a rank has done in a process group; fields as of `perdure.watcher.GroupState`."""

    group: str
    size: int
    enqueued: int
    completed: int
    op: str = ""
    shape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """A record at one moment. Fields that `perdure.watcher.RankSample` has too mean what they mean there."""

    rank: int
    world: int
    pid: int
    start_ticks: int
    stack_signal: int
    "Signal that makes the process write its stacks; 0 if none does."
    main_thread: int
    "As `threading.get_ident` gives it."
    at_s: float
    beat: int = 0
    beat_age_s: float | None = None
    phase: str = ""
    phase_s: float = 0.0
    phase_allowed_s: float | None = None
    in_collective: bool | None = None
    waiting_s: float = 0.0
    "For how long it has waited in its collective."
    step: int | None = None
    step_age_s: float | None = None
    "How long ago its last step ended."
    step_s: float | None = None
    compute_s: float | None = None
    wait_s: float | None = None
    timed: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)
    "Steps that were timed, and the sums of their three times: two looks make a mean."
    groups: tuple[GroupVitals, ...] = ()
    loss: float | None = None
    loss_step: int | None = None
    loss_bad_step: int | None = None
    "First step of the losses since which none was finite; None if the last was."
    local_norm: float | None = None
    local_step: int | None = None
    local_finite: bool | None = None
    local_bad_step: int | None = None
    local_every: int | None = None
    "Steps between two looks at all of the gradient; those between look at a few small parameters."
    global_norm: float | None = None
    global_step: int | None = None
    global_finite: bool | None = None
    global_bad_step: int | None = None
    global_every: int | None = None
    checksum: str = ""
    checksum_step: int | None = None
    replicas: str = ""

    @property
    def own_steps(self) -> int | None:
        """Steps that this process has done, whatever it has restored: its first is not timed. None if not counted."""
        if self.step is not None:
            return self.timed[0] + 1
        return 0 if self.beat > 0 else None

    @property
    def finished(self) -> bool:
        """Whether the rank has said that its work was done."""
        return self.phase == Phase.FINISHED.name.lower()

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, at_s: float | None = None) -> Vitals:
        """Read the record at ``path``; ages are as of ``at_s`` (CLOCK_MONOTONIC, by default now).

        Raises `ProtocolError` if it is no record of this release, ``OSError`` if it cannot be read.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(path, flags)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != NBYTES:
                raise ProtocolError(f"{os.fspath(path)} is no record of a rank: it is not a file of {NBYTES} bytes")
            data, settled = _settle(fd)
        finally:
            os.close(fd)
        if len(data) != NBYTES:
            raise ProtocolError(f"{os.fspath(path)} is no record of a rank: it was cut short while it was read")
        magic, form, nbytes, *_ = head = _HEAD.unpack_from(data, 0)
        if (magic, form, nbytes) != (_MAGIC, _FORMAT, NBYTES):
            raise ProtocolError(f"{os.fspath(path)} is no record of a rank of this release")
        return _decode(head, data, settled, time.monotonic() if at_s is None else at_s)


class VitalsFile:
    """The record of this process. Each section is written from one thread at a time; nothing here waits or raises once
    it is made.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int, world: int, stack_signal: int, main: int) -> None:
        """Make ``folder/rank-RANK.PID``. Raises `CallError` if the folder is not private, ``OSError`` if it cannot."""
        check_private(folder)
        pid = os.getpid()
        self.path = Path(folder) / f"rank-{rank}.{pid}"
        new = Path(folder) / f".rank-{rank}.{pid}.new"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, NBYTES)
            self._map = mmap.mmap(fd, NBYTES)
            now = time.monotonic_ns()
            head = (_MAGIC, _FORMAT, NBYTES, pid, start_ticks(pid), rank, world, stack_signal, main, now)
            _HEAD.pack_into(self._map, 0, *head)
            self._words = memoryview(self._map).cast("q")
            for at in (_LOSS, _LOCAL, _GLOBAL):
                self._put(at, -1, 0.0, *([-1] if at == _LOSS else [-1, -1, 0]))
            self._put(_SUM, -1, b"", b"")
            self._put(_STEP, -1, *([0] * 8))
            os.rename(new, self.path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _put(self, at: int, *values: object) -> None:
        words = self._words
        counter = words[at] | 1
        words[at] = counter
        _SECTIONS[at].pack_into(self._map, 8 * at + 8, *values)
        words[at] = counter + 1

    def beat(self, beat: int, *, phase: str, phase_since_ns: int, in_frames: bool | None, deadline_ns: int = 0) -> None:
        """Say that the probe runs, what it sees the main thread do, and when its phase should be over (0: unknown)."""
        seen = -1 if in_frames is None else int(in_frames)
        code = _PHASES.index(phase) if phase in _PHASES else 0
        self._put(_BEAT, beat, time.monotonic_ns(), code, phase_since_ns, seen, deadline_ns)

    def no_stacks(self) -> None:
        """Say that no signal makes this process write its stacks any more."""
        self._words[_SIGNAL] = 0

    def wait(self, since_ns: int) -> None:
        """Say that the main thread waits in a collective since then; 0 says that it does not any more."""
        self._words[_WAITING] = since_ns

    def step(self, step: int, times_ns: Sequence[int], sums: Sequence[int]) -> None:
        """Tell the last completed step, its time, own work and wait (0: not timed), and what all timed steps sum to
        (their number, then the three times).
        """
        self._put(_STEP, step, time.monotonic_ns(), *times_ns, *sums)

    def loss(self, step: int, loss: float, bad_step: int) -> None:
        """Tell a loss; ``bad_step`` is the first of those that are not finite, -1 if it is."""
        self._put(_LOSS, step, loss, bad_step)

    def local(self, step: int, norm: float, bad_step: int, every: int) -> None:
        """Tell the norm of the gradient before it is reduced."""
        self._put(_LOCAL, step, norm, bad_step < 0, bad_step, every)

    def whole(self, step: int, norm: float, bad_step: int, every: int) -> None:
        """Tell the norm of the gradient that the optimizer is given; NaN with no ``bad_step``: finite, but not known
        as a whole.
        """
        self._put(_GLOBAL, step, norm, bad_step < 0, bad_step, every)

    def checksum(self, step: int, digest: bytes, replicas: str) -> None:
        """Tell the digest of the parameters after ``step``, and with whom it should agree."""
        self._put(_SUM, step, digest[:16], _bytes(replicas, 64))

    def groups(self, groups: Sequence[GroupVitals]) -> None:
        """Tell what was done in each group; the first 32."""
        flat: list[object] = []
        for each in groups[:MAX_GROUPS]:
            texts = _bytes(each.group, 48), _bytes(each.op, 24), _bytes(each.shape, 48)
            flat += texts[0], each.size, each.enqueued, each.completed, texts[1], texts[2]
        count = min(len(groups), MAX_GROUPS)
        self._put(_GROUPS, count, *flat, *(_NO_GROUP * (MAX_GROUPS - count)))


def check_private(folder: str | os.PathLike[str]) -> None:
    """Raise `CallError` unless ``folder`` is a folder of this user that nobody else may enter."""
    try:
        status = os.lstat(folder)
    except OSError as error:
        raise CallError(f"there is no folder {os.fspath(folder)} for the records of ranks: {error}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise CallError(
            f"{os.fspath(folder)} is not private: the folder for the records of ranks must be a folder of this user "
            "with mode 0700"
        )


def vitals_files(folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the records in ``folder``, of whichever attempt, by name; none if it is not there."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return ()
    return tuple(Path(folder) / name for name in sorted(names) if _is_record(name))


def start_ticks(pid: int) -> int:
    """When ``pid`` was started, in clock ticks since boot; 0 if it is gone. With the pid it names a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _is_record(name: str) -> bool:
    rank, dot, pid = name.removeprefix("rank-").partition(".")
    return name.startswith("rank-") and bool(dot) and rank.isdecimal() and pid.isdecimal()


def _bytes(text: str, most: int) -> bytes:
    return text.encode("utf-8", "replace")[:most]


def _text(data: bytes) -> str:
    text = data.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _settle(fd: int) -> tuple[bytes, dict[int, tuple[Any, ...]]]:
    """Read until every section was seen at rest, or often enough; return the last bytes and the sections at rest."""
    settled: dict[int, tuple[Any, ...]] = {}
    data = os.pread(fd, NBYTES, 0)
    for _ in range(_TRIES):
        again = os.pread(fd, NBYTES, 0)
        if len(data) != NBYTES or len(again) != NBYTES:
            return b"", {}
        for at, section in _SECTIONS.items():
            counter = data[8 * at : 8 * at + 8]
            if at not in settled and counter == again[8 * at : 8 * at + 8] and not counter[0] & 1:
                settled[at] = section.unpack_from(data, 8 * at + 8)
        data = again
        if len(settled) == len(_SECTIONS):
            break
    return data, settled


def _decode(head: Sequence[int], data: bytes, settled: dict[int, tuple[Any, ...]], at_s: float) -> Vitals:
    facts: dict[str, Any] = {}
    if _BEAT in settled:
        beat, beat_ns, phase, since_ns, seen, deadline_ns = settled[_BEAT]
        if beat > 0:
            facts.update(beat=beat, beat_age_s=_age(at_s, beat_ns), in_collective=None if seen < 0 else seen > 0)
            facts.update(phase=_PHASES[phase] if 0 < phase < len(_PHASES) else "", phase_s=_age(at_s, since_ns))
            if deadline_ns > since_ns:
                facts.update(phase_allowed_s=(deadline_ns - since_ns) / 1e9)
    waiting_ns = int.from_bytes(data[8 * _WAITING : 8 * _WAITING + 8], "little", signed=True)
    if waiting_ns > 0:
        facts.update(in_collective=True, waiting_s=_age(at_s, waiting_ns))
    if _STEP in settled and settled[_STEP][0] >= 0:
        step, end_ns, *times = settled[_STEP]
        facts.update(step=step, step_age_s=_age(at_s, end_ns))
        if times[0] > 0:
            facts.update(step_s=times[0] / 1e9, compute_s=max(0, times[1]) / 1e9, wait_s=max(0, times[2]) / 1e9)
        if all(each >= 0 for each in times[3:]):
            facts.update(timed=(times[3], *(each / 1e9 for each in times[4:])))
    if _LOSS in settled and settled[_LOSS][0] >= 0:
        step, loss, bad = settled[_LOSS]
        facts.update(loss=loss, loss_step=step, loss_bad_step=None if bad < 0 else bad)
    for at, name in ((_LOCAL, "local"), (_GLOBAL, "global")):
        if at in settled and settled[at][0] >= 0:
            step, norm, finite, bad, every = settled[at]
            known = not (finite and math.isnan(norm))
            facts.update({f"{name}_step": step, f"{name}_norm": norm if known else None})
            facts.update({f"{name}_finite": bool(finite), f"{name}_bad_step": None if bad < 0 else bad})
            facts.update({f"{name}_every": max(1, every)})
    if _SUM in settled and settled[_SUM][0] >= 0:
        step, digest, replicas = settled[_SUM]
        facts.update(checksum=digest.hex(), checksum_step=step, replicas=_text(replicas))
    if _GROUPS in settled:
        count, *flat = settled[_GROUPS]
        facts["groups"] = tuple(_group(*flat[6 * i : 6 * i + 6]) for i in range(max(0, min(count, MAX_GROUPS))))
    pid, ticks, rank, world, number, main = head[3:9]
    return Vitals(
        rank=rank, world=world, pid=pid, start_ticks=ticks, stack_signal=number, main_thread=main, at_s=at_s, **facts
    )


def _group(name: bytes, size: int, enqueued: int, completed: int, op: bytes, shape: bytes) -> GroupVitals:
    texts = _text(name), _text(op), _text(shape)
    return GroupVitals(group=texts[0], size=size, enqueued=enqueued, completed=completed, op=texts[1], shape=texts[2])


def _age(at_s: float, then_ns: int) -> float:
    return max(0.0, at_s - then_ns / 1e9)
