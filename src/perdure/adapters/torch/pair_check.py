"""The program that the ranks of a group of nodes run to be compared: rounds of a matrix product and an all-gather.

``python -m perdure.adapters.torch.pair_check`` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as for any rank;
it needs nothing else of perdure. Prints one line of JSON, a `perdure.supervisor.checks.Result` with the seconds of all
timed rounds among its facts, and exits with 0 if it says ``ok``, else 1. Products are compared with known digests and
gathered bytes with what each rank must have sent, so a link that changes bytes is found as well as one that hangs.

A collective that waits for a dead partner cannot be interrupted, so a thread of its own ends the process at the
deadline, whatever the others do, and says in which phase that was.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from perdure.adapters.torch.gpu_check import wrong_products
from perdure.errors import PerdureError
from perdure.process.environ import Placement
from perdure.supervisor.checks import Result

__all__ = ["main"]

_DO = "compare its nodes with others (`perdure.supervisor.pairing`); alone this does not tell which is at fault"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare this rank with its group; return the exit code."""
    parser = argparse.ArgumentParser(prog="pair_check", description=__doc__.splitlines()[0])
    parser.add_argument("--deadline", type=float, default=60.0, metavar="S", help="seconds for all of it")
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="timed rounds, after one that is not")
    parser.add_argument("--nbytes", type=int, default=8 << 20, metavar="N", help="bytes that each rank sends a round")
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    args = parser.parse_args(argv)
    try:
        place = Placement.read()
    except PerdureError as error:
        print(f"pair_check: {error}", file=sys.stderr)
        return error.exit_code
    said = _Said(place.rank)
    watch = threading.Thread(target=said.give_up, args=(args.deadline,), daemon=True, name="deadline")
    watch.start()
    try:
        result = _compare(place, args, said)
    except Exception as error:
        # Whatever torch raises here (and it raises everything) means that this group did not do its work.
        first_line = str(error).strip().partition("\n")[0]
        says = f"the group failed while {said.phase}: {type(error).__name__}: {first_line}"
        result = _result("problem", says, rank=place.rank)
    said.say(result)
    if dist.is_initialized() and result.word == "ok":
        dist.destroy_process_group()
    return 0 if result.word == "ok" else 1


class _Said:
    """The one line that is printed: by whoever comes first, the work or its deadline."""

    def __init__(self, rank: int) -> None:
        self.phase = "starting"
        self._rank = rank
        self._lock = threading.Lock()
        self._done = threading.Event()

    def say(self, result: Result) -> None:
        with self._lock:
            if not self._done.is_set():
                self._done.set()
                sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
                sys.stdout.flush()

    def give_up(self, deadline_s: float) -> None:
        if not self._done.wait(deadline_s):
            self.say(_result("problem", f"no end within {deadline_s:g} s; it hung while {self.phase}", rank=self._rank))
            os._exit(1)


def _compare(place: Placement, args: argparse.Namespace, said: _Said) -> Result:
    cuda = args.backend != "gloo" and torch.cuda.is_available()
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = ("nccl" if cuda else "gloo") if args.backend == "auto" else args.backend
    said.phase = "meeting the others"
    dist.init_process_group(
        backend,
        init_method="env://",
        rank=place.rank,
        world_size=place.world,
        timeout=timedelta(seconds=args.deadline),
        device_id=device if cuda else None,
    )
    work_s = gather_s = began = 0.0
    wrong: list[str] = []
    for turn in range(-1, args.rounds):  # the first one sets up links and kernels
        if turn == 0:
            work_s = gather_s = 0.0
            began = time.monotonic()
        said.phase = f"computing in round {max(turn, 0)}"
        start = time.monotonic()
        wrong += wrong_products(device, repeats=2)
        _work(device)
        computed = time.monotonic()
        said.phase = f"gathering in round {max(turn, 0)}"
        wrong += [f"bytes from rank {rank}" for rank in _gather(place, device, args.nbytes, turn)]
        work_s += computed - start
        gather_s += time.monotonic() - computed
    took_s = time.monotonic() - began
    facts: dict[str, Any] = {
        "rank": place.rank,
        "world": place.world,
        "seconds": took_s,
        "compute_s": work_s,
        "gather_s": gather_s,
        "backend": backend,
        "rounds": args.rounds,
    }
    if wrong:
        return _result("problem", f"wrong without an error: {', '.join(dict.fromkeys(wrong))}", **facts)
    return _result("ok", f"{args.rounds} rounds with {place.world} ranks in {took_s:.3g} s", **facts)


def _work(device: torch.device) -> None:
    """Products that are large enough for a slowed device to be late."""
    size, count = (4096, 64) if device.type == "cuda" else (512, 8)
    a = torch.ones(size, size, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, device=device)
    for _ in range(count):
        torch.mm(a, a)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _gather(place: Placement, device: torch.device, nbytes: int, turn: int) -> list[int]:
    """Gather ``nbytes`` of each rank; return the ranks whose bytes are not what they must have sent."""
    parts = [torch.empty(nbytes // 8, dtype=torch.int64, device=device) for _ in range(place.world)]
    dist.all_gather(parts, _block(place.rank, turn, nbytes, device))
    return [rank for rank, part in enumerate(parts) if not torch.equal(part, _block(rank, turn, nbytes, device))]


def _block(rank: int, turn: int, nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.arange(nbytes // 8, dtype=torch.int64, device=device) * -0x61C8864680B583EB + (rank << 32) + turn


def _result(word: str, says: str, **facts: Any) -> Result:
    return msgspec.convert(
        {"check": "pair", "word": word, "says": says, "do": "" if word == "ok" else _DO, "facts": facts}, Result
    )


if __name__ == "__main__":
    os._exit(main())  # not sys.exit: threads of a backend whose partner is gone may never end
