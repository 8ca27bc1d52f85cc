"""Many saves in a row by the ranks of two nodes, and what processes and the disk hold after each tenth of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conftest import Place, Ranks, await_that

NODES = ("a", "b")
PARTS = 10


@dataclass(frozen=True)
class Held:
    """What one process holds: memory of its own, descriptors, threads, segments of checkpoint memory."""

    private_bytes: int
    descriptors: int
    threads: int
    segments: int

    @classmethod
    def by(cls, pid: int, job: str) -> Held:
        status = Path(f"/proc/{pid}/status").read_text()
        numbers = {name: int(found) for name, found in re.findall(r"^(RssAnon|Threads):\s+(\d+)", status, re.M)}
        links = []
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append((os.readlink(fd), os.stat(fd).st_ino))
            except OSError:
                continue  # closed meanwhile
        segments = {inode for name, inode in links if name.startswith(f"/memfd:perdure:{job}")}
        return cls(numbers["RssAnon"] << 10, len(links), numbers["Threads"], len(segments))


@dataclass(frozen=True)
class Sample:
    """After so many saves: each process, by what it is, and the files of the run."""

    saves: int
    held: dict[str, Held]
    files: int


def soak(place: Place, saves: int) -> list[Sample]:
    """Train for ``saves`` steps with a save after each; a sample after each tenth. All must be well at the end."""
    ranks = place.start(
        "--steps", str(saves), "--every", "1", "--keep", "last=3", "--hidden", "64", nodes=NODES, PERDURE_LEASE_S="2"
    )  # fmt: skip
    samples = [_after(place, ranks, saves * part // PARTS) for part in range(1, PARTS)]
    codes = ranks.wait(within_s=60 + saves)
    assert codes == [0, 0], ranks.text()
    failed = [said for rank in (0, 1) for said in ranks.said(rank) if "could not" in said or "lost " in said]
    assert not failed, failed[:3]
    assert place.steps()[-1] == saves
    await_that(lambda: not place.agent_pids() and not place.holders(), "agents to leave, and all memory with them",
               within_s=60)  # fmt: skip
    return samples


def _after(place: Place, ranks: Ranks, saves: int) -> Sample:
    give_up = time.monotonic() + 60 + 2 * saves
    while not re.search(rf"^D {saves + 1} ", _tail(ranks), re.M):
        assert time.monotonic() < give_up, ranks.text()
        assert not ranks.poll(), ranks.text()
        time.sleep(0.02)
    pids = {f"rank {rank}": pid for rank, pid in enumerate(ranks.pids)}
    pids |= {f"agent of {node}": pid for node in NODES for pid in place.agent_pids(node)}
    held = {name: Held.by(pid, place.job) for name, pid in pids.items()}
    return Sample(saves, held, sum(1 for path in place.run_dir.rglob("*") if path.is_file()))


def _tail(ranks: Ranks) -> str:
    return ranks.out(0)[-4000:]


def assert_flat(samples: Sequence[Sample], *, more_bytes: int) -> None:
    """No process holds more at the end than when it had got going, but for ``more_bytes`` of private memory."""
    first, last = samples[1], samples[-1]
    assert first.held.keys() == last.held.keys()
    for name, before in first.held.items():
        seen = [each.held[name] for each in samples[1:]]
        for what, slack in (("descriptors", 4), ("threads", 3), ("segments", 1)):
            found = [getattr(each, what) for each in seen]
            assert min(found[-3:]) <= getattr(before, what) + slack, f"{name} holds more and more {what}: {found}"
        grown = min(each.private_bytes for each in seen[-3:]) - before.private_bytes
        assert grown <= more_bytes, f"{name} has grown by {grown} bytes: {[each.private_bytes for each in seen]}"
