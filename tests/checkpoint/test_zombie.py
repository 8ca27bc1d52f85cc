"""An attempt that was thought dead and is not: it is refused, told, and harms nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from conftest import Place

Digests = Mapping[tuple[int, int], str]


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--no-agent",), marks=pytest.mark.slow)], ids=["with an agent", "without one"]
)
def test_the_writer_of_an_older_epoch_is_refused_and_told_on_every_rank(
    place: Place, undisturbed: Digests, more: tuple[str, ...]
) -> None:
    argv = ("--every", "3", *more)
    zombie = place.start("--steps", "12", *argv, "--hold", f"4:{place.folder}/on")
    zombie.await_line("^perdure.* committed step 3")
    heir = place.train("--steps", "9", *argv)
    assert heir.began_at() == [3, 3]
    (place.folder / "on").touch()
    assert 73 in zombie.wait(), zombie.text()  # a person has to see to it; the other may fall with the process group
    for rank in (0, 1):
        told = [said for said in zombie.said(rank) if said.startswith("could not save step 6: ")]
        assert len(told) == 1, zombie.text()
        assert "epoch 2 owns this run now; this writer of epoch 1 must stop" in told[0]
    assert place.steps() == [3, 6, 9]
    assert {commit.epoch for commit in place.commits()} == {1, 2}
    assert heir.digests().items() <= undisturbed.items()
