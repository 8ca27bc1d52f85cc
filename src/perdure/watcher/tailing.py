"""Follow the log files of ranks: whole lines, in order, each once, and never more than a bounded number a second.

A file that is renamed (``rank-3.log`` to ``rank-3.log.1``) is read to its end through the descriptor that was open;
what was begun and renamed again between two looks is found by its inode among the numbered names. A file that shrank
has been begun anew. Of a storm the first and the last lines of each look are kept, for a fault has its first word there
and its traceback at the end; what was left out is counted. Nothing here trusts what is in a file: bytes that are no
UTF-8 are replaced, control characters go, a line has at most `LONGEST_LINE` characters.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.watcher.samples import LogLine

__all__ = ["LONGEST_LINE", "MOST_WANTED", "Dropped", "FileTail", "LogTail", "plain"]

LONGEST_LINE: Final = 4096
MOST_WANTED: Final = 4000
_LINE_BYTES: Final = 4 * LONGEST_LINE
_CHUNK_BYTES: Final = 1 << 18
_LOOK_BYTES: Final = 1 << 20
_KEEP_BYTES: Final = 1 << 18
_MOST_FILES: Final = 4096
_MOST_NUMBERED: Final = 16
_LAST_WORDS_S: Final = 2.0
_RANK_LOG: Final = re.compile(r"rank-(\d{1,7})\.log")
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def plain(data: bytes) -> str:
    """The text of one line as a terminal would leave it: of a progress bar what was drawn last, without colours.

    >>> plain(b"10%\\r20%\\r\\x1b[31m30%\\x1b[0m\\r\\n")
    '30%'
    """
    line = data.rstrip(b"\r\n")
    text = line[line.rfind(b"\r") + 1 :][:_LINE_BYTES].decode(errors="replace")
    return _CONTROL.sub(" ", _ESCAPES.sub("", text)).rstrip()[:LONGEST_LINE]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a look has left out: lines that were read, and bytes that were not."""

    lines: int = 0
    nbytes: int = 0

    def __add__(self, other: Dropped) -> Dropped:
        return Dropped(self.lines + other.lines, self.nbytes + other.nbytes)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file by its device and inode, and its size."""

    key: tuple[int, int]
    nbytes: int


def _look_at(path: Path) -> _Seen | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _Seen((found.st_dev, found.st_ino), found.st_size)


class FileTail:
    """A file that somebody else writes to.

    ``from_end``: what is in it already is not read. ``last_bytes``: of that, only so much. ``whole``: nothing is passed
    over, however far behind the reading is. ``links``: the name may be a symbolic link.
    """

    def __init__(
        self,
        path: Path,
        *,
        from_end: bool = False,
        last_bytes: int | None = None,
        whole: bool = False,
        links: bool = False,
    ) -> None:
        self._path = path
        self._flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
        self._fd = -1
        self._key: tuple[int, int] | None = None
        self._offset = 0
        self._from_end = from_end or last_bytes is not None
        self._last_bytes = last_bytes or 0
        self._whole = whole
        self.taken_bytes = 0
        "Read or passed over so far: who writes makes it grow."
        self._partial = b""
        self._cut = False
        self._partial_since_s: float | None = None
        self.dropped = Dropped()

    def read(self, now_s: float, *, most_lines: int, wanted: Callable[[bytes], bool] | None = None) -> list[str]:
        """The lines written since the call before, at most ``most_lines``; what was left out is added to `dropped`.

        Those that are ``wanted`` come beside the others, at most `MOST_WANTED` of them, all in their order. A last line
        without an end is given after some seconds in which nothing was added to it.
        """
        lines: list[bytes] = []
        budget = _LOOK_BYTES
        for _ in range(_MOST_NUMBERED):
            if self._fd < 0 and not self._open_next():
                break
            found, taken = self._more(budget, now_s)
            lines += found
            budget -= taken
            self.taken_bytes += taken
            if not self._replaced():
                break
            if taken == 0 or self._at_end():
                lines += self._rest()
                self._close_file()
        return [plain(line) for line in self._bounded(lines, most_lines, wanted)]

    @property
    def drawn(self) -> str:
        """What the line that has not ended yet shows, as of a progress bar."""
        return plain(self._partial) if self._partial and not self._cut else ""

    def close(self) -> None:
        """Forget the file."""
        self._close_file()

    def _bounded(self, lines: list[bytes], most: int, wanted: Callable[[bytes], bool] | None) -> list[bytes]:
        if len(lines) <= most:
            return lines
        first, last = most // 2, len(lines) - (most - most // 2)
        between = [] if wanted is None else [line for line in lines[first:last] if wanted(line)][-MOST_WANTED:]
        self.dropped += Dropped(lines=last - first - len(between))
        return lines[:first] + between + lines[last:]

    def _more(self, budget: int, now_s: float) -> tuple[list[bytes], int]:
        """Lines, and how many bytes were read or passed over. Reads at most ``budget``: more is passed over but for its
        end.
        """
        size = os.fstat(self._fd).st_size
        if size < self._offset:
            self._offset, self._partial, self._cut = 0, b"", False
        behind = size - self._offset
        lines: list[bytes] = []
        taken = 0
        if behind > max(budget, _KEEP_BYTES) and not self._whole:
            lines += self._split(os.pread(self._fd, _KEEP_BYTES, self._offset), now_s)
            skipped = behind - 2 * _KEEP_BYTES
            if skipped > 0:
                self.dropped += Dropped(nbytes=skipped + len(self._partial))
                self._offset = size - _KEEP_BYTES
                self._partial, self._cut = b"", True  # it stands within a line, whose end is of no use
            taken = behind - _KEEP_BYTES
        while self._offset < size and not (self._whole and taken >= budget):
            data = os.pread(self._fd, min(_CHUNK_BYTES, size - self._offset), self._offset)
            if not data:
                break
            lines += self._split(data, now_s)
            taken += len(data)
        if self._partial and self._partial_since_s is not None and now_s - self._partial_since_s >= _LAST_WORDS_S:
            lines += self._rest()
            self._cut = True  # what may still be added to it is the same line's
        return lines, taken

    def _split(self, data: bytes, now_s: float) -> list[bytes]:
        self._offset += len(data)
        pieces = (self._partial + data).split(b"\n")
        self._partial = pieces.pop()
        lines = []
        for number, piece in enumerate(pieces):
            if number == 0 and self._cut:
                self._cut = False
                continue
            lines.append(piece)
        if self._cut:
            self._partial = b""
        elif len(self._partial) > _LINE_BYTES:
            shown = self._partial[self._partial.rfind(b"\r", 0, -1) + 1 :]
            if len(shown) > _LINE_BYTES:
                lines.append(shown)
                self._cut, shown = True, b""
            self._partial = shown
        self._partial_since_s = now_s if self._partial else None
        return lines

    def _rest(self) -> list[bytes]:
        rest, self._partial, self._partial_since_s = self._partial, b"", None
        return [rest] if rest and not self._cut else []

    def _at_end(self) -> bool:
        return os.fstat(self._fd).st_size <= self._offset

    def _replaced(self) -> bool:
        """Whether what is open is complete: another file has the name and has been written to, or was renamed as well.

        An empty file alone says nothing: whoever rotates may have made it, and the program still writes to the old one.
        """
        now = _look_at(self._path)
        if now is None or now.key == self._key:
            return False
        first = _look_at(self._numbered(1))
        return now.nbytes > 0 or (first is not None and first.key != self._key)

    def _open_next(self) -> bool:
        """Open what follows the file that was read last: the oldest numbered one after it, or the name itself."""
        for path in self._after_last():
            try:
                fd = os.open(path, self._flags)
            except OSError:
                continue
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                os.close(fd)
                continue
            self._fd, self._key = fd, (found.st_dev, found.st_ino)
            self._offset = max(0, found.st_size - self._last_bytes) if self._from_end else 0
            self._cut = self._from_end and 0 < self._offset < found.st_size
            self._from_end = False
            return True
        return False

    def _after_last(self) -> list[Path]:
        """What was written after the file that was read last, the oldest first; all there is if none was."""
        if self._from_end:
            return [self._path]
        names = [self._path]
        for number in range(1, _MOST_NUMBERED):
            found = _look_at(self._numbered(number))
            if found is None or found.key == self._key:
                return names[::-1] if found is not None or self._key is None else [self._path]
            names.append(self._numbered(number))
        return [self._path]  # what was read last is not among them any more: what came between is lost with it

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._partial, self._cut = -1, b"", False


class LogTail:
    """The logs of a folder, ``rank-<rank>.log`` and their rotated ones; `read` is called about once a second.

    ``most_lines`` are given of one rank a second (half as many more at once after a quiet while), ``most_in_all`` of
    all ranks together.
    """

    def __init__(
        self, folder: Path, *, node: str = "", most_lines: int = 200, most_in_all: int = 5000, from_end: bool = False
    ) -> None:
        self._folder = folder
        self._node = node
        self._most_lines = most_lines
        self._most_in_all = most_in_all
        self._from_end = from_end
        self._tails: dict[int, FileTail] = {}
        self._ran_s: float | None = None

    def read(self, now_s: float) -> list[LogLine]:
        """What was written since the call before, at ``now_s`` on the monotonic clock."""
        passed_s = 1.0 if self._ran_s is None else min(1.5, max(0.0, now_s - self._ran_s))
        self._ran_s = now_s
        self._discover()
        most = max(2, int(self._most_lines * passed_s))
        if self._tails:
            most = max(2, min(most, int(self._most_in_all * passed_s) // len(self._tails)))
        return [
            LogLine(text=text, at_s=now_s, node=self._node, rank=rank, source="rank")
            for rank, tail in self._tails.items()
            for text in tail.read(now_s, most_lines=most)
            if text
        ]

    def dropped(self) -> dict[int, Dropped]:
        """What has been left out so far, by rank; ranks of which all was read are not named."""
        return {rank: tail.dropped for rank, tail in self._tails.items() if tail.dropped != Dropped()}

    def close(self) -> None:
        """Forget the files."""
        for tail in self._tails.values():
            tail.close()

    def _discover(self) -> None:
        for rank, path in self._found():
            if rank not in self._tails and len(self._tails) < _MOST_FILES:
                self._tails[rank] = FileTail(path, from_end=self._from_end)
        self._from_end = False  # what appears later is new

    def _found(self) -> Iterator[tuple[int, Path]]:
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    match = _RANK_LOG.fullmatch(entry.name)
                    if match is not None:
                        yield int(match[1]), self._folder / entry.name
        except OSError:
            return  # not there yet
