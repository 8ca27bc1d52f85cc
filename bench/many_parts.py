"""How long does a rank take to know what is in a step that a thousand nodes saved, and what does it ask the store for?

A step of ``--parts`` parts (one a node, eight ranks each), whose tensors are cut over all ranks of a pipeline stage, lies
in a folder. Asked is the catalog of the whole step, from the folder as it is and behind a store whose every request
takes ``--latency-ms``: perdure's reading of parts, many at once and each in one request, beside reading part after part,
record and leaves each for itself. Then ``--local`` ranks of a node, as processes, each want the catalog: alone, and with
what each part says read by one of them. Printed are ratios, requests of the store, and bytes.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from perdure.layout import EvenGrid
from perdure.state.index import RankIndex, SavedGrid, SavedPiece, SavedTensor, SavedValue, piece_key
from perdure.state.manifest import write_index
from perdure.store import Disk, PackRef, Part, PartRef, Run
from perdure.store.places import part_name
from perdure.store.records import digest_of, encode

if TYPE_CHECKING:
    pass

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
