"""What watchers have kept of jobs, read for the console: heat maps, incidents, metrics.

A `Watched` is a folder as `perdure.watcher.recording.WatchRecord` writes it: that of a job of this machine, or one that
was named. Files are read when they have changed. Safe from any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from perdure.errors import CallError, StorageError
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.explaining import explain, lives_of
from perdure.watcher.exposition import joined
from perdure.watcher.heat import HeatRecord
from perdure.watcher.recording import HEAT, METRICS, VERDICTS, read_verdicts

__all__ = ["FRESH_S", "Incident", "Watched", "Watches", "is_record", "wall_of"]

FRESH_S: Final = 30.0
"""Metrics that are older are of a watcher that is gone."""
_MOST_BYTES: Final = 32 << 20
_MOST_INCIDENTS: Final = 200

Read = TypeVar("Read")
Stamp = tuple[int, int, int]


def is_record(folder: Path) -> bool:
    """Whether a watcher has kept something in ``folder``."""
    return (folder / HEAT).is_file() or (folder / VERDICTS).is_file()


@dataclass(frozen=True, slots=True)
class Incident:
    """All that was told of an incident, the oldest first. ``key``: its id, and a number if others had it before."""

    key: str
    told: tuple[Verdict, ...]

    @property
    def last(self) -> Verdict:
        """What it was seen to be last, before it was over."""
        return next((each for each in reversed(self.told) if each.stage is not Stage.CLEARED), self.told[-1])

    @property
    def over(self) -> bool:
        """Whether it is cleared."""
        return self.told[-1].stage is Stage.CLEARED

    @property
    def began_at(self) -> float:
        """When it began, in seconds since 1970."""
        return wall_of(self.told[0])

    @property
    def until_at(self) -> float | None:
        """When it was over; None if it is not."""
        return wall_of(self.told[-1]) if self.over else None

    def explanation(self) -> str:
        """Why it was seen so."""
        return explain(self.told)

    def plain(self) -> dict[str, Any]:
        """As JSON has it; times are seconds since 1970."""
        last = self.last
        return {
            "incident": self.key,
            "stage": self.told[-1].stage,
            "label": last.label,
            "owner": last.owner,
            "action": last.action,
            "confidence": last.confidence,
            "sentence": last.sentence,
            "ranks": last.ranks,
            "nodes": last.nodes,
            "step": last.step,
            "began_at": self.began_at,
            "until_at": self.until_at,
            "told": [{"stage": each.stage, "at": wall_of(each), "sentence": each.sentence} for each in self.told],
            "evidence": [
                {"kind": each.kind, "at": at, "sentence": each.sentence, "ranks": each.ranks, "nodes": each.nodes}
                for each, at in self.evidence()
            ],
        }

    def evidence(self) -> list[tuple[Evidence, float]]:
        """Each piece of evidence that was told, the oldest first, with its time in seconds since 1970."""
        found: dict[tuple[str, str, float], tuple[Evidence, float]] = {}
        for told in self.told:
            for each in told.evidence:
                found.setdefault((each.kind, each.sentence, each.at_s), (each, wall_of(told) - (told.at_s - each.at_s)))
        return sorted(found.values(), key=lambda one: one[1])


def wall_of(verdict: Verdict) -> float:
    """When it was, in seconds since 1970; in a record without dates, on the clock of whoever wrote it."""
    return verdict.at_s if verdict.wall_s is None else verdict.wall_s


class Watched:
    """What was kept of one job: in a folder, or verdicts alone in a file of lines of JSON."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self._path = name, path
        self._kept: dict[str, tuple[Stamp, Any]] = {}
        self._lock = threading.Lock()

    def incidents(self) -> tuple[Incident, ...]:
        """Its incidents in the order in which they began, the last of them if there are many."""
        return self._read(VERDICTS, self._incidents) or ()

    def incident(self, key: str) -> Incident:
        """One of them. Raises `CallError` if there is none with this key."""
        for each in self.incidents():
            if each.key == key:
                return each
        raise CallError(f"{self.name} has no incident {key}", missing=key)

    def heat(self) -> HeatRecord | None:
        """What its ranks did over time, if that was kept. Raises `StorageError` if it cannot be read."""
        return self._read(HEAT, _heat)

    def heat_stamp(self) -> str:
        """Another word whenever the heat map has changed; empty if there is none."""
        stamp = _stamp(self._file(HEAT))
        return "" if stamp is None else "-".join(f"{each:x}" for each in stamp)

    def metrics(self, now_at: float) -> str | None:
        """The page of its watcher, if it is one of just now."""
        path = self._file(METRICS)
        try:
            facts = os.stat(path)
            if not 0 <= facts.st_size <= _MOST_BYTES or now_at - facts.st_mtime > FRESH_S:
                return None
            return path.read_text(errors="replace")
        except OSError:
            return None

    def _file(self, name: str) -> Path:
        if self._path.is_dir():
            return self._path / name
        return self._path if name == VERDICTS else self._path.parent / "none of it" / name

    def _read(self, name: str, read: Callable[[Path], Read]) -> Read | None:
        """The file as it is now, read once for each change; None if it is not there."""
        path = self._file(name)
        with self._lock:
            stamp = _stamp(path)
            if stamp is None:
                return None
            kept = self._kept.get(name)
            if kept is None or kept[0] != stamp:
                try:
                    if name == HEAT and stamp[1] > _MOST_BYTES:
                        raise StorageError(f"{path} is larger than such a file can be", file=str(path))
                    kept = self._kept[name] = stamp, read(path)
                except OSError as error:
                    raise StorageError(f"cannot read {path}: {error.strerror}", file=str(path)) from error
            found: Read = kept[1]
            return found

    @staticmethod
    def _incidents(path: Path) -> tuple[Incident, ...]:
        told, _ = read_verdicts(path)
        seen: dict[str, int] = {}
        found = []
        for life in lives_of(told):
            number = seen[life[0].incident] = seen.get(life[0].incident, 0) + 1
            key = life[0].incident if number == 1 else f"{life[0].incident}-{number}"
            found.append(Incident(key, tuple(life)))
        return tuple(found[-_MOST_INCIDENTS:])


def _heat(path: Path) -> HeatRecord:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=HeatRecord)
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path} is no record of ranks: {error}", file=str(path)) from error
    if record.form != 1:
        raise StorageError(f"{path} has form {record.form}, which a newer perdure reads", file=str(path))
    return record


def _stamp(path: Path) -> Stamp | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


class Watches:
    """All that is watched: ``folders`` tells it by name, as it is now."""

    def __init__(self, folders: Callable[[], Mapping[str, Path]]) -> None:
        self._folders = folders
        self._known: dict[str, Watched] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Watched]:
        """Each, by name."""
        folders = self._folders()
        with self._lock:
            for name, path in folders.items():
                self._known.setdefault(name, Watched(name, path))
            return [self._known[name] for name in sorted(folders)]

    def find(self, name: str) -> Watched | None:
        """The one called ``name``, if there is one."""
        return next((each for each in self.all() if each.name == name), None)

    def get(self, name: str) -> Watched:
        """The one called ``name``. Raises `CallError` if there is none."""
        found = self.find(name)
        if found is None:
            raise CallError(f"nothing is kept of a watch over {name}", missing=name)
        return found

    def metrics(self, now_at: float) -> str:
        """One page of metrics, of all watchers that are at work ``now_at``, in seconds since 1970."""
        pages: Iterable[tuple[str, str | None]] = ((each.name, each.metrics(now_at)) for each in self.all())
        return joined({name: page for name, page in pages if page is not None})
