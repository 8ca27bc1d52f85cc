"""How long do 2, 3, 6 and 8 ranks take to restore what 4 saved, and how much more than they want do they read?

Ranks are processes on this machine, gloo between them; tensors are cut into rows over all ranks. perdure restores, and
verifies, a raw step and a losslessly coded one; `dcp.load` restores the same and verifies nothing; files are in the
page cache. Beside them stands a warm copy of each rank's own bytes. "read" is what all ranks read of the store for one
byte that is wanted. Then ``--memory`` numbers of ranks restore from the own agent's memory, with ``--mib`` each.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from typing import Any

from measure import Times, arguments, report

RANK = pathlib.Path(__file__).with_name("reshard_rank.py")
PATIENCE_S = 900.0
NAMES = {
    "raw": "perdure restore, raw",
    "lossless": "perdure restore, lossless",
    "memory": "perdure restore, memory",
    "dcp": "dcp.load",
    "memcpy": "one warm memcpy",
}


def run(world: int, *argv: str) -> Any:
    """Run that many ranks to their end; what rank 0 prints, as JSON."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), *argv],
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "PERDURE_JOB": f"bench-{os.getpid()}-{world}", "PERDURE_LEASE_S": "2",
            },
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        out, _ = ranks[0].communicate(timeout=PATIENCE_S)
        codes = [rank.wait(PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert not any(codes), f"{argv}: ranks ended with {codes}"
    return json.loads(out) if out else None


def times_of(found: dict[str, list[float]]) -> dict[str, Times]:
    return {NAMES[side]: Times(seconds[0], tuple(seconds[1:])) for side, seconds in found.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=4)
    parser.add_argument("--mib", type=int, default=384, help="MiB of state; of each rank, when from memory")
    parser.add_argument("--to", type=int, nargs="*", default=[2, 3, 6, 8], help="numbers of ranks that restore")
    parser.add_argument("--memory", type=int, nargs="*", default=[1, 2], help="numbers of ranks, from memory")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    args = parser.parse_args()
    measured: dict[str, dict[str, Times]] = {}
    ours: dict[str, str] = {}
    read: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as folder:
        size = ("--mib", str(args.mib), "--rounds", str(args.rounds))
        if args.to:
            run(4, "save", folder, *size)
        for world in args.to:
            metric = f"4 ranks -> {world}"
            found = run(world, "restore", folder, *size)
            measured[metric], ours[metric], read[metric] = times_of(found["times"]), NAMES["raw"], found["read"]
            print(metric, json.dumps(found), file=sys.stderr, flush=True)
        for world in args.memory:
            metric = f"{world} rank{'s' if world > 1 else ''}, from memory"
            whole = ("--mib", str(args.mib * world), "--rounds", str(args.rounds))
            found = run(world, "memory", f"{folder}/{world}", *whole)
            measured[metric], ours[metric] = times_of(found["times"]), NAMES["memory"]
            print(metric, json.dumps(found), file=sys.stderr, flush=True)
    facts = {"mib": args.mib, "dtype": "float32", **{f"read, {metric}": str(each) for metric, each in read.items()}}
    report(__doc__.splitlines()[0], measured, ours=ours, facts=facts, as_json=args.json)
    for metric, each in read.items():
        print(f"{metric}: read " + ", ".join(f"{ratio:.3f}x of what is wanted, {side}" for side, ratio in each.items()))


if __name__ == "__main__":
    main()
