"""How much more than it wants a restore on another number of ranks reads: planned on the shapes of a model."""

from __future__ import annotations

import pytest

from perdure.layout import Cut, Even, EvenGrid, Layout, Mesh, cut_tensor, flat_cut
from perdure.state.geometry import geometry_of
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.match import match
from perdure.state.reads import Limits, Wanted, plan_reads
from perdure.state.stored import Segment, StoredPieces
from perdure.state.transfers import Transfer, transfers_of
from perdure.store.pack import TILE_BYTES, PackItem, plan_pack

HIDDEN, FFN = 4096, 14336  # a layer of Llama-8B
FORMS = {"q": (HIDDEN, HIDDEN), "k": (1024, HIDDEN), "gate": (FFN, HIDDEN), "down": (HIDDEN, FFN), "norm": (HIDDEN,)}
LIMITS = Limits(64 << 20, 4 << 20, 256 << 10)


def state(ranks: int, form: str) -> Layout:
    mesh = Mesh((("dp", ranks),))
    rows = (Cut("dp", 0, Even()),)
    if form == "rows":
        return Layout({n: cut_tensor(s, mesh=mesh, cuts=rows, dtype="float32") for n, s in FORMS.items()})
    return flat_cut(FORMS, mesh=mesh, cuts={}, along="dp", dtype="float32")


def read_and_wanted(have: Layout, want: Layout) -> tuple[int, int]:
    """Bytes that all ranks of ``want`` read of packs that the ranks of ``have`` wrote, one each, and what they want."""
    items: dict[str, list[PackItem]] = {}
    tensors = {}
    for name, tensor in have.items():
        blocks = [(piece.rank, piece.box) for piece in tensor.pieces if not piece.box.empty]
        where = geometry_of(name, tensor.dtype, tensor.shape, blocks, EvenGrid.of(tensor.shape, blocks))
        packs = tuple(f"pack{rank}" for rank in range(max(have.ranks) + 1))
        pieces = StoredPieces([Segment(where, where.ranks, packs, name)])
        tensors[name] = CatalogTensor(name, tensor.dtype, tensor.shape, pieces)
        for piece in pieces:
            items.setdefault(piece.pack, []).append(
                PackItem(piece.key, tensor.dtype, piece.box.shape, piece.box.size * tensor.element_bytes)
            )
    entries = {pack: {entry.key: entry for entry in plan_pack(each).entries} for pack, each in items.items()}
    catalog = Catalog(len(have.ranks), tensors)
    read = wanted = 0
    for rank in want.ranks:
        mine = [
            TensorItem(
                n, t.dtype, t.shape, tuple(Held(p.box, Memory(0, p.box.size * 4, None)) for p in t.of_rank(rank))
            )
            for n, t in want.items()
        ]
        by_entry: dict[tuple[str, str], list[Transfer]] = {}
        for each in transfers_of(catalog, match(catalog, mine, [], rank=rank, world=len(want.ranks))):
            by_entry.setdefault((each.piece.pack, each.piece.key), []).append(each)
        for pack in sorted({pack for pack, _ in by_entry}):
            asked = [Wanted(entries[pack][key], tuple(t)) for (of, key), t in by_entry.items() if of == pack]
            plan = plan_reads(asked, tile_bytes=TILE_BYTES, limits=LIMITS)
            read += plan.read_nbytes + plan.pad_nbytes
            wanted += plan.wanted_nbytes
    return read, wanted


@pytest.mark.parametrize("form", ["rows", "flat"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_what_four_ranks_saved_is_read_by_others_with_little_beside_it(ranks: int, form: str) -> None:
    have, want = state(4, form), state(ranks, form)
    read, wanted = read_and_wanted(have, want)
    assert wanted == want.nbytes
    assert wanted <= read <= 1.2 * wanted
    if ranks == 4:
        assert read == wanted


def test_flat_slices_are_read_by_ranks_that_cut_rows_and_the_other_way_round() -> None:
    for have, want in [(state(4, "flat"), state(3, "rows")), (state(4, "rows"), state(6, "flat"))]:
        read, wanted = read_and_wanted(have, want)
        assert wanted == want.nbytes
        assert wanted <= read <= 1.2 * wanted
