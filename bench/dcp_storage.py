"""What do perdure's storage writer and reader cost in place of DCP's own?

`dcp.save` and `dcp.load` of the same tensors in one process, each with `FileSystemWriter` and `FileSystemReader`, which
sync their files and verify nothing, and with perdure's, which commit a step, and compare every byte with its digest on
the way back. All tensors change between saves. The yardstick is one warm copy of the same bytes. What is loaded is
compared with what was saved.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: one thread copies, on every side

import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import perdure
from measure import Stopwatch, Turn, arguments, report, take_turns
from state import copy_into, make_state, size_bytes

OURS = {"save": "perdure.dcp", "load": "perdure.dcp"}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=384, help="MiB of state")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--peers-only", action="store_true", help="leave perdure out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = make_state(args.mib)
    back = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    steps = iter(range(1, 1_000_000))

    def memcpy() -> Mapping[str, float]:
        watch = Stopwatch()
        copy_into(back, state)
        return dict.fromkeys(OURS, watch.s())

    def trip(writer: Callable[[int], Any], reader: Callable[[int], Any]) -> Mapping[str, float]:
        step = next(steps)
        for tensor in state.values():
            tensor.add_(1)
        watch = Stopwatch()
        dcp.save(state, checkpoint_id=None, storage_writer=writer(step))
        saved_s, watch = watch.s(), Stopwatch()
        dcp.load(back, checkpoint_id=None, storage_reader=reader(step))
        loaded_s = watch.s()
        for name, tensor in back.items():
            assert torch.equal(tensor, state[name]), f"{name} is not what was saved"
            tensor.fill_(float("nan"))
        return {"save": saved_s, "load": loaded_s}

    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        folder = pathlib.Path(name)

        def perdures() -> Mapping[str, float]:
            run = folder / "perdure"  # a new one each time, so that the disk does not fill
            shutil.rmtree(run, ignore_errors=True)
            return trip(
                lambda step: perdure.dcp.StorageWriter(run, step=step),
                lambda step: perdure.dcp.StorageReader(run, step=step),
            )

        def torchs() -> Mapping[str, float]:
            files = folder / "dcp"
            shutil.rmtree(files, ignore_errors=True)
            return trip(lambda step: dcp.FileSystemWriter(files), lambda step: dcp.FileSystemReader(files))

        sides: dict[str, Turn] = {"one warm memcpy": memcpy, "dcp's own": torchs}
        if not args.peers_only:
            sides = {OURS["save"]: perdures, **sides}
        measured = take_turns(sides, rounds=args.rounds)
    facts = {"state_bytes": size_bytes(state), "dtype": "float32", "ranks": 1, "torch": torch.__version__}
    report(__doc__.splitlines()[0], measured, ours=OURS, facts=facts, as_json=args.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
