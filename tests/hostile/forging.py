"""Change a run at any level, and make every digest above the change right again: what an attacker does who knows all.

Written without perdure's own code, which would refuse to write most of this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

__all__ = ["Case", "Change", "Forged", "digest", "dumps", "edit", "record", "replace"]

Change = Callable[[bytes], bytes]
_RECORD = re.compile(rb'\{"perdure":"([a-z]+)","format":([0-9]+),"digest":"[0-9a-f]*","body":')


@dataclass(frozen=True)
class Case:
    """A hostile run: ``make`` turns a good one into it, ``reader`` must refuse it with ``words``, naming ``file``."""

    name: str
    make: Callable[[Forged], object]
    words: str
    reader: str = "all"
    file: str = ""
    kinds: tuple[str, ...] = ("format-refused",)


def digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def record(kind: str, body: bytes, version: int = 1) -> bytes:
    """A record with the right digest, whatever its body is."""
    of = digest(f"{kind}\n{version}\n".encode() + body)
    return f'{{"perdure":"{kind}","format":{version},"digest":"{of}","body":'.encode() + body + b"}\n"


def edit(change: Callable[[Any], object]) -> Change:
    """The change of bytes that is ``change`` of their JSON, in place."""

    def apply(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return dumps(value)

    return apply


def replace(old: bytes, new: bytes) -> Change:
    """The first ``old`` becomes ``new``."""

    def apply(data: bytes) -> bytes:
        assert old in data, old
        return data.replace(old, new, 1)

    return apply


class Forged:
    """A run in a folder. Parts are those of the newest slot, by rank."""

    def __init__(self, folder: Path, slot: int = 2) -> None:
        self.folder = folder
        self.slot = folder / f"slots/{slot:010d}.json"

    def body(self, path: Path) -> bytes:
        """The body of the record at the front of a file."""
        top = path.read_bytes().split(b"\n", 1)[0]
        found = _RECORD.match(top)
        assert found, path
        return top[found.end() : -1]

    def parts(self) -> list[Path]:
        return [self.folder / each["name"] for each in json.loads(self.body(self.slot))["parts"]]

    def packs(self, part: int = 0) -> list[Path]:
        """The packs of a part: those of the first step, those of the second."""
        return [self.folder / each["name"] for each in json.loads(self.body(self.parts()[part]))["packs"]]

    def record(self, name: str, change: Change, version: int = 1) -> None:
        """Change the body of a record that nothing has the digest of."""
        path = self.folder / name
        found = _RECORD.match(path.read_bytes())
        assert found, name
        path.write_bytes(record(found[1].decode(), change(self.body(path)), version))

    def commit(self, change: Change) -> None:
        self.record(str(self.slot.relative_to(self.folder)), change)

    def part(self, change: Change, part: int = 0, version: int = 1) -> None:
        """Change the body of the record of a part."""
        path = self.parts()[part]
        _, leaves = path.read_bytes().split(b"\n", 1)
        self.write_part(record("part", change(self.body(path)), version), leaves, part)

    def top(self, change: Change, part: int = 0) -> None:
        """Change the bytes of the record of a part."""
        top, leaves = self.parts()[part].read_bytes().split(b"\n", 1)
        self.write_part(change(top + b"\n"), leaves, part)

    def write_part(self, top: bytes, leaves: bytes, part: int = 0) -> None:
        self.parts()[part].write_bytes(top + leaves)

        def name_it(commit: Any) -> None:
            commit["parts"][part].update(nbytes=len(top) + len(leaves), top_nbytes=len(top), digest=digest(top))

        self.commit(edit(name_it))

    def leaf(self, kind: str, change: Change, part: int = 0, *, counted: bool = True) -> None:
        """Change a leaf; ``counted`` makes count, first and last right too, where the leaf can be read."""
        path = self.parts()[part]
        _, data = path.read_bytes().split(b"\n", 1)
        body = json.loads(self.body(path))
        pieces = []
        start = 0
        for each in body["leaves"]:
            piece = data[each[4] : each[4] + each[5]]
            if each[0] == kind:
                piece = change(piece)
                each[6] = digest(piece)
                if counted:
                    _count(each, piece)
            each[4], each[5] = start, len(piece)
            start += len(piece)
            pieces.append(piece)
        self.write_part(record("part", dumps(body)), b"".join(pieces), part)

    def entries(self, kind: str, change: Callable[[list[Any]], object], part: int = 0, *, counted: bool = True) -> None:
        """Change the entries of a leaf."""
        self.leaf(kind, lambda data: edit(change)(data) + b"\n", part, counted=counted)

    def pack(self, change: Change, part: int = 0, pack: int = 1) -> None:
        """Change the bytes of a pack."""
        path = self.packs(part)[pack]
        data = change(path.read_bytes())
        path.write_bytes(data)
        header_nbytes = min(8 + int.from_bytes(data[:8], "little"), len(data))

        def name_it(body: Any) -> None:
            of = digest(data[:header_nbytes])
            body["packs"][pack].update(nbytes=len(data), header_nbytes=header_nbytes, header_digest=of)

        self.part(edit(name_it), part)

    def header(self, change: Change, part: int = 0, pack: int = 1) -> None:
        """Change the JSON of a pack's header; the data stays."""

        def apply(data: bytes) -> bytes:
            n = 8 + int.from_bytes(data[:8], "little")
            text = change(data[8:n].rstrip(b" "))
            room = -(-(len(text) + 8) // 4096) * 4096
            return (room - 8).to_bytes(8, "little") + text.ljust(room - 8) + data[n:]

        self.pack(apply, part, pack)


def _count(leaf: list[Any], piece: bytes) -> None:
    try:
        entries = json.loads(piece)
        leaf[1:4] = [entries[0][0], entries[-1][0], len(entries)]
    except (ValueError, RecursionError, IndexError, TypeError, KeyError):
        pass  # it is not to be read
