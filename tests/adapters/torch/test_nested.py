"""Tensors are taken out of nested states and put back where they were; what torch adds to plain values is closed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.adapters.torch.nested import TensorRef, put_tensors_back, references, take_tensors_out
from perdure.errors import FormatRefused
from perdure.state.values import decode_value, encode_value

from .trips import assert_same

LEAVES = (
    st.integers() | st.none() | st.text("ab", max_size=2) | st.builds(torch.full, st.just((2,)), st.integers(0, 99))
)
NAMES = st.text("ab", max_size=2) | st.integers(0, 2) | st.tuples(st.integers(0, 1))
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(NAMES, inner, max_size=3),
        st.dictionaries(NAMES, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=10,
)


def count_tensors(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return 1
    if isinstance(state, dict):
        return sum(count_tensors(each) for each in state.values())
    return sum(count_tensors(each) for each in state) if isinstance(state, list | tuple) else 0


@given(STATES)
@settings(max_examples=150, deadline=None)
def test_every_tensor_has_a_name_of_its_own_and_goes_back_to_its_place(state: Any) -> None:
    skeleton, tensors = take_tensors_out("key", state)
    assert len(tensors) == count_tensors(state)
    assert all(name == "key" or name.startswith(("key.", "key#")) for name in tensors)
    read = decode_value(encode_value(skeleton, key="key"))
    assert sorted(references(read)) == sorted(tensors)
    assert_same(put_tensors_back(read, tensors.__getitem__), state)


def test_a_tensor_is_named_by_its_path() -> None:
    state = {"a": [torch.zeros(1), {"b": torch.zeros(2)}], 3: (torch.zeros(3),)}
    assert list(take_tensors_out("key", state)[1]) == ["key.a.0", "key.a.1.b", "key.3.0"]
    assert list(take_tensors_out("key", torch.zeros(1))[1]) == ["key"]


def test_paths_that_read_alike_are_told_apart() -> None:
    a, b, c, d, e, f = (torch.full((1,), float(i)) for i in range(6))
    state = {"a.b#2": a, "1#4": b, "a": {"b": c}, "a.b": d, 1: e, "1": f}
    skeleton, tensors = take_tensors_out("key", state)
    assert len(tensors) == 6
    assert_same(put_tensors_back(skeleton, tensors.__getitem__), state)


@pytest.mark.parametrize(
    "value",
    [
        torch.float32,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.qint8,
        torch.device("cpu"),
        torch.device("cuda", 3),
        torch.Size([2, 3]),
        torch.Size([]),
        TensorRef("name"),
    ],
    ids=str,
)
def test_what_torch_adds_to_plain_values_comes_back(value: Any) -> None:
    found = decode_value(encode_value([value], key="key"))[0]
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("torch.dtype", "float31"),
        ("torch.dtype", "onnx"),
        ("torch.dtype", "__dict__"),
        ("torch.device", "toaster"),
        ("torch.device", "cuda:x"),
        ("torch.device", ""),
        ("torch.Size", "a,b"),
        ("torch.Size", "1.5"),
    ],
)
def test_what_this_torch_does_not_know_is_refused(tag: str, text: str) -> None:
    with pytest.raises(FormatRefused):
        decode_value({"$": tag, "v": text})
