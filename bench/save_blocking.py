"""How long does a save keep the training loop from going on, and when is it durable?

perdure's `save` against torch.distributed.checkpoint (DCP) on the same tensors in one process with a gloo group of one:
`save`, `async_save` as it comes, and `async_save` with staging memory that is kept from save to save. The yardstick is
one warm copy of the same bytes. "blocking" ends when the tensors may change again, "durable" when the step is on disk.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: one thread copies, on every side

import itertools
import pathlib
import shutil
import tempfile
from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import perdure
from measure import Stopwatch, Turn, arguments, report, take_turns
from state import change, copy_into, make_state, size_bytes

OURS = "perdure save"
KEPT_IN_SHARED_MEMORY = StagingOptions(
    use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
)


def perdure_turn(state: dict[str, Tensor], folder: pathlib.Path) -> tuple[Turn, perdure.Checkpointer]:
    ckpt = perdure.Checkpointer(str(folder / "perdure"))
    steps = itertools.count(1)

    def turn() -> Mapping[str, float]:
        change(state)
        watch = Stopwatch()
        saved = ckpt.save(next(steps), {"model": state})
        returned = watch.s()
        saved.staged()
        blocking = watch.s()
        saved.committed()
        return {"save returns": returned, "blocking": blocking, "durable": watch.s()}

    return turn, ckpt


def dcp_turn(state: dict[str, Tensor], folder: pathlib.Path, *, kept_staging: bool | None) -> Turn:
    """DCP's save if ``kept_staging`` is None, else its async_save."""
    place = folder / f"dcp-{kept_staging}"
    stager = DefaultStager(KEPT_IN_SHARED_MEMORY) if kept_staging else None

    def turn() -> Mapping[str, float]:
        shutil.rmtree(place, ignore_errors=True)
        change(state)
        watch = Stopwatch()
        if kept_staging is None:
            dcp.save({"model": state}, checkpoint_id=place)
            return {"save returns": watch.s(), "blocking": watch.s(), "durable": watch.s()}
        upload = dcp.async_save({"model": state}, checkpoint_id=place, async_stager=stager)
        blocking = watch.s()
        upload.result(timeout=300)
        return {"save returns": blocking, "blocking": blocking, "durable": watch.s()}

    return turn


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=384, help="MiB of state")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--peers-only", action="store_true", help="leave perdure out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = make_state(args.mib)
    warm = {name: tensor.clone() for name, tensor in state.items()}

    def memcpy() -> Mapping[str, float]:
        watch = Stopwatch()
        copy_into(warm, state)
        return {"blocking": watch.s()}

    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        folder = pathlib.Path(name)
        sides: dict[str, Turn] = {
            "one warm memcpy": memcpy,
            "dcp.save": dcp_turn(state, folder, kept_staging=None),
            "dcp.async_save": dcp_turn(state, folder, kept_staging=False),
            "dcp.async_save, staging kept": dcp_turn(state, folder, kept_staging=True),
        }
        ckpt = None
        if not args.peers_only:
            turn, ckpt = perdure_turn(state, folder)
            sides = {OURS: turn, **sides}
        measured = take_turns(sides, rounds=args.rounds)
        if ckpt is not None:
            ckpt.close()
    facts = {"state_bytes": size_bytes(state), "dtype": "float32", "ranks": 1, "torch": torch.__version__}
    report(__doc__.splitlines()[0], measured, ours=dict.fromkeys(measured, OURS), facts=facts, as_json=args.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
