"""How fast does a pack become durable?

`Disk.put` of a pack that lies in shared memory, as a save's does, against fio with the same settings on the same folder
and as many bytes (its fsync included), against one plain write and fsync, and against torch.distributed.checkpoint's
`save` of a tensor of that size. Each turn writes a new file and removes it afterwards, outside the time.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping

import numpy as np

from fio import fio_missing, fio_s, huge_pages, settings
from measure import Stopwatch, Turn, arguments, report, take_turns
from perdure.shm import Segment
from perdure.store.disk import Disk
from perdure.store.io_choice import Io
from perdure.store.remembered import choose_io

OURS = "perdure Disk.put"
WRITE_BYTES = 64 << 20


def put_turn(segment: Segment, folder: pathlib.Path, io: Io) -> Turn:
    disk = Disk(folder / "ours", io=io)
    disk.create("warm", b"")
    names = itertools.count()

    def turn() -> Mapping[str, float]:
        name = f"pack{next(names)}"
        os.sync()
        watch = Stopwatch()
        disk.put(name, [segment.view])
        taken = watch.s()
        disk.delete(name)
        return {"durable": taken}

    return turn


def fio_turn(nbytes: int, folder: pathlib.Path, io: Io, *more: str) -> Turn:
    def turn() -> Mapping[str, float]:
        file = folder / "fio"
        os.sync()
        taken = fio_s(file, nbytes, "--rw=write", "--end_fsync=1", *settings(io), *more)
        file.unlink()
        return {"durable": taken}

    return turn


def plain_turn(segment: Segment, folder: pathlib.Path) -> Turn:
    def turn() -> Mapping[str, float]:
        file = folder / "plain"
        os.sync()
        watch = Stopwatch()
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        for start in range(0, segment.nbytes, WRITE_BYTES):
            part = segment.view[start : start + WRITE_BYTES]
            assert os.write(fd, part) == len(part)
        os.fsync(fd)
        os.close(fd)
        taken = watch.s()
        file.unlink()
        return {"durable": taken}

    return turn


def dcp_turn(segment: Segment, folder: pathlib.Path) -> Turn:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.frombuffer(segment.view, dtype=torch.float32)

    def turn() -> Mapping[str, float]:
        place = folder / "dcp"
        os.sync()
        watch = Stopwatch()
        dcp.save({"tensor": tensor}, checkpoint_id=place)
        taken = watch.s()
        shutil.rmtree(place)
        return {"durable": taken}

    return turn


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the pack")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--io", type=Io.parse, help="how to write; what is chosen for the folder unless given")
    args = parser.parse_args()
    nbytes = args.mib << 20
    with (
        tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name,
        Segment.create(nbytes, label="bench pack") as segment,
    ):
        folder = pathlib.Path(name)
        io, source = (args.io, "given") if args.io else choose_io(name)
        segment.populate()
        rng = np.random.default_rng(0)
        for start in range(0, nbytes, 64 << 20):
            part = segment.view[start : start + (64 << 20)]
            part[:] = rng.integers(0, 256, len(part), dtype=np.uint8).data
        sides = {OURS: put_turn(segment, folder, io)}
        missing = fio_missing()
        if missing is None:
            sides["fio, the same settings"] = fio_turn(nbytes, folder, io)
            if huge_pages(2 * io.depth * io.block_bytes):
                sides["fio, in reserved huge pages"] = fio_turn(nbytes, folder, io, "--mem=mmaphuge")
        else:
            print(missing)
        sides["plain write + fsync"] = plain_turn(segment, folder)
        sides["dcp.save"] = dcp_turn(segment, folder)
        measured = take_turns(sides, rounds=args.rounds)
        facts = {"bytes": nbytes, "io": str(io), "chosen": source, "fio": missing or "there"}
        report(__doc__.splitlines()[0], measured, ours=dict.fromkeys(measured, OURS), facts=facts, as_json=args.json)
        sides.clear()
        del part


if __name__ == "__main__":
    main()
