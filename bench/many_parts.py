"""How long does a rank take to know what is in a step that a thousand nodes saved, and what does it ask the store for?

A step of ``--parts`` parts (one a node, eight ranks each), whose tensors are cut over all ranks of a pipeline stage,
lies in a folder. Asked is the catalog of the whole step, from the folder as it is and behind a store whose every
request takes ``--latency-ms``. perdure's `read_catalog` reads many parts at once, each in one request; beside it parts
are read one after another, record and leaves each for itself. A last line counts what ``--ranks`` ranks ask of the
store when each reads alone, and when they read for one another.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Mapping

from measure import Stopwatch, Turn, arguments, report, take_turns
from perdure.checkpoint.parts_together import read_parts_together
from perdure.fabric import Fabric
from perdure.fabric.threads import run as on_threads
from perdure.layout import EvenGrid
from perdure.state.catalogs import catalog_of
from perdure.state.index import RankIndex, SavedGrid, SavedPiece, SavedTensor, SavedValue, piece_key
from perdure.state.manifest import write_index
from perdure.state.part_reader import PartReader
from perdure.state.step_index import read_catalog
from perdure.store import Disk, PackRef, Part, PartRef, Run
from perdure.store.faults import Delay, Faults, Rule
from perdure.store.places import part_name
from perdure.store.records import digest_of, encode

OURS = "perdure read_catalog"
NODE = 8
STAGES = 8


def make(folder: pathlib.Path, *, parts: int, tensors: int) -> None:
    """A commit of ``parts`` parts with ``tensors`` tensors a pipeline stage, cut over all ranks of the stage."""
    store = Disk(folder)
    run = Run.open(store, create=True)
    run.claim_epoch("bench")
    world = NODE * parts
    each = parts // STAGES * NODE  # ranks of a stage
    grids = tuple(SavedGrid((each, 1), stage * each, (1, 0)) for stage in range(STAGES))
    refs = []
    for node in range(parts):
        stage = node * NODE // each
        ranks, where = [], {}
        for number, rank in enumerate(range(node * NODE, (node + 1) * NODE)):
            shape = (each * 4, 64)
            box = dict(EvenGrid((each, 1), stage * each, (1, 0)).blocks_of(shape, (rank,), most=1))[rank]
            found = []
            for at in range(tensors):
                name = f"model.layers.{stage:02d}.{at // 10:03d}.block{at % 10}.weight"
                key = piece_key(name, shape, box, None)
                where[key] = number
                found.append(SavedTensor(name=name, dtype="float32", shape=shape,
                                         pieces=(SavedPiece(key, box.lo, box.hi),), layout=stage))  # fmt: skip
            values = (SavedValue(key="rng", value=[rank], local=True),)
            ranks.append(RankIndex(rank=rank, world=world, tensors=tuple(found), values=values, layouts=grids))
        made = write_index(ranks, where)
        packs = tuple(
            PackRef(name=f"packs/{node:06d}-{number}.safetensors", nbytes=1 << 30, header_nbytes=4096,
                    header_digest=digest_of(b"")) for number in range(NODE)
        )  # fmt: skip
        part = Part(run=run.marker.run, writer=f"node{node}", epoch=1, step=1, seq=0, base=None, packs=packs,
                    index=made.index, leaves=made.refs)  # fmt: skip
        top = encode(part)
        name = part_name(epoch=1, step=1, seq=0, writer=part.writer)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join([top, *made.leaves]))
        refs.append(PartRef(name=name, nbytes=path.stat().st_size, top_nbytes=len(top), digest=digest_of(top)))
    run.commit(epoch=1, parent=None, step=1, parts=refs, meta={})


def one_after_another(run: Run) -> None:
    """Record and leaves of a part, then those of the next."""
    catalog_of([PartReader.of(run, ref, run.read_part(ref)) for ref in run.read_slot(1).parts])


def slow(folder: pathlib.Path, latency_ms: float) -> Faults:
    """The folder behind a store whose every request takes that long."""
    delay = Delay(latency_ms / 1000)
    return Faults(Disk(folder), [Rule(verb, delay, times=None) for verb in ("read", "size")] if latency_ms else [])


def sides(folder: pathlib.Path, latency_ms: float) -> tuple[str, dict[str, Turn]]:
    """Both ways to the catalog, and what is measured of them."""
    metric = f"{latency_ms:g} ms a request" if latency_ms else "folder"
    run = Run.open(slow(folder, latency_ms), create=False)

    def ours() -> Mapping[str, float]:
        watch = Stopwatch()
        read_catalog(run, 1)
        return {metric: watch.s()}

    def others() -> Mapping[str, float]:
        watch = Stopwatch()
        one_after_another(run)
        return {metric: watch.s()}

    return metric, {OURS: ours, "one part after another": others}


def requests(folder: pathlib.Path, ranks: int) -> str:
    """What ranks ask of the store, alone and together."""
    alone = slow(folder, 0)
    refs = Run.open(alone, create=False).read_slot(1).parts
    alone.calls.clear()
    read_catalog(Run.open(alone, create=False), 1)
    stores = [slow(folder, 0) for _ in range(ranks)]

    def be(fabric: Fabric) -> None:
        run = Run.open(stores[fabric.rank], create=False)
        known = read_parts_together(run.store, refs, fabric=fabric, agree_s=300, stall_s=300, budget_bytes=256 << 20)
        read_catalog(run, 1, known=known)

    on_threads(ranks, be, timeout_s=600)
    together = sum(len(store.calls) for store in stores)
    return f"{ranks} ranks: {ranks * len(alone.calls)} requests if each reads alone, {together} together"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", type=int, default=1000, help="parts of the step, a multiple of 8")
    parser.add_argument("--tensors", type=int, default=40, help="tensors of each of 8 pipeline stages")
    parser.add_argument("--latency-ms", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    args: argparse.Namespace = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        folder = pathlib.Path(name)
        make(folder, parts=args.parts, tensors=args.tensors)
        measured, ours = {}, {}
        for latency_ms in (0.0, args.latency_ms):
            metric, turns = sides(folder, latency_ms)
            measured |= take_turns(turns, rounds=args.rounds)
            ours[metric] = OURS
        facts = {"parts": args.parts, "tensors": 8 * args.tensors}
        report(__doc__.splitlines()[0], measured, ours=ours, facts=facts, as_json=args.json)
        print(requests(folder, args.ranks), file=sys.stderr)


if __name__ == "__main__":
    main()
