"""Lines of logs, without what launchers, loggers and kernels put before them.

A line of a large job's log is a message behind a stack of prefixes: a rank tag of the launcher, a time, a level, a
host. They are taken off from the left until none is left; what they say (rank, node, time, level) is kept beside
the message. Bytes that are not UTF-8 are replaced, colours go, and a line that was drawn over with carriage returns
counts as its last drawing. Of a file over `HEAD_BYTES` + `TAIL_BYTES` the middle is not looked at (causes stand where
a job ends, what it was started with where it begins); line numbers are those of the whole file all the same.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

from perdure.errors import CallError

__all__ = ["HEAD_BYTES", "LINE_CHARS", "TAIL_BYTES", "Line", "lines_of", "log_files", "read_log", "read_stream"]

HEAD_BYTES = 4 << 20
TAIL_BYTES = 16 << 20
LINE_CHARS = 4000
"A longer line keeps its beginning and its end."

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(
    r"\[(?:default|rank)\s?(?P<tag>\d+)\]:? ?"  # torchrun, and torch's own tag on tracebacks
    r"|\[\d+,(?P<mpi>\d+)\]<std(?:out|err|diag)>: ?"  # mpirun --tag-output
    r"|(?P<slurm>\d{1,5}): (?=\S|\s+File|\s{4})"  # srun --label
    r"|\[(?P<role>[a-z]+)(?P<of>\d+)\]:",  # --log-dir with a role
    re.IGNORECASE,
)
_WHOSE = re.compile(
    r"\[pod/(?P<pod>[^/\]\s]+)(?:/[^\]\s]+)?\] "  # kubectl logs --prefix
    r"|\((?:[\w.]+ )?pid=\d+(?:, ip=(?P<ip>[\d.]+))?\) "  # ray
    r"|(?P<nccl>[\w.-]+):\d+:\d+ \[(?P<gpu>\d+)\] (?=\S* ?(?:NCCL|RCCL))"
    r"|\[(?P<mpihost>[\w.-]+):\d+\] (?=\S)"
    r"|(?!(?:nvidia|mlx\d|bnxt)[\w.-]*:|(?:nvme|ib|eth|en[ops]|sd[a-z]|md|gpu|irdma|cuda|hip|exitcode|errno)[\w.]*:)"
    r"(?P<host>[a-z][a-z-]*[\w-]*\d[\w.-]*): (?=\S)"  # pdsh, deepspeed
)
_TIME = re.compile(
    r"\[?(?P<iso>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<zone>Z"
    r"|[+-]\d\d:?\d\d)?(?: UTC)?\]?[ :,|-]*"
    r"|(?P<sys>[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?) (?P<host>[\w.-]+) (?P<unit>[\w./-]+?)(?:\[\d+\])?: "
    r"|(?P<kern>\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4}\] ?"  # dmesg -T
    r"|\[ *\d{1,9}\.\d{3,6}\](?:\[[ TC]*\d+\])? ?"  # dmesg
    r"|<\d{1,3}>|kern\s*:\s*\w+\s*: )"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?[ :-]+"
)
_ISO_HOST = re.compile(
    r"(?P<host>[\w.-]+) (?P<unit>kernel|slurmd|slurmctld|kubelet|systemd\S*|nvidia\S*)(?:\[\d+\])?: "
)
_LEVEL = re.compile(
    r"\[?(?P<name>DEBUG|INFO|NOTICE|WARN(?:ING)?|ERR(?:OR)?|CRITICAL|FATAL)\]?(?::[\w.]+:|:| -|,| \||(?=[\s\]]))\s?"
    r"|(?P<glog>[IWEF])\d{4,8} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+:\d+\] "
    r"|\[(?P<c10>[IWEF]) ?[\w./-]+:\d+\] |\[(?P<c10d>[IWEF])\d{3,4} \d\d:\d\d:\d\d\.\d+ [\w./-]+:\d+\] "
    r"|\[[\w./-]+\.(?:py|cpp|cc):\d+(?::\w+)?\] "
)
_LEVELS = {"d": "debug", "i": "info", "n": "info", "w": "warning", "e": "error", "c": "error", "f": "error"}
_PREFIXES = 12


@dataclass(frozen=True, slots=True)
class Line:
    """A message, and what its prefixes said. ``number`` counts from 1 in ``file``; ``order`` over all files."""

    text: str
    "Without prefixes; leading blanks stay, they tell a frame from an error."
    raw: str
    file: str = ""
    number: int = 0
    order: int = 0
    rank: int | None = None
    node: str = ""
    at: float | None = None
    "Seconds since 1970, where the line says the year too."
    level: str = ""
    "debug, info, warning, error, or empty where it says none."
    kernel: bool = False


def lines_of(
    text: str | Iterable[str], *, file: str = "", first: int = 1, order: int = 0, rank: int | None = None
) -> list[Line]:
    """Take a text, or lines, apart. ``rank`` is whose they are where they do not say it.

    >>> line = lines_of("[rank3]: 2026-01-02 03:04:05,678 ERROR ValueError: no")[0]
    >>> line.rank, line.level, line.text
    (3, 'error', 'ValueError: no')
    """
    parts = text.split("\n") if isinstance(text, str) else text
    found = [_line(raw, file, first + n, order + n, rank) for n, raw in enumerate(parts)]
    while found and not found[-1].raw:
        found.pop()
    return found


def _line(raw: str, file: str, number: int, order: int, whose: int | None) -> Line:
    raw = _ANSI.sub("", raw.rstrip("\r\n"))
    if "\r" in raw:
        raw = raw.rpartition("\r")[2]
    if len(raw) > LINE_CHARS:
        raw = raw[: LINE_CHARS * 3 // 4] + " ... " + raw[-LINE_CHARS // 4 :]
    text, node, rank, at, level, kernel = raw, "", None, None, "", False
    if text.startswith("{") and '"log"' in text[:400]:
        text, at = _of_container(text)
    for _ in range(_PREFIXES):
        if match := _RANK.match(text):
            said = match["tag"] or match["mpi"] or match["slurm"] or match["of"]
            rank = int(said) if rank is None else rank
        elif match := _TIME.match(text):
            at = at if match["iso"] is None else _seconds(match["iso"], match["zone"])
            node = match["host"] or node
            kernel = kernel or match["unit"] == "kernel" or match["kern"] is not None
        elif match := _ISO_HOST.match(text):
            node, kernel = match["host"], match["unit"] == "kernel"
        elif match := _LEVEL.match(text):
            said = match["name"] or match["glog"] or match["c10"] or match["c10d"]
            level = _LEVELS[said[0].lower()] if said else level
        elif match := _WHOSE.match(text):
            node = match["pod"] or match["ip"] or match["nccl"] or match["mpihost"] or match["host"] or node
        else:
            break
        text = text[match.end() :]
    return Line(text, raw, file, number, order, whose if rank is None else rank, node, at, level, kernel)


def _of_container(text: str) -> tuple[str, float | None]:
    """A line of a container runtime's JSON log; as it is if it is something else."""
    try:
        said = json.loads(text)
    except ValueError:
        return text, None
    if not isinstance(said, dict) or not isinstance(said.get("log"), str):
        return text, None
    time = said.get("time")
    match = _TIME.match(time) if isinstance(time, str) else None
    return said["log"].rstrip("\n"), _seconds(match["iso"], match["zone"]) if match and match["iso"] else None


def _seconds(iso: str, zone: str | None) -> float | None:
    """Seconds since 1970; a time without a zone counts as UTC. None for a 31st of February."""
    try:
        moment = datetime.fromisoformat(iso.replace("/", "-").replace(",", "."))
        if zone and zone != "Z":
            moment = moment.replace(tzinfo=datetime.strptime(zone.replace(":", ""), "%z").tzinfo)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        return None


def log_files(paths: Iterable[str]) -> list[Path]:
    """The files that are meant: of a folder all files in it and below, in order of their names.

    Raises:
        CallError: nothing is there.
    """
    found: list[Path] = []
    for each in paths:
        path = Path(each)
        if path.is_dir():
            found += sorted(file for file in path.rglob("*") if file.is_file())
        elif path.exists():
            found.append(path)
        else:
            raise CallError(f"there is no log {each}; name files or folders, or - for what comes in", file=each)
    return found


def read_log(
    path: Path,
    *,
    order: int = 0,
    rank: int | None = None,
    head_bytes: int | None = None,
    tail_bytes: int | None = None,
    problems: list[str] | None = None,
) -> list[Line]:
    """The lines of one file, gzip or not; of a large one its head and its tail. Of a gzip that was cut short or is
    damaged, what comes before that: ``problems`` then has a sentence more. ``rank`` is whose it is, if known.

    Raises:
        CallError: it cannot be read.
    """

    def lines(stream: IO[bytes]) -> list[Line]:
        return read_stream(stream, file=str(path), order=order, rank=rank, head_bytes=head_bytes, tail_bytes=tail_bytes)

    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                plain = _Unpacked(raw)
                read = lines(cast("IO[bytes]", plain))
                if plain.cut and problems is not None:
                    problems.append(f"{path} is cut short or damaged; it was read up to there")
                return read
            return lines(raw)
    except (OSError, zlib.error) as error:
        raise CallError(f"the log {path} cannot be read ({error}); name another one", file=str(path)) from error


class _Unpacked:
    """What is in a gzip file, of one or several members, as a stream; never more in memory than is asked for."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj(31)
        self._rest = b""
        self._some = self._begun = False
        self.cut = False
        "Whether the end was not that of a member."

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end. Raises ``zlib.error`` if there is nothing that can be unpacked."""
        found = bytearray()
        while len(found) < size:
            if self._inflate.eof:
                self._rest = self._inflate.unused_data or self._raw.read(1 << 16)
                self._inflate, self._begun = zlib.decompressobj(31), False
            data = self._rest or self._raw.read(1 << 16)
            if not data:
                self.cut = not self._inflate.eof and self._begun
                if self.cut and not (found or self._some):
                    raise zlib.error("it ends in its head")
                break
            self._begun = True
            try:
                found += self._inflate.decompress(data, size - len(found))
            except zlib.error:
                if not (found or self._some):
                    raise
                self._rest, self._raw, self.cut = b"", io.BytesIO(), True
                break
            self._rest = self._inflate.unconsumed_tail
        self._some = self._some or bool(found)
        return bytes(found)


def read_stream(
    stream: IO[bytes],
    *,
    file: str,
    order: int = 0,
    rank: int | None = None,
    head_bytes: int | None = None,
    tail_bytes: int | None = None,
) -> list[Line]:
    """The lines of a stream of bytes that may be longer than memory."""
    tail_bytes = TAIL_BYTES if tail_bytes is None else tail_bytes
    head = stream.read(HEAD_BYTES if head_bytes is None else head_bytes)
    kept: list[bytes] = []
    size = dropped = 0
    for block in _blocks(stream, min(1 << 20, max(tail_bytes, 1))):
        kept.append(block)
        size += len(block)
        while size - len(kept[0]) >= tail_bytes:
            gone = kept.pop(0)
            size -= len(gone)
            dropped += gone.count(b"\n")
            head = head if head.endswith(b"\n") else head.rpartition(b"\n")[0] + b"\n"
    tail = b"".join(kept)
    if not dropped:
        return lines_of(_text(head + tail), file=file, order=order, rank=rank)
    first = lines_of(_text(head), file=file, order=order, rank=rank)
    number = head.count(b"\n") + dropped + 2  # the tail begins within a line, which goes
    rest = _text(tail.partition(b"\n")[2])
    return first + lines_of(rest, file=file, first=number, order=order + len(first), rank=rank)


def _blocks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    while block := stream.read(size):
        yield block


def _text(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8", errors="replace").replace("\x00", "")
