"""The kernels of `mask` without C++: their oracle in the tests, their fallback where they are not built."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike, as_bytes
from perdure.codec.twin import digest_pair

__all__ = ["mask_decode", "mask_encode", "mask_room"]

_Bytes = npt.NDArray[np.uint8]


def mask_room(nbytes: int, width: int) -> int:
    """The bytes that ``out`` needs."""
    return -(-(nbytes // width) // 8) + nbytes + 64


def mask_encode(data: BytesLike, base: BytesLike, out: _Bytes, width: int, digests: _Bytes | None = None) -> int:
    """Encode a tile into ``out``; the bytes written."""
    digest_pair(data, base, digests)
    now, before = as_bytes(data).view(f"u{width}"), as_bytes(base).view(f"u{width}")
    changed = now != before
    coded = np.concatenate((np.packbits(changed, bitorder="little"), now[changed].view(np.uint8)))
    out[: coded.size] = coded
    return int(coded.size)


def mask_decode(coded: BytesLike, base: BytesLike, out: _Bytes, width: int, digests: _Bytes | None = None) -> bool:
    """Decode a tile into ``out``; whether it was one."""
    data, before = as_bytes(coded), as_bytes(base).view(f"u{width}")
    mask_bytes = -(-before.size // 8)
    changed = np.unpackbits(data[:mask_bytes], bitorder="little").view(bool)
    if data.size < mask_bytes or changed[before.size :].any():
        return False
    if data.size - mask_bytes != width * np.count_nonzero(changed):
        return False
    now = out.view(before.dtype)
    now[:] = before
    now[changed[: before.size]] = np.frombuffer(data[mask_bytes:].tobytes(), before.dtype)
    digest_pair(out, base, digests)
    return True
