"""Whether anything is left of purged texts: in the bytes of which files, and whether it may be there.

A piece that some evidence still holds, of the same words told elsewhere, is no trace. How pieces are found:
`perdure.memory.trace_scan`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perdure.errors import Bug, DeadlineExceeded
from perdure.memory import trace_scan
from perdure.memory.told import as_text

if TYPE_CHECKING:
    from perdure.memory.ledger import Ledger
    from perdure.memory.sqlite_files import File

__all__ = ["METHOD", "Looked", "forms_of", "held_elsewhere", "look_through"]

METHOD: Final = (
    "every byte of every file of the space, and each file's name, was compared with the purged texts: as UTF-8, as"
    " UTF-16 of both byte orders, in lower case and as JSON escapes; whatever has 12 bytes or more in common counts"
    " (a text of 4 to 11 bytes as a whole; shorter ones, and runs of fewer than 3 different bytes, cannot be told from"
    " chance), unless other evidence still holds those bytes. The blocks that the file system has let go are not read."
)
_BATCH_BYTES: Final = 4 << 20


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

    >>> sorted(forms_of("Abcd"))[:2]
    [b'A\\x00b\\x00c\\x00d\\x00', b'Abcd']
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
    for batch in _batches(texts):
        answer = _scan(files, batch, deadline_s=deadline_s)
        pieces = {bytes.fromhex(piece) for found in answer.values() for _, piece in found["hits"]}  # type: ignore[attr-defined]
        held, by = held_elsewhere(ledger.connection(), pieces)
        sharing |= by
        for file, found in answer.items():
            hits = [bytes.fromhex(piece) for _, piece in found["hits"]]  # type: ignore[index]
            before = looked[file]
            left = sum(piece not in held for piece in hits)
            looked[file] = Looked(
                file,
                int(found["bytes"]),  # type: ignore[index]
                before.hits + left,
                before.shared + len(hits) - left,
                str(found.get("error", before.error)),  # type: ignore[attr-defined]
            )
    return list(looked.values()), sorted(sharing)


def held_elsewhere(db: File, pieces: set[bytes]) -> tuple[set[bytes], set[int]]:
    """Which of ``pieces`` evidence still holds in its text, its names or its meta; and which evidence."""
    held: set[bytes] = set()
    by: set[int] = set()
    needles = trace_scan.Needles(pieces)
    if not needles:
        return held, by

    def compare(texts: list[tuple[int, bytes]]) -> None:
        joined = b"\0".join(text for _, text in texts)
        ends, at = [], 0
        for number, text in texts:
            at += len(text) + 1
            ends.append((at, number))
        for offset, piece in trace_scan.find([joined], needles):
            held.add(piece)
            by.add(next(number for end, number in ends if offset < end))
        for piece in pieces - held:  # the search stops at many hits; what it did not come to is looked for alone
            if piece in joined:
                held.add(piece)

    batch: list[tuple[int, bytes]] = []
    size = 0
    rows = db.execute("SELECT id, body, source, speaker, meta FROM evidence WHERE body IS NOT NULL")
    for number, *values in rows:
        for value in values:
            if value:
                forms = forms_of(as_text(value))
                batch += [(number, each) for each in forms]
                size += sum(map(len, forms))
        if size > _BATCH_BYTES:
            compare(batch)
            batch, size = [], 0
    compare(batch)
    for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"):
        held |= {piece for piece in pieces if piece in sql.encode()}
    return held, by


def _batches(texts: Iterable[str]) -> Iterable[list[bytes]]:
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


def _scan(files: Sequence[Path], needles: list[bytes], *, deadline_s: float) -> dict[str, dict[str, object]]:
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
    answer: dict[str, dict[str, object]] = json.loads(done.stdout)
    return answer
