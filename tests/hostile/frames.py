"""Hostile frames, alone and as an entry of a pack whose digests all fit. No writer makes frames yet; readers read them.

The frame is of `z`, complex128[2]: the fixed fields in 40 bytes, one dim, one coded size, then the 32 bytes, raw.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import xxhash
from forging import Case, Forged, edit

from perdure.codec import encode
from perdure.store.pack import PackItem, parse_header, plan_pack
from perdure.testing.ranks import random_bytes

PACK = "packs/0000000001/000000000020-000001-rank0-0.safetensors"
GOOD = encode(random_bytes("complex128", (2,), 20).reshape(-1), dtype="complex128", shape=(2,))
HEADER = len(GOOD) - 32
Change = Callable[[bytes], bytes]


def checked(header: bytes) -> bytes:
    """A header with its own length and the check that it must have."""
    header = header[:12] + struct.pack("<I", len(header)) + bytes(8) + header[24:]
    return header[:16] + xxhash.xxh3_128_digest(header)[:8] + header[24:]


def field(at: int, value: bytes) -> Change:
    """Other bytes in the header, which is checked again."""
    return lambda frame: checked(frame[:at] + value + frame[at + len(value) : HEADER]) + frame[HEADER:]


def tail(value: bytes, dims: int) -> Change:
    """Other dims, sizes and digests."""
    return lambda frame: checked(frame[:7] + bytes([dims]) + frame[8:40] + value) + frame[HEADER:]


ALONE: dict[str, tuple[Change, str]] = {
    "empty": (lambda f: b"", "too few"),
    "39 bytes": (lambda f: f[:39], "too few"),
    "cut in the header": (lambda f: f[: HEADER - 1], "cut off"),
    "cut in the data": (lambda f: f[:-1], "its header tells of|not that of its box"),
    "bytes after its end": (lambda f: f + b"x", "its header tells of|not that of its box"),
    "bad magic": (field(0, b"PRDG"), "no frame"),
    "later version": (field(4, b"\x01"), "another release"),
    "unknown codec": (field(5, b"\x07"), "unknown"),
    "codec 255": (field(5, b"\xff"), "unknown"),
    "unknown dtype": (field(6, b"\xff"), "unknown"),
    "65 dims": (tail(b"\x01" * 65 + b"\x20\0\0\0", 65), "out of bounds"),
    "255 dims": (tail(b"\x01" * 255 + b"\x20\0\0\0", 255), "out of bounds"),
    "unknown flag": (field(8, b"\x04"), "out of bounds"),
    "tiles of 1 byte": (field(9, b"\x00"), "out of bounds"),
    "tiles of 2^11 bytes": (field(9, b"\x0b"), "out of bounds"),
    "tiles of 2^27 bytes": (field(9, b"\x1b"), "out of bounds"),
    "tiles of 2^255 bytes": (field(9, b"\xff"), "out of bounds"),
    "reserved bytes": (field(10, b"\x01\x00"), "out of bounds"),
    "header of 0 bytes": (lambda f: f[:12] + bytes(4) + f[16:], "cut off"),
    "header of 2^32-1 bytes": (lambda f: f[:12] + b"\xff" * 4 + f[16:], "cut off"),
    "wrong check": (lambda f: f[:16] + bytes(8) + f[24:], "damaged"),
    "wrong digest of the tensor": (field(24, bytes(16)), "digest"),
    "a flipped byte": (lambda f: f[:-1] + bytes([f[-1] ^ 1]), "digest"),
    "more elements than bytes": (tail(b"\x03\x20\0\0\0", 1), "raw"),
    "2^62 elements": (tail(b"\x80" * 8 + b"\x40" + b"\x20\0\0\0", 1), "shorter"),
    "2^4000 elements": (tail((b"\x80" * 8 + b"\x40") * 64 + b"\x20\0\0\0", 64), "shorter"),
    "a dim beyond 2^63": (tail(b"\xff" * 9 + b"\x01" + b"\x20\0\0\0", 1), "out of bounds"),
    "a dim that is overlong": (tail(b"\x82\x00" + b"\x20\0\0\0", 1), "shortest"),
    "a dim of 1 MB": (tail(b"\xff" * (1 << 20) + b"\x01" + b"\x20\0\0\0", 1), "out of bounds|cut off"),
    "a dim without end": (tail(b"\x82", 1), "shorter"),
    "a dim too few": (tail(b"\x20\0\0\0", 0), "larger"),
    "fields after the last": (tail(b"\x02\x20\0\0\0" + bytes(16), 1), "longer"),
    "a tile larger than its bytes": (tail(b"\x02\x21\0\0\0", 1), "larger"),
    "a tile of 2^32-1 bytes": (tail(b"\x02\xff\xff\xff\xff", 1), "larger"),
    "a raw tile that is smaller": (tail(b"\x02\x1f\0\0\0", 1), "raw"),
    "a raw frame with a base": (lambda f: checked(f[:8] + b"\x01" + f[9:40] + bytes(16) + f[40:HEADER]) + f[HEADER:],
                                "raw"),
    "zeros": (lambda f: bytes(len(f)), "no frame"),
    "JSON": (lambda f: b"[" * 4096, "no frame"),
}  # fmt: skip


def framed(run: Forged, change: Change) -> None:
    """`z` of rank 0 becomes a frame, changed; pack, part and slot say so."""
    frame = change(GOOD)

    def repack(data: bytes) -> bytes:
        index = parse_header(lambda start, nbytes: data[start : start + nbytes], len(data))
        pieces = {each.key: data[each.start : each.start + each.nbytes] for each in index.entries} | {"z": frame}
        items = [
            PackItem(each.key, each.dtype, each.shape, each.nbytes)
            if each.key != "z"
            else PackItem("z", "frame", (), len(frame))
            for each in index.entries
        ]
        plan = plan_pack(items)
        digests = b"".join(xxhash.xxh3_128_digest(piece) for piece in pieces.values() if piece)
        return b"".join(plan.chunks(plan.render_header(digests), list(pieces.values())))

    run.pack(repack)
    run.entries("tensors", lambda found: found[5].__setitem__(4, [-2]))


def other_shape(run: Forged) -> None:
    """A good frame of another tensor."""
    data = np.arange(3, dtype=np.float32)
    framed(run, lambda _: encode(data))


CASES = [
    *(
        Case(f"frame: {name}", lambda run, c=change: framed(run, c), words, file=PACK,
             kinds=("format-refused", "corrupt"))
        for name, (change, words) in ALONE.items()
    ),
    Case("frame: of another tensor", other_shape, "not that of its box", file=PACK, kinds=("corrupt",)),
    Case("frame: the entry is no U8", lambda run: (
        framed(run, lambda f: f + b"\0" * (-len(f) % 8)),
        run.header(lambda d: d.replace(b'"z":{"dtype":"U8","shape":[80]', b'"z":{"dtype":"I64","shape":[10]'))),
        "", file=PACK, kinds=("format-refused", "corrupt")),
]  # fmt: skip

__all__ = ["ALONE", "CASES", "GOOD", "HEADER", "checked", "edit", "framed"]
