"""Another number of ranks at each start: the whole state is the saved one, bit for bit, from memory and from disk."""

from __future__ import annotations

import re

import pytest

from conftest import Place, Ranks


def wholes(ranks: Ranks) -> dict[int, str]:
    """``step`` -> digest of the whole state, which is the same on all ranks."""
    found = [dict(re.findall(r"^W (\d+) (\w+)$", ranks.out(rank), re.M)) for rank in range(len(ranks.pids))]
    assert all(each == found[0] for each in found), ranks.text()
    return {int(step): digest for step, digest in found[0].items()}


@pytest.mark.parametrize("more", [(), ("--no-agent",)], ids=["memory", "disk"])
def test_two_ranks_then_one_then_two(place: Place, more: tuple[str, ...]) -> None:
    argv = ("--every", "3", "--whole", *more)
    first = place.train("--steps", "6", *argv, world=2)
    one = place.train("--steps", "9", *argv, world=1)
    last = place.train("--steps", "12", *argv, world=2)
    for before, after, step in ((first, one, 6), (one, last, 9)):
        assert set(after.began_at()) == {step}
        assert wholes(after)[step] == wholes(before)[step]
        tier = "disk" if more else "memory"
        assert any(re.search(rf"restored step {step} \([^;]* from {tier},", said) for said in after.said(0)), (
            after.text()
        )
    assert place.steps() == [3, 6, 9, 12]
