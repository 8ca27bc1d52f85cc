"""How much of one core does the analyser take for a job of this many ranks, looked at once a second?

Feeds an analyser with all its detectors the samples of a simulated job, in its own time, and prints the processor time
that a second of the job takes: while all is well, while every rank writes lines as fast as they are read, and while all
ranks hang because one has not come to a collective.

    ./dev bench watch_scale [RANKS [SECONDS]]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from perdure.watcher.analyser import Analyser
from perdure.watcher.evidence import Verdict
from perdure.watcher.job_watch import detectors
from perdure.watcher.samples import DiskState, GroupState, LogLine, NodeSample, RankSample

PER_NODE = 8
STAGES = 8


def samples(n_ranks: int, second: int, *, hung_since: int | None, culprit: int) -> list[RankSample]:
    """What is seen of all ranks in one second: four steps of three collectives each."""
    at = second if hung_since is None else min(second, hung_since)
    step = 4 * at
    per_stage = max(1, n_ranks // STAGES)
    noise = np.random.default_rng(second).normal(1.0, 0.01, n_ranks)
    seen = []
    for rank in range(n_ranks):
        held = hung_since is not None and second >= hung_since
        late = int(held and rank == culprit)
        inside = int(held and not late)
        seen.append(
            RankSample(
                rank=rank,
                node=f"n{rank // PER_NODE}",
                at_s=float(second),
                pid=1 + rank,
                beat=1 + second,
                step=step,
                phase="forward",
                phase_s=0.1,
                in_collective=bool(inside),
                step_s=0.25,
                compute_s=0.2 * float(noise[rank]),
                wait_s=0.05,
                loss=1.0 + 1.0 / (1 + step) if rank == 0 else None,
                loss_step=step if rank == 0 else None,
                groups=(
                    GroupState(group="world", size=n_ranks, enqueued=step + inside, completed=step, op="all_reduce"),
                    GroupState(
                        group=f"tp{rank // PER_NODE}", size=PER_NODE, enqueued=4 * step, completed=4 * step,
                        op="all_reduce", shape="[4096, 8192] bfloat16",
                    ),
                    GroupState(
                        group=f"pp{rank // per_stage}", size=per_stage, enqueued=step, completed=step, op="broadcast"
                    ),
                ),
                local_norm=1.0 + (rank * 7919 % 100) / 500,
                local_finite=True,
                checksum="7f3a",
                checksum_step=step // 500 * 500 or None,
                replicas=f"stage{rank // per_stage}",
                state="R",
            )
        )  # fmt: skip
    return seen


def machine(node: str, second: int) -> NodeSample:
    """What is seen of a node."""
    disks = tuple(
        DiskState(path=path, total_bytes=1 << 40, free_bytes=(1 << 39) + second % 7, free_inodes=900, total_inodes=1000)
        for path in ("/data", "/scratch")
    )
    return NodeSample(
        node=node,
        at_s=float(second),
        wall_s=1e9 + second,
        cpus=96,
        memory_total_bytes=1 << 40,
        memory_available_bytes=(1 << 39) + second % 5,
        disks=disks,
        cpu_wait=0.01,
    )


def lines(n_ranks: int, second: int) -> list[LogLine]:
    """As many as are ever read of a look: those that every rank writes at each step, and some that nobody has seen."""
    said = []
    for number in range(8000):
        rank = number % n_ranks
        text = f"step {second} loss {number * 7919 % 1000 / 1000}" if number % 10 else f"{number * second:x} odd words"
        said.append(LogLine(text=text, at_s=float(second), node=f"n{rank // PER_NODE}", rank=rank))
    return said


def main() -> int:
    """Print the share of one core; exit 1 if the hang was not found or its rank not named."""
    n_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 16384
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    nodes = {
        f"n{n}": list(range(n * PER_NODE, min((n + 1) * PER_NODE, n_ranks))) for n in range(-(-n_ranks // PER_NODE))
    }
    analyser = Analyser(nodes, detectors=detectors())
    culprit, hung_since = n_ranks // 3, seconds // 2
    took: dict[str, list[float]] = {"all is well": [], "and lines storm": [], "all wait for one": []}
    told: list[Verdict] = []
    for second in range(seconds + 12):
        hung = hung_since if second >= hung_since else None
        seen = samples(n_ranks, second, hung_since=hung, culprit=culprit)
        machines = [machine(node, second) for node in nodes]
        storm = lines(n_ranks, second) if hung_since - 5 <= second < hung_since else []
        began = time.process_time()
        told += analyser.feed(seen, machines, storm, now_s=float(second))
        analyser.wants_stacks()
        if second > 2:
            what = "and lines storm" if storm else "all is well" if second < hung_since else "all wait for one"
            took[what].append(time.process_time() - began)
    for what, each in took.items():
        print(f"{n_ranks} ranks, {what}: {np.mean(each):.3f} of a core (most {max(each):.3f})")
    for verdict in told:
        print(f"  {verdict.at_s - hung_since:.0f} s after the hang: {verdict.stage}: {verdict.sentence}")
    named = bool(told) and told[0].ranks == (culprit,)
    print("the right rank was named" if named else f"rank {culprit} was not named")
    return 0 if named and max(map(max, took.values())) < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
