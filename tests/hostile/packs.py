"""Hostile packs in a run whose digests all fit; `tests/store/test_pack.py` has more that is hostile in a header alone.

The pack is that of rank 0 at the second step: `b` (I8, 6 bytes), a pad, `one` (F64), a pad, `none` (F32), `z` (U8 of 32
bytes, a complex128), a pad, `rng@rank0` (U8).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from forging import Case, Change, Forged, dumps, edit, replace

PACK = "packs/0000000001/000000000020-000001-rank0-0.safetensors"
Header = dict[str, Any]


def header(change: Callable[[Header], object]) -> Callable[[Forged], None]:
    return lambda run: run.header(edit(change))


def spelled(old: bytes, new: bytes) -> Callable[[Forged], None]:
    return lambda run: run.header(replace(old, new))


def file(change: Change) -> Callable[[Forged], None]:
    return lambda run: run.pack(change)


def length(nbytes: int) -> Callable[[Forged], None]:
    """Another length of the header; the part believes it."""
    return file(lambda data: nbytes.to_bytes(8, "little") + data[8:])


def metadata(**changes: Any) -> Callable[[Forged], None]:
    return header(lambda found: found["__metadata__"].update(changes))


def entry(key: str, **changes: Any) -> Callable[[Forged], None]:
    return header(lambda found: found[key].update(changes))


def flipped(at: int) -> Callable[[Forged], None]:
    """A byte of the data is another one, and nothing else is."""

    def make(run: Forged) -> None:
        path = run.packs()[1]
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return make


def tile_digest(number: int) -> Callable[[Forged], None]:
    """The digest of a tile is another one."""

    def change(found: Header) -> None:
        digests = found["__metadata__"]["digests"]
        at = 32 * number
        new = "0" if digests[at] != "0" else "1"
        found["__metadata__"]["digests"] = digests[:at] + new + digests[at + 1 :]

    return header(change)


def sparse(run: Forged) -> None:
    """A pack of 4 TiB, a hole, whose header is said to be all of it; reading it all would take all memory."""
    path = run.packs()[1]
    with path.open("r+b") as opened:
        opened.truncate(1 << 42)
    run.part(edit(lambda found: found["packs"][1].update(nbytes=1 << 42, header_nbytes=1 << 42)))


def sparse_header(run: Forged) -> None:
    """The same, said by the pack itself."""
    sparse(run)
    with run.packs()[1].open("r+b") as opened:
        opened.write(((1 << 42) - 8).to_bytes(8, "little"))


def exchanged(run: Forged) -> None:
    """The packs of both ranks change places, by name and all."""
    one, other = run.packs(0)[1], run.packs(1)[1]
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def without(key: str) -> Callable[[Forged], None]:
    """The last entry is called otherwise."""
    return spelled(f'"{key}":'.encode(), b'"other":')


CASES = [
    Case("pack: empty", file(lambda _: b""), "more than its pack"),
    Case("pack: 7 bytes", file(lambda d: d[:7]), "more than its pack"),
    Case("pack: cut in the header", file(lambda d: d[:4000]), "", file=PACK),
    Case("pack: cut in the data", file(lambda d: d[:-1]), "end at byte", file=PACK),
    Case("pack: data after its end", file(lambda d: d + b"x"), "end at byte", file=PACK),
    Case("pack: 2^62 bytes of header", length(1 << 62), "", file=PACK, kinds=("format-refused", "corrupt")),
    Case("pack: 2^64-1 bytes of header", length((1 << 64) - 1), "", file=PACK, kinds=("format-refused", "corrupt")),
    Case("pack: header of 0 bytes", length(0), "", file=PACK),
    Case("pack: header not aligned", length(4087), "not a multiple", file=PACK),
    Case("pack: a hole of 4 TiB", sparse, "", file=PACK, kinds=("format-refused", "corrupt")),
    Case("pack: a hole of 4 TiB that is all header", sparse_header, "", file=PACK, kinds=("format-refused", "corrupt")),
    Case("pack: a header of 20 MB of spaces", lambda run: run.header(lambda d: d + b" " * (20 << 20)), "", file=PACK),
    Case("pack: 10 MB of [", lambda run: run.header(lambda _: b"[" * (10 << 20)), "cannot be read", file=PACK),
    Case("pack: 10 MB of [ after its metadata", lambda run: run.header(
        lambda d: d[: d.index(b"}") + 1] + b',"x":' + b"[" * (10 << 20)), "cannot be read", file=PACK),
    Case("pack: a header of NUL bytes", lambda run: run.header(lambda d: bytes(len(d))), "cannot be read", file=PACK),
    Case("pack: a byte order mark", lambda run: run.header(lambda d: b"\xef\xbb\xbf" + d), "cannot be read", file=PACK),
    Case("pack: not UTF-8", spelled(b'"b"', b'"\xff"'), "cannot be read", file=PACK),
    Case("pack: lone surrogate in a key", spelled(b'"b"', b'"\\udc80"'), "", file=PACK),
    Case("pack: later format", metadata(perdure="2", news="x"), "written by format 2; this release reads 1",
         file=PACK),
    Case("pack: format of 10^9 digits", metadata(perdure="9" * 1000), "this release reads 1", file=PACK),
    Case("pack: format 0", metadata(perdure="0"), "this release reads 1", file=PACK),
    Case("pack: of another library", header(lambda h: h.update(__metadata__={"format": "pt"})), "another writer",
         file=PACK),
    Case("pack: no metadata", header(lambda h: h.pop("__metadata__")), "no __metadata__", file=PACK),
    Case("pack: more metadata", metadata(more="x"), "unknown field", file=PACK),
    Case("pack: metadata twice", spelled(b'{"__meta', b'{"__metadata__":{},"__meta'), "", file=PACK),
    Case("pack: metadata last", header(lambda h: h.update(__metadata__=h.pop("__metadata__"))), "first", file=PACK),
    Case("pack: tiles of 0 bytes", metadata(tile_bytes="0"), "refused", file=PACK),
    Case("pack: tiles of 4095 bytes", metadata(tile_bytes="4095"), "tiles of 4095", file=PACK),
    Case("pack: tiles of 2^30 + 1 bytes", metadata(tile_bytes=str((1 << 30) + 1)), "tiles of", file=PACK),
    Case("pack: tiles of 10^18 bytes", metadata(tile_bytes="1" + "0" * 18), "refused", file=PACK),
    Case("pack: tiles of 04096 bytes", metadata(tile_bytes="04096"), "refused", file=PACK),
    Case("pack: tiles of other digits", metadata(tile_bytes="٤٠٩٦"), "refused", file=PACK),
    Case("pack: no digests", metadata(digests=""), "digests of", file=PACK),
    Case("pack: digests too short", header(lambda h: h["__metadata__"].update(
        digests=h["__metadata__"]["digests"][:-1])), "digests of", file=PACK),
    Case("pack: digests that are no hex", header(lambda h: h["__metadata__"].update(
        digests="g" * len(h["__metadata__"]["digests"]))), "digests of", file=PACK),
    Case("pack: digests in capitals", header(lambda h: h["__metadata__"].update(
        digests="A" * len(h["__metadata__"]["digests"]))), "digests of", file=PACK),
    Case("pack: 10 MB of digests", metadata(digests="0" * (10 << 20)), "digests of", file=PACK),
    Case("pack: dtype of another width", entry("one", dtype="F32"), "dtype and shape", file=PACK),
    Case("pack: unknown dtype", entry("one", dtype="F512"), "unknown dtype", file=PACK),
    Case("pack: dtype of the same width", entry("b", dtype="U8"), "not those of its box", file=PACK,
         kinds=("corrupt",)),
    Case("pack: another shape of as many", entry("b", shape=[6]), "not those of its box", file=PACK,
         kinds=("corrupt",)),
    Case("pack: shape of 65 dims", entry("one", shape=[1] * 65), "cannot be read", file=PACK),
    Case("pack: shape whose product overflows 2^64", entry("b", shape=[1 << 32, 1 << 32, 6]), "dtype and shape",
         file=PACK),
    Case("pack: shape of 2^3900 elements", entry("b", shape=[1 << 61] * 64), "dtype and shape", file=PACK),
    Case("pack: extent 2^62 + 1", entry("b", shape=[(1 << 62) + 1]), "cannot be read", file=PACK),
    Case("pack: negative extent", entry("b", shape=[-3, -2]), "cannot be read", file=PACK),
    Case("pack: offsets beyond the end", header(lambda h: h["rng@rank0"].update(
        shape=[1 << 40], data_offsets=[h["rng@rank0"]["data_offsets"][0],
                                       h["rng@rank0"]["data_offsets"][0] + (1 << 40)])), "", file=PACK),
    Case("pack: offsets overlap", entry("one", data_offsets=[0, 8]), "overlap", file=PACK),
    Case("pack: offsets leave a gap", header(lambda h: h.pop("__pad.2")), "gap", file=PACK),
    Case("pack: offsets fall", entry("b", data_offsets=[6, 0]), "dtype and shape", file=PACK),
    Case("pack: offsets of 2^63", entry("b", data_offsets=[0, 1 << 63]), "cannot be read", file=PACK),
    Case("pack: not aligned", header(lambda h: h["__pad.0"].update(shape=[50], data_offsets=[6, 56])), "", file=PACK),
    Case("pack: pads out of turn", spelled(b"__pad.1", b"__pad.7"), "reserved", file=PACK),
    Case("pack: a key twice", spelled(b'"one":', b'"b":{"dtype":"I8","shape":[6],"data_offsets":[0,6]},"one":'),
         "duplicate", file=PACK),
    Case("pack: empty key", spelled(b'"one":', b'"":'), "must have", file=PACK),
    Case("pack: key of 5000 bytes", spelled(b'"one":', b'"' + b"k" * 5000 + b'":'), "must have", file=PACK),
    Case("pack: key with a control character", spelled(b'"one":', b'"o\\u0007ne":'), "control", file=PACK),
    Case("pack: key with a line feed", spelled(b'"one":', b'"o\\nne":'), "control", file=PACK),
    Case("pack: key with DEL", spelled(b'"one":', b'"one\x7f":'), "control", file=PACK),
    Case("pack: key escaped in another way", spelled(b'"one":', b'"\\u006fne":'), "spelling", file=PACK),
    Case("pack: spaces", spelled(b'"one":', b'"one": '), "spelling", file=PACK),
    Case("pack: offset -0", spelled(b"[0,6]", b"[-0,6]"), "", file=PACK),
    Case("pack: offset 0.0", spelled(b"[0,6]", b"[0.0,6]"), "", file=PACK),
    Case("pack: offset 1e400", spelled(b"[0,6]", b"[0,1e400]"), "cannot be read", file=PACK),
    Case("pack: a key that the part wants is another", without("z"), "holds no tensor", file=PACK, kinds=("missing",)),
    Case("pack: wrong digest of a tile", tile_digest(0), "does not hash", file=PACK, kinds=("corrupt",)),
    Case("pack: wrong digest of the last tile", tile_digest(3), "does not hash", file=PACK, kinds=("corrupt",)),
    Case("pack: a byte of data is flipped", flipped(4096), "does not hash", file=PACK, kinds=("corrupt",)),
    Case("pack: the last byte is flipped", flipped(-1), "does not hash", file=PACK, kinds=("corrupt",)),
    Case("pack: a byte of the header is flipped", flipped(2000), "not the pack", file=PACK, kinds=("corrupt",)),
    Case("pack: that of the other rank", exchanged, "not the pack", file="packs/", kinds=("corrupt",)),
]  # fmt: skip


def keys_of(data: bytes) -> list[str]:
    """The keys of a pack, by a JSON reader of another hand."""
    n = int.from_bytes(data[:8], "little")
    return [key for key in json.loads(data[8 : 8 + n]) if not key.startswith("__")]


__all__ = ["CASES", "dumps", "keys_of"]
