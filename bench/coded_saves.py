"""What do `coding="auto"` and `coding="lossless"` make of the saves of a training, behind a fast store and slow ones?

A small GPT is really trained (`bench/codec_traces.py`); its whole state (bfloat16 copy, float32 master, m, v: 14 bytes
a parameter) is saved every few steps from warm-up to decay, by what the agent's drain runs: policy, base in memory,
packs, part, commit. Each coding takes its turn on each save. Told are the bytes that were stored, over raw; the seconds
until a save is durable, raw over the coding's (above 1 where the coding is sooner), and the processor seconds that a
gigabyte of state takes, which the training's node has to have. Every step is loaded again and compared at the end.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import perdure
from codec_traces import Recipe, Snapshot, train
from measure import arguments, machine
from perdure.checkpoint.coded_packs import Base
from perdure.checkpoint.drain import Order, commit, entries_of, write_part
from perdure.checkpoint.policy import Policy
from perdure.checkpoint.unchanged import Stored
from perdure.layout import Layout, Piece, TensorLayout
from perdure.state.index import RankIndex
from perdure.store import Disk, Run, Store
from perdure.store.limit import Limit
from perdure.testing.ranks import Bytes, save_layout, whole_box

KINDS = {"copy": ("weights", "bfloat16"), "master": ("master", "float32"), "m": ("m", "float32"), "v": ("v", "float32")}
CODINGS = ("raw", "auto", "lossless")
Packs = list[tuple[RankIndex, memoryview]]


def state_of(snapshot: Snapshot, sizes: tuple[int, ...]) -> tuple[Layout, dict[str, Bytes]]:
    """The state after a step, a tensor a kind and parameter."""
    layouts: dict[str, TensorLayout] = {}
    wholes: dict[str, Bytes] = {}
    ends = np.cumsum(sizes)[:-1]
    for kind, (field, dtype) in KINDS.items():
        for i, part in enumerate(np.split(getattr(snapshot, field), ends)):
            width = part.dtype.itemsize
            wholes[f"{kind}.{i}"] = np.ascontiguousarray(part).view(np.uint8).reshape(-1, width)
            layouts[f"{kind}.{i}"] = TensorLayout(part.shape, (Piece.alone(0, whole_box(part.shape)),), dtype)
    return Layout(layouts), wholes


class Writer:
    """What an agent's drain does, for one coding and store."""

    def __init__(self, store: Store, coding: str) -> None:
        self.run = Run.open(store, create=True)
        self.epoch = self.run.claim_epoch("bench")
        self.coding, self.policy = coding, Policy()
        self.stored: Stored | None = None
        self.base: tuple[int, Stored, Packs] | None = None
        self.saves = 0

    def save(self, step: int, packs: Packs) -> tuple[int, float, float]:
        """Bytes that were stored, seconds until durable, processor seconds."""
        began, worked = time.perf_counter(), time.process_time()
        self.saves += 1
        order = Order(self.epoch, step, self.saves, None, coding=self.coding)
        base = None
        if self.base is not None:
            found, stored, below = self.base
            base = Base(found, stored, below, {each.entry.key: each for each in entries_of(below)})
        part = write_part(
            self.run, order, writer="bench", packs=packs, stored=self.stored, base=base, policy=self.policy
        )
        slot = commit(self.run, order, [part.ref]).slot
        self.stored = part.stored(slot)
        if self.coding != "raw":
            self.policy.ended(part.nbytes, sum(view.nbytes for _, view in packs), delta=part.delta)
            if not part.delta:
                self.base = (step, self.stored, packs) if self.policy.keeps_base(self.coding) else None
        return part.nbytes, time.perf_counter() - began, time.process_time() - worked


def main() -> None:
    """Train, save, compare, print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--steps", type=int, default=300, help="of the training")
    parser.add_argument("--every", type=int, default=10, help="steps between saves")
    parser.add_argument(
        "--stores", type=float, nargs="+", default=[0, 200, 50], help="MB/s of each store; 0: the disk's"
    )
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are made; by default a new folder")
    args = parser.parse_args()
    kept = dict.fromkeys(range(args.every, args.steps + 1, args.every), True)
    trace = train(Recipe(width=args.width, steps=args.steps), kept)
    states = {step: state_of(snapshot, trace.tensors) for step, snapshot in sorted(trace.at.items())}
    raw_nbytes = sum(each.nbytes for each in next(iter(states.values()))[1].values())
    facts = machine()
    print(f"{len(states)} saves of {raw_nbytes / 1e6:.1f} MB, every {args.every} steps; {facts}")
    print("store      coding    stored/raw   durable, raw over coding   cpu s/GB")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for speed in args.stores:
            told: dict[str, list[tuple[int, float, float]]] = {coding: [] for coding in CODINGS}
            places = {coding: Path(folder) / f"{coding}-{speed:g}" for coding in CODINGS}
            disks = {coding: Disk(place) for coding, place in places.items()}
            writers = {
                coding: Writer(Limit(disk, bytes_per_s=speed * 1e6) if speed else disk, coding)
                for coding, disk in disks.items()
            }
            for step, (layout, wholes) in states.items():
                made = save_layout(layout, wholes, world=1)
                packs = [(made.indexes["pack0"], memoryview(made.packs["pack0"]))]
                for coding in CODINGS:
                    told[coding].append(writers[coding].save(step, packs))
            for coding in CODINGS:
                size = sum(each[0] for each in told[coding]) / (raw_nbytes * len(states))
                sooner = statistics.median(
                    raw[1] / mine[1] for raw, mine in zip(told["raw"][1:], told[coding][1:], strict=True)
                )
                cpu = sum(each[2] for each in told[coding]) / (raw_nbytes * len(states) / 1e9)
                check(places[coding], states)
                name = f"{speed:g} MB/s" if speed else "the disk"
                print(f"{name:10} {coding:9} {size:10.3f} {sooner:26.2f} {cpu:10.2f}")


def check(place: Path, states: dict[int, tuple[Layout, dict[str, Bytes]]]) -> None:
    """Every step comes back bit for bit."""
    import torch

    for step, (_, wholes) in states.items():
        loaded = perdure.load(place, step=step)
        for name, data in wholes.items():
            assert np.array_equal(loaded[name].view(torch.uint8).numpy().reshape(-1), data.reshape(-1)), (step, name)


if __name__ == "__main__":
    main()
