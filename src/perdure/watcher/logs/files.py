"""Which files of a folder are logs of a job, and of which rank: by the names that launchers and schedulers give them.

| name | rank | from |
|---|---|---|
| ``RUN/attempt_2/3/stdout.log``, ``stderr.log`` | 3, of attempt 2 | torchrun ``--log-dir`` |
| ``attempt-2/rank-3.log`` | 3, of attempt 2 | ``perdure run --log-dir`` |
| ``rank-3.log``, ``train_rank3.out``, ``node1.rank-3.err`` | 3 | custom |
| ``slurm-123_3.out``, ``slurm-123.3.out`` | 3 | Slurm, ``%j_%t`` |
| ``3.log``, ``worker-3.log``, ``task_3.out`` | 3 | custom |
| anything else, as ``slurm-123.out`` | unknown: lines may say it | |

Ranks that torchrun names are those within its node. If the folder has logs of several nodes, the same number stands for
different ranks, and then none is known. Of attempts the newest counts; a launcher's folder in which nothing was written
after another one had begun is of an earlier start.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from perdure.errors import CallError

__all__ = ["MOST_FILES", "LogFile", "logs_in", "ranks_named"]

MOST_FILES: Final = 4096
_MOST_SEEN: Final = 65536
_DEEPEST: Final = 4
_ATTEMPT: Final = re.compile(r"attempt[_-](\d{1,6})")
_TORCHRUN: Final = re.compile(r"(\d{1,7})/(?:stdout|stderr)\.log")
_RANK: Final = (
    re.compile(r"(?:^|[^a-z])(?:global[_.-]?)?rank[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"slurm-\d+(?:_\d+(?=[._-]\d))?[._-](\d{1,7})\.(?:out|err|log)"),
    re.compile(r"(?:^|[^a-z])(?:worker|proc|process|task|trainer)[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"(\d{1,7})\.(?:log|out|err|txt)"),
)
_ROTATED: Final = re.compile(r"(.+)\.\d{1,3}")
_ENDINGS: Final = re.compile(r"(?:.*\.(?:log|out|err|txt|stdout|stderr)(?:\.\d{1,3})?|.*\.[oe]\d+|[^.]+|log\.[\w-]+)")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log. ``run`` is the folder of a launcher's attempts, and ``attempt`` is the newest; else empty and 0."""

    path: Path
    rank: int | None = None
    run: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class _Seen:
    file: LogFile
    written_s: float
    began_s: float
    "When the folder of the attempt was last given an entry: the ranks' folders, at its start."


def logs_in(where: Path) -> list[LogFile]:
    """The logs in a folder and up to four below it, as they are now, in the order of their names; or the file itself.

    At most `MOST_FILES`. Raises `CallError` if there is nothing of that name.
    """
    if where.is_file():
        return [LogFile(where, _rank_of(where.name))]
    if not where.is_dir():
        raise CallError(f"there is no folder {where}; name the one that the ranks' logs are in, or a log")
    seen = list(_walk(where))
    newest: dict[str, int] = {}
    for each in seen:
        newest[each.file.run] = max(newest.get(each.file.run, 0), each.file.attempt)
    seen = [each for each in seen if each.file.attempt == newest[each.file.run]]
    over = _over(seen)
    files = [each.file for each in seen if each.file.run not in over]
    runs_of = Counter((each.rank, each.run) for each in files)
    several = Counter(rank for rank, run in runs_of if rank is not None and run)
    return [replace(f, rank=None) if f.run and f.rank is not None and several[f.rank] > 1 else f for f in files]


def ranks_named(files: Iterable[Path]) -> dict[Path, int]:
    """Of logs that were chosen one by one, whose their names say that they are, as in the table above.

    Files of one number that differ in other numbers or lie in different folders (not of two attempts) may be of several
    nodes that count from 0 each: then neither is known. A name that is a number is that of a rank only beside one that
    is 0; it may be a job's.

    >>> named = ranks_named([Path("a/rank_3.log"), Path("a/rank_3.err"), Path("b/7/stderr.log"), Path("c/train.log")])
    >>> [named.get(Path(name)) for name in ("a/rank_3.log", "a/rank_3.err", "b/7/stderr.log", "c/train.log")]
    [3, 3, 7, None]
    >>> ranks_named([Path("n1.rank-0.log"), Path("n2.rank-0.log")])
    {}
    """
    found: dict[Path, int] = {}
    claims: dict[int, set[str]] = {}
    for path in files:
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        torchrun = _TORCHRUN.fullmatch("/".join(plain.parts[-2:]))
        rank = int(torchrun[1]) if torchrun is not None else _rank_of(plain.name)
        if rank is None:
            continue
        if plain.stem.isdecimal() and not path.with_name(path.name.replace(plain.stem, "0", 1)).exists():
            continue
        found[path] = rank
        above = plain.parent.parent if torchrun is not None else plain.parent
        run = above.parent if _ATTEMPT.fullmatch(above.name) else above
        said = "" if torchrun is not None else re.sub(r"\D+", ".", plain.stem)
        claims.setdefault(rank, set()).add(f"{run}/{said}")
    return {path: rank for path, rank in found.items() if len(claims[rank]) == 1}


def _over(seen: list[_Seen]) -> set[str]:
    """The runs in which nothing was written since another began."""
    wrote: dict[str, float] = {}
    began: dict[str, float] = {}
    for each in seen:
        if each.file.run:
            wrote[each.file.run] = max(wrote.get(each.file.run, 0.0), each.written_s)
            began[each.file.run] = min(began.get(each.file.run, each.began_s), each.began_s)
    newest = max(began.values(), default=0.0)
    return {run for run, at_s in wrote.items() if at_s < newest and began[run] < newest}


def _walk(top: Path) -> Iterator[_Seen]:
    inodes: set[tuple[int, int]] = set()
    folders = [(top, 0)]
    n_seen = 0
    while folders:
        folder, depth = folders.pop(0)
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue  # it has gone, or is not ours to read: then there are no logs in it
        names = {entry.name for entry in found}
        for entry in found:
            n_seen += 1
            if entry.name.startswith(".") or n_seen > _MOST_SEEN:
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEEPEST:
                    folders.append((folder / entry.name, depth + 1))
                continue
            rotated = _ROTATED.fullmatch(entry.name)
            if not _ENDINGS.fullmatch(entry.name) or (rotated is not None and rotated[1] in names):
                continue
            try:
                state = os.stat(folder / entry.name)
            except OSError:
                continue
            key = (state.st_dev, state.st_ino)
            if stat.S_ISREG(state.st_mode) and key not in inodes and len(inodes) < MOST_FILES:
                inodes.add(key)
                yield _seen(top, folder / entry.name, state.st_mtime)


def _seen(top: Path, path: Path, written_s: float) -> _Seen:
    parts = path.relative_to(top).parts
    for at, part in enumerate(parts[:-1]):
        match = _ATTEMPT.fullmatch(part)
        if match is not None:
            run = "/".join(parts[:at]) or "."
            torchrun = _TORCHRUN.fullmatch("/".join(parts[at + 1 :]))
            rank = int(torchrun[1]) if torchrun is not None else _rank_of(path.name)
            began_s = top.joinpath(*parts[: at + 1]).stat().st_mtime
            return _Seen(LogFile(path, rank, run, int(match[1])), written_s, began_s)
    return _Seen(LogFile(path, _rank_of(path.name)), written_s, written_s)


def _rank_of(name: str) -> int | None:
    for pattern in _RANK[:1]:
        if (match := pattern.search(name)) is not None:
            return int(match[1])
    for pattern in _RANK[1:]:
        if (match := pattern.match(name) if pattern is _RANK[2] else pattern.fullmatch(name)) is not None:
            return int(match[1])
    return None
