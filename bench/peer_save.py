"""How soon after `save` would a step outlive the node that made it: in a partner's memory, or on a disk that all share?

Two nodes on this machine, each with a rank and an agent, linked over loopback. perdure's `save` until
`reached("peer")`, when every byte lies verified in the memory of another node's agent, with a drain to disk meanwhile
and without one (`tier="memory"`), against torch.distributed.checkpoint (DCP) on the same tensors, ranks and disk:
`save`, and `async_save` until it is durable. With `--ranks 1` one of the two ranks holds no bytes.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import perdure
from measure import Stopwatch, Turn, arguments, report, take_turns
from peer_nodes import attempt, local, make_sharded, nodes, together

OURS = "perdure save, peer"


def measure(folder: pathlib.Path, mib: int, ranks: int, rounds: int, as_json: bool) -> None:
    """All sides take turns on both ranks."""
    ckpt = perdure.Checkpointer(str(folder / "run"))
    state = make_sharded(mib, ranks, seed=0)
    shards = [local(tensor) for tensor in state.values()]
    steps = itertools.count(1)

    def change() -> None:
        for shard in shards:
            shard.view(-1)[::1024].add_(1.0)

    def ours(tier: str | None) -> Turn:
        def turn() -> Mapping[str, float]:
            change()
            watch = Stopwatch()
            saved = ckpt.save(next(steps), {"model": state}, **({} if tier is None else {"tier": tier}))
            saved.reached("peer")
            seconds = watch.s()
            if tier is None:
                saved.committed()
            return {"safe": seconds}

        return turn

    def theirs(*, in_background: bool) -> Turn:
        place = folder / f"dcp-{in_background}"

        def turn() -> Mapping[str, float]:
            if dist.get_rank() == 0:
                shutil.rmtree(place, ignore_errors=True)
            change()
            dist.barrier()
            watch = Stopwatch()
            if in_background:
                dcp.async_save({"model": state}, checkpoint_id=place).result(timeout=300)
            else:
                dcp.save({"model": state}, checkpoint_id=place)
            return {"safe": watch.s()}

        return turn

    sides: dict[str, Turn] = {
        OURS: ours(None),
        'perdure save(tier="memory"), peer': ours("memory"),
        "dcp.save": theirs(in_background=False),
        "dcp.async_save": theirs(in_background=True),
    }
    measured = take_turns({name: together(turn) for name, turn in sides.items()}, rounds=rounds)
    ckpt.close()
    if dist.get_rank() == 0:
        nbytes = sum(shard.numel() * 4 for shard in shards)
        facts = {"bytes_a_rank": nbytes, "ranks": ranks, "torch": torch.__version__}
        report(__doc__.splitlines()[0], measured, ours={"safe": OURS}, facts=facts, as_json=as_json)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=384, help="MiB of state a rank")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1, help="ranks that hold bytes")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--rank", action="store_true", help="be a rank; for this script's own use")
    args = parser.parse_args()
    if args.rank:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        measure(pathlib.Path(args.dir), args.mib, args.ranks, args.rounds, args.json)
        dist.destroy_process_group()
        return
    with nodes(args.dir) as folder:
        argv = ["--mib", str(args.mib), "--ranks", str(args.ranks), "--rounds", str(args.rounds), "--rank"]
        argv += ["--dir", str(folder), *(["--json"] if args.json else [])]
        sys.stdout.write(attempt(__file__, argv, on=("a", "b"), number=0))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
