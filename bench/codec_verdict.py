"""What is asked of the codecs, and whether the figures of a run meet it: each ask with its worst case by name.

Pure: sizes and speeds in, asks out. An ask that nothing was measured for says so; it is not met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from codec_measure import Sizes, Speed

__all__ = ["Verdict", "judge", "whole_states"]

OF_H0, TENSOR_NBYTES = 0.93, 1024
ULP_GBS: Mapping[str, tuple[float, float]] = {"avx512": (3.0, 4.5), "avx2": (1.0, 1.5)}
KINDS_14 = ("weights", "master", "m", "v")
FAR = 10  # steps between the states of which whole states are asked


@dataclass(frozen=True, slots=True)
class Verdict:
    """One ask, the worst of what was measured for it, and the case where that was."""

    ask: str
    worst: float | None
    at: str
    met: bool | None
    """None: not measured"""
    unit: str = "x"
    memcpy: float | None = None
    """the same as a part of a memcpy, where ``worst`` is GB/s"""


def judge(sizes: Sequence[Sizes], speeds: Sequence[Speed], wholes: Sequence[Sizes]) -> list[Verdict]:
    """All asks: sizes on traces, then speeds, then whole states."""
    pairs = [size for size in sizes if size.origin is not None and size.dtype == "bfloat16" and "ulp" in size.nbytes]
    states = [size for size in sizes if size.origin is not None]
    return [
        most("ulp, of order-0 entropy (less 1 KiB)", OF_H0, [(of_h0(s), s.case) for s in pairs]),
        most("ulp, tensors apart, of their entropies (less 1 KiB each)", OF_H0, [(of_apart(s), s.case) for s in pairs]),
        *(below(pairs, "ulp", other) for other in ("mask", "XOR + zstd -3", "XOR + ZipNN")),
        at_least_peer("planes, ratio of ZipNN's", states, "planes", "ZipNN"),
        at_least_peer("planes on base, ratio of XOR + ZipNN's (fp32)",
                      [s for s in states if s.dtype == "float32"], "planes on base", "XOR + ZipNN"),
        *speed_asks(speeds),
        *(whole_ask(wholes, name, ask) for name, ask in (("2+4+4+4 bytes", 1.6), ("4+4+4 bytes", 1.35))),
    ]  # fmt: skip


def speed_asks(speeds: Sequence[Speed]) -> Iterable[Verdict]:
    """The asks of speeds: of kernels on one thread, at each level that was measured."""
    kernels = [s for s in speeds if s.simd and not s.side.startswith("frame")]
    best = next((level for level in ("avx512", "avx2", "scalar") if any(s.simd == level for s in kernels)), "")
    for level, asked in ULP_GBS.items():
        mine = [s for s in kernels if (s.side, s.simd) == ("ulp", level) and s.origin is not None]
        for way, ask in zip(("encode", "decode"), asked, strict=True):
            yield slowest(f"ulp, {way}, {level}", ask, mine, lambda s, way=way: took(s, way))  # type: ignore[misc]
    masks = [s for s in kernels if (s.side, s.simd) == ("mask", best)]
    deltas = [s for s in masks if s.origin is not None and s.dtype == "bfloat16"]
    for where, mine in (("16-bit traces", deltas), ("all others", [s for s in masks if s not in deltas])):
        for way in ("encode", "decode"):
            yield least(f"mask, {way} of memcpy's, {where}", 0.8, [(s.memcpy_s / took(s, way), s.case) for s in mine])
    alone = [s for s in kernels if (s.side, s.simd) == ("planes", best) and s.origin is not None and not s.on_base]
    for number, (way, ask) in enumerate((("encode", 5.0), ("decode", 3.5))):
        figures = [(s.peers["ZipNN"][number] / took(s, way), s.case) for s in alone if "ZipNN" in s.peers]
        yield least(f"planes, {way} of ZipNN's", ask, figures)
    above = [*alone, *masks, *(s for s in kernels if s.side == "ulp" and s.origin is not None)]
    others = [s for s in kernels if s not in above]
    for level in ULP_GBS:
        mine = [s for s in others if s.simd == level]
        yield slowest(f"round trip of everything else, {level}", 1.0, mine, lambda s: s.encode_s + s.decode_s)


def whole_states(sizes: Sequence[Sizes]) -> list[Sizes]:
    """Weights, master, m and v of one moment together, and without the weights, from sizes of the same pair.

    ``lossless`` is `ulp` for weights and the smaller of `planes` with and without base for the rest; ``rounding``
    counts nothing for weights that were found to be the rounding of their master.
    """
    made = []
    moments: dict[tuple[str, str, int, int], dict[str, Sizes]] = {}
    for size in sizes:
        if size.origin is not None:
            o = size.origin
            moments.setdefault((o.trace, o.stage, o.since, o.step), {})[o.kind] = size
    for (trace, stage, since, step), kinds in moments.items():
        if set(kinds) != set(KINDS_14):
            continue
        for name, parts in (("2+4+4+4 bytes", KINDS_14), ("4+4+4 bytes", KINDS_14[1:])):
            chosen = [kinds[kind] for kind in parts]
            sides = set.intersection(*(set(part.nbytes) for part in chosen))
            nbytes = {side: sum(part.nbytes[side] for part in chosen) for side in sides}
            rest = sum(min(part.nbytes["planes"], part.nbytes["planes on base"]) for part in chosen[-3:])
            nbytes["lossless"] = rest + sum(part.nbytes["ulp"] for part in chosen[:-3])
            origin = kinds["weights"].origin
            if origin is not None and origin.rounding:
                nbytes["rounding"] = rest
            made.append(
                Sizes(f"{name}, {since} to {step} ({stage}{trace})", "mixed", chosen[0].elements,
                      sum(part.raw_nbytes for part in chosen), None, None, nbytes, None, origin)
            )  # fmt: skip
    return made


def of_h0(size: Sizes) -> float:
    """The frame of `ulp`, less what a tensor may cost, as a part of the order-0 entropy."""
    return part_of(size.nbytes["ulp"] - TENSOR_NBYTES, size.h0_nbytes or 0.0)


def of_apart(size: Sizes) -> float:
    """The same over the tensors one by one."""
    nbytes, entropy, tensors = size.apart or (size.nbytes["ulp"], size.h0_nbytes or 0.0, 1)
    return part_of(nbytes - TENSOR_NBYTES * tensors, entropy)


def part_of(nbytes: float, entropy_nbytes: float) -> float:
    """What ``nbytes`` are of the entropy; nothing is no more than nothing, anything more than nothing is too much."""
    if nbytes <= 0:
        return 0.0
    return nbytes / entropy_nbytes if entropy_nbytes else float("inf")


def took(speed: Speed, way: str) -> float:
    return speed.encode_s if way == "encode" else speed.decode_s


def below(pairs: Sequence[Sizes], side: str, other: str) -> Verdict:
    """Whether ``side`` is smaller than ``other`` on every pair."""
    figures = [(s.nbytes[other] / s.nbytes[side], s.case) for s in pairs if other in s.nbytes]
    return told(f"{side} below {other}: its bytes over ours", min(figures, default=None), lambda worst: worst > 1)


def at_least_peer(ask: str, sizes: Sequence[Sizes], side: str, peer: str) -> Verdict:
    return least(ask, 1.0, [(s.nbytes[peer] / s.nbytes[side], s.case) for s in sizes if {side, peer} <= set(s.nbytes)])


def most(ask: str, limit: float, figures: Sequence[tuple[float, str]]) -> Verdict:
    """At most ``limit`` everywhere."""
    return told(f"{ask} <= {limit}", max(figures, default=None), lambda worst: worst <= limit)


def least(ask: str, limit: float, figures: Sequence[tuple[float, str]]) -> Verdict:
    """At least ``limit`` everywhere."""
    return told(f"{ask} >= {limit}", min(figures, default=None), lambda worst: worst >= limit)


def told(ask: str, worst: tuple[float, str] | None, holds: Callable[[float], bool]) -> Verdict:
    """The verdict by the worst figure and where it was; not measured if there is none."""
    return Verdict(ask, None, "", None) if worst is None else Verdict(ask, *worst, holds(worst[0]))


def slowest(ask: str, limit: float, speeds: Sequence[Speed], took_s: Callable[[Speed], float]) -> Verdict:
    """At least ``limit`` GB/s everywhere, told beside the memcpy of the same bytes."""
    if not speeds:
        return Verdict(f"{ask} >= {limit} GB/s", None, "", None, "GB/s")
    worst = min(speeds, key=lambda s: s.gbs(took_s(s)))
    gbs, name = worst.gbs(took_s(worst)), f"{worst.side}: {worst.case}"
    return Verdict(f"{ask} >= {limit} GB/s", gbs, name, gbs >= limit, "GB/s", worst.memcpy_s / took_s(worst))


def whole_ask(wholes: Sequence[Sizes], name: str, limit: float) -> Verdict:
    """The ratio of whole states in the late stage, ten steps apart."""
    late = [w for w in wholes if w.case.startswith(name) and w.origin is not None and w.origin.stage == "decay"]
    far = [w for w in late if w.origin is not None and w.origin.step - w.origin.since == FAR]
    figures = [(w.raw_nbytes / w.nbytes.get("rounding", w.nbytes["lossless"]), w.case) for w in far]
    return least(f"whole state over {name}, ten steps apart, late", limit, figures)
