"""How fast is a pack read and verified, from a cold disk and from the page cache?

`Disk.read_digested` of a whole pack into memory that is there already, every tile digested and compared. Cold: against
fio with the same settings, and a plain read without digests. Warm: against `safetensors` loading the same bytes and
copying them to where they are wanted, unverified. The cache is emptied before every cold turn: all of it where that is
allowed, else of the file.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from fio import fio_missing, fio_s, huge_pages
from measure import Stopwatch, Turn, arguments, report, take_turns
from perdure.codec import TILE_BYTES, tile_digests
from perdure.store import PackItem, parse_header, plan_pack
from perdure.store.disk import Disk
from perdure.store.io_choice import Io
from perdure.store.remembered import choose_io

OURS = "perdure, verified"
DEPTH = 8  # tiles of 4 MiB that `Disk` has in flight
READ_BYTES = 64 << 20
Bytes = npt.NDArray[np.uint8]


def make_pack(disk: Disk, nbytes: int, tensors: int) -> bytes:
    """Write ``pack`` of ``nbytes`` in ``tensors`` tensors, so that most begin at no page; return its tile digests."""
    rng = np.random.default_rng(0)
    each = (nbytes // tensors - 192) // 4 * 4
    values = [rng.integers(0, 256, each, dtype=np.uint8) for _ in range(tensors)]
    plan = plan_pack([PackItem(f"t{i}", "float32", (each // 4,), each) for i in range(tensors)], tile_bytes=TILE_BYTES)
    digests = b"".join(tile_digests(value, TILE_BYTES) for value in values)
    disk.put("pack", plan.chunks(plan.render_header(digests), [value.data for value in values]))
    return digests


def forget(file: pathlib.Path) -> str:
    """Empty the page cache, at least of ``file``; say how."""
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
        return "drop_caches"
    except OSError:  # not root, or a container
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        return "posix_fadvise"


def verified(disk: Disk, target: Bytes) -> Callable[[], None]:
    """Read every tensor of the pack to its place in ``target`` and compare each tile."""

    def read() -> None:
        index = parse_header(lambda start, n: disk.read("pack", start=start, nbytes=n), disk.size("pack") or 0)
        at = 0
        for entry in index.entries:
            into = target[at : at + entry.nbytes]
            found = disk.read_digested(
                "pack", start=entry.start, nbytes=entry.nbytes, into=into.data, tile_bytes=index.tile_bytes
            )
            first = 16 * entry.first_tile
            assert found == index.digests[first : first + len(found)], entry.key
            at += entry.nbytes

    return read


def plain(file: pathlib.Path, target: Bytes) -> Callable[[], None]:
    def read() -> None:
        fd = os.open(file, os.O_RDONLY)
        done = 0
        while got := os.preadv(fd, [target[done : done + READ_BYTES].data], done):
            done += got
        os.close(fd)

    return read


def safetensors_copy(file: pathlib.Path, target: Bytes) -> Callable[[], None]:
    from safetensors.numpy import load_file

    def read() -> None:
        at = 0
        for name, value in load_file(file).items():
            if not name.startswith("__pad"):
                flat = value.reshape(-1).view(np.uint8)
                np.copyto(target[at : at + flat.size], flat)
                at += flat.size

    return read


def timed(metric: str, before: Callable[[], object], work: Callable[[], object]) -> Turn:
    def turn() -> Mapping[str, float]:
        before()
        watch = Stopwatch()
        work()
        return {metric: watch.s()}

    return turn


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the pack")
    parser.add_argument("--tensors", type=int, default=8, help="tensors in it")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--io", type=Io.parse, help="as for writing; what is chosen for the folder unless given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        io, source = (args.io, "given") if args.io else choose_io(name)
        disk, file = Disk(name, io=io), pathlib.Path(name) / "pack"
        make_pack(disk, args.mib << 20, args.tensors)
        nbytes = file.stat().st_size
        how = forget(file)
        target = np.empty(nbytes, np.uint8)
        target[:] = 0  # its pages are there before the first turn
        cold = {
            OURS: timed("cold", lambda: forget(file), verified(disk, target)),
            "plain read, unverified": timed("cold", lambda: forget(file), plain(file, target)),
        }
        missing = fio_missing()
        if missing is None:
            whole = nbytes // TILE_BYTES * TILE_BYTES
            options = ["--rw=read", "--ioengine=io_uring" if io.engine == "uring" else "--ioengine=libaio"]
            options += [f"--direct={int(io.direct)}", f"--bs={TILE_BYTES}", f"--iodepth={DEPTH}", "--invalidate=1"]

            def fio_turn(*more: str) -> Mapping[str, float]:
                forget(file)
                return {"cold": fio_s(file, whole, *options, *more) * nbytes / whole}

            cold["fio, the same settings"] = fio_turn
            if huge_pages(2 * DEPTH * TILE_BYTES):
                cold["fio, in reserved huge pages too"] = lambda: fio_turn("--mem=mmaphuge")
        else:
            print(missing)
        measured = take_turns(cold, rounds=args.rounds)
        warm_up = plain(file, target)
        warm = {
            OURS: timed("warm", warm_up, verified(disk, target)),
            "safetensors load + copy": timed("warm", warm_up, safetensors_copy(file, target)),
            "plain read, unverified": timed("warm", warm_up, plain(file, target)),
        }
        measured |= take_turns(warm, rounds=args.rounds)
        facts = {"bytes": nbytes, "io": str(io), "chosen": source, "emptied": how, "fio": missing or "there"}
        report(__doc__.splitlines()[0], measured, ours=dict.fromkeys(measured, OURS), facts=facts, as_json=args.json)


if __name__ == "__main__":
    main()
