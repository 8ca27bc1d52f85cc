"""What has not changed is referred to if that keeps no dead weight alive, and every step still loads whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint.drain import Order, WrittenPart, commit, withdraw, write_part
from perdure.checkpoint.restoring import read_catalog
from perdure.checkpoint.unchanged import Stored
from perdure.errors import PerdureError
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state.items import Held, TensorItem
from perdure.state.load import load, match
from perdure.store import Commit, Ram, Run
from perdure.testing.ranks import Bytes, bytes_of, memory_of, save_layout, whole_box

MIB = 1 << 20


class Writer:
    """One writer of a run that commits steps of named tensors, one rank and one pack each."""

    def __init__(self) -> None:
        self.run = Run.open(Ram(), create=True)
        self.epoch = self.run.claim_epoch("test")
        self.stored: Stored | None = None
        self.seq = 0

    def write(self, tensors: Mapping[str, Bytes]) -> WrittenPart:
        self.seq += 1
        layout = Layout(
            {
                name: TensorLayout(data.shape[:-1], (Piece.alone(0, whole_box(data.shape[:-1])),), "uint8")
                for name, data in tensors.items()
            }
        )
        made = save_layout(layout, tensors, world=1)
        packs = [(made.indexes["pack0"], memoryview(made.packs["pack0"]))]
        return write_part(self.run, self.order, writer="w", packs=packs, stored=self.stored)

    @property
    def order(self) -> Order:
        return Order(self.epoch, self.seq, self.seq, None)

    def save(self, tensors: Mapping[str, Bytes]) -> tuple[Commit, WrittenPart]:
        part = self.write(tensors)
        made = commit(self.run, self.order, [part.ref])
        self.stored = part.stored(made.slot)
        return made, part

    def load(self, slot: int, tensors: Mapping[str, Bytes]) -> None:
        """Load the commit in ``slot`` and compare with ``tensors``."""
        catalog, packs = read_catalog(self.run, slot)
        items = [
            TensorItem(
                name, "uint8", data.shape[:-1], (Held(Box.whole(data.shape[:-1]), memory_of(np.zeros_like(data))),)
            )
            for name, data in tensors.items()
        ]
        matches = match(catalog, items, (), rank=0, world=1)
        load(catalog, matches, lambda pack: [packs[pack]])
        for item, data in zip(items, tensors.values(), strict=True):
            assert np.array_equal(bytes_of(item.held[0]), data), item.name

    def packs(self) -> list[str]:
        return self.run.store.names("packs/")


def some(seed: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (nbytes, 1), dtype=np.uint8)


def test_a_frozen_tensor_is_written_once() -> None:
    writer = Writer()
    frozen = some(0, 4 * MIB)
    steps = [{"frozen": frozen, "adapter": some(i, 1000)} for i in range(1, 4)]
    made = [writer.save(step) for step in steps]
    assert [part.nbytes > MIB for _, part in made] == [True, False, False]
    second = writer.run.read_part(made[1][1].ref)
    assert second.base == made[0][0].slot
    assert len(second.packs) == 2
    for (done, _), step in zip(made, steps, strict=True):
        writer.load(done.slot, step)


def test_a_small_tensor_that_never_changes_keeps_no_large_pack_alive() -> None:
    writer = Writer()
    still = some(0, 1000)
    made = [writer.save({"still": still, "moving": some(i, MIB)}) for i in range(1, 4)]
    for _, part in made:
        assert len(writer.run.read_part(part.ref).packs) == 1


def test_a_large_minority_is_set_apart_once_and_referred_to_from_then_on() -> None:
    writer = Writer()
    still = some(0, 2 * MIB)
    steps = [{"still": still, "moving": some(i, 6 * MIB)} for i in range(1, 5)]
    made = [writer.save(step) for step in steps]
    # first all, then the still apart, then the moving alone
    assert [round(part.nbytes / MIB) for _, part in made] == [8, 8, 6, 6]
    third = writer.run.read_part(made[2][1].ref)
    assert third.base == made[1][0].slot
    for (done, _), step in zip(made, steps, strict=True):
        writer.load(done.slot, step)


def test_thousands_of_tiny_tensors_are_referred_to_as_well() -> None:
    writer = Writer()
    tiny = {f"t{i}": some(i, 12) for i in range(300)}
    writer.save({**tiny, "moving": some(1, 10)})
    done, part = writer.save({**tiny, "moving": some(2, 10)})
    assert part.nbytes < 10_000
    writer.load(done.slot, {**tiny, "moving": some(2, 10)})


def test_another_dtype_or_shape_with_the_same_bytes_is_another_tensor() -> None:
    writer = Writer()
    data = some(0, 2 * MIB)
    writer.save({"w": data})
    done, part = writer.save({"w": data.reshape(2, MIB, 1)})
    assert part.nbytes > MIB
    writer.load(done.slot, {"w": data.reshape(2, MIB, 1)})


def test_an_empty_tensor_is_in_every_step() -> None:
    writer = Writer()
    empty = np.zeros((0, 3, 1), np.uint8)
    for _ in range(2):
        done, _ = writer.save({"w": some(0, 2 * MIB), "empty": empty})
        writer.load(done.slot, {"w": some(0, 2 * MIB), "empty": empty})


def test_a_base_that_was_given_up_is_not_referred_to() -> None:
    writer = Writer()
    first, _ = writer.save({"w": some(0, 2 * MIB)})
    writer.run.give_up(first)
    done, part = writer.save({"w": some(0, 2 * MIB)})
    assert part.nbytes > MIB
    assert writer.run.read_part(part.ref).base is None
    writer.load(done.slot, {"w": some(0, 2 * MIB)})


class _GivesUp(Ram):
    """Gives the base up just when a part that refers to it appears, and deletes what nobody names."""

    def __init__(self) -> None:
        super().__init__()
        self.victim: tuple[Run, Commit] | None = None

    def create(self, name: str, data: object) -> bool:
        made = super().create(name, data)  # type: ignore[arg-type]
        if self.victim is not None and name.startswith("parts/"):
            (run, victim), self.victim = self.victim, None
            run.give_up(victim)
            for pack in self.names("packs/"):  # one that looked for parts before ours was there
                self.delete(pack)
        return made


def test_a_base_that_is_given_up_while_the_part_is_written_is_not_needed() -> None:
    writer = Writer()
    store = _GivesUp()
    writer.run = Run.open(store, create=True)
    writer.epoch = writer.run.claim_epoch("test")
    first, _ = writer.save({"w": some(0, 2 * MIB), "v": some(1, 100)})
    store.victim = (writer.run, first)
    done, part = writer.save({"w": some(0, 2 * MIB), "v": some(2, 100)})
    assert part.nbytes > MIB
    writer.load(done.slot, {"w": some(0, 2 * MIB), "v": some(2, 100)})


def test_a_pack_that_somebody_deleted_is_written_again() -> None:
    writer = Writer()
    writer.save({"w": some(0, 2 * MIB), "v": some(1, 100)})
    for pack in writer.packs():
        writer.run.store.delete(pack)
    tensors = {"w": some(0, 2 * MIB), "v": some(2, 100)}
    done, _ = writer.save(tensors)
    writer.load(done.slot, tensors)


def test_another_run_in_the_same_place_is_not_referred_to() -> None:
    writer, other = Writer(), Writer()
    writer.save({"w": some(0, 2 * MIB)})
    other.stored = writer.stored
    done, part = other.save({"w": some(0, 2 * MIB)})
    assert part.nbytes > MIB
    other.load(done.slot, {"w": some(0, 2 * MIB)})


def test_withdrawing_a_part_leaves_the_packs_that_it_refers_to() -> None:
    writer = Writer()
    tensors = {"w": some(0, 2 * MIB), "v": some(1, 100)}
    done, _ = writer.save(tensors)
    part = writer.write({"w": some(0, 2 * MIB), "v": some(2, 100)})
    assert len(writer.packs()) == 2
    withdraw(writer.run, part.ref)
    assert len(writer.packs()) == 1
    writer.load(done.slot, tensors)


@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=2, max_size=6))
@settings(max_examples=40, deadline=None)
def test_every_step_loads_whole_whatever_changes_when(history: Sequence[Sequence[int]]) -> None:
    """Four tensors of very different sizes, each with one of three contents in every step."""
    writer = Writer()
    sizes = [0, 700, MIB + 3, 2 * MIB]
    steps = [
        {f"t{i}": some(version, size) for i, (version, size) in enumerate(zip(versions, sizes, strict=True))}
        for versions in history
    ]
    made = [writer.save(step) for step in steps]
    for (done, _), step in zip(made, steps, strict=True):
        writer.load(done.slot, step)
    with pytest.raises(PerdureError):
        writer.load(len(steps) + 1, steps[0])
