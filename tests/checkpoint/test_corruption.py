"""A flipped bit, anywhere: the error names tensor and file; another copy or an older step is taken, and told."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from conftest import Forker, Place, Ranks, await_that, flip, flip_memory

Digests = Mapping[tuple[int, int], str]
STEPS = ("--steps", "12", "--every", "3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> Path:
    """The folder of a run with the steps 3, 6 and 9."""
    one = Place(tmp_path_factory.mktemp("trained"), forker)
    try:
        one.train("--steps", "9", "--every", "3", "--no-agent")
    finally:
        one.end()
    return one.run_dir


def restored(ranks: Ranks, rank: int) -> str:
    """What ``rank`` says of its restore."""
    return next(said for said in ranks.said(rank) if said.startswith("restored step"))


@pytest.mark.parametrize(
    ("pattern", "at", "names"),
    [
        (
            "packs/*/000000000009-*-rank1-*",
            0.5,
            r"rank 1: \S+ is corrupt in packs/\S+-rank1-0.safetensors \(disk\): tile",
        ),
        pytest.param(
            "packs/*/000000000009-*-rank0-*",
            0.0001,
            r"packs/\S+-rank0-0.safetensors .* is not the pack that was saved",
            marks=pytest.mark.slow,
        ),
        ("parts/*/000000000009-*-rank0*", 0.5, r"parts/\S+-rank0.jsonl is corrupt: its index"),
    ],
    ids=["tensor", "header", "part"],
)
def test_on_disk_the_step_before_is_taken(
    place: Place, undisturbed: Digests, trained: Path, pattern: str, at: float, names: str
) -> None:
    shutil.copytree(trained, place.run_dir)
    (victim,) = place.run_dir.glob(pattern)
    flip(victim, at=at)
    ranks = place.train(*STEPS, "--no-agent")
    assert ranks.began_at() == [6, 6]
    for rank in (0, 1):
        assert re.search(rf"restored step 6 .*step 9 could not be used .*{names}", restored(ranks, rank)), ranks.text()
    assert ranks.digests().items() <= undisturbed.items()
    assert place.steps() == [3, 6, 9, 12]


@pytest.mark.parametrize(("slot", "from_step"), [(3, 6), (2, 9)], ids=["the newest", "an older one"])
def test_a_slot_file_that_cannot_be_read_is_passed_over_and_told(
    place: Place, undisturbed: Digests, trained: Path, slot: int, from_step: int
) -> None:
    shutil.copytree(trained, place.run_dir)
    flip(place.run_dir / f"slots/{slot:010d}.json")
    ranks = place.train(*STEPS, "--no-agent")
    assert ranks.began_at() == [from_step, from_step]
    told = [said for said in ranks.said(0) if said.startswith(f"commit {slot} is passed over")]
    assert told
    assert f"slots/{slot:010d}.json is corrupt" in told[0]
    assert ranks.digests().items() <= undisturbed.items()
    assert place.open().head().step == 12  # type: ignore[union-attr]


def test_where_nothing_older_is_left_every_rank_says_so_and_ends_with_65(place: Place, trained: Path) -> None:
    shutil.copytree(trained, place.run_dir)
    for pack in place.run_dir.glob("packs/*/*-rank0-*"):
        flip(pack)
    ranks = place.train(*STEPS, "--no-agent", codes=[65, 65])
    for rank in (0, 1):
        assert re.search(r"no step can be restored.* is corrupt in packs/\S+ \(disk\)", ranks.out(rank)), ranks.text()


def test_in_memory_the_copy_on_disk_is_taken(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/never")
    ranks.await_line("committed step 6")
    ranks.kill_all()
    flip_memory(place, local_rank=1)
    again = place.train(*STEPS)
    assert again.began_at() == [6, 6]
    bad = r"from memory and .* from disk.*; (\S+) is corrupt in the memory of step 6 \(memory\).*copy on disk"
    assert re.search(bad, restored(again, 1)), again.text()
    assert "corrupt" not in restored(again, 0)
    assert again.digests().items() <= undisturbed.items()


def test_in_memory_alone_the_committed_step_before_is_taken(place: Place, undisturbed: Digests) -> None:
    place.start_agent({"verb": "put", "match": "packs/*000000000006-*", "do": "hold"})
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/never")
    ranks.await_line("^D 7 ", ranks=(0, 1))
    await_that(lambda: place.steps() == [3], "step 3 to be durable")  # before its memory is spoiled too
    ranks.kill_all()
    flip_memory(place, local_rank=0)
    again = place.start(*STEPS)
    again.await_line("^R 3")
    (place.folder / "go").touch()
    assert again.wait() == [0, 0], again.text()
    for rank in (0, 1):
        said = restored(again, rank)
        assert re.search(r"restored step 3 .*step 6 could not be used .*the memory of step 6", said), again.text()
    assert again.digests().items() <= undisturbed.items()
    assert place.steps() == [3, 6, 9, 12]


def test_a_bad_part_on_disk_does_not_matter_to_what_is_in_memory(place: Place, undisturbed: Digests) -> None:
    ranks = place.start(*STEPS, "--hold", f"7:{place.folder}/never")
    ranks.await_line("committed step 6")
    ranks.kill_all()
    (part,) = place.run_dir.glob("parts/*/000000000006-*")
    flip(part)
    again = place.train(*STEPS)
    assert again.began_at() == [6, 6]
    assert re.search(r"from memory.*is corrupt: its index.*took what is in memory", restored(again, 1))
    assert again.digests().items() <= undisturbed.items()
