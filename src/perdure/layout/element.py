"""The width of an element, read from the name of its dtype.

Names are torch's without ``torch.``; each says its own bits, and ``_x2`` says that one element packs two numbers.
"""

from __future__ import annotations

import re
from functools import cache

from perdure.errors import LayoutError

__all__ = ["element_bytes"]

_NAME = re.compile(r"[a-z]+(?P<bits>\d+)(?:_[a-z]\w*?)?(?:_x(?P<packed>\d+))?")


@cache
def element_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``; raises `LayoutError` for a name that does not say its bits.

    >>> [element_bytes(name) for name in ("bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", "bool", "complex64")]
    [2, 1, 1, 1, 8]
    """
    if dtype == "bool":
        return 1
    found = _NAME.fullmatch(dtype)
    bits = int(found["bits"]) * int(found["packed"] or 1) if found else 0
    if bits == 0 or bits % 8:
        raise LayoutError(f"cannot tell how many bytes an element of dtype {dtype!r} has", dtype=dtype)
    return bits // 8
