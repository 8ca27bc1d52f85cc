"""Indexes of ranks join to one catalog, or are refused where they contradict each other or themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import FormatRefused
from perdure.layout import Box
from perdure.state.index import Catalog, RankIndex, SavedPiece, SavedTensor, SavedValue, StoredPiece


def tensor(name: str = "w", lo: Any = (0,), hi: Any = (4,), **changes: Any) -> SavedTensor:
    fields = {"dtype": "float32", "shape": (8,), "pieces": (SavedPiece(f"{name}{lo}", lo, hi),), **changes}
    return SavedTensor(name=name, **fields)


def index(rank: int, *tensors: SavedTensor, world: int = 2, values: Any = ()) -> tuple[str, RankIndex]:
    return f"pack{rank}", RankIndex(rank=rank, world=world, tensors=tensors, values=tuple(values))


def value(key: str, content: Any, *, local: bool = False) -> SavedValue:
    return SavedValue(key=key, value=content, local=local)


def test_pieces_of_all_ranks_come_together_and_say_where_they_lie() -> None:
    upper = tensor(lo=(4,), hi=(8,), aliases=("tied",))
    catalog = Catalog.join([index(0, tensor()), index(1, upper)])
    assert catalog.world == 2
    assert catalog.tensors["w"].pieces == (
        StoredPiece(Box((0,), (4,)), "pack0", "w(0,)"),
        StoredPiece(Box((4,), (8,)), "pack1", "w(4,)"),
    )
    assert catalog.tensors["w"].nbytes == 32
    assert catalog.find("w") is catalog.find("tied") is catalog.tensors["w"]
    assert catalog.find("other") is None
    assert catalog.packs() == ["pack0", "pack1"]
    catalog.layout().check()


def test_what_is_local_is_kept_apart_by_rank() -> None:
    mine = tensor("rng", local=True, aliases=("same",))
    catalog = Catalog.join(
        [index(rank, mine, values=[value("v", rank, local=True)]) for rank in range(2)],
    )
    assert catalog.tensors == {}
    assert catalog.local_values == {(0, "v"): 0, (1, "v"): 1}
    for rank in range(2):
        found = catalog.find_local(rank, "rng")
        assert found is not None
        assert found is catalog.find_local(rank, "same")
        assert (found.rank, found.pieces[0].pack) == (rank, f"pack{rank}")
    assert catalog.find_local(2, "rng") is None


@pytest.mark.parametrize(
    "indexes",
    [
        [index(0, tensor()), index(1, tensor(lo=(4,), hi=(8,), dtype="int32"))],
        [index(0, tensor()), index(1, tensor(shape=(9,)))],
        [index(0, world=2), index(1, world=3)],
        [index(0), index(0)],
        [index(0)],
        [index(1)],
        [index(0), index(2)],
        [index(-1), index(1)],
        [index(0, world=0)],
        [index(0, world=1 << 62)],
        [index(0, values=[value("v", 1)]), index(1, values=[value("v", 2)])],
        [index(0, values=[value("v", 1, local=True)] * 2), index(1)],
        [index(0, tensor(local=True), tensor(local=True)), index(1)],
        [index(0, tensor("a", aliases=("b",))), index(1, tensor("b"))],
        [index(0, tensor("a", aliases=("c",))), index(1, tensor("b", aliases=("c",)))],
    ],
    ids=[
        "two dtypes", "two shapes", "two worlds", "one rank twice", "a rank is missing", "rank 0 is missing",
        "a rank beyond the world", "a negative rank", "an empty world", "a world without end", "one value twice",
        "one local value twice", "one local tensor twice", "an alias that is a tensor", "an alias of two tensors",
    ],
)  # fmt: skip
def test_ranks_that_contradict_each_other_are_refused(indexes: list[tuple[str, RankIndex]]) -> None:
    with pytest.raises(FormatRefused):
        Catalog.join(indexes)


@pytest.mark.parametrize(
    "bad",
    [
        tensor(dtype="float31"),
        tensor(dtype="qint8"),
        tensor(dtype="__class__"),
        tensor(shape=(-1,)),
        tensor(shape=(1 << 62,)),
        tensor(shape=(1,) * 65, pieces=()),
        tensor(hi=(9,)),
        tensor(lo=(-1,)),
        tensor(lo=(5,), hi=(4,)),
        tensor(lo=(0, 0), hi=(1, 1)),
        tensor(lo=(0,), hi=(1, 1)),
        tensor(lo=(), hi=()),
    ],
)
def test_a_tensor_that_cannot_be_is_refused_by_name(bad: SavedTensor) -> None:
    for local in (False, True):
        with pytest.raises(FormatRefused, match="'w'"):
            Catalog.join([index(0, msgspec.structs.replace(bad, local=local), world=1)])


GOOD = msgspec.json.encode(index(0, tensor(), world=1, values=[value("v", {"$": "tuple", "v": []})])[1])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rank":0', b'"rank":0,"more":1'),
        (b'"rank":0,', b""),
        (b'"rank":0', b'"rank":"0"'),
        (b'"rank":0', b'"rank":0.5'),
        (b'"dtype":"float32"', b'"dtype":"float32","extra":{}'),
        (b'"shape":[8]', b'"shape":[8.5]'),
        (b'"shape":[8]', b'"shape":8'),
        (b'["w(0,)",[0],[4]]', b'["w(0,)",[0],[4],1]'),
        (b'["w(0,)",[0],[4]]', b'["w(0,)",[0]]'),
        (b'"key":"v"', b'"kex":"v"'),
    ],
)
def test_an_index_with_other_fields_or_types_is_no_index(old: bytes, new: bytes) -> None:
    assert old in GOOD
    assert msgspec.json.decode(GOOD, type=RankIndex).rank == 0
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(GOOD.replace(old, new), type=RankIndex)


NUMBERS = st.integers(-2, 5) | st.just(1 << 62)
INDEXES = st.builds(
    index,
    NUMBERS,
    st.builds(
        tensor,
        st.sampled_from(["a", "b", ""]),
        st.lists(NUMBERS, max_size=3).map(tuple),
        st.lists(NUMBERS, max_size=3).map(tuple),
        dtype=st.sampled_from(["float32", "int4", "bits8", "nonsense", ""]),
        shape=st.lists(NUMBERS, max_size=3).map(tuple),
        local=st.booleans(),
        aliases=st.lists(st.sampled_from(["a", "b", "c"]), max_size=2).map(tuple),
    ),
    world=NUMBERS,
)


@given(st.lists(INDEXES, max_size=3))
@settings(max_examples=300, deadline=None)
def test_hostile_indexes_join_or_are_refused_and_nothing_else_happens(indexes: list[tuple[str, RankIndex]]) -> None:
    try:
        catalog = Catalog.join(indexes)
    except FormatRefused:
        return
    assert {each[1].rank for each in indexes} == set(range(catalog.world))
