"""A disk that is really full: one sentence on every rank, training goes on, the step before stays and loads."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from conftest import Place, Ranks

Digests = Mapping[tuple[int, int], str]
DISK_BYTES, ROOM_BYTES = 40 << 20, 6 << 20  # one step has 4 MB
STEPS = ("--steps", "12", "--every", "3")


@pytest.fixture
def filler(place: Place) -> Iterator[Path]:
    """A file that leaves room for one step on the disk of the run."""
    place.run_dir.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "perdure-test", str(place.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    if done.returncode != 0:
        pytest.skip(f"A FULL DISK IS NOT TESTED: no tmpfs can be mounted ({done.stderr.strip()})")
    try:
        file = place.run_dir / "filler"
        file.write_bytes(bytes(DISK_BYTES - ROOM_BYTES))
        yield file
    finally:
        place.end()
        subprocess.run(["umount", "-l", str(place.run_dir)], check=True, timeout=10)


def sentences(ranks: Ranks, step: int) -> list[list[str]]:
    """What each rank says of a step that could not be saved."""
    return [[said for said in ranks.said(rank) if said.startswith(f"could not save step {step}:")] for rank in (0, 1)]


def is_told(ranks: Ranks, step: int, *, latest: int) -> None:
    """Each rank has one sentence about ``step``, and goes on."""
    ranks.await_line(f"could not save step {step}", ranks=(0, 1))
    for said in sentences(ranks, step):
        assert len(said) == 1, ranks.text()
        assert "no space is left on the device" in said[0]
        assert f"step {latest} stays the latest" in said[0]
    assert ranks.poll() == {}


@pytest.mark.parametrize("more", [(), ("--no-agent",)], ids=["with an agent", "without one"])
def test_a_full_disk_costs_the_step_and_nothing_else(
    place: Place, undisturbed: Digests, filler: Path, more: tuple[str, ...]
) -> None:
    argv = (*STEPS, *more, "--hold", f"7:{place.folder}/on")
    first = place.start(*argv)
    is_told(first, 6, latest=3)
    assert place.steps() == [3]
    assert not list(place.run_dir.glob("packs/*/*000000000006-*"))  # what was written of it makes no disk fuller
    first.kill_all()
    if not more:
        place.kill_agent()
    second = place.start(*argv)
    is_told(second, 6, latest=3)
    assert second.began_at() == [3, 3]
    filler.unlink()
    (place.folder / "on").touch()
    assert second.wait() == [0, 0], second.text()
    assert (first.digests() | second.digests()).items() <= undisturbed.items()
    assert place.steps() == [3, 9, 12]


def test_what_the_disk_had_no_room_for_is_restored_from_memory_and_written_later(
    place: Place, undisturbed: Digests, filler: Path
) -> None:
    argv = (*STEPS, "--hold", f"7:{place.folder}/on")
    first = place.start(*argv)
    is_told(first, 6, latest=3)
    first.kill_all()
    second = place.start(*argv)
    second.await_line("the restored step is in memory only: no space is left on the device")
    assert second.began_at() == [6, 6]
    filler.unlink()
    (place.folder / "on").touch()
    assert second.wait() == [0, 0], second.text()
    assert second.digests().items() <= undisturbed.items()
    assert place.steps() == [3, 6, 9, 12]


@pytest.mark.parametrize("rank", [0, 1], ids=["the one that commits", "another"])
def test_one_rank_that_cannot_write_fails_the_step_on_all_without_an_agent(
    place: Place, undisturbed: Digests, rank: int
) -> None:
    began = time.monotonic()
    ranks = place.train(*STEPS, "--no-agent", "--fault", "disk@6", "--fault-rank", str(rank))
    assert time.monotonic() - began < 20  # nobody waits for a part that will not come
    mine, other = sentences(ranks, 6)[rank], sentences(ranks, 6)[1 - rank]
    assert len(mine) == len(other) == 1, ranks.text()
    assert "no space is left on the device" in mine[0]
    assert f"rank {rank}: no space is left on the device" in other[0]
    assert ranks.digests().items() <= undisturbed.items()
    assert place.steps() == [3, 9, 12]
    assert not list(place.run_dir.glob("*/*/*000000000006-*"))  # nor does the other's part stay
