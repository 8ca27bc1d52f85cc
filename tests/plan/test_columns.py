"""Plans in columns, and layouts by rules: random meshes that do not divide each other, against arrays and lists."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Bug, NotCovered
from perdure.layout import (
    Box,
    ByHead,
    Cut,
    Even,
    Fused,
    Layout,
    Mesh,
    Piece,
    TensorLayout,
    cut_tensor,
    flat_cut,
    rename,
    shift_layer,
    split_fused,
    view,
)
from perdure.plan import Plan, audit, reshard, rounds
from perdure.plan.moves import Moves, Table
from perdure.testing.layouts import cut_out, layouts, own_arrays, shapes, wholes_of
from perdure.testing.meshes import cut_layouts

FORMS = st.lists(shapes(most_dims=3, longest=6), min_size=1, max_size=3).map(
    lambda found: {f"t{number}": shape for number, shape in enumerate(found)}
)


@pytest.fixture(autouse=True)
def _in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("perdure.plan.reshard"), "_FEW", -1)
    import_module("perdure.plan.reshard")._reshard.cache_clear()


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Layout, Layout]:
    """Layouts by rules or at random, that may leave out some of a tensor only where it is wanted."""
    forms = draw(FORMS)
    kinds = st.sampled_from(["rule", "rule", "random"])
    have, want = (
        draw(cut_layouts(forms) if draw(kinds) == "rule" else layouts(forms, world=4, extra_boxes=2)) for _ in range(2)
    )
    return have, want


@given(pairs())
@settings(max_examples=150, deadline=None)
def test_every_element_arrives_once_from_one_that_holds_it(pair: tuple[Layout, Layout]) -> None:
    have, want = pair
    plan = reshard(have, want)
    assert isinstance(plan.moves, Moves)
    audit(plan, have, want)
    written_out = Plan(tuple(plan.moves))
    audit(written_out, have, want)
    arrived = {(name, piece): np.zeros(piece.box.shape, int) for name, t in want.items() for piece in t.pieces}
    for move in plan.moves:
        assert move.source in have[move.name].of_rank(move.source.rank)
        assert move.box in move.source.box
        assert move.local or not any(move.box.touches(own.box) for own in have[move.name].of_rank(move.dest.rank))
        cut_out(arrived[move.name, move.dest], move.box, outer=move.dest.box)[...] += 1
    assert all((count == 1).all() for count in arrived.values())
    for what in ("nbytes", "link_nbytes", "sent_nbytes", "received_nbytes", "ranks"):
        assert getattr(plan, what) == getattr(written_out, what)
    assert plan == written_out
    assert hash(plan) == hash(written_out)
    for rank in written_out.ranks[:3]:
        assert plan.of_rank(rank) == written_out.of_rank(rank)


@given(pairs(), st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_rounds_of_columns_are_the_rounds_of_their_moves(pair: tuple[Layout, Layout], budget_elements: int) -> None:
    plan = reshard(*pair)
    found = rounds(plan, budget_bytes=4 * budget_elements)
    expected = rounds(Plan(tuple(plan.moves)), budget_bytes=4 * budget_elements)
    assert found == expected
    audit(Plan(tuple(move for step in found for move in step.moves)), *pair)


@given(FORMS.flatmap(lambda forms: st.tuples(cut_layouts(forms), cut_layouts(forms))))
@settings(max_examples=60, deadline=None)
def test_arrays_that_a_plan_moves_are_those_of_the_other_mesh(pair: tuple[Layout, Layout]) -> None:
    have, want = pair
    wholes = wholes_of(want)
    held = {rank: own_arrays(have, rank, wholes=wholes) for rank in have.ranks}
    moved = {rank: own_arrays(want, rank) for rank in want.ranks}
    for move in reshard(have, want).moves:
        source, dest = held[move.source.rank][move.name], moved[move.dest.rank][move.name]
        view(dest, move.dest, move.box)[...] = view(source, move.source, move.box)
    for rank in want.ranks:
        for name, array in own_arrays(want, rank, wholes=wholes).items():
            np.testing.assert_array_equal(moved[rank][name], array)


@given(pairs())
@settings(max_examples=60, deadline=None)
def test_a_ranks_own_part_is_what_the_whole_plan_brings_it_where_nothing_is_chosen(pair: tuple[Layout, Layout]) -> None:
    have, want = pair
    alone = {}
    for name, tensor in have.items():  # one holder of each box
        first: dict[Box, Piece] = {}
        for piece in tensor.pieces:
            first.setdefault(piece.box, piece)
        alone[name] = TensorLayout(tensor.shape, tuple(first.values()), tensor.dtype)
    have = Layout({name: tensor for name, tensor in alone.items() if tensor.placed.pattern.disjoint})
    want = Layout({name: want[name] for name in have})
    whole = reshard(have, want)
    for rank in want.ranks:
        own = reshard(have, want.of_rank(rank))
        assert list(own.moves) == [move for move in whole.moves if move.dest.rank == rank]


def tampered(plan: Plan, **changes: object) -> Plan:
    (table,) = plan.moves.tables  # type: ignore[attr-defined]
    columns = replace(table.columns, **changes)  # type: ignore[arg-type]
    return Plan(Moves([Table(table.name, table.have, table.want, columns)]))


def test_an_audit_in_columns_finds_what_was_tampered_with() -> None:
    mesh = Mesh((("dp", 5), ("tp", 3)))
    have = Layout({"w": cut_tensor((16, 9), mesh=mesh, cuts=(Cut("dp", 0, Even()),), dtype="int16")})
    want = Layout({"w": cut_tensor((16, 9), mesh=mesh, cuts=(Cut("tp", 0, Even()),), dtype="int16")})
    plan = reshard(have, want)
    audit(plan, have, want)
    columns = plan.moves.tables[0].columns  # type: ignore[attr-defined]
    n = len(columns)
    for row in (0, n // 2, n - 1):
        kept = np.arange(n) != row
        fields = ("lo", "hi", "source", "dest", "size")
        fewer = {key: getattr(columns, key)[kept] for key in fields}
        with pytest.raises(Bug, match="arrives 0 times"):
            audit(tampered(plan, **fewer), have, want)
        more = {key: np.concatenate([getattr(columns, key), getattr(columns, key)[row : row + 1]]) for key in fields}
        with pytest.raises(Bug, match="arrives 2 times"):
            audit(tampered(plan, **more), have, want)

    def changed(key: str, row: int, value: object) -> dict[str, object]:
        column = getattr(columns, key).copy()
        column[row] = value
        return {key: column}

    far = (int(columns.source[0]) + 6) % len(have["w"].pieces)
    for changes, sentence in [
        (changed("source", 0, far), "does not hold"),
        (changed("source", 0, 99), "takes from piece 99"),
        (changed("dest", 0, -1), "brings to piece -1"),
        (changed("dest", 0, len(want["w"].pieces) - 1), "does not want"),
        (changed("size", 0, 1), "wrong bytes"),
        (changed("hi", 0, (int(columns.lo[0][0]), 9)), "wrong bytes"),
    ]:
        with pytest.raises(Bug, match=sentence):
            audit(tampered(plan, **changes), have, want)
    with pytest.raises(Bug, match="arrives 0 times"):
        audit(Plan(Moves([])), have, want)
    with pytest.raises(Bug, match="arrives 2 times"):
        audit(Plan(Moves([plan.moves.tables[0]] * 2)), have, want)  # type: ignore[attr-defined]
    with pytest.raises(Bug, match="does not hold"):
        audit(plan, Layout({"w": TensorLayout((16, 9), (), "int16")}), want)


def test_an_overlap_that_makes_up_for_a_gap_in_size_is_found() -> None:
    left, right = Piece.alone(0, Box((0,), (4,))), Piece.alone(1, Box((4,), (8,)))
    have = Layout({"w": TensorLayout((8,), (left, right), "int8")})
    want = Layout({"w": TensorLayout((8,), (Piece.alone(2, Box((0,), (8,))),), "int8")})
    plan = reshard(have, want)
    audit(plan, have, want)
    twice = {"lo": np.array([[0], [0]]), "hi": np.array([[4], [4]]), "source": np.array([0, 0], np.int32)}
    with pytest.raises(Bug, match=r"\[0:4\] arrives 2 times"):
        audit(tampered(plan, **twice), have, want)


def test_many_boxes_into_one_are_painted() -> None:
    mesh = Mesh((("dp", 60),))
    have = Layout({"w": cut_tensor((60, 2), mesh=mesh, cuts=(Cut("dp", 0, Even()),), dtype="int8")})
    want = Layout({"w": TensorLayout((60, 2), (Piece.alone(0, Box((0, 0), (60, 2))),), "int8")})
    plan = reshard(have, want)
    audit(plan, have, want)
    columns = plan.moves.tables[0].columns  # type: ignore[attr-defined]
    lo, hi = columns.lo.copy(), columns.hi.copy()
    lo[7], hi[7] = lo[8], hi[8]
    source = columns.source.copy()
    source[7] = source[8]
    with pytest.raises(Bug, match=r"\[7:8, 0:2\] arrives 0 times"):
        audit(tampered(plan, lo=lo, hi=hi, source=source), have, want)


def test_a_gap_is_named_in_columns_too() -> None:
    whole = Layout({"w": cut_tensor((8,), mesh=Mesh((("tp", 4),)), cuts=(Cut("tp", 0, Even()),), dtype="int8")})
    left = Layout({"w": TensorLayout((8,), tuple(p for p in whole["w"].pieces if p.rank != 2), "int8")})
    with pytest.raises(NotCovered) as caught:
        reshard(left, whole)
    assert caught.value.box == [[4], [6]]


def test_replicas_of_many_tensors_share_the_load_whatever_their_sizes() -> None:
    have_mesh, want_mesh = Mesh((("dp", 6), ("tp", 2))), Mesh((("dp", 5), ("tp", 4)))
    forms = {f"t{number:02}": (8 * (1 + number % 7), 3) for number in range(40)}
    have, want = (
        Layout({n: cut_tensor(s, mesh=m, cuts=(Cut("tp", 0, Even()),), dtype="int8") for n, s in forms.items()})
        for m in (have_mesh, want_mesh)
    )
    away = Layout(
        {
            n: TensorLayout(t.shape, tuple(replace(p, rank=p.rank + 12) for p in t.pieces), t.dtype)
            for n, t in want.items()
        }
    )
    plan = reshard(have, away)
    audit(plan, have, away)
    sent = plan.sent_nbytes
    assert sorted(sent) == list(range(12))
    assert max(sent.values()) - min(sent.values()) <= 8 * 7 * 3


def test_states_of_a_model_go_from_one_parallel_training_to_another() -> None:
    """Pipeline stages, fused weights, fewer heads than ranks, experts, flat optimizer state; nothing divides."""
    qkv = Fused(((12, ByHead(6)), (4, ByHead(2)), (4, ByHead(2))))
    gate_up = Fused(((10, Even()), (10, Even())))
    forms = {"qkv": (20, 12), "o": (12, 12), "gate_up": (20, 12), "norm": (12,), "experts": (7, 6, 5)}

    def model(pp: int, dp: int, tp: int) -> Layout:
        mesh = Mesh((("pp", pp), ("dp", dp), ("tp", tp)))
        cuts = {"qkv": qkv, "o": Even(), "gate_up": gate_up}
        found: dict[str, TensorLayout] = {}
        for layer in range(7):
            at = {"pp": layer * pp // 7}
            made = {n: (Cut("tp", 1 if n == "o" else 0, rule),) for n, rule in cuts.items()} | {"norm": ()}
            made["experts"] = (Cut("dp", 0, Even()), Cut("tp", 2, Even()))  # experts lie on data-parallel ranks
            for name, shape in forms.items():
                found[f"{layer}.{name}"] = cut_tensor(shape, mesh=mesh, cuts=made[name], dtype="bfloat16", at=at)
            dense = {f"m.{layer}.{n}": s for n, s in forms.items() if n != "experts"}
            flat = flat_cut(dense, mesh=mesh, cuts={n: made[n.split(".")[2]] for n in dense}, along="dp",
                            dtype="float32", at=at)  # fmt: skip
            found |= dict(flat)
        return Layout(found)

    meshes = [(1, 4, 1), (2, 3, 2), (3, 1, 2), (1, 5, 2), (1, 1, 1)]
    for have, want in [(model(*a), model(*b)) for a in meshes for b in meshes]:
        have.check()
        plan = reshard(have, want)
        audit(plan, have, want)
        assert plan.nbytes == sum(p.box.size * t.element_bytes for t in want.values() for p in t.pieces)


def test_stages_that_count_their_own_layers_and_fuse_their_own_way_meet_under_global_names() -> None:
    """A stage's ``layers.0`` is the model's ``layers.4``; q|k|v is one tensor here and three there."""
    sections = {"q": 12, "k": 4, "v": 4}
    qkv = Fused(tuple((size, ByHead(size // 2)) for size in sections.values()))

    def fused(stage: int) -> Layout:
        mesh, at = Mesh((("pp", 2), ("tp", 2))), {"pp": stage}
        local = {
            f"layers.{i}.qkv": cut_tensor((20, 6), mesh=mesh, cuts=(Cut("tp", 0, qkv),), dtype="float32", at=at)
            for i in range(4)
        }
        return rename(Layout(local), lambda name: shift_layer(name, by=4 * stage))

    split = {
        name.replace("qkv", part): tensor
        for stage in range(2)
        for name, whole in fused(stage).items()
        for part, tensor in split_fused(whole, dim=0, sections=sections).items()
    }
    mesh = Mesh((("pp", 3), ("tp", 1)))
    want = Layout(
        {
            f"layers.{i}.{part}": cut_tensor((rows, 6), mesh=mesh, cuts=(), dtype="float32", at={"pp": i * 3 // 8})
            for i in range(8)
            for part, rows in sections.items()
        }
    )
    have = Layout(split)
    have.check()
    plan = reshard(have, want)
    audit(plan, have, want)
    assert plan.nbytes == want.nbytes
    moves = [move for move in plan.moves if move.name == "layers.4.k"]
    assert [(move.source.rank, str(move.source.place)) for move in moves] == [(2, "[6:8, 0:6]"), (3, "[6:8, 0:6]")]
