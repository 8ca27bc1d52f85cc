"""Write values that are not tensors as fixed, tagged JSON, and read them back exactly.

Plain JSON where JSON is exact; everything else is an object with the single key ``$`` naming its type. No class of
the user is ever imported or called: a type that is not listed here is an error that names the key.

| Python | written as |
|---|---|
| ``None``, ``bool``, ``str``, ``list``, int up to 2^53 | itself |
| float | itself when finite, else ``{"$": "float", "v": hex of its 8 bytes}`` (NaN payloads survive) |
| big int | ``{"$": "int", "v": hex}`` |
| dict with plain string keys | itself; any other dict ``{"$": "dict", "v": [[key, value], ...]}`` |
| tuple, set, frozenset, OrderedDict | ``{"$": "tuple" ..., "v": [...]}`` |
| bytes, complex, range, NumPy scalar, NumPy array | tagged, bytes as base64 |
| what an adapter registers (``torch.dtype``, ...) | ``{"$": tag, "v": str}`` |
"""

from __future__ import annotations

import base64
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from perdure.errors import FormatRefused, NotSerializable

__all__ = ["decode_value", "encode_value", "register_tag"]

_MAX_DEPTH = 64
_EXACT_INT = 1 << 53
_PLAIN_KINDS = frozenset("biufcSU")  # NumPy kinds whose bytes are the value; objects are refused

_writers: dict[type, tuple[str, Callable[[Any], str]]] = {}
_readers: dict[str, Callable[[str], Any]] = {}


def register_tag(
    kind: type, tag: str, write: Callable[[Any], str], read: Callable[[str], Any], *, matches: tuple[type, ...] = ()
) -> None:
    """Let values of exactly type ``kind`` (and ``matches``) be written as ``{"$": tag, "v": write(value)}``.

    Called by adapters at import; ``read`` must look names up in a closed list and never import or evaluate.
    """
    for each in (kind, *matches):
        _writers[each] = (tag, write)
    _readers[tag] = read


def encode_value(value: Any, *, key: str) -> Any:
    """Return ``value`` as JSON values; raise `NotSerializable` naming ``key`` and the place inside it.

    >>> encode_value({"betas": (0.9, 0.95), 1: b"x"}, key="opt")
    {'$': 'dict', 'v': [['betas', {'$': 'tuple', 'v': [0.9, 0.95]}], [1, {'$': 'bytes', 'v': 'eA=='}]]}
    """
    return _encode(value, key, 0)


def _encode(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_EXACT_INT <= value <= _EXACT_INT else {"$": "int", "v": hex(value)}
    if kind is float:
        return value if value - value == 0.0 else {"$": "float", "v": struct.pack("<d", value).hex()}
    if depth >= _MAX_DEPTH:
        raise NotSerializable(f"{where} is nested deeper than {_MAX_DEPTH} levels", key=where, type=kind.__name__)
    if kind is list:
        return [_encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if kind is dict:
        if all(type(name) is str and name != "$" for name in value):
            return {name: _encode(item, f"{where}.{name}", depth + 1) for name, item in value.items()}
        return {"$": "dict", "v": _pairs(value, where, depth)}
    if kind is tuple or kind is set or kind is frozenset:
        items = list(value) if kind is tuple else sorted(value, key=repr)
        return {"$": kind.__name__, "v": [_encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(items)]}
    if kind is OrderedDict:
        return {"$": "OrderedDict", "v": _pairs(value, where, depth)}
    if kind is bytes or kind is bytearray:
        return {"$": kind.__name__, "v": base64.b64encode(value).decode()}
    if kind is complex:
        return {"$": "complex", "v": struct.pack("<dd", value.real, value.imag).hex()}
    if kind is range:
        return {"$": "range", "v": [value.start, value.stop, value.step]}
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in _PLAIN_KINDS:
        array = np.ascontiguousarray(value)
        data = base64.b64encode(array.tobytes()).decode()
        tag = "np.array" if isinstance(value, np.ndarray) else "np.scalar"
        return {"$": tag, "dtype": value.dtype.str, "shape": list(value.shape), "v": data}
    if kind in _writers:
        tag, write = _writers[kind]
        return {"$": tag, "v": write(value)}
    raise NotSerializable(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which has no place in a checkpoint; "
        "save numbers, strings, bytes, lists, tuples, dicts, tensors or arrays instead",
        key=where,
        type=f"{kind.__module__}.{kind.__qualname__}",
    )


def _pairs(value: dict[Any, Any], where: str, depth: int) -> list[Any]:
    return [
        [_encode(name, f"{where}.{name!r}", depth + 1), _encode(item, f"{where}.{name}", depth + 1)]
        for name, item in value.items()
    ]


def decode_value(data: Any) -> Any:
    """Rebuild the value that `encode_value` wrote; raise `FormatRefused` for a tag or a form that it does not know.

    >>> decode_value({"$": "dict", "v": [[1, {"$": "tuple", "v": [2, None]}]]})
    {1: (2, None)}
    """
    return _decode(data, 0)


def _decode(data: Any, depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise FormatRefused("a saved value is nested too deep")
    if isinstance(data, list):
        return [_decode(item, depth + 1) for item in data]
    if not isinstance(data, dict):
        return data
    if "$" not in data:
        return {name: _decode(item, depth + 1) for name, item in data.items()}
    tag, body = data["$"], data.get("v")
    try:
        return _decode_tagged(tag, body, data, depth)
    except FormatRefused:
        raise
    except (TypeError, ValueError, struct.error, OverflowError) as error:
        raise FormatRefused(f"a saved value of type {tag!r} is malformed: {error}") from error


def _decode_tagged(tag: Any, body: Any, data: dict[str, Any], depth: int) -> Any:
    if tag in ("dict", "OrderedDict"):
        pairs = [(_decode(name, depth + 1), _decode(item, depth + 1)) for name, item in body]
        return dict(pairs) if tag == "dict" else OrderedDict(pairs)
    if tag in ("tuple", "set", "frozenset"):
        make: Callable[[list[Any]], Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}[tag]
        return make([_decode(item, depth + 1) for item in body])
    if tag == "int":
        return int(body, 16)
    if tag == "float":
        return struct.unpack("<d", bytes.fromhex(body))[0]
    if tag == "complex":
        return complex(*struct.unpack("<dd", bytes.fromhex(body)))
    if tag == "range":
        return range(*body)
    if tag in ("bytes", "bytearray"):
        raw = base64.b64decode(body, validate=True)
        return raw if tag == "bytes" else bytearray(raw)
    if tag in ("np.array", "np.scalar"):
        dtype = np.dtype(data["dtype"])
        if dtype.kind not in _PLAIN_KINDS:
            raise FormatRefused(f"a saved array has dtype {dtype}, which this format does not hold")
        array = np.frombuffer(base64.b64decode(body, validate=True), dtype).reshape(data["shape"])
        return array.copy() if tag == "np.array" else array[()]
    if isinstance(tag, str) and tag in _readers and isinstance(body, str):
        return _readers[tag](body)
    raise FormatRefused(f"a saved value has the unknown type {tag!r}; it may need a newer release or its adapter")
