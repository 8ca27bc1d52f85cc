"""A dozen cases of `./dev campaign checkpoint`, and that their judge can say no."""

from __future__ import annotations

import pytest
from fault_cases import CODINGS, MODELS, REMOTES, Case, all_cases, draw
from node_faults import Reference, References, play
from strikes import Wrong

from conftest import Forker, Place

DOZEN = [
    Case("kill rank", "copy", True, 1, model="stages"),
    Case("kill node", "idle", True, 2, remote="home lost"),
    Case("kill node", "partner", False, 3),
    Case("kill two nodes", "drain", False, 4),
    Case("no memory", "copy", False, 5),
    Case("kill agent", "restore", False, 6, "lossless", "home lost"),
    Case("cut link", "partner", False, 7, "lossless"),
    Case("silent link", "drain", True, 8, model="stages"),
    Case("corrupt memory", "idle", False, 9, "auto"),
    Case("corrupt copy", "commit", True, 10),
    Case("EIO", "part", False, 11, remote="remote struck"),
    Case("clock jump", "copy", False, 12, "lossless", "remote", "stages"),
]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> References:
    return References(tmp_path_factory.mktemp("references"), forker)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (number % 2)) for number, case in enumerate(DOZEN)], ids=str
)
def test_what_happens_to_nodes_is_recovered_bit_for_bit(place: Place, references: References, case: Case) -> None:
    play(case, place, references)


def test_every_kind_of_case_is_drawn_once_a_turn() -> None:
    kinds = all_cases()
    for turn in (0, 1):
        drawn = [draw(turn * len(kinds) + number) for number in range(len(kinds))]
        assert sorted((each.fault, each.phase, each.new_mesh) for each in drawn) == sorted(kinds)
    assert len(kinds) * 2 >= 300


def test_codings_remote_tiers_and_models_are_drawn_in_every_combination() -> None:
    drawn = {(case.coding, case.remote, case.model) for case in map(draw, range(300))}
    assert len(drawn) == len(CODINGS) * len(REMOTES) * len(MODELS)


def test_one_digest_that_differs_is_told(place: Place, references: References) -> None:
    class Off(References):
        """Says of one step of one rank that it was another."""

        def of(self, model: str, world: int, at: int = 0, then: int = 0) -> Reference:
            ranks, whole = references.of(model, world, at, then)
            return ranks | {(1, 9): "0" * 16}, whole

    with pytest.raises(Wrong, match=r"differ from an uninterrupted run: \[\(1, 9\)\]"):
        play(Case("kill rank", "idle", False, 13), place, Off(references.folder, references.forker))
