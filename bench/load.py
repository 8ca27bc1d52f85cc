"""How fast does a verified load fill tensors that are there already, beside safetensors and DCP, which verify nothing?

Two states: a large one (tensors of some MiB, and small ones between them) and one of very many tensors of 1 KiB.
perdure's `restore` reads them from files, as a training does; `load` is the part of it that opens packs, plans, reads,
verifies and copies, when names have been compared. safetensors reads one file with `load_file` and copies into the
tensors; `dcp.load` is torch.distributed.checkpoint. All files are in the page cache; every tensor is compared with what
was saved. A last line tells what share of the bytes was read for a quarter of a tensor.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Mapping

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

import perdure
from measure import Stopwatch, Turn, arguments, report, take_turns
from perdure.adapters.torch.target import TensorSink
from perdure.checkpoint.restoring import read_catalog
from perdure.state.items import Held, TensorItem
from perdure.state.load import LoadReport, load, match
from perdure.store import Run, open_store
from state import copy_into, size_bytes

State = dict[str, Tensor]
OURS = "perdure restore"


def make_large(mib: int) -> State:
    """``mib`` MiB in 200 tensors, with 100 tensors of 4 KiB between them."""
    generator = torch.Generator().manual_seed(0)
    state: State = {}
    for i in range(100):
        for part in ("up", "down"):
            state[f"layer{i:03}.{part}.weight"] = torch.randn((mib * 1310,), generator=generator)
        state[f"layer{i:03}.norm.weight"] = torch.randn((1024,), generator=generator)
    return state


def make_small(number: int) -> State:
    """``number`` tensors of 1 KiB."""
    every = torch.randn((number, 256), generator=torch.Generator().manual_seed(1))
    return {f"block{i:06}.weight": every[i].clone() for i in range(number)}


def items_of(back: State) -> list[TensorItem]:
    """The live tensors, as adapters describe them."""
    sinks = [TensorSink.of(f"model.{name}", tensor) for name, tensor in back.items()]
    return [
        TensorItem(sink.name, sink.dtype, sink.shape, tuple(Held(part.box, part.memory) for part in sink.parts))
        for sink in sinks
    ]


def check(back: State, state: State) -> None:
    """Look whether the state is really back; then spoil it for the next turn."""
    for name, tensor in back.items():
        assert torch.equal(tensor, state[name]), f"{name} is not what was saved"
        tensor.fill_(float("nan"))


def warm(folder: pathlib.Path) -> None:
    """Bring every file into the page cache, past which perdure may have written its own."""
    buffer = bytearray(8 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def sides_of(state: State, back: State, folder: pathlib.Path, *, peers_only: bool) -> dict[str, Turn]:
    """Everybody's way to fill ``back``, as turns."""
    safetensors.torch.save_file(state, folder / "state.safetensors")
    dcp.save({"model": state}, checkpoint_id=folder / "dcp")
    home = str(folder / "run")
    ckpt = perdure.Checkpointer(home, agent=False)
    ckpt.save(1, {"model": state}).committed()
    warm(folder)

    def with_restore() -> None:
        assert ckpt.restore({"model": back}) == 1

    def with_safetensors() -> None:
        copy_into(back, safetensors.torch.load_file(folder / "state.safetensors"))

    def with_dcp() -> None:
        dcp.load({"model": back}, checkpoint_id=folder / "dcp")

    def timed(fill: object) -> Turn:
        def turn() -> Mapping[str, float]:
            watch = Stopwatch()
            fill()  # type: ignore[operator]
            seconds = watch.s()
            check(back, state)
            return {"seconds": seconds}

        return turn

    def with_load() -> Mapping[str, float]:
        run = Run.open(open_store(home), create=False)
        commit = run.head()
        assert commit is not None
        catalog, packs = read_catalog(run, commit.slot)
        matches = match(catalog, items_of(back), (), rank=0, world=1)
        watch = Stopwatch()
        load(catalog, matches, lambda pack: [packs[pack]])
        seconds = watch.s()
        check(back, state)
        return {"seconds": seconds}

    ours: dict[str, Turn] = {} if peers_only else {OURS: timed(with_restore), "perdure load alone": with_load}
    return {**ours, "safetensors load_file, copy": timed(with_safetensors), "dcp.load": timed(with_dcp)}


def quarter(state: State, folder: pathlib.Path) -> LoadReport:
    """Load a quarter of one tensor of 64 MiB."""
    whole = torch.randn((4096, 4096))
    ckpt = perdure.Checkpointer(str(folder / "quarter"), agent=False)
    ckpt.save(1, {"w": whole}).committed()
    ckpt.close()
    run = Run.open(open_store(str(folder / "quarter")), create=False)
    commit = run.head()
    assert commit is not None
    catalog, packs = read_catalog(run, commit.slot)
    part = torch.empty((1024, 4096))
    (own,) = TensorSink.of("w", part).parts
    box = own.box.shift((1024, 0))
    item = TensorItem("w", "float32", (4096, 4096), (Held(box, own.memory),))
    done = load(catalog, match(catalog, [item], (), rank=0, world=1), lambda pack: [packs[pack]])
    assert torch.equal(part, whole[1024:2048])
    return done


def measure(name: str, state: State, args: argparse.Namespace) -> None:
    """Compare all sides on one state."""
    back = {key: torch.full_like(tensor, float("nan")) for key, tensor in state.items()}
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as folder:
        sides = sides_of(state, back, pathlib.Path(folder), peers_only=args.peers_only)
        measured = {name: take_turns(sides, rounds=args.rounds)["seconds"]}
    facts = {"state_bytes": size_bytes(state), "tensors": len(state), "dtype": "float32", "ranks": 1}
    report(__doc__.splitlines()[0], measured, ours={name: OURS}, facts=facts, as_json=args.json)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the large state")
    parser.add_argument("--small", type=int, default=20_000, help="tensors of 1 KiB in the other state")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--peers-only", action="store_true", help="leave perdure out")
    args = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if args.mib:
        measure("large", make_large(args.mib), args)
    if args.small:
        measure("small", make_small(args.small), args)
    if not args.peers_only:
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as folder:
            done = quarter({}, pathlib.Path(folder))
            print(f"a quarter of 64 MiB: read {done.read_nbytes / done.wanted_nbytes:.3f}x", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
