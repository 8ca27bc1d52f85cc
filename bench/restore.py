"""How long does it take to have a saved step back in the tensors, from memory and from disk?

perdure's `restore`, which verifies every byte, from the memory of the node's agent and from files, against
`torch.distributed.checkpoint.load` (DCP), which verifies none, of the same tensors in one process. All files are in the
page cache; DCP has one time, set beside both of ours. The yardstick is one warm copy of the same bytes. Every restored
tensor is compared with what was saved.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: one thread copies, on every side

import pathlib
import shutil
import tempfile
from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

import perdure
from measure import Stopwatch, Turn, arguments, report, take_turns
from state import copy_into, make_state, size_bytes

METRICS = ("from memory", "from files")
OURS = {"from memory": "perdure restore, memory", "from files": "perdure restore, files"}


def check(back: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Look whether the state is really back; then spoil it for the next turn."""
    for name, tensor in back.items():
        assert torch.equal(tensor, state[name]), f"{name} is not what was saved"
        tensor.fill_(float("nan"))


def perdure_turns(state: dict[str, Tensor], back: dict[str, Tensor], folder: pathlib.Path) -> dict[str, Turn]:
    """Restore from the run whose newest step an agent holds, and from a copy of it whose agent holds nothing.

    The copy's first restore starts its agent.
    """
    home = folder / "perdure"
    ckpt = perdure.Checkpointer(str(home))
    ckpt.save(1, {"model": state}).committed()
    shutil.copytree(home, folder / "copy", copy_function=os.link)
    for file in home.rglob("*"):  # into the page cache, where DCP's files are too: perdure writes past it
        if file.is_file():
            file.read_bytes()
    stranger = perdure.Checkpointer(str(folder / "copy"))

    def from_memory() -> Mapping[str, float]:
        watch = Stopwatch()
        assert ckpt.restore({"model": back}) == 1
        seconds = watch.s()
        check(back, state)
        return {"from memory": seconds}

    def from_files() -> Mapping[str, float]:
        watch = Stopwatch()
        assert stranger.restore({"model": back}) == 1
        seconds = watch.s()
        check(back, state)
        return {"from files": seconds}

    return {OURS["from memory"]: from_memory, OURS["from files"]: from_files}


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

    def memcpy() -> Mapping[str, float]:
        watch = Stopwatch()
        copy_into(back, state)
        return dict.fromkeys(METRICS, watch.s())

    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        folder = pathlib.Path(name)
        dcp.save({"model": state}, checkpoint_id=folder / "dcp")

        def dcp_load() -> Mapping[str, float]:
            watch = Stopwatch()
            dcp.load({"model": back}, checkpoint_id=folder / "dcp")
            seconds = watch.s()
            check(back, state)
            return dict.fromkeys(METRICS, seconds)

        sides: dict[str, Turn] = {} if args.peers_only else perdure_turns(state, back, folder)
        measured = take_turns({**sides, "one warm memcpy": memcpy, "dcp.load": dcp_load}, rounds=args.rounds)
    facts = {"state_bytes": size_bytes(state), "dtype": "float32", "ranks": 1, "torch": torch.__version__}
    question = __doc__.splitlines()[0]
    report(question, measured, ours=OURS, facts=facts, as_json=args.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
