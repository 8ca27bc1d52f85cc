"""A comparison sees exactly what changed, by digests where they tell, by data where meshes differ."""

from __future__ import annotations

import numpy as np
import pytest
from small import BIAS, BIG, CODE, LAYOUT, ROWS, small_run, wholes

from perdure.errors import BlobCorrupt
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.store import Ram, Run
from perdure.testing.ranks import Bytes, random_bytes
from perdure.testing.runs import flip, save_step
from perdure.upkeep.comparing import Changed, Difference, Side, compare, first_difference


def saved(layout: Layout, tensors: dict[str, Bytes], *, world: int = 2, **options: object) -> Side:
    """One step in a run of its own."""
    run = Run.open(Ram(), create=True)
    run.claim_epoch("test")
    return Side(run, save_step(run, 1, layout, tensors, world=world, **options))  # type: ignore[arg-type]


def on_four() -> Layout:
    """The tensors of `LAYOUT`, cut over four ranks in other ways."""
    columns = ((0, 3), (3, 5), (5, 9), (9, 10))
    quarter = (9 << 18) // 4
    return Layout(
        {
            BIG: TensorLayout(
                (9 << 18,),
                tuple(Piece.alone(r, Box((r * quarter,), ((r + 1) * quarter,))) for r in range(4)),
                "float32",
            ),
            ROWS: TensorLayout(
                (6, 10), tuple(Piece.alone(r, Box((0, a), (6, b))) for r, (a, b) in enumerate(columns)), "float32"
            ),
            BIAS: TensorLayout((5,), tuple(Piece.alone(r, Box((0,), (5,))) for r in range(4)), "bfloat16"),
            CODE: TensorLayout((3,), (Piece.alone(3, Box((0,), (3,))),), "complex128"),
        }
    )


def test_two_steps_of_a_run_differ_in_what_changed_and_no_data_is_read() -> None:
    run = Run.open(small_run(), create=False)
    found = compare(Side(run, run.read_slot(1)), Side(run, run.read_slot(3)))
    assert [(each.name, each.tiles, each.of_tiles) for each in found.changed] == [
        (BIAS, 1, 1),
        (CODE, 1, 1),
        (ROWS, 2, 2),
    ]
    assert (found.n_same, found.tiles, found.of_tiles, found.read_bytes) == (1, 4, 7, 0)
    assert found.values == {"lr": (0.5, 0.5 / 3)}
    assert found.meta == {"step": (1, 3)}
    assert not found.same


def test_a_step_is_the_same_as_itself_and_as_its_copy_in_another_run() -> None:
    run = Run.open(small_run(), create=False)
    side = Side(run, run.read_slot(2))
    assert compare(side, side).same
    found = compare(saved(LAYOUT, wholes(5), values={"a": 1}), saved(LAYOUT, wholes(5), values={"a": 1}))
    assert found.same
    assert found.read_bytes == 0


@pytest.mark.parametrize("at", [0, 5 << 20, (9 << 20) - 1])
def test_one_bit_is_one_tile(at: int) -> None:
    other = wholes(5)
    other[BIG] = other[BIG].copy()
    other[BIG].reshape(-1)[at] ^= 1
    found = compare(saved(LAYOUT, wholes(5)), saved(LAYOUT, other))
    assert found.changed == [Changed(BIG, None, 1, 3)]
    assert found.n_same == 3


def test_what_came_and_went_and_has_another_form() -> None:
    less = Layout({name: each for name, each in LAYOUT.items() if name != BIAS})
    a, b = saved(LAYOUT, wholes(5)), saved(less, {n: w for n, w in wholes(5).items() if n != BIAS})
    assert compare(a, b).removed == [BIAS]
    assert compare(b, a).added == [BIAS]
    wide = Layout({"w": TensorLayout((4,), (Piece.alone(0, Box((0,), (4,))),), "int64")})
    flat = Layout({"w": TensorLayout((8,), (Piece.alone(0, Box((0,), (8,))),), "float32")})
    found = compare(
        saved(wide, {"w": random_bytes("int64", (4,), 1)}, world=1),
        saved(flat, {"w": random_bytes("float32", (8,), 1)}, world=1),
    )
    assert found.changed == [Changed("w", "int64[4] -> float32[8]")]


def test_other_meshes_compare_by_their_data_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.upkeep.comparing._SLAB_BYTES", 1 << 20)
    tensors = wholes(5)
    found: Difference = compare(saved(LAYOUT, tensors), saved(on_four(), tensors, world=4))
    assert found.same
    assert found.read_bytes == 2 * (tensors[BIG].nbytes + tensors[ROWS].nbytes)  # the others lie alike
    other = {name: each.copy() for name, each in tensors.items()}
    other[ROWS][5, 9, 0] ^= 1
    other[BIG][3 << 18, 0] ^= 128
    found = compare(saved(LAYOUT, tensors), saved(on_four(), other, world=4))
    assert sorted(each.name for each in found.changed) == [BIG, ROWS]
    assert all(each.tiles == 1 for each in found.changed)


def test_data_that_does_not_verify_is_not_compared() -> None:
    mine, other = saved(LAYOUT, wholes(5)), saved(on_four(), wholes(5), world=4)
    store = other._run.store
    (pack,) = (name for name in store.names("packs/") if "node2" in name)
    flip(store, pack, (store.size(pack) or 0) - 1)
    with pytest.raises(BlobCorrupt):
        compare(mine, other)


def test_meta_is_told_and_makes_no_step_another_one() -> None:
    found = compare(saved(LAYOUT, wholes(5), meta={"a": 1}), saved(LAYOUT, wholes(5), meta={"a": 2}))
    assert found.meta == {"a": (1, 2)}
    assert found.same


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (1, 2, ("", 1, 2)),
        (1, 1.0, ("", 1, 1.0)),
        ({"x": [1, {"y": 2}]}, {"x": [1, {"y": 3}]}, (".x[1].y", 2, 3)),
        ({"a": 1}, {"a": 1, "b": None}, (".b", None, None)),
        ([1, 2], [1], ("[1]", 2, None)),
        ({"a": [0]}, {"a": {"0": 0}}, (".a", [0], {"0": 0})),
        ({"b": 1, "a": 2}, {"a": 2, "b": 0}, (".b", 1, 0)),
    ],
)
def test_the_first_difference_is_a_path_and_both_sides(a: object, b: object, found: tuple[object, ...]) -> None:
    assert repr(first_difference(a, b)) == repr(found)


def test_values_of_one_rank_and_nothing_at_all() -> None:
    empty = Layout({"e": TensorLayout((0, 3), (), "float32")})
    sides = [saved(empty, {"e": np.zeros((0, 3, 4), np.uint8)}, values={"n": n}) for n in (1, 2)]
    found = compare(*sides)
    assert found.values == {"n": (1, 2)}
    assert found.changed == []
