"""Say what `bench/codecs.py` found: tables for people, one JSON object for programs, a page of ratios for the docs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from codec_measure import Sizes, Speed
from codec_verdict import Verdict
from perdure import _native

__all__ = ["as_json", "machine_words", "page", "size_rows", "speed_rows", "text", "verdict_rows"]

SIDES = ("bf16 cast", "zstd -3", "ZipNN", "XOR + zstd -3", "XOR + ZipNN")
OURS = ("mask", "ulp", "ulp small", "planes", "planes on base")
WHOLE = ("lossless", "rounding")

PREFACE = """\
Written by `./dev bench codecs --report FILE`; [3](../status/0003-codecs.md) says what was asked, and how far it came.
Sizes are raw bytes over the bytes of whole frames, header and digests included; H0 is the order-0 entropy of the signed
distance, "apart" puts each tensor into a frame of its own. Speeds are parts of the speed of one memcpy of the same
bytes, and of the peer's, in the same run: processor time on one thread, wall time where a frame has several."""

OF_MEMCPY = "Speeds as parts of one memcpy's:"
OF_PEER = "Speeds as multiples of a peer's, ZipNN's where a Z stands, else zstd -3's; both after an XOR if on a base:"

Row = tuple[str, ...]


def size_rows(sizes: Sequence[Sizes]) -> list[Row]:
    """One line a case: which bytes, how many changed, the order-0 entropy, and the ratio of every side."""
    head = ("bytes", "dtype", "elements", "changed", "H0 bits", *SIDES, *OURS, "ulp/H0", "apart/H0")
    rows: list[Row] = [head]
    for size in sizes:
        of_h0 = size.nbytes["ulp"] / size.h0_nbytes if "ulp" in size.nbytes and size.h0_nbytes else None
        apart = size.apart[0] / size.apart[1] if size.apart and size.apart[1] else None
        rows.append((
            size.case, size.dtype, f"{size.elements:,}", number(size.changed, 100, "{:.2f} %"), number(size.h0_bits),
            *(number(size.ratio(side)) for side in (*SIDES, *OURS)), number(of_h0), number(apart),
        ))  # fmt: skip
    return rows


def whole_rows(wholes: Sequence[Sizes]) -> list[Row]:
    """Whole states: the peers, what our codecs make of every tensor by itself, and with the weights' rounding."""
    rows: list[Row] = [("whole state", "bytes", *SIDES, "lossless", "weights as rounding")]
    rows += [(w.case, f"{w.raw_nbytes:,}", *(number(w.ratio(side)) for side in (*SIDES, *WHOLE))) for w in wholes]
    return rows


def speed_rows(speeds: Sequence[Speed], cell: Callable[[Speed], str]) -> list[Row]:
    """One line a case, one column a side; ``cell`` says what of its speed."""
    columns = list(dict.fromkeys(column(s) for s in speeds))
    by_case: dict[str, dict[str, str]] = {}
    for s in speeds:
        by_case.setdefault(s.case, {})[column(s)] = cell(s)
    rows = [(case, *(found.get(side, "-") for side in columns)) for case, found in by_case.items()]
    return [("encode, decode", *columns), *rows]


def column(speed: Speed) -> str:
    """The side as the head of a column; a frame is of `ulp` where there are distances, of `planes` elsewhere."""
    if speed.side.startswith("frame"):
        return f"frame, {speed.threads} thread{'s' * (speed.threads > 1)}"
    name = speed.side.removeprefix("XOR + ")
    return f"{name}, {speed.simd}" if speed.simd else name


def of_memcpy(s: Speed) -> str:
    return f"{s.memcpy_s / s.encode_s:.2f}, {s.memcpy_s / s.decode_s:.2f}"


def of_peer(s: Speed) -> str:
    peer = s.peer()
    if peer is None:
        return "-"
    forth_s, back_s = s.peers[peer]
    return f"{forth_s / s.encode_s:.1f}, {back_s / s.decode_s:.1f} {'Z' * ('ZipNN' in peer)}".rstrip()


def in_gbs(s: Speed) -> str:
    return f"{s.gbs(s.encode_s):.2f}, {s.gbs(s.decode_s):.2f}"


def verdict_rows(verdicts: Sequence[Verdict], *, gbs: bool) -> list[Row]:
    """One line an ask. Without ``gbs`` a speed is told as a part of a memcpy in the same run."""
    rows: list[Row] = [("ask", "met", "worst", "of memcpy", "where")]
    for v in verdicts:
        met = {True: "met", False: "NOT MET", None: "not measured"}[v.met]
        worst = "-" if v.worst is None or (v.unit == "GB/s" and not gbs) else f"{v.worst:.4f} {v.unit}"
        rows.append((v.ask, met, worst, number(v.memcpy), v.at or "-"))
    return rows


def machine_words() -> str:
    """The machine in neutral words: what a ratio can depend on."""
    levels = ", ".join(reversed(_native.simd_levels()))
    return f"{len(os.sched_getaffinity(0))} cores, {platform.machine()} with {levels}, load {os.getloadavg()[0]:.1f}"


def text(facts: Mapping[str, str], sizes: Sequence[Sizes], wholes: Sequence[Sizes], speeds: Sequence[Speed],
         verdicts: Sequence[Verdict]) -> str:  # fmt: skip
    """Everything for a terminal."""
    parts = ["\n".join(f"{name}: {value}" for name, value in facts.items())]
    parts += ["Sizes: raw bytes over coded bytes", aligned(size_rows(sizes)), aligned(whole_rows(wholes))]
    memcpy = sorted(s.gbs(s.memcpy_s) for s in speeds if s.threads == 1)
    if memcpy:
        parts += [f"Speeds in GB/s of raw input, best turns; one memcpy {memcpy[0]:.1f} to {memcpy[-1]:.1f}"]
        parts += [aligned(speed_rows(speeds, in_gbs)), OF_MEMCPY, aligned(speed_rows(speeds, of_memcpy))]
    if compared(speeds):
        parts += [OF_PEER, aligned(speed_rows(compared(speeds), of_peer))]
    return "\n\n".join([*parts, "Verdict", aligned(verdict_rows(verdicts, gbs=True))])


def page(facts: Mapping[str, str], sizes: Sequence[Sizes], wholes: Sequence[Sizes], speeds: Sequence[Speed],
         verdicts: Sequence[Verdict]) -> str:  # fmt: skip
    """The page for docs/reports: ratios only."""
    met = sum(v.met is True for v in verdicts)
    parts = [
        "# Codecs",
        PREFACE,
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        f"## Verdict: {met} of {len(verdicts)} met",
        markdown(verdict_rows(verdicts, gbs=False)),
        "## Sizes", markdown(size_rows(sizes)), markdown(whole_rows(wholes)),
        "## Speeds", OF_MEMCPY, markdown(speed_rows(speeds, of_memcpy)),
        *([OF_PEER, markdown(speed_rows(compared(speeds), of_peer))] if compared(speeds) else []),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def as_json(facts: Mapping[str, str], sizes: Sequence[Sizes], wholes: Sequence[Sizes], speeds: Sequence[Speed],
            verdicts: Sequence[Verdict]) -> dict[str, Any]:  # fmt: skip
    """Everything, as it was measured."""
    lists: dict[str, Sequence[Any]] = {"sizes": sizes, "whole_states": wholes, "speeds": speeds, "verdicts": verdicts}
    return {"facts": dict(facts), **{name: [asdict(item) for item in items] for name, items in lists.items()}}


def compared(speeds: Sequence[Speed]) -> list[Speed]:
    """The sides that a peer was measured for."""
    return [s for s in speeds if s.peers]


def number(value: float | None, times: float = 1, form: str = "{:.3f}") -> str:
    """``value`` for a table; a dash for none, few digits for much."""
    if value is None:
        return "-"
    return f"{times * value:,.0f}" if abs(value) >= 1000 else form.format(times * value)


def aligned(rows: Sequence[Row]) -> str:
    """Columns of equal width, words to the left and numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = [any(row[i][:1].isalpha() for row in rows[1:]) for i in range(len(widths))]
    return "\n".join("  ".join(cells(row, widths, left)).rstrip() for row in rows)


def cells(row: Row, widths: Sequence[int], left: Sequence[bool]) -> Iterable[str]:
    return (cell.ljust(w) if words else cell.rjust(w) for cell, w, words in zip(row, widths, left, strict=True))


def markdown(rows: Sequence[Row]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
