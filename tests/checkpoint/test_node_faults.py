"""A dozen cases of `./dev campaign checkpoint`, and that their judge can say no."""

from __future__ import annotations

import pytest
from conftest import Forker, Place
from fault_cases import Case, all_cases, draw
from node_faults import References, play
from strikes import Wrong

DOZEN = [
    Case("kill rank", "copy", True, 1),
    Case("kill node", "idle", True, 2),
    Case("kill node", "partner", False, 3),
    Case("kill two nodes", "drain", False, 4),
    Case("no memory", "copy", False, 5),
    Case("kill agent", "restore", False, 6),
    Case("cut link", "partner", False, 7),
    Case("silent link", "drain", True, 8),
    Case("corrupt memory", "idle", False, 9),
    Case("corrupt copy", "commit", True, 10),
    Case("EIO", "part", False, 11),
    Case("clock jump", "copy", False, 12),
]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> References:
    return References(tmp_path_factory.mktemp("references"), forker)


@pytest.mark.parametrize("case", DOZEN, ids=str)
def test_what_happens_to_nodes_is_recovered_bit_for_bit(place: Place, references: References, case: Case) -> None:
    play(case, place, references)


def test_every_kind_of_case_is_drawn_once_a_turn() -> None:
    kinds = all_cases()
    for turn in (0, 1):
        drawn = [draw(turn * len(kinds) + number) for number in range(len(kinds))]
        assert sorted((each.fault, each.phase, each.new_mesh) for each in drawn) == sorted(kinds)
    assert len(kinds) * 2 >= 300


def test_one_digest_that_differs_is_told(place: Place, references: References) -> None:
    class Off(References):
        """Says of one step of one rank that it was another."""

        def of(self, world: int, at: int = 0, then: int = 0) -> tuple[dict[tuple[int, int], str], dict[int, str]]:
            ranks, whole = references.of(world, at, then)
            return ranks | {(1, 9): "0" * 16}, whole

    with pytest.raises(Wrong, match=r"differ from an uninterrupted run: \[\(1, 9\)\]"):
        play(Case("kill rank", "idle", False, 13), place, Off(references.folder, references.forker))
