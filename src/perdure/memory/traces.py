"""Whether anything is left of purged texts: in the bytes of which files, and whether it may be there.

A piece that some evidence still holds, of the same words told elsewhere, is no trace. How pieces are found:
`perdure.memory.trace_scan`.
"""

from __future__ import annotations

import bisect
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import Bug, DeadlineExceeded
from perdure.memory import trace_scan
from perdure.memory.told import as_text

if TYPE_CHECKING:
    from perdure.memory.ledger import Ledger
    from perdure.memory.sqlite_files import File

__all__ = ["METHOD", "Looked", "batches_of", "forms_of", "held_elsewhere", "look_through"]

METHOD: Final = (
    "every byte of every file of the space, and each file's name, was compared with the purged texts: as UTF-8, as"
    " UTF-16 of both byte orders, in lower case and as JSON escapes; whatever has 12 bytes or more in common counts"
    " (a text of 4 to 11 bytes as a whole; shorter ones, and runs of fewer than 3 different bytes, cannot be told from"
    " chance), unless other evidence still holds those bytes. The blocks that the file system has let go are not read."
)
_BATCH_BYTES: Final = 4 << 20
_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Looked:
    """A file that was looked through; ``hits`` are pieces of purged texts that no evidence holds any more."""

    file: str
    bytes: int
    hits: int
    shared: int = 0
    """Pieces that other evidence holds as well."""
    error: str = ""


def forms_of(text: str) -> set[bytes]:
    """The bytes as which a text may lie in a file.

    >>> sorted(forms_of("Hi"))
    [b'\\x00H\\x00i', b'H\\x00i\\x00', b'Hi', b'hi']
    """
    escaped = json.dumps(text)[1:-1].encode()
    return {
        text.encode("utf-8", "surrogatepass"),
        text.lower().encode("utf-8", "surrogatepass"),
        text.encode("utf-16-le", "surrogatepass"),
        text.encode("utf-16-be", "surrogatepass"),
        escaped,
    }


def look_through(
    ledger: Ledger, files: Sequence[Path], texts: Iterable[str], *, deadline_s: float
) -> tuple[list[Looked], list[int]]:
    """Look through ``files``; return what was found in each, and the evidence that holds pieces as well.

    Raises `DeadlineExceeded` where reading takes longer.
    """
    looked: dict[str, Looked] = {str(each): Looked(str(each), 0, 0) for each in files}
    sharing: set[int] = set()
    for batch in batches_of(texts):
        answer = _scan(files, batch, deadline_s=deadline_s)
        pieces = {bytes.fromhex(piece) for found in answer.values() for piece in found["pieces"]}
        held, by = held_elsewhere(ledger.connection(), pieces)
        sharing |= by
        for file, found in answer.items():
            before = looked[file]
            shared = sum(count for piece, count in found["pieces"].items() if bytes.fromhex(piece) in held)
            looked[file] = Looked(
                file,
                found["bytes"],
                before.hits + sum(found["pieces"].values()) - shared,
                before.shared + shared,
                found["error"] or before.error,
            )
    return list(looked.values()), sorted(sharing)


def held_elsewhere(db: File, pieces: set[bytes]) -> tuple[set[bytes], set[int]]:
    """Which of ``pieces`` evidence still holds in its text, its names or its meta; and for each at least one that does.

    The statements that make the tables count as well.
    """
    held = {
        piece
        for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        for piece in pieces
        if piece in sql.encode()
    }
    by: set[int] = set()
    for forms in (_plain, _others):
        if pieces - held:
            _compare(db, pieces - held, forms, held, by)
    return held, by


def _compare(
    db: File, pieces: set[bytes], forms: Callable[[str], Iterable[bytes]], held: set[bytes], by: set[int]
) -> None:
    needles = trace_scan.Needles(pieces)
    rows = db.execute("SELECT id, body, source, speaker, meta FROM evidence WHERE body IS NOT NULL")
    told = ((number, form) for number, *values in rows for value in values if value for form in forms(as_text(value)))
    while batch := list(itertools.islice(told, _ROWS)):
        joined = b"\xff".join(form for _, form in batch)
        ends = list(itertools.accumulate(len(form) + 1 for _, form in batch))
        for offset, piece, _ in trace_scan.find([joined], needles):
            if piece in pieces:
                held.add(piece)
                by.add(batch[bisect.bisect_right(ends, offset)][0])
        if pieces <= held:
            return


def _plain(text: str) -> Iterable[bytes]:
    return (text.encode("utf-8", "surrogatepass"),)


def _others(text: str) -> Iterable[bytes]:
    return forms_of(text)


def batches_of(texts: Iterable[str]) -> Iterator[list[bytes]]:
    """The forms of ``texts``, in lists of a few megabytes."""
    batch: list[bytes] = []
    size = 0
    for text in texts:
        for form in forms_of(text):
            batch.append(form)
            size += len(form)
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _scan(files: Sequence[Path], needles: list[bytes], *, deadline_s: float) -> dict[str, dict[str, Any]]:
    asked = json.dumps({"files": [str(each) for each in files], "needles": [each.hex() for each in needles]})
    try:
        done = subprocess.run(
            [sys.executable, "-P", trace_scan.__file__],
            input=asked,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(
            f"looking through {len(files)} files took more than {deadline_s:.0f} s; give it longer", missing=[]
        ) from error
    if done.returncode != 0:
        raise Bug(f"looking through files failed: {done.stderr[-500:]}")
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer
