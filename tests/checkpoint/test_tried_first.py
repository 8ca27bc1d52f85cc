"""Coded saves of one writer try first what the save before found, and every step comes back bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import perdure
from perdure.checkpoint.coded_packs import Base
from perdure.checkpoint.drain import Order, commit, entries_of, write_part
from perdure.checkpoint.policy import Policy
from perdure.checkpoint.unchanged import Stored
from perdure.layout import Layout, Piece, TensorLayout
from perdure.state.index import RankIndex
from perdure.store import Disk, Run
from perdure.testing.ranks import Bytes, save_layout, whole_box

SHAPE = (120, 100)
DTYPES = {"w": "float32", "m": "float32", "v": "float32", "copy": "bfloat16"}
LAYOUT = Layout(
    {name: TensorLayout(SHAPE, (Piece.alone(0, whole_box(SHAPE)),), dtype) for name, dtype in DTYPES.items()}
)


class Training:
    """Adam on gradients that drift: a master, its moments and its copy."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self._state = {"w": self._rng.standard_normal(SHAPE).astype(np.float32)}
        self._slope = self._rng.standard_normal(SHAPE).astype(np.float32)
        self._state |= {name: np.zeros(SHAPE, np.float32) for name in ("m", "v")}
        for _ in range(10):
            self.step()

    def step(self) -> None:
        """One more."""
        g = self._slope + np.float32(0.1) * self._rng.standard_normal(SHAPE).astype(np.float32)
        w, m, v = self._state.values()
        m[:] = np.float32(0.9) * m + np.float32(0.1) * g
        v[:] = np.float32(0.95) * v + np.float32(0.05) * g * g
        w -= np.float32(1e-4) * m / (np.sqrt(v) + np.float32(1e-8))

    def jump(self) -> None:
        """Nothing of the master follows from what it was."""
        self._state["w"][:] = self._rng.standard_normal(SHAPE)

    def wholes(self) -> dict[str, Bytes]:
        """The state's bytes."""
        copy = torch.from_numpy(self._state["w"]).bfloat16().view(torch.int16).numpy()
        found = {**self._state, "copy": copy}
        return {name: each.copy().view(np.uint8).reshape(*SHAPE, each.itemsize) for name, each in found.items()}


class Writer:
    """What the agent's drain does with one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = Run.open(Disk(folder), create=True)
        self.epoch = self.run.claim_epoch("test")
        self.policy = Policy()
        self.stored: Stored | None = None
        self.base: tuple[int, Stored, list[tuple[RankIndex, memoryview]]] | None = None
        self.saved: dict[int, dict[str, Bytes]] = {}
        self.deltas: list[int] = []

    def save(self, step: int, wholes: dict[str, Bytes]) -> int:
        """Save, smallest, on the last full save if that is of use; the bytes that were stored."""
        made = save_layout(LAYOUT, wholes, world=1)
        packs = [(made.indexes["pack0"], memoryview(made.packs["pack0"]))]
        order = Order(self.epoch, step, step, None, coding="lossless")
        base = None
        if self.base is not None:
            base = Base(*self.base, {each.entry.key: each for each in entries_of(self.base[2])})
        part = write_part(
            self.run, order, writer="test", packs=packs, stored=self.stored, base=base, policy=self.policy
        )
        self.stored = part.stored(commit(self.run, order, [part.ref]).slot)
        self.policy.ended(part.nbytes, sum(each.size for each in wholes.values()), delta=part.delta)
        if part.delta:
            self.deltas.append(step)
        else:
            self.base = step, self.stored, packs
        self.saved[step] = wholes
        return part.nbytes

    def check(self) -> None:
        """Every step loads as it was saved."""
        for step, wholes in self.saved.items():
            loaded = perdure.load(self.folder, step=step)
            for name, data in wholes.items():
                assert np.array_equal(loaded[name].view(torch.uint8).numpy().reshape(-1), data.reshape(-1)), (
                    step,
                    name,
                )


def test_relations_are_searched_by_the_first_delta_and_tried_by_the_next(tmp_path: Path) -> None:
    training, writer = Training(), Writer(tmp_path)
    writer.save(1, training.wholes())
    assert writer.policy.findings[False].searched
    searched = []
    for step in range(2, 6):
        training.step()
        training.step()
        writer.save(step, training.wholes())
        searched.append(len(writer.policy.findings[True].searched))
    assert writer.deltas == [2, 3, 4, 5]
    assert searched[0] == 2  # the float32 tensors, and the copy
    assert sum(searched[1:]) == 0
    assert writer.policy.findings[True].reused == 3
    writer.check()


def test_after_a_jump_relations_are_searched_again_and_saves_come_back(tmp_path: Path) -> None:
    training, writer = Training(), Writer(tmp_path)
    writer.save(1, training.wholes())
    for step in range(2, 9):
        training.step()
        if step == 4:
            training.jump()
        writer.save(step, training.wholes())
        if step == 4:
            assert writer.policy.findings[True].searched
    assert 2 in writer.deltas
    writer.check()
