"""Saved pieces in segments: the same answers as the list of them, and the same transfers."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.layout import Box, EvenGrid, Layout, TensorLayout, first_overlap
from perdure.state.geometry import geometry_of
from perdure.state.index import Catalog, CatalogTensor, StoredPiece, piece_key
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.lying import lying
from perdure.state.match import Match
from perdure.state.stored import Geometry, Segment, StoredPieces
from perdure.state.transfers import Transfer, transfers_of
from perdure.testing.layouts import layouts, shapes
from perdure.testing.meshes import cut_layouts

FORMS = st.lists(shapes(most_dims=3, longest=6), min_size=1, max_size=3).map(
    lambda found: {f"t{number}": shape for number, shape in enumerate(found)}
)


def written(tensor: TensorLayout) -> list[tuple[int, Box]]:
    """Each box once, by the first rank that holds it."""
    writer: dict[Box, int] = {}
    for piece in tensor.pieces:
        if not piece.box.empty:
            writer.setdefault(piece.box, piece.rank)
    return sorted(((rank, box) for box, rank in writer.items()), key=lambda block: (block[0], block[1].lo))


def saved(
    name: str, tensor: TensorLayout, ranks_a_part: int, known: dict[tuple[object, ...], Geometry]
) -> StoredPieces:
    """The pieces of a tensor as the parts of some ranks each have them; ``known`` shares what lies alike."""
    blocks = written(tensor)
    grid = EvenGrid.of(tensor.shape, blocks)
    parts: dict[int, list[tuple[int, Box]]] = {}
    for rank, box in blocks:
        parts.setdefault(rank // ranks_a_part, []).append((rank, box))
    segments = []
    for number, part in parts.items():
        where = geometry_of(name, "int32", tensor.shape, part, grid)
        where = known.setdefault((number, tensor.shape, where.ranks, where.boxes), where)
        packs = tuple(f"part{number}pack{i}" for i in range(ranks_a_part))
        segments.append(Segment(where, tuple(rank % ranks_a_part for rank, _ in part), packs, name))
    return StoredPieces(segments)


def listed(name: str, tensor: TensorLayout, ranks_a_part: int) -> tuple[StoredPiece, ...]:
    """The same, written out without what is tested."""
    return tuple(
        StoredPiece(box, f"part{rank // ranks_a_part}pack{rank % ranks_a_part}",
                    piece_key(name, tensor.shape, box, None))
        for rank, box in written(tensor)
    )  # fmt: skip


def wholes(
    forms: Mapping[str, tuple[int, ...]], pieces: Mapping[str, StoredPieces | tuple[StoredPiece, ...]]
) -> Catalog:
    return Catalog(99, {name: CatalogTensor(name, "int32", shape, pieces[name]) for name, shape in forms.items()})


def asked(catalog: Catalog, want: Layout, rank: int) -> list[Transfer]:
    matches = []
    for name, tensor in want.items():
        boxes = [piece.box for piece in tensor.of_rank(rank)]
        held = tuple(Held(box, Memory(0, box.size * 4, None)) for box in boxes)
        matches.append(Match(TensorItem(name, "int32", tensor.shape, held), catalog.tensors[name]))
    return transfers_of(catalog, matches)


@given(FORMS, st.integers(1, 3), st.data())
@settings(max_examples=120, deadline=None)
def test_segments_say_what_the_list_says(
    forms: dict[str, tuple[int, ...]], ranks_a_part: int, data: st.DataObject
) -> None:
    have = data.draw(st.one_of(cut_layouts(forms), layouts(forms, world=4, extra_boxes=3)))
    known: dict[tuple[object, ...], Geometry] = {}
    for name, tensor in have.items():
        pieces, plain = saved(name, tensor, ranks_a_part, known), listed(name, tensor, ranks_a_part)
        assert pieces == plain
        assert len(pieces) == len(plain)
        assert [pieces[i] for i in range(len(plain))] == list(plain)
        assert pieces[1:] == plain[1:]
        assert pieces.packs() == {piece.pack for piece in plain}
        for (rank, box), piece in zip(written(tensor), plain, strict=True):
            assert pieces.of(rank, box) == piece
            assert pieces.of(rank + 1000, box) is None
        if not plain:
            continue
        where = lying(pieces, tensor.shape)
        assert sorted((p.rank, p.box.lo, p.box.hi) for p in where) == sorted(
            (r, b.lo, b.hi) for r, b in written(tensor)
        )
        assert where.pattern.disjoint == (first_overlap([piece.box for piece in plain]) is None)
        box = plain[data.draw(st.integers(0, len(plain) - 1))].box
        near = {(h.box, rank + where.first) for h in where.pattern.touching(box) for rank in h.ranks}
        assert near == {(other, rank) for rank, other in written(tensor) if other.touches(box)}


@given(FORMS, st.integers(1, 3), st.data())
@settings(max_examples=100, deadline=None)
def test_transfers_are_the_same_from_segments_and_from_a_list(
    forms: dict[str, tuple[int, ...]], ranks_a_part: int, data: st.DataObject
) -> None:
    have = data.draw(st.one_of(cut_layouts(forms), layouts(forms, world=4)))
    whole = {name: tensor for name, tensor in have.items() if tensor.whole.empty or tensor.placed.pattern.disjoint}
    forms = {name: forms[name] for name in whole}
    want = data.draw(cut_layouts(forms)) if forms else Layout({})
    known: dict[tuple[object, ...], Geometry] = {}
    lazy = wholes(forms, {name: saved(name, tensor, ranks_a_part, known) for name, tensor in whole.items()})
    plain = wholes(forms, {name: listed(name, tensor, ranks_a_part) for name, tensor in whole.items()})
    for rank in range(max(want.ranks, default=-1) + 1):
        found, expected = asked(lazy, want, rank), asked(plain, want, rank)

        def order(each: Transfer) -> tuple[object, ...]:
            return each.name, each.dest.lo, each.dest.hi, each.box.lo, each.box.hi

        assert sorted(found, key=order) == sorted(expected, key=order)
        assert sum(each.nbytes for each in found) == 4 * sum(
            piece.box.size for tensor in want.values() for piece in tensor.of_rank(rank)
        )
