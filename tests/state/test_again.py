"""What one save found is tried first by the next: no search where it holds, a new one where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from perdure.codec import decode, encode
from perdure.layout import Box
from perdure.state import relating
from perdure.state.again import Findings
from perdure.state.pricing import codec_for
from perdure.state.recipes import Offer, offers
from perdure.state.relating import base_of, estimate
from perdure.state.relations import Relation, Rounding, SecondMoment, Update, decoding_order, sources
from perdure.state.sampling import Block, Group

Blocks = dict[str, Block]
SHAPES = {"a": (40, 50), "b": (40, 50), "c": (64, 70)}


class Adam:
    """Masters, their bfloat16 copies and both moments, under an optimizer written out here."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self.w = {name: self._rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        self.m = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        self.v = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        self._size = {
            name: 10.0 ** self._rng.uniform(-3, -1, shape).astype(np.float32) for name, shape in SHAPES.items()
        }
        self.step(20)

    def step(self, count: int = 1) -> Blocks:
        """The state after as many more steps."""
        for _ in range(count):
            for name, w in self.w.items():
                g = self._size[name] * self._rng.standard_normal(w.shape).astype(np.float32)
                self.m[name] = np.float32(0.9) * self.m[name] + np.float32(0.1) * g
                self.v[name] = np.float32(0.95) * self.v[name] + np.float32(0.05) * g * g
                self.w[name] = w - np.float32(1e-4) * self.m[name] / (np.sqrt(self.v[name]) + np.float32(1e-8))
        return self.blocks()

    def blocks(self) -> Blocks:
        """The state as it is."""
        made: Blocks = {}
        for name, w in self.w.items():
            made[name] = block(w)
            made[f"{name}.m"], made[f"{name}.v"] = block(self.m[name]), block(self.v[name])
            made[f"{name}.copy"] = rounded(w)
        return made


def block(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Block:
    return Block("float32", Box.whole(values.shape), np.ascontiguousarray(values).view(np.uint8).reshape(-1).copy())


def rounded(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Block:
    words = np.ascontiguousarray(values).view(np.uint32)
    nearest = (words + 0x7FFF + (words >> 16 & 1) >> 16).astype(np.uint16)
    return Block("bfloat16", Box.whole(values.shape), nearest.view(np.uint8).reshape(-1))


def relations_of(found: Findings) -> dict[str, Relation]:
    return {name: each.relation for name, each in found.estimates.items() if each.relation is not None}


def needed(name: str, found: Findings) -> set[str]:
    relation = relations_of(found)[name]
    return {of.name for of in sources(name, relation)}


def nbytes_of_round_trip(now: Blocks, base: Blocks, found: Findings) -> dict[str, int]:
    """Code every block with its relation and decode it again, bit for bit; the bytes of each frame."""
    relations = relations_of(found)
    back: Blocks = {}
    sizes: dict[str, int] = {}
    for name in [*(name for name in now if name not in relations), *decoding_order(relations)]:
        each = now[name]
        below = base_of(name, relations[name], {**now, **back}, base) if name in relations else None
        codec = "planes" if below is None else codec_for(each.dtype)
        frame = encode(each.data, codec=codec, base=below, dtype=each.dtype, shape=each.box.shape)
        out = decode(frame, base=below).reshape(-1).view(np.uint8)
        assert np.array_equal(out, each.data), name
        back[name], sizes[name] = Block(each.dtype, each.box, out), len(frame)
    return sizes


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Box]:
    """The boxes of the float32 groups that were searched."""
    seen: list[Box] = []

    def counted(group: Group) -> list[Offer]:
        seen.append(group.box)
        return offers(group)

    monkeypatch.setattr(relating, "offers", counted)
    return seen


@pytest.mark.parametrize("steps", [1, 5])
def test_what_was_found_is_tried_first_and_nothing_is_searched(searches: list[Box], steps: int) -> None:
    training = Adam()
    base = training.blocks()
    found = estimate(training.step(steps), base)
    assert len(searches) == 2
    assert len(found.searched) == 4
    kinds = {name: type(relation) for name, relation in relations_of(found).items()}
    assert {kinds[name] for name in SHAPES} == {Update}
    assert {kinds[f"{name}.copy"] for name in SHAPES} == {Rounding}
    for _ in range(3):
        base = training.blocks()
        now = training.step(steps)
        found = estimate(now, base, found)
        anew = estimate(now, base)
        del searches[2:]
        assert not found.searched
        assert {name: needed(name, found) for name in SHAPES} == {
            name: {name, f"{name}.m", f"{name}.v"} for name in SHAPES
        }
        mine, best = (sum(nbytes_of_round_trip(now, base, each).values()) for each in (found, anew))
        assert mine < 1.01 * best
    assert len(searches) == 2
    assert found.reused == 3


def test_coefficients_follow_the_saves(searches: list[Box]) -> None:
    """One step after the base a master costs nearly nothing with its moments; also when the base is another one."""
    training = Adam()
    found: Findings | None = None
    for _ in range(3):
        base = training.blocks()
        now = training.step()
        found = estimate(now, base, found)
        sizes = nbytes_of_round_trip(now, base, found)
        assert all(sizes[name] < 0.1 * now[name].data.size for name in SHAPES)
        assert all(isinstance(relations_of(found)[f"{name}.v"], SecondMoment) for name in SHAPES)
        training.step(3)
    assert len(searches) == 2


def test_a_relation_that_stops_holding_is_replaced_and_others_are_not_searched(searches: list[Box]) -> None:
    training = Adam()
    base = training.blocks()
    found = estimate(training.step(), base)
    assert needed("a", found) == {"a", "a.m", "a.v"}

    def exchanged(state: Blocks) -> Blocks:
        state["a.m"], state["b.m"], state["a.v"], state["b.v"] = state["b.m"], state["a.m"], state["b.v"], state["a.v"]
        return state

    base = exchanged(training.blocks())
    now = exchanged(training.step())
    del searches[:]
    found = estimate(now, base, found)
    assert searches == [now["a"].box]
    assert needed("a", found) == {"a", "b.m", "b.v"}
    assert needed("c", found) == {"c", "c.m", "c.v"}
    assert nbytes_of_round_trip(now, base, found)["a"] < 0.1 * now["a"].data.size
    assert not estimate(exchanged(training.step()), now, found).searched


def test_a_copy_of_another_master_is_found_without_a_base() -> None:
    training = Adam()
    found = estimate(training.step(), {})
    assert relations_of(found)["a.copy"] == Rounding("a")
    again = estimate(training.step(), {}, found)
    assert not again.searched
    assert relations_of(again)["a.copy"] == Rounding("a")
    now = training.step()
    now["a.copy"], now["b.copy"] = now["b.copy"], now["a.copy"]
    again = estimate(now, {}, again)
    assert {dtype for dtype, _, _ in again.searched} == {"bfloat16"}
    assert relations_of(again)["a.copy"] == Rounding("b")
    nbytes_of_round_trip(now, {}, again)


def test_a_tensor_that_follows_from_nothing_any_more_takes_no_relation() -> None:
    training = Adam()
    base = training.blocks()
    found = estimate(training.step(), base)
    training.w["a"] = np.random.default_rng(3).permutation(training.w["a"])
    now = training.blocks()
    found = estimate(now, base, found)
    assert now["a"].box in {box for _, box, _ in found.searched}
    assert not isinstance(relations_of(found).get("a"), Update)
    nbytes_of_round_trip(now, base, found)


def test_a_tensor_that_did_not_change_once_keeps_its_relation() -> None:
    training = Adam()
    base = training.blocks()
    found = estimate(training.step(), base)
    still = {**training.step(), **{name: each for name, each in base.items() if name.startswith("c")}}
    found = estimate(still, base, found)
    nbytes_of_round_trip(still, base, found)
    assert needed("c", estimate(training.step(), base, found)) == {"c", "c.m", "c.v"}


@pytest.mark.parametrize("change", ["gone", "new", "another shape", "no base"])
def test_other_tensors_are_all_searched(change: str) -> None:
    training = Adam()
    base = training.blocks()
    found = estimate(training.step(), base)
    now = training.step()
    below: Mapping[str, Block] = base
    if change == "gone":
        del now["c.copy"]
    elif change == "new":
        now["d"] = now["c"]
    elif change == "another shape":
        now["c"] = replace(now["c"], box=Box.whole((70, 64)))
    else:
        below = {name: each for name, each in base.items() if name != "c"}
    again = estimate(now, below, found)
    assert again.reused == 0
    assert again.searched == frozenset(again.names)


def test_all_is_searched_again_on_every_sixteenth_save() -> None:
    training = Adam()
    base = training.blocks()
    found: Findings | None = None
    searched = []
    for _ in range(33):
        now = training.step()
        found = estimate(now, base, found)
        base = now
        searched.append(len(found.searched) / len(found.names))
    assert searched == [float(i % 16 == 0) for i in range(33)]


def test_tensors_that_cost_much_more_or_less_on_their_base_are_searched_again() -> None:
    rng = np.random.default_rng(4)
    old = rng.standard_normal(3000).astype(np.float32)

    def moved(by: float) -> Blocks:
        return {"w": block((old * (1 + by * rng.standard_normal(3000))).astype(np.float32))}

    base = {"w": block(old)}
    found = estimate(moved(1e-5), base)
    for by, due in [(1e-5, False), (1.1e-5, False), (1e-3, True), (1e-3, False), (1e-5, True)]:
        found = estimate(moved(by), base, found)
        assert bool(found.searched) == due, by
