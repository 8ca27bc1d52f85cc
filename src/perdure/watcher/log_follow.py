"""Follow the logs of a job that somebody else has started: files in, `NodeLook` out, once a second.

Each file is tailed (`FileTail`), each rank's lines are read for its progress (`Progress`), and what they say becomes
samples. Lines themselves are passed on as well, bounded as in `LogTail`; those that may tell of progress are read
beside them, so that a storm does not hide the losses.

- A file whose rank is unknown is read for the ranks that its lines are tagged with. Lines without a tag count as rank 0
  of a job of which no rank is known otherwise, and for nothing else.
- A rank's numbers are taken from one file: the first that tells of a loss, before that the first that tells of a step.
  The same lines often stand in a launcher's log, too.
- The node of a rank is what its lines say first. Where nothing does, it gets a name of its own, so that two of them are
  never taken for one; `known_nodes` leaves those out of what is told.

Samples are of phase ``absent``: whether a rank is at work cannot be seen in a log, so the analyser never judges its
liveness; `LogPulse` suspects the silent ones.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from perdure.watcher.evidence import Verdict
from perdure.watcher.log_pulse import LogPulse, Writer
from perdure.watcher.logs.files import LogFile, logs_in
from perdure.watcher.logs.progress import Progress, Said, may_tell
from perdure.watcher.logs.reading import Line, lines_of
from perdure.watcher.samples import LogLine, NodeLook, RankSample
from perdure.watcher.tailing import Dropped, FileTail

__all__ = ["LogFollow", "known_nodes"]

_DISCOVER_S: Final = 2.0
_PAST_BYTES: Final = 1 << 20
_LINES_A_RANK: Final = 200
_LINES_IN_ALL: Final = 5000
_SAMPLES_IN_ALL: Final = 50_000
_UNKNOWN: Final = "node-of-"


def known_nodes(verdict: Verdict) -> Verdict:
    """``verdict`` without nodes whose names are not known."""
    nodes = tuple(node for node in verdict.nodes if node and not node.startswith(_UNKNOWN))
    return verdict if nodes == verdict.nodes else msgspec.structs.replace(verdict, nodes=nodes)


@dataclass(slots=True)
class _Log:
    file: LogFile
    name: str
    tail: FileTail
    taken_bytes: int = 0
    caught_up: bool = False
    progress: dict[int, Progress] = field(default_factory=dict)


@dataclass(slots=True)
class _Rank:
    """What is known of a rank, from the one file that its numbers are taken from."""

    node: str = ""
    owner: Path | None = None
    has_loss: bool = False
    loss: float | None = None
    loss_step: int | None = None
    bad_step: int | None = None
    last_step: int = 0
    relative: bool = False


class LogFollow:
    """Follows the logs in ``where``, a folder or one file. `look` reads what is new.

    Of what is in a log already its last MiB is read for the numbers, with ``whole`` all of it; its lines are passed on
    only when they are new. ``pulse`` is told who writes. Raises `CallError` if there is nothing of that name.
    """

    def __init__(self, where: Path, *, pulse: LogPulse, whole: bool = False) -> None:
        self._where, self._pulse, self._whole = where, pulse, whole
        self._logs: dict[Path, _Log] = {}
        self._ranks: dict[int, _Rank] = {}
        self._discovered_s = -math.inf
        self._ran_s: float | None = None
        self._set: frozenset[tuple[str, int]] = frozenset()
        self.attempt = 0
        self.wrote_s: float | None = None
        "When something was found to be written last, but for what was there at first."
        self.step: int | None = None
        self.loss: float | None = None
        logs_in(where)

    @property
    def files(self) -> tuple[Path, ...]:
        """The logs that are followed now."""
        return tuple(self._logs)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are known, by names of files or tags of lines."""
        named = {log.file.rank for log in self._logs.values() if log.file.rank is not None}
        return tuple(sorted(named | set(self._ranks)))

    @property
    def dropped(self) -> Dropped:
        """What was not looked at, of logs that are written faster than that."""
        return sum((log.tail.dropped for log in self._logs.values()), Dropped())

    def node_is(self, rank: int, node: str) -> None:
        """Others say where a rank is; what its own lines say comes first."""
        if node:
            known = self._ranks.setdefault(rank, _Rank())
            known.node = known.node or node

    def look(self, now_s: float) -> list[NodeLook]:
        """What was written since the look before, at ``now_s`` on the monotonic clock, by node."""
        passed_s = 1.0 if self._ran_s is None else min(1.5, max(0.0, now_s - self._ran_s))
        self._ran_s = now_s
        if now_s - self._discovered_s >= _DISCOVER_S:
            self._discovered_s = now_s
            self._discover()
        most = max(2, min(int(_LINES_A_RANK * passed_s), int(_LINES_IN_ALL * passed_s) // max(1, len(self._logs))))
        samples: list[RankSample] = []
        lines: list[LogLine] = []
        wrote: dict[Hashable, Writer] = {}
        for log in list(self._logs.values()):
            some = self._read(log, now_s, most, lines)
            samples += some[-max(64, _SAMPLES_IN_ALL // len(self._logs)) :]
            if log.tail.taken_bytes > log.taken_bytes:
                log.taken_bytes = log.tail.taken_bytes
                rank = log.file.rank
                wrote[log.file.path if rank is None else (log.file.run, rank)] = Writer(rank, log.name)
                self.wrote_s = now_s if log.caught_up else self.wrote_s
                log.caught_up |= not self._whole
            else:
                log.caught_up = True
        self._pulse.wrote(wrote, now_s=now_s)
        return self._by_node([*self._heartbeats(now_s), *samples], lines)

    @property
    def caught_up(self) -> bool:
        """Whether a look has found nothing new in any log."""
        return all(log.caught_up for log in self._logs.values())

    def close(self) -> None:
        """Forget the files."""
        for log in self._logs.values():
            log.tail.close()

    def _discover(self) -> None:
        found = {each.path: each for each in logs_in(self._where)} if self._where.exists() else {}
        attempts = frozenset((each.run, each.attempt) for each in found.values() if each.run)
        if self._set and attempts - self._set:
            self._begin_attempt(found)
        self._set |= attempts
        for path in [path for path in self._logs if path not in found and not path.exists()]:
            self._logs.pop(path).tail.close()
        first = not self._logs
        top = self._where if self._where.is_dir() else self._where.parent
        for path, file in found.items():
            log = self._logs.get(path)
            if log is not None:
                log.file = file
                continue
            past = _PAST_BYTES if first and not self._whole else None
            tail = FileTail(path, last_bytes=past, whole=self._whole, links=True)
            self._logs[path] = _Log(file, str(path.relative_to(top)), tail, caught_up=not first)

    def _begin_attempt(self, found: dict[Path, LogFile]) -> None:
        self.attempt += 1
        for path in [path for path in self._logs if path not in found]:
            self._logs.pop(path).tail.close()
        for known in self._ranks.values():
            known.owner, known.has_loss = None, False

    def _read(self, log: _Log, now_s: float, most: int, lines: list[LogLine]) -> list[RankSample]:
        samples = []
        for text in log.tail.read(now_s, most_lines=most, wanted=may_tell):
            (line,) = lines_of(text) or (None,)
            if line is None:
                continue
            rank = log.file.rank if log.file.rank is not None else line.rank
            if log.caught_up:
                node = line.node or (self._ranks[rank].node if rank in self._ranks and rank is not None else "")
                lines.append(
                    LogLine(text=text, at_s=now_s, node=node, rank=rank, source="kernel" if line.kernel else "rank")
                )
            if rank is None and not self._knows_ranks():
                rank = 0
            if rank is not None:
                samples += self._numbers(log, rank, line, now_s)
        if (drawn := log.tail.drawn) and log.file.rank is not None and log.file.rank in log.progress:
            log.progress[log.file.rank].bar(drawn)
        return samples

    def _knows_ranks(self) -> bool:
        return any(log.file.rank is not None for log in self._logs.values()) or bool(set(self._ranks) - {0})

    def _numbers(self, log: _Log, rank: int, line: Line, now_s: float) -> list[RankSample]:
        known = self._ranks.get(rank)
        if known is None:
            known = self._ranks[rank] = _Rank()
        if line.node and not line.kernel and not known.node:
            known.node = line.node
        progress = log.progress.get(rank)
        if progress is None:
            progress = log.progress[rank] = Progress(base=known.last_step if known.relative else 0)
        said = progress.read(line)
        if said is None:
            return []
        if said.of_rank is not None:
            other, seconds = said.of_rank
            self._ranks.setdefault(other, _Rank())
            return [self._sample(other, now_s, step=said.step, compute_s=seconds)]
        if known.owner is None or (said.loss is not None and not known.has_loss):
            known.owner = log.file.path
        if known.owner != log.file.path:
            return []
        known.relative |= progress.relative
        return [self._of(rank, known, said, now_s)]

    def _of(self, rank: int, known: _Rank, said: Said, now_s: float) -> RankSample:
        if said.loss is not None:
            known.has_loss, known.loss, known.loss_step = True, said.loss, said.step
            if math.isfinite(said.loss):
                known.bad_step = None
            elif known.bad_step is None:
                known.bad_step = said.step
            self.loss = said.loss
        if said.step is not None:
            self.step = known.last_step = said.step
        return self._sample(
            rank,
            now_s,
            step=said.step,
            step_s=said.step_s,
            loss=known.loss,
            loss_step=known.loss_step,
            loss_bad_step=known.bad_step,
            global_norm=said.norm,
            global_finite=None if said.norm is None else math.isfinite(said.norm),
        )

    def _sample(self, rank: int, now_s: float, **fields: float | int | bool | None) -> RankSample:
        return RankSample(rank=rank, node=self._node_of(rank), at_s=now_s, phase="absent", **fields)  # type: ignore[arg-type]

    def _node_of(self, rank: int) -> str:
        return self._ranks[rank].node or f"{_UNKNOWN}rank-{rank}"

    def _heartbeats(self, now_s: float) -> list[RankSample]:
        """One bare sample a node: a node whose ranks print nothing for a while is not silent for that."""
        ranks_of: dict[str, int] = {}
        for rank in self._ranks:
            ranks_of.setdefault(self._node_of(rank), rank)
        return [RankSample(rank=rank, node=node, at_s=now_s, phase="absent") for node, rank in ranks_of.items()]

    def _by_node(self, samples: list[RankSample], lines: list[LogLine]) -> list[NodeLook]:
        by_node: dict[str, tuple[list[RankSample], list[LogLine]]] = {}
        for sample in samples:
            by_node.setdefault(sample.node, ([], []))[0].append(sample)
        for line in lines:
            by_node.setdefault(line.node, ([], []))[1].append(line)
        return [
            NodeLook(node=node, attempt=self.attempt, samples=tuple(some), lines=tuple(text))
            for node, (some, text) in by_node.items()
        ]
