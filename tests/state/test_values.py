"""Values come back exactly as they were, through JSON bytes; everything else is refused, on both ways."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.errors import FormatRefused, NotSerializable
from perdure.state.values import decode_value, encode_value, register_tag

BOUNDED = settings(max_examples=200, deadline=None)
NAN_BITS = st.integers(0, (1 << 52) - 1).map(lambda low: 0x7FF0000000000000 | low)


def through_json(value: Any) -> Any:
    """``value`` as a restored checkpoint gives it."""
    return decode_value(msgspec.json.decode(msgspec.json.encode(encode_value(value, key="key"))))


def same(one: Any, other: Any) -> bool:
    """Equal in type and in every bit, at every depth, in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, np.ndarray | np.generic):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return one.dtype.itemsize == 0 or one.tobytes() == other.tobytes()  # of no bytes NumPy gives any
    if isinstance(one, dict):
        return same(list(one), list(other)) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def floats() -> st.SearchStrategy[float]:
    payloads = NAN_BITS.map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
    return st.floats() | payloads


def numpy_scalars() -> st.SearchStrategy[Any]:
    kinds = ("?", "b", "B", "h", "H", "i", "I", "l", "L", "e", "f", "d", "F", "D", "S3", "U3", "S0", "U0")
    return st.tuples(st.sampled_from(kinds), st.binary(min_size=16, max_size=16)).map(lambda made: _scalar(*made))


def _scalar(kind: str, raw: bytes) -> Any:
    if kind[0] == "U":
        return np.str_(raw[: int(kind[1])].hex())
    if kind[0] == "S":
        return np.bytes_(raw[: int(kind[1])])
    return np.frombuffer(raw[: np.dtype(kind).itemsize].replace(b"\xff", b"\x01") if kind == "?" else raw, kind)[0]


def numpy_arrays() -> st.SearchStrategy[Any]:
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    dtypes = st.sampled_from(("<f4", ">f8", "|u1", "<i8", ">u2", "<c8", "<U4", "|S5", "<f2", "|b1"))
    return st.tuples(shapes, dtypes).map(lambda made: np.arange(math.prod(made[0])).reshape(made[0]).astype(made[1]))


HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=("Cs",)))
    | st.binary()
    | st.tuples(st.integers(), st.text("ab$"))
)
PLAIN = HASHABLE | floats() | st.complex_numbers() | numpy_scalars() | numpy_arrays() | st.binary().map(bytearray)
RANGES = st.builds(range, st.integers(), st.integers(), st.integers(1))


def nested() -> st.SearchStrategy[Any]:
    return st.recursive(
        PLAIN | RANGES | st.frozensets(HASHABLE, max_size=4) | st.sets(HASHABLE, max_size=4),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(HASHABLE, inner, max_size=4),
            st.dictionaries(st.text("ab$", max_size=2), inner, max_size=4),
            st.dictionaries(HASHABLE, inner, max_size=4).map(OrderedDict),
        ),
        max_leaves=12,
    )


@given(nested())
@example(-0.0)
@example([math.inf, -math.inf, math.nan])
@example({1: "int key", (2, 3): "tuple key", "$": "the tag's own name"})
@example([1 << 53, (1 << 53) + 1, -(1 << 53) - 1, 1 << 200])
@example(range(1 << 70, 1 << 71, 1 << 60))
@example([True, 1, 1.0, np.float32(1), np.True_])
@example({"": {"": ()}})
@BOUNDED
def test_every_listed_type_comes_back_as_it_was(value: Any) -> None:
    assert same(through_json(value), value)


@given(floats())
@BOUNDED
def test_floats_keep_every_bit(value: float) -> None:
    assert struct.pack("<d", through_json([value])[0]) == struct.pack("<d", value)


def test_what_is_saved_of_a_counter_is_a_counter() -> None:
    found = through_json(Counter({10: 2, 4: 1}))
    assert type(found) is Counter
    assert found == Counter({10: 2, 4: 1})


def test_arrays_that_are_not_contiguous_keep_their_elements_and_are_writable() -> None:
    array = np.arange(12).reshape(3, 4).T[::2]
    found = through_json(array)
    assert same(found, np.ascontiguousarray(array))
    found += 1


def test_sets_are_written_alike_whatever_order_they_were_made_in() -> None:
    sets = "{frozenset(('ab', 'cd', 'ef')), frozenset(('gh', 'ij')), frozenset('kl'), ('kl',)}"
    text = f"from perdure.state.values import encode_value; print(encode_value({sets}, key='k'))"
    written = {
        subprocess.run(
            [sys.executable, "-c", text], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(written) == 1


class Colour(IntEnum):
    RED = 1


class MyFloat(np.float64):
    pass


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        ({"a": [1, {"b": object()}]}, "key.a[1].b", "builtins.object"),
        ([lambda: 1], "key[0]", "builtins.function"),
        ({(1, object): 2}, "key.(1, <class 'object'>)[1]", "builtins.type"),
        ((1, Colour.RED), "key[1]", f"{__name__}.Colour"),
        (defaultdict(int), "key", "collections.defaultdict"),
        ({"m": np.ma.masked_array([1, 2], [0, 1])}, "key.m", "numpy.ma.MaskedArray"),
        (np.array([object()]), "key", "numpy.ndarray"),
        (np.datetime64("2020-01-01"), "key", "numpy.datetime64"),
        (np.zeros(2, [("a", "f4")]), "key", "numpy.ndarray"),
        (MyFloat(1.0), "key", f"{__name__}.MyFloat"),
        ({"text": "\ud800"}, "key.text", "str"),
        ({"\udfff": 1}, "key", "str"),
    ],
    ids=lambda each: None,
)
def test_a_type_that_is_not_listed_is_refused_by_key_and_place(value: Any, place: str, kind: str) -> None:
    with pytest.raises(NotSerializable) as caught:
        encode_value(value, key="key")
    assert caught.value.key == place
    assert place in str(caught.value)
    assert caught.value.type == kind


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append({"again": loop})
    with pytest.raises(NotSerializable, match="too deep"):
        encode_value(loop, key="key")


def test_what_can_be_written_is_never_too_deep_for_a_part() -> None:
    """A part may have 64 brackets inside one another; around a value there are 6."""
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"a": v}):
        value: Any = 1
        deepest = 0
        for _ in range(100):
            value = wrap(value)
            try:
                written = msgspec.json.encode(encode_value(value, key="key"))
            except NotSerializable:
                break
            deepest = _depth(written)
            assert through_json(value) == value
        assert 50 <= deepest <= 64 - 6


def _depth(data: bytes) -> int:
    depth = deepest = 0
    for letter in data.decode():
        depth += (letter in "[{") - (letter in "]}")
        deepest = max(deepest, depth)
    return deepest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
TAGS = st.sampled_from(
    [
        "dict",
        "OrderedDict",
        "Counter",
        "tuple",
        "set",
        "frozenset",
        "int",
        "float",
        "complex",
        "range",
        "bytes",
        "bytearray",
        "np.array",
        "np.scalar",
        "os.system",
        "builtins.eval",
        "$",
    ]
)
HOSTILE = st.fixed_dictionaries(
    {"$": TAGS | JSON},
    optional={
        "v": JSON | st.just("") | st.lists(st.lists(JSON, min_size=2, max_size=2), max_size=2),
        "dtype": JSON | st.sampled_from(["<f4", "|O", "O", "<f8, (1,2", "(2,)f4", "|V4", "<U999999999", "<f99", "|S0"]),
        "shape": JSON | st.lists(st.integers(-2, 1 << 40), max_size=3),
    },
)


@given(HOSTILE | st.lists(HOSTILE, max_size=2) | st.dictionaries(st.text(max_size=2), HOSTILE, max_size=2))
@example({"$": "np.array"})
@example({"$": "np.array", "dtype": "<f8, (1,2", "shape": [], "v": ""})
@example({"$": "np.array", "dtype": "<f4", "shape": [-1], "v": "AAAA"})
@example({"$": "np.scalar", "dtype": "<f4", "shape": [2], "v": "AAAAAAAAAAA="})
@example({"$": "tuple", "v": "abc"})
@example({"$": "dict", "v": {"ab": 1}})
@example({"$": "set", "v": [[]]})
@example({"$": ["dict"], "v": []})
@settings(max_examples=400, deadline=None)
def test_hostile_values_are_read_or_refused_and_nothing_else_happens(data: Any) -> None:
    try:
        decode_value(data)
    except FormatRefused:
        pass


@pytest.mark.parametrize(
    "data",
    [
        {"$": "pickle", "v": "gASVBQAAAAAAAACMAW+ULg=="},
        {"$": None},
        {"$": "np.array"},
        {"$": "np.array", "dtype": "|O8", "shape": [1], "v": "AAAAAAAAAAA="},
        {"$": "np.array", "dtype": "<f8, (1,2", "shape": [], "v": ""},
        {"$": "np.array", "dtype": "<f4", "shape": [-1], "v": "AAAAAA=="},
        {"$": "np.scalar", "dtype": "<f4", "shape": [1], "v": "AAAAAA=="},
        {"$": "tuple", "v": "abc"},
        {"$": "dict", "v": {"ab": 1}},
        {"$": "dict", "v": [[1]]},
        {"$": "dict", "v": [[[], 1]]},
        {"$": "set", "v": [[]]},
        {"$": "int", "v": 7},
        {"$": "int", "v": "seven"},
        {"$": "float", "v": "00"},
        {"$": "bytes", "v": "~"},
        {"$": "range", "v": [0, 1, 0]},
        {"$": "range", "v": "ab"},
        {"$": "complex", "v": None},
    ],
)
def test_a_malformed_value_is_refused(data: Any) -> None:
    with pytest.raises(FormatRefused):
        decode_value(data)


def test_a_value_nested_without_end_is_refused() -> None:
    data: Any = 1
    for _ in range(500):
        data = [data]
    with pytest.raises(FormatRefused, match="deep"):
        decode_value(data)


def test_reading_hostile_names_imports_nothing() -> None:
    text = """
import sys
from perdure.errors import FormatRefused
from perdure.state.values import decode_value
before = set(sys.modules)
for tag in ("antigravity", "import:antigravity", "torch.dtype", "os.system", "tensor", "builtins.eval"):
    for body in ("antigravity", "__import__('antigravity')", "this"):
        for data in ({"$": tag, "v": body}, {"$": "np.array", "dtype": body, "shape": [1], "v": "AAAA"}):
            try:
                decode_value(data)
            except FormatRefused:
                pass
            else:
                raise AssertionError(data)
assert set(sys.modules) == before, set(sys.modules) - before
"""
    subprocess.run([sys.executable, "-c", text], env={"PYTHONPATH": ":".join(sys.path)}, check=True, timeout=60)


def test_an_adapter_registers_a_type_of_its_own() -> None:
    register_tag(Colour, "test.colour", lambda colour: colour.name, lambda name: Colour[name])
    assert through_json([Colour.RED, {"c": Colour.RED}]) == [Colour.RED, {"c": Colour.RED}]
    assert type(through_json(Colour.RED)) is Colour
    with pytest.raises(FormatRefused, match="malformed"):
        decode_value({"$": "test.colour", "v": "BLUE"})
    with pytest.raises(FormatRefused):
        decode_value({"$": "test.colour", "v": 1})
