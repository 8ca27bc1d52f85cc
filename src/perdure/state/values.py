"""Write values that are not tensors as fixed, tagged JSON, and read them back exactly.

Plain JSON where JSON is exact; everything else is an object with the single key ``$`` naming its type. No class of
the user is ever imported or called: a type that is not listed here is an error that names the key.

| Python | written as |
|---|---|
| ``None``, ``bool``, ``str``, ``list``, int up to 2^53 | itself |
| float | itself when finite, else ``{"$": "float", "v": hex of its 8 bytes}`` (NaN payloads survive) |
| big int | ``{"$": "int", "v": hex}`` |
| dict with plain string keys | itself; any other dict ``{"$": "dict", "v": [[key, value], ...]}`` |
| OrderedDict, Counter | as such a dict, under their own tag |
| tuple, set, frozenset | ``{"$": "tuple" ..., "v": [...]}`` |
| bytes, complex, range, NumPy scalar, NumPy array | tagged, bytes as base64 |
| what an adapter registers (``torch.dtype``, ...) | ``{"$": tag, "v": str}`` |
"""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from perdure.errors import FormatRefused, NotSerializable, fault_in

__all__ = ["decode_value", "encode_value", "register_tag"]

_MAX_DEPTH = 56  # brackets of JSON inside one another; a part of a commit may have 64 around and in all values
_EXACT_INT = 1 << 53
_COLLISIONS = 100  # keys of one hash
_PLAIN_DTYPE = re.compile(r"\A[<>|=][biufcSU][0-9]{1,9}\Z")  # NumPy's, where the bytes are the value; no objects
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}

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
    """``depth``: how many brackets are open around the value."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _text(value, where)
    if kind is int:
        return value if -_EXACT_INT <= value <= _EXACT_INT else {"$": "int", "v": hex(value)}
    if kind is float:
        return value if value - value == 0.0 else {"$": "float", "v": struct.pack("<d", value).hex()}
    if depth >= _MAX_DEPTH:
        raise NotSerializable(f"{where} is nested too deep; save a flatter value", key=where, type=kind.__name__)
    if kind is list:
        return [_encode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if kind is dict and all(type(name) is str and name != "$" for name in value):
        return {_text(name, where): _encode(item, f"{where}.{name}", depth + 1) for name, item in value.items()}
    if kind.__name__ in _DICTS and kind is _DICTS[kind.__name__]:
        return {"$": kind.__name__, "v": _pairs(value, where, depth + 2)}
    if kind is tuple:
        return {"$": "tuple", "v": [_encode(item, f"{where}[{i}]", depth + 2) for i, item in enumerate(value)]}
    if kind is set or kind is frozenset:  # in an order that is the same on all ranks
        items = (_encode(item, f"{where}[...]", depth + 2) for item in value)
        return {"$": kind.__name__, "v": sorted(items, key=msgspec.json.encode)}
    if kind is bytes or kind is bytearray:
        return {"$": kind.__name__, "v": base64.b64encode(value).decode()}
    if kind is complex:
        return {"$": "complex", "v": struct.pack("<dd", value.real, value.imag).hex()}
    if kind is range:
        return {"$": "range", "v": [_encode(each, where, depth + 2) for each in (value.start, value.stop, value.step)]}
    if _plain_numpy(value):
        data = base64.b64encode(value.tobytes() if value.dtype.itemsize else b"").decode()
        tag = "np.array" if kind is np.ndarray else "np.scalar"
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


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NotSerializable(f"{where} holds text that is no Unicode: {error}", key=where, type="str") from error
    return value


def _plain_numpy(value: Any) -> bool:
    """Whether ``value`` is an array or scalar of NumPy's own, all of whose state is its dtype, shape and bytes."""
    if not isinstance(value, np.ndarray | np.generic) or not _PLAIN_DTYPE.match(value.dtype.str):
        return False
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and value.dtype.itemsize > 0
    return type(value) is value.dtype.type


def decode_value(data: Any, *, key: str | None = None) -> Any:
    """Rebuild the value that `encode_value` wrote.

    Raises `FormatRefused`, naming ``key``, for a tag or a form that it does not know.

    >>> decode_value({"$": "dict", "v": [[1, {"$": "tuple", "v": [2, None]}]]}, key="opt")
    {1: (2, None)}
    """
    try:
        return _decode(data, 0)
    except FormatRefused as error:
        if key is None:
            raise
        raise FormatRefused(
            f"the saved value {key!r} is refused: {fault_in(error)}; use another copy or an older step",
            **error.facts,
            key=key,
        ) from error


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
    except (TypeError, ValueError, LookupError, struct.error, OverflowError) as error:
        raise FormatRefused(f"a saved value of type {tag!r} is malformed: {error}") from error


def _decode_tagged(tag: Any, body: Any, data: dict[str, Any], depth: int) -> Any:
    if not isinstance(tag, str):
        raise FormatRefused(f"a saved value has the type {tag!r}, which is no name")
    if tag in _DICTS:
        pairs = [(_decode(name, depth + 1), _decode(item, depth + 1)) for name, item in _list(body)]
        _refuse_collisions([name for name, _ in pairs])
        return _DICTS[tag](pairs) if tag != "Counter" else Counter(dict(pairs))
    if tag in _SEQUENCES:
        items = [_decode(item, depth + 1) for item in _list(body)]
        if tag != "tuple":
            _refuse_collisions(items)
        return _SEQUENCES[tag](items)
    if tag == "int":
        return int(body, 16)
    if tag == "float":
        return struct.unpack("<d", bytes.fromhex(body))[0]
    if tag == "complex":
        return complex(*struct.unpack("<dd", bytes.fromhex(body)))
    if tag == "range":
        return range(*(_decode(each, depth + 1) for each in _list(body)))
    if tag in ("bytes", "bytearray"):
        raw = base64.b64decode(body, validate=True)
        return raw if tag == "bytes" else bytearray(raw)
    if tag == "np.array" or tag == "np.scalar":
        return _decode_numpy(tag, data["dtype"], _list(data["shape"]), base64.b64decode(body, validate=True))
    if tag in _readers and isinstance(body, str):
        return _readers[tag](body)
    raise FormatRefused(f"a saved value has the unknown type {tag!r}; it may need a newer release or its adapter")


def _decode_numpy(tag: str, dtype_name: str, shape: list[Any], raw: bytes) -> Any:
    if not _PLAIN_DTYPE.match(dtype_name):  # before NumPy looks at it: it understands far more than we write
        raise FormatRefused(f"a saved array has dtype {dtype_name!r}, which this format does not hold")
    if any(type(extent) is not int or extent < 0 for extent in shape) or (shape and tag == "np.scalar"):
        raise FormatRefused(f"a saved {tag} has the shape {shape}")
    dtype = np.dtype(dtype_name)
    if dtype.itemsize == 0:  # empty text
        if raw or tag == "np.array":
            raise FormatRefused(f"a saved {tag} has elements of no bytes")
        return dtype.type()
    array = np.frombuffer(raw, dtype).reshape(shape)
    if dtype.kind == "U" and array.size and array.ravel().view(f"{dtype.str[0]}u4").max() > 0x10FFFF:
        raise FormatRefused(f"a saved {tag} holds text that is no Unicode")
    return array.copy() if tag == "np.array" else array[()]


def _refuse_collisions(keys: list[Any]) -> None:
    """Refuse keys made to have one hash, each of which would be compared with all others."""
    if len(keys) > _COLLISIONS:
        most = max(Counter(hash(key) for key in keys if type(key) is not str).values(), default=0)
        if most > _COLLISIONS:
            raise FormatRefused(f"{most} of its keys collide")


def _list(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise FormatRefused(f"a {type(body).__name__} stands where a list should be")
    return body
