"""How many bytes does a parameter's whole state take, when tensors are coded on what follows from other tensors?

A small GPT is really trained (`bench/codec_traces.py`), or read with --from; at an early, a middle and a late step its
state is coded on that of a step before: bfloat16 copy (2 bytes a parameter), float32 master, m and v (4 each). All
tensors are frames of their own, headers counted; the relations of `predicted` are found by looking at bytes
(`perdure.state.relating`). Columns are bytes a parameter of the kind; `bf16 cast` loses bits and stands there as what
people do instead. Ratios say over which bytes: 14 is everything, 12 the state of FSDP2 with float32 parameters (no
copy). With --find N the search is timed on N tensors, with --speed the arithmetic and the round trip with the coder.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from codec_traces import GPT, Recipe, read_trace, train
from perdure import _native
from perdure.codec import DTYPES, TILE_BYTES, decode, encode
from perdure.layout import Box
from perdure.state.predicting import predict_into
from perdure.state.pricing import codec_for
from perdure.state.relating import base_of, relate
from perdure.state.relations import Relation, Rounding, Update, sources
from perdure.state.sampling import Block

try:
    import zstandard
except ImportError:
    zstandard = None
try:
    from zipnn import ZipNN
except ImportError:
    ZipNN = None

Bytes = npt.NDArray[np.uint8]
Blocks = dict[str, Block]
KINDS = {"copy": ("weights", "bfloat16"), "master": ("master", "float32"), "m": ("m", "float32"), "v": ("v", "float32")}
DISTANCES = (1, 2, 5, 10, 50)


def stages(steps: int) -> dict[str, int]:
    """The steps that deltas are made on: soon after the warm-up, in the middle, and late in the schedule."""
    return {"early": steps // 15, "middle": steps * 7 // 15, "late": steps * 49 // 60}


def blocks_of(states: dict[str, npt.NDArray[np.generic]], step: int, shapes: list[tuple[int, ...]]) -> Blocks:
    """The state after ``step``, a block a tensor, named by its kind and number."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    made = {}
    for kind, (name, dtype) in KINDS.items():
        for i, part in enumerate(np.split(states[f"{name}_{step}"], ends)):
            made[f"{kind}.{i}"] = Block(dtype, Box.whole(shapes[i]), np.ascontiguousarray(part).view(np.uint8))
    return made


def framed(name: str, block: Block, base: Bytes | None) -> int:
    """Bytes of the frame of ``block``, which is decoded again and compared."""
    codec = "planes" if base is None else codec_for(block.dtype)
    frame = encode(block.data, codec=codec, base=base, dtype=block.dtype, shape=block.box.shape)
    assert decode(frame, base=base).tobytes() == block.data.tobytes(), name
    return len(frame)


def columns(relations: dict[str, Relation], now: Blocks, base: Blocks) -> dict[str, Callable[[str], int]]:
    """What is compared: bytes of a block by its name."""

    def predicted(name: str) -> int:
        below = base_of(name, relations[name], now, base) if name in relations else None
        return framed(name, now[name], below)

    def zstd(name: str) -> int:
        return len(zstandard.ZstdCompressor(level=3).compress(now[name].data))

    def zipnn(name: str) -> int:
        block = now[name]
        coder = ZipNN(bytearray_dtype=block.dtype, input_format="byte", threads=1)
        return min(len(coder.compress(bytearray(block.data))), block.data.size)

    made: dict[str, Callable[[str], int]] = {
        "raw": lambda name: now[name].data.size,
        "bf16 cast": lambda name: 2 * now[name].box.size,
    }
    if zstandard is not None:
        made["zstd -3"] = zstd
    if ZipNN is not None:
        made["ZipNN"] = zipnn
    made["no base"] = lambda name: framed(name, now[name], None)
    made["delta"] = lambda name: framed(name, now[name], base[name].data)
    made["predicted"] = predicted
    return made


def compare(title: str, now: Blocks, base: Blocks) -> None:
    start = time.perf_counter()
    relations = relate(now, base)
    took = time.perf_counter() - start
    sides = columns(relations, now, base)
    count = sum(block.box.size for name, block in now.items() if name.startswith("master."))
    sizes = {
        (kind, side): sum(of(name) for name in now if name.split(".")[0] == kind) / count
        for kind in KINDS
        for side, of in sides.items()
    }
    print(f"\n{title}: {len(now)} tensors, relations found in {took:.2f} s")
    print(f"  {'bytes a parameter':18}" + "".join(f"{side:>11}" for side in sides))
    for kind in KINDS:
        print(f"  {kind:18}" + "".join(f"{sizes[kind, side]:11.3f}" for side in sides))
    for over, kinds in (("of 14 bytes", list(KINDS)), ("of 12 bytes", ["master", "m", "v"])):
        whole = {side: sum(sizes[kind, side] for kind in kinds) for side in sides}
        print(f"  {'ratio ' + over:18}" + "".join(f"{whole['raw'] / whole[side]:10.2f}x" for side in sides))
    for kind in KINDS:
        counts: dict[str, int] = {}
        for name in now:
            if name.split(".")[0] == kind:
                how = relations.get(name)
                terms = f" of {len(how.terms)} terms" if isinstance(how, Update) else ""
                words = "alone" if how is None else type(how).__name__ + terms
                counts[words] = counts.get(words, 0) + now[name].box.size
        ranked = sorted(counts.items(), key=lambda item: -item[1])
        print(f"  {kind:18} " + ", ".join(f"{words} {100 * part / count:.1f} %" for words, part in ranked))


def find(states: dict[str, npt.NDArray[np.generic]], old: int, new: int, count: int, shapes: int) -> None:
    """Time the search among ``count`` tensors of few shapes, cut out of one state."""
    rows = count // 4
    each = states[f"master_{old}"].size // rows
    lengths = [max(64, each - i % shapes) for i in range(rows)]
    made: list[Blocks] = []
    for step in (old, new):
        state = {}
        for kind, (name, dtype) in KINDS.items():
            for i, length in enumerate(lengths):
                part = np.ascontiguousarray(states[f"{name}_{step}"][i * each : i * each + length])
                state[f"{kind}.{i}"] = Block(dtype, Box.whole((part.size,)), part.view(np.uint8))
        made.append(state)
    base, now = made
    relate(dict(list(now.items())[:40]), base)
    wall, cpu = time.perf_counter(), time.process_time()
    relations = relate(now, base)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    right = sum(
        isinstance(how := relations.get(f"master.{i}"), Update) and {t.moment.name for t in how.terms} == {f"m.{i}"}
        for i in range(rows)
    )
    print(
        f"\nsearch among {len(now)} tensors of {len(set(lengths))} shapes, {old} to {new}: {wall:.2f} s"
        f" ({cpu:.2f} s of processor time); {right} of {rows} masters on their own moments"
    )


def seconds(work: Callable[[], object], rounds: int) -> float:
    best = 9e9
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def speed(title: str, now: Blocks, base: Blocks, rounds: int) -> None:
    """Predict, then code, tile by tile as a writer does, and back; one thread, memory warm."""
    relations = relate(now, base)
    i = max((n for n in now if n.startswith("master.")), key=lambda n: now[n].box.size).split(".")[1]
    copied, source = np.zeros(TILE_BYTES, np.uint8), np.ones(TILE_BYTES, np.uint8)
    memcpy = TILE_BYTES / seconds(lambda: np.copyto(copied, source), rounds) / 1e9
    print(f"\n{title}, {_native.simd()}, a tile, one thread: GB/s of the tensor's bytes (memcpy {memcpy:.1f})")
    print(f"  {'':34}{'predict':>9}{'forth':>9}{'back':>9}{'round trip':>12}")
    for kind, (_, dtype) in KINDS.items():
        name = f"{kind}.{i}"
        if name not in relations:
            continue
        how, n = relations[name], TILE_BYTES // 4
        inputs = [repeated((now if of.step == "this" else base)[of.name], n) for of in sources(name, how)]
        data = repeated(now[name], n)
        forth, back, compute = ways(how, inputs, data, dtype)
        whole, (made, there, again) = data.size / 1e9, (seconds(work, rounds) for work in (compute, forth, back))
        words = f"{kind}: {type(how).__name__}" + (f" of {len(how.terms)} terms" if isinstance(how, Update) else "")
        print(f"  {words:34}{whole / made:9.2f}{whole / there:9.2f}{whole / again:9.2f}{whole / (there + again):12.2f}")


def ways(how: Relation, inputs: list[Bytes], data: Bytes, dtype: str) -> tuple[Callable[[], object], ...]:
    """Encode with prediction, decode with prediction, and the prediction alone."""
    below, out, shape = np.empty_like(data), np.empty_like(data), (data.size // DTYPES[dtype].itemsize,)
    wide = "float32" if isinstance(how, Rounding) else None

    def compute() -> None:
        predict_into(below, how, inputs, dtype=dtype, wide=wide)

    def forth() -> bytes:
        compute()
        return encode(data, codec=codec_for(dtype), base=below, dtype=dtype, shape=shape)

    def back() -> None:
        compute()
        decode(frame, base=below, out=out)

    frame = forth()
    return forth, back, compute


def repeated(block: Block, n: int) -> Bytes:
    """The first ``n`` elements of ``block``, over and over if it has less."""
    words = block.data.view(f"u{block.itemsize}")
    return np.ascontiguousarray(np.resize(words, n)).view(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Recipe):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.add_argument(
        "--from", type=Path, dest="saved", help="a .npz that bench/codec_traces.py wrote, of this --width"
    )
    parser.add_argument(
        "--distances", type=int, nargs="+", default=list(DISTANCES), help="steps between base and state"
    )
    parser.add_argument("--find", type=int, metavar="N", help="time the search among N tensors, too")
    parser.add_argument("--shapes", type=int, default=1, help="of how many shapes those are")
    parser.add_argument("--speed", action="store_true", help="measure speeds, too")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    bases = stages(options.steps)
    at = sorted({base + more for base in bases.values() for more in (0, *options.distances)})
    shapes = [tuple(param.shape) for param in GPT(options.layers, options.width).parameters()]
    recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
    made = train(recipe, dict.fromkeys(at, True)) if options.saved is None else read_trace(options.saved)
    states = {f"{name}_{s.step}": getattr(s, name) for s in made.at.values() for name, _ in KINDS.values()}
    missing = [name for name, found in (("zstandard", zstandard), ("zipnn", ZipNN)) if found is None]
    count = sum(int(np.prod(shape)) for shape in shapes)
    print(f"{count} parameters, {options.steps} steps; not installed: {', '.join(missing) or 'nothing'}")
    for stage, old in bases.items():
        for more in options.distances:
            title = f"{stage}, step {old} to {old + more}"
            compare(title, blocks_of(states, old + more, shapes), blocks_of(states, old, shapes))
    late = bases["late"]
    if options.find:
        for more in (options.distances[0], options.distances[-1]):
            find(states, late, late + more, options.find, options.shapes)
    if options.speed:
        for more in (options.distances[0], options.distances[-1]):
            now, base = blocks_of(states, late + more, shapes), blocks_of(states, late, shapes)
            speed(f"late, step {late} to {late + more}", now, base, options.rounds)


if __name__ == "__main__":
    main()
