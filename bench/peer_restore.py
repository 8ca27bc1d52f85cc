"""How long does it take to have a step back from another node's memory, against what the link itself can carry?

Nodes on this machine, each with a rank and an agent, linked over loopback. perdure's `restore`, every byte verified,
of what another node's agent holds, against plain TCP streams of the same bytes from one process into the same tensors,
nothing verified: by `send`, by `sendfile`, and as iperf3 does (128 KiB at a time, the same memory again and again).
With `--ranks 1` the node that saved is lost and its partner's copy is read; with `--ranks 2` all ranks have changed
nodes, so that none finds its bytes on its own, and two read at the same time. One rank more holds no bytes. Every
restored tensor is compared with what was saved.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Mapping

import torch
import torch.distributed as dist

import perdure
from measure import Stopwatch, arguments, report, take_turns
from peer_nodes import attempt, kill_agent, local, make_sharded, nodes, together
from peer_streams import STREAMS, Streamer
from perdure.events import Log

OURS = "perdure restore, peer"


def fill(home: pathlib.Path, mib: int, ranks: int) -> None:
    """The first attempt: save a step, and see that it lies with partners too."""
    ckpt = perdure.Checkpointer(str(home))
    saved = ckpt.save(1, {"model": make_sharded(mib, ranks, seed=0)})
    saved.reached("peer")
    saved.committed()
    ckpt.close()


def measure(home: pathlib.Path, mib: int, ranks: int, rounds: int, as_json: bool) -> None:
    """The second attempt: restore again and again, and let the streams have their turns."""
    log = home.parent / f"facts-{dist.get_rank()}"
    ckpt = perdure.Checkpointer(str(home), log=Log(log, stream=sys.stderr))
    state, back = make_sharded(mib, ranks, seed=0), make_sharded(mib, ranks, seed=None)
    shards = {name: local(tensor) for name, tensor in back.items()}
    streamer = Streamer([memoryview(each.view(-1).numpy()).cast("B") for each in shards.values() if each.numel()])
    source = {name: local(tensor) for name, tensor in state.items()}

    def restore() -> Mapping[str, float]:
        watch = Stopwatch()
        assert ckpt.restore({"model": back}) == 1
        seconds = watch.s()
        for name, tensor in shards.items():
            assert torch.equal(tensor, source[name]), f"{name} is not what was saved"
            tensor.fill_(float("nan"))
        return {"restore": seconds}

    def memcpy() -> Mapping[str, float]:
        watch = Stopwatch()
        for name, tensor in source.items():
            shards[name].copy_(tensor)
        return {"restore": watch.s()}

    sides = {OURS: restore, "one warm memcpy": memcpy}
    sides |= {name: lambda kind=kind: streamer.turn(kind) for name, kind in STREAMS.items()}
    measured = take_turns({name: together(turn) for name, turn in sides.items()}, rounds=rounds)
    streamer.end()
    restored = [json.loads(line) for line in log.read_text().splitlines()]
    tiers = [fact["tiers"] for fact in restored if "tiers" in fact]
    nbytes = sum(tensor.numel() * 4 for tensor in shards.values())
    assert all(each.get("peer", 0) >= nbytes for each in tiers), f"not all bytes came from a peer: {tiers}"
    ckpt.close()
    if dist.get_rank() == 0:
        facts = {"bytes_a_rank": nbytes, "ranks": ranks, "torch": torch.__version__}
        report(__doc__.splitlines()[0], measured, ours={"restore": OURS}, facts=facts, as_json=as_json)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=384, help="MiB of state a rank")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1, help="ranks that hold bytes")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--role", choices=("fill", "measure"), help="of a rank; for this script's own use")
    args = parser.parse_args()
    if args.role is not None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        home = pathlib.Path(args.dir)
        if args.role == "fill":
            fill(home, args.mib, args.ranks)
        else:
            measure(home, args.mib, args.ranks, args.rounds, args.json)
        dist.destroy_process_group()
        return
    with nodes(args.dir) as folder:
        argv = ["--mib", str(args.mib), "--ranks", str(args.ranks), "--rounds", str(args.rounds)]
        argv += ["--dir", str(folder / "run"), *(["--json"] if args.json else [])]
        before, after = (("a", "b"), ("c", "b")) if args.ranks == 1 else (("a", "b", "c"), ("c", "a", "b"))
        attempt(__file__, [*argv, "--role", "fill"], on=before, number=0)
        if args.ranks == 1:
            kill_agent("a")
        sys.stdout.write(attempt(__file__, [*argv, "--role", "measure"], on=after, number=1))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
