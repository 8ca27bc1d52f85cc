"""Messages between ranks, launchers and agents: strict both ways, each told by its type."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint.messages import (
    Adopt,
    Adopted,
    Begin,
    Borrow,
    Committed,
    Complete,
    Failed,
    Generation,
    Generations,
    Granted,
    Hello,
    Inquire,
    Lent,
    Message,
    Packed,
    Release,
    Sample,
    Staged,
    Terms,
    Welcome,
)
from perdure.errors import StorageFull, from_wire, to_wire
from perdure.state.index import RankIndex, SavedPiece, SavedTensor, SavedValue

INDEX = RankIndex(
    rank=1,
    world=2,
    tensors=(SavedTensor(name="w", dtype="float32", shape=(4,), pieces=(SavedPiece("w[0:2]", (0,), (2,)),)),),
    values=(SavedValue(key="v", value={"$": "tuple", "v": [1, None]}, local=True),),
)
EVERY: list[Any] = [
    Hello(protocol="0", role="rank", job="j", url="ram://x", session="s", rank=1, world=2, local_rank=1, local_world=2),
    Welcome(pid=5, page=True),
    Begin(seq=1, step=2, nbytes=3, plan_id="p"),
    Granted(seq=1, segment=2, offered=[2, 3]),
    Staged(
        seq=1, step=2, epoch=3, base_slot=None, base_generation=4, index=INDEX,
        samples=[Sample(tensor="w", digest="0" * 32)], value_digests={"v": "1" * 32}, raw_nbytes=8,
        terms=Terms(meta={"a": [1.5, None]}, metric=0.5, pinned=True),
    ),
    Complete(seq=1, generation=2),
    Committed(seq=1, slot=2, raw_bytes=3, stored_bytes=4, seconds=0.25),
    Failed(seq=1, error=to_wire(StorageFull("no space", file="x"))),
    Inquire(),
    Generations(found=[Generation(id=1, session="s", seq=1, step=2, epoch=3, world=2, ranks=[0, 1], slot=None)]),
    Borrow(generation=1),
    Lent(generation=1, packs=[Packed(number=0, nbytes=5, index=INDEX)], last=True),
    Adopt(generation=1),
    Adopted(generation=1, slot=None, error=None),
    Release(),
]  # fmt: skip


def read(data: bytes) -> Any:
    return msgspec.json.decode(data, type=Message)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_a_message_comes_as_it_was_sent(message: Any) -> None:
    found = read(msgspec.json.encode(message))
    assert type(found) is type(message)
    assert found == message


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_another_field_a_missing_one_or_another_type_is_refused(message: Any) -> None:
    fields = msgspec.to_builtins(message)
    with pytest.raises(msgspec.ValidationError):
        read(msgspec.json.encode({**fields, "more": 1}))
    with pytest.raises(msgspec.ValidationError):
        read(msgspec.json.encode({**fields, "type": "nonsense"}))
    required = {each.name for each in msgspec.structs.fields(message) if each.required}
    for name in required:
        with pytest.raises(msgspec.ValidationError):
            read(msgspec.json.encode({key: value for key, value in fields.items() if key != name}))
        with pytest.raises(msgspec.ValidationError):
            read(msgspec.json.encode({**fields, name: {"not": ["this"]}}) if name != "error" else b"{}")


def test_every_message_has_a_type_of_its_own() -> None:
    types = [each.__struct_config__.tag for each in get_args(Message)]
    assert len(set(types)) == len(types)
    assert {type(each) for each in EVERY} < set(get_args(Message))


def test_an_error_travels_with_its_class_and_facts() -> None:
    (failed,) = (each for each in EVERY if isinstance(each, Failed))
    error = from_wire(read(msgspec.json.encode(failed)).error)
    assert (type(error), error.file, str(error)) == (StorageFull, "x", "no space")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "seq", "step", "role", "found", "index"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_whatever_else_comes_is_refused_as_no_message(data: Any) -> None:
    try:
        read(msgspec.json.encode(data))
    except msgspec.MsgspecError:
        return
    assert data["type"] in {each.__struct_config__.tag for each in get_args(Message)}
