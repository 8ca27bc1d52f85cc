"""What does a standby interpreter save when ranks have to start again: start of 4 ranks to their first FSDP2 step?

The same script is started cold (`Rank.start`) and forked from a zygote that has imported what `modules_of` finds
(`Rank.fork`); gloo, one thread a rank. All times end with the slowest rank: "script" when its first line ran, "imports"
when it had imported everything, "first step" when it had done a step. Ranks are killed after each turn. What the zygote
itself took to be ready, once a job and while ranks train, is told below.
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping

from measure import Stopwatch, Turn, arguments, report, take_turns
from perdure.clock import Deadline
from perdure.process.environ import Placement, child_env
from perdure.process.tree import Rank, become_subreaper, kill_attempt, reap_orphans
from perdure.process.zygote import Zygote, modules_of

RANK = pathlib.Path(__file__).with_name("standby_rank.py")
COMMAND = [sys.executable, str(RANK)]
OURS, PEER = "forked from a zygote", "started cold"
PATIENCE_S = 300.0

Start = Callable[[Mapping[str, str]], Rank]


def line(rank: Rank) -> bytes:
    """The line that a rank prints; ends the benchmark with its errors if it prints none."""
    heard = b""
    while not heard.endswith(b"\n"):
        chunk = os.read(rank.stdout, 4096)
        if not chunk:
            sys.exit(os.read(rank.stderr, 1 << 16).decode())
        heard += chunk
    return heard


def turn(start: Start, *, number: int, run: str) -> Turn:
    """Start ``number`` ranks, wait for the first step of each, kill them."""
    n_turns = 0

    def take() -> Mapping[str, float]:
        nonlocal n_turns
        n_turns += 1
        mark = f"{run}.{n_turns}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        began = time.monotonic()
        ranks = []
        for rank in range(number):
            placement = Placement(
                rank=rank,
                world=number,
                local_rank=rank,
                local_world=number,
                master_addr="127.0.0.1",
                master_port=port,
                mark=mark,
            )
            ranks.append(start(child_env(placement, base=os.environ)))
        times = [[float(word) - began for word in line(rank).split()] for rank in ranks]
        kill_attempt(mark, sessions=[rank.pid for rank in ranks])
        for rank in ranks:
            rank.reap()
            rank.close()
        return dict(zip(("script", "imports", "first step"), map(max, zip(*times, strict=True)), strict=True))

    return take


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    become_subreaper()
    run = uuid.uuid4().hex
    shared = child_env(Placement(), base=os.environ)
    preload = modules_of(COMMAND)
    assert preload is not None
    watch = Stopwatch()
    zygote = Zygote.start(COMMAND, preload=preload, env={**shared, "PERDURE_MARK": f"{run}.standby"})
    deadline = Deadline.after(PATIENCE_S, "the zygote to be ready")
    while not zygote.ready():
        if (refusal := zygote.refusal()) is not None:
            sys.exit(refusal)
        deadline.check()
        time.sleep(0.01)
    ready_s = watch.s()

    def cold(env: Mapping[str, str]) -> Rank:
        return Rank.start(COMMAND, env=env)

    def warm(env: Mapping[str, str]) -> Rank:
        return Rank.fork(zygote, COMMAND, env=env, deadline=Deadline.after(PATIENCE_S, "a fork"))

    sides = {
        OURS: turn(warm, number=args.ranks, run=f"{run}.warm"),
        PEER: turn(cold, number=args.ranks, run=f"{run}.cold"),
    }
    measured = take_turns(sides, rounds=args.rounds)
    zygote.close()
    reap_orphans(keep=())
    facts = {"ranks": args.ranks, "modules_preloaded": len(preload), "zygote_ready_s": round(ready_s, 2)}
    report(__doc__.splitlines()[0], measured, ours=dict.fromkeys(measured, OURS), facts=facts, as_json=args.json)


if __name__ == "__main__":
    main()
