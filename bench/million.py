"""How long do a commit of a million tensors and a run of ten thousand commits keep one waiting?

Makes the runs straight through perdure's own writers, without a training: ``whole`` is 250 packs of 4000 tensors, each
whole on one rank; ``cut`` is 1000 tensors, each cut over 1000 ranks, eight to a part. Then every question is asked in a
process of its own: to open the run, to find one tensor by name, to validate the whole commit without reading data, with
the most memory that took; and to open a run of 10,000 commits. On a busy machine look at the seconds of processor time.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import msgspec

from perdure.codec import tile_digests
from perdure.layout import Box
from perdure.state.index import RankIndex, SavedGrid, SavedPiece, SavedTensor, piece_key
from perdure.state.manifest import write_index
from perdure.store import Commit, Disk, PackItem, PackRef, Part, PartRef, Run, plan_pack
from perdure.store.places import slot_name
from perdure.store.records import encode

SHAPES = ((), (1,), (2,), (3,), (4,), (8,), (2, 2), (1, 4), (2, 3))
NODE = 8

QUESTIONS = {
    "open the run": "from perdure.store import Run, open_store; run = Run.open(open_store(URL), create=False); "
    "{timed}; assert run.head() is not None",
    "one tensor": "from perdure.store import Run, open_store; from perdure.checkpoint.restoring import read_catalog; "
    "{timed}; run = Run.open(open_store(URL), create=False); catalog, packs = read_catalog(run, 1, names=[NAME]); "
    "tensor = catalog.tensors[NAME]; p = tensor.pieces[0]; packs[p.pack].index().entry(p.key)",
    "validate": "from perdure.upkeep.verifying import verify; from perdure.store import open_store; "
    "{timed}; found = verify(open_store(URL), data=False); assert not found.damages, found.damages[:3]",
}
ASKED_S = {"open the run": 0.3, "one tensor": 0.3, "validate": 20.0}


def make_whole(run: Run, *, n_packs: int, each: int) -> str:
    """A commit of ``n_packs`` ranks that hold ``each`` tensors whole; the name of one."""
    grids = tuple(SavedGrid((1,) * dims, rank, (0,) * dims) for dims in range(3) for rank in range(n_packs))
    parts = []
    for first in range(0, n_packs, NODE):
        ranks, packs, where = [], [], {}
        for rank in range(first, min(first + NODE, n_packs)):
            tensors, items = [], []
            for number in range(each):
                name, shape = f"model.layers.{number:05d}.experts.{rank:04d}.weight", SHAPES[number % len(SHAPES)]
                box = Box.whole(shape)
                piece = SavedPiece(piece_key(name, shape, box, None), box.lo, box.hi)
                layout = len(shape) * n_packs + rank
                tensors.append(SavedTensor(name=name, dtype="float32", shape=shape, pieces=(piece,), layout=layout))
                items.append(PackItem(piece.key, "float32", shape, box.size * 4))
                where[piece.key] = len(packs)
            packs.append(write_pack(run, items, writer=f"rank{rank}"))
            ranks.append(RankIndex(rank=rank, world=n_packs, tensors=tuple(tensors), values=(), layouts=grids))
        parts.append(write_part(run, ranks, packs, where, writer=f"node{first // NODE}"))
    run.commit(epoch=1, parent=None, step=1, parts=parts, meta={})
    return f"model.layers.{each // 2:05d}.experts.{n_packs // 2:04d}.weight"


def make_cut(run: Run, *, world: int, each: int) -> str:
    """A commit of ``each`` tensors that are cut into rows over ``world`` ranks; the name of one."""
    grids = (SavedGrid((world,), 0, (1,)), SavedGrid((world, 1), 0, (1, 0)))
    parts = []
    for first in range(0, world, NODE):
        ranks, packs, where = [], [], {}
        for rank in range(first, min(first + NODE, world)):
            tensors, items = [], []
            for number in range(each):
                name, tail = f"model.layers.{number:05d}.weight", ((), (2,), (3,))[number % 3]
                shape = (world, *tail)
                box = Box((rank, *(0 for _ in tail)), (rank + 1, *tail))
                piece = SavedPiece(piece_key(name, shape, box, None), box.lo, box.hi)
                tensors.append(SavedTensor(name=name, dtype="float32", shape=shape, pieces=(piece,), layout=len(tail)))
                items.append(PackItem(piece.key, "float32", box.shape, box.size * 4))
                where[piece.key] = len(packs)
            packs.append(write_pack(run, items, writer=f"rank{rank}"))
            ranks.append(RankIndex(rank=rank, world=world, tensors=tuple(tensors), values=(), layouts=grids))
        parts.append(write_part(run, ranks, packs, where, writer=f"node{first // NODE}"))
    run.commit(epoch=1, parent=None, step=1, parts=parts, meta={})
    return f"model.layers.{each // 2:05d}.weight"


def write_pack(run: Run, items: Sequence[PackItem], *, writer: str) -> PackRef:
    """A pack of zeros."""
    plan = plan_pack(items)
    data = [bytes(item.nbytes) for item in items]
    header = plan.render_header(b"".join(tile_digests(each) for each in data))
    return run.write_pack([b"".join(plan.chunks(header, data))], epoch=1, step=1, seq=0, writer=writer)


def write_part(
    run: Run, ranks: Sequence[RankIndex], packs: Sequence[PackRef], where: dict[str, int], *, writer: str
) -> PartRef:
    """The part of a node."""
    made = write_index(ranks, where)
    part = Part(
        run=run.marker.run,
        writer=writer,
        epoch=1,
        step=1,
        seq=0,
        base=None,
        packs=tuple(packs),
        index=made.index,
        leaves=made.refs,
    )
    return run.write_part(part, made.leaves)


def make_long(folder: pathlib.Path, *, n_commits: int) -> None:
    """A run of ``n_commits`` commits of one small tensor, which all refer to one part."""
    run = Run.open(Disk(folder), create=True)
    run.claim_epoch("bench")
    make_whole(run, n_packs=1, each=1)
    head = run.head()
    assert head is not None
    for slot in range(2, n_commits + 1):  # without the waits for the disk of a real commit
        made: Commit = msgspec.structs.replace(head, slot=slot, parent=slot - 1, step=slot)
        (folder / slot_name(slot)).write_bytes(encode(made))


def ask(question: str, url: str, name: str) -> tuple[float, float, float]:
    """Seconds that the question takes, imports left out, those of the processor, and the most memory in MiB."""
    code = QUESTIONS[question].replace("{timed}", "start, cpu = time.perf_counter(), time.process_time()")
    code = (
        f"import resource, time; URL, NAME = {url!r}, {name!r}; {code}; "
        "print(time.perf_counter() - start, time.process_time() - cpu, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, cpu, peak = map(float, done.stdout.split())
    return seconds, cpu, peak


def show(what: str, asked_s: float, seconds: float, cpu_s: float, peak_mib: float) -> None:
    """Print a line."""
    print(
        f"{what:28} {seconds:8.3f} s of {asked_s:4g} s asked ({cpu_s:.3f} s of processor), {peak_mib:.0f} MiB at most"
    )


def main() -> None:
    """Make, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000, help="tensors, or pieces, of a commit (1000000)")
    parser.add_argument("--commits", type=int, default=10_000, help="commits of the long run (10000)")
    parser.add_argument("--keep", metavar="DIR", help="make the runs in DIR, or use those that are there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = pathlib.Path(args.keep or scratch)
        names = {}
        for kind in ("whole", "cut"):
            there = home / kind / slot_name(1)
            whole = kind == "whole"
            n = max(int(args.entries**0.5), 1) if not whole else max(args.entries // 4000, 1)
            each = n if not whole else args.entries // n
            if there.exists():
                middle = f"model.layers.{each // 2:05d}"
                names[kind] = f"{middle}.experts.{n // 2:04d}.weight" if whole else f"{middle}.weight"
                continue
            run = Run.open(Disk(home / kind), create=True)
            run.claim_epoch("bench")
            names[kind] = make_whole(run, n_packs=n, each=each) if whole else make_cut(run, world=n, each=each)
        if not (home / "long").exists():
            make_long(home / "long", n_commits=args.commits)
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for kind, name in names.items():
            for question in QUESTIONS:
                show(f"{kind}: {question}", ASKED_S[question], *ask(question, str(home / kind), name))
        show(f"{args.commits} commits: open the run", 0.3, *ask("open the run", str(home / "long"), ""))


if __name__ == "__main__":
    main()
