"""How much of one core does the analyser take for a job of this many ranks, looked at once a second?

Feeds an analyser the samples of a simulated job, in its own time, and prints the processor time that a second of the
job takes: while all is well, and while all ranks hang because one has not come to a collective.

    ./dev bench watch_scale [RANKS [SECONDS]]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from perdure.watcher.analyser import Analyser
from perdure.watcher.evidence import Verdict
from perdure.watcher.samples import GroupState, NodeSample, RankSample

PER_NODE = 8
STAGES = 8


def samples(n_ranks: int, second: int, *, hung_since: int | None, culprit: int) -> list[RankSample]:
    """What is seen of all ranks in one second: four steps of three collectives each."""
    at = second if hung_since is None else min(second, hung_since)
    step = 4 * at
    per_stage = max(1, n_ranks // STAGES)
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


def main() -> int:
    """Print the share of one core; exit 1 if the hang was not found or its rank not named."""
    n_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 16384
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    nodes = {
        f"n{n}": list(range(n * PER_NODE, min((n + 1) * PER_NODE, n_ranks))) for n in range(-(-n_ranks // PER_NODE))
    }
    analyser = Analyser(nodes)
    culprit, hung_since = n_ranks // 3, seconds // 2
    took: dict[str, list[float]] = {"all is well": [], "all wait for one": []}
    told: list[Verdict] = []
    for second in range(seconds + 12):
        hung = hung_since if second >= hung_since else None
        seen = samples(n_ranks, second, hung_since=hung, culprit=culprit)
        machines = [NodeSample(node=node, at_s=float(second), cpus=96) for node in nodes]
        began = time.process_time()
        told += analyser.feed(seen, machines, now_s=float(second))
        analyser.wants_stacks()
        if second > 2:
            took["all is well" if second < hung_since else "all wait for one"].append(time.process_time() - began)
    for what, each in took.items():
        print(f"{n_ranks} ranks, {what}: {np.mean(each):.3f} of a core (most {max(each):.3f})")
    for verdict in told:
        print(f"  {verdict.at_s - hung_since:.0f} s after the hang: {verdict.stage}: {verdict.sentence}")
    named = bool(told) and told[0].ranks == (culprit,)
    print("the right rank was named" if named else f"rank {culprit} was not named")
    return 0 if named and max(map(max, took.values())) < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
