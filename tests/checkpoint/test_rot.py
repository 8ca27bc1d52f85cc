"""Memory that rots after its digests were taken and before it is on disk."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import perdure
from conftest import Place, flip_memory

Digests = Mapping[tuple[int, int], str]
AB = ("a", "b")


@pytest.mark.parametrize("nodes", [(), pytest.param(AB, marks=pytest.mark.slow)], ids=["one node", "two nodes"])
def test_what_rots_between_hash_and_disk_fails_its_step_by_name(
    place: Place, undisturbed: Digests, nodes: tuple[str, ...]
) -> None:
    node = nodes[-1] if nodes else None
    place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "do": "hold"}, node=node)
    ranks = place.start("--steps", "12", "--every", "3", "--hold", f"7:{place.folder}/on", nodes=nodes)
    place.await_file("held")  # its digests are taken, its bytes are not written yet
    flip_memory(place, local_rank=0, node=node)
    (place.folder / "go").touch()
    ranks.await_line("could not save step 6: .*the memory of step 6 does not hash to its digest", ranks=(0, 1))
    (place.folder / "on").touch()
    assert ranks.wait() == [0, 0], ranks.text()
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert place.steps() == [3, 9, 12]
    assert not list(place.run_dir.glob("packs/*/*000000000006-*")), "what is bad was left on disk"
    for step in place.steps():
        assert perdure.load(str(place.run_dir), step=step)
