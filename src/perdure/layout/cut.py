"""How one dim of a tensor is cut into parts.

A rule turns an extent and a number of parts into the spans that each part holds, in the order in which the part's
own tensor holds them. A part may hold several spans (cyclic, fused) or one that is empty; two parts may hold the same
span (heads that are fewer than ranks), which is declared replication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perdure.errors import LayoutError

__all__ = ["BlockCyclic", "ByHead", "ByLayer", "Cut", "Even", "Fused", "Rule", "Span", "Uneven"]

Span = tuple[int, int]


class Rule(Protocol):
    """A way to cut a dim."""

    def spans(self, extent: int, parts: int) -> tuple[tuple[Span, ...], ...]:
        """The half-open spans of ``range(extent)`` that each of ``parts`` holds (at least one each, maybe empty)."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """Dim ``dim`` of a tensor is cut along ``axis`` of the mesh by ``rule``.

    Cuts apply in order, each to what the earlier ones left: FSDP over TP on one dim is ``Cut("tp", 0)`` and then
    ``Cut("dp", 0)``.
    """

    axis: str
    dim: int
    rule: Rule


@dataclass(frozen=True, slots=True)
class Even:
    """Parts of one size, rounded up; the last ones are smaller or empty, as `torch.chunk` and DTensor cut.

    >>> Even().spans(6, 4)
    (((0, 2),), ((2, 4),), ((4, 6),), ((6, 6),))
    """

    def spans(self, extent: int, parts: int) -> tuple[tuple[Span, ...], ...]:
        step = -(-extent // parts)
        return tuple(((min(p * step, extent), min((p + 1) * step, extent)),) for p in range(parts))


@dataclass(frozen=True, slots=True)
class Uneven:
    """Parts of the given sizes, in elements.

    >>> Uneven((3, 0, 2)).spans(5, 3)
    (((0, 3),), ((3, 3),), ((3, 5),))
    """

    sizes: tuple[int, ...]

    def spans(self, extent: int, parts: int) -> tuple[tuple[Span, ...], ...]:
        if len(self.sizes) != parts or sum(self.sizes) != extent or min(self.sizes) < 0:
            raise LayoutError(f"sizes {self.sizes} do not cut {extent} elements into {parts} parts")
        return tuple((span,) for span in _consecutive(self.sizes))


@dataclass(frozen=True, slots=True)
class BlockCyclic:
    """Blocks of ``block`` elements dealt to the parts in turn, as ScaLAPACK does.

    >>> BlockCyclic(2).spans(7, 2)
    (((0, 2), (4, 6)), ((2, 4), (6, 7)))
    """

    block: int

    def spans(self, extent: int, parts: int) -> tuple[tuple[Span, ...], ...]:
        if self.block < 1:
            raise LayoutError(f"a cyclic block needs at least one element, not {self.block}")
        dealt = [(start, min(start + self.block, extent)) for start in range(0, extent, self.block)]
        return tuple(tuple(dealt[part::parts]) or ((extent, extent),) for part in range(parts))


@dataclass(frozen=True, slots=True)
class ByHead:
    """Whole attention heads; when there are fewer heads than parts, neighbouring parts hold the same head.

    >>> ByHead(2).spans(8, 4)
    (((0, 4),), ((0, 4),), ((4, 8),), ((4, 8),))
    """

    heads: int

    def spans(self, extent: int, parts: int) -> tuple[tuple[Span, ...], ...]:
        width = _width(extent, self.heads, "heads")
        if self.heads >= parts:
            return tuple(((a * width, b * width),) for ((a, b),) in Even().spans(self.heads, parts))
        if parts % self.heads:
            raise LayoutError(f"{self.heads} heads cannot be shared out evenly among {parts} ranks")
        shared = parts // self.heads
        return tuple(((part // shared * width, (part // shared + 1) * width),) for part in range(parts))


@dataclass(frozen=True, slots=True)
class ByLayer:
    """Whole layers as balanced as can be, earlier parts first; ``chunks`` > 1 interleaves virtual pipeline stages.

    >>> ByLayer(5).spans(5, 2)
    (((0, 3),), ((3, 5),))
    >>> ByLayer(8, chunks=2).stages(2)
    (0, 0, 1, 1, 0, 0, 1, 1)
    """

    layers: int
    chunks: int = 1

    def spans(self, extent: int, parts: int) -> tuple[tuple[Span, ...], ...]:
        width = _width(extent, self.layers, "layers")
        dealt = [(a * width, b * width) for a, b in self._runs(parts)]
        return tuple(
            tuple(span for span in dealt[part::parts] if span[0] < span[1]) or ((extent, extent),)
            for part in range(parts)
        )

    def stages(self, parts: int) -> tuple[int, ...]:
        """Which part holds each layer: for models that keep each layer as tensors of its own."""
        return tuple(run % parts for run, (a, b) in enumerate(self._runs(parts)) for _ in range(a, b))

    def _runs(self, parts: int) -> list[Span]:
        few, more = divmod(self.layers, parts * self.chunks)
        return _consecutive(tuple(few + (run < more) for run in range(parts * self.chunks)))


@dataclass(frozen=True, slots=True)
class Fused:
    """Sections laid end to end (gate|up, q|k|v), each cut by a rule of its own; a part holds its share of each.

    >>> Fused(((4, Even()), (2, Even()))).spans(6, 2)
    (((0, 2), (4, 5)), ((2, 4), (5, 6)))
    """

    sections: tuple[tuple[int, Rule], ...]

    def spans(self, extent: int, parts: int) -> tuple[tuple[Span, ...], ...]:
        sizes = tuple(size for size, _ in self.sections)
        if sum(sizes) != extent:
            raise LayoutError(f"sections of {sizes} elements do not make up {extent}")
        held: list[list[Span]] = [[] for _ in range(parts)]
        for (start, stop), (_, rule) in zip(_consecutive(sizes), self.sections, strict=True):
            for part, spans in enumerate(rule.spans(stop - start, parts)):
                held[part].extend((start + a, start + b) for a, b in spans if a < b)
        return tuple(tuple(spans) or ((extent, extent),) for spans in held)


def _consecutive(sizes: tuple[int, ...]) -> list[Span]:
    spans: list[Span] = []
    start = 0
    for size in sizes:
        spans.append((start, start + size))
        start += size
    return spans


def _width(extent: int, units: int, what: str) -> int:
    if units < 1 or extent % units:
        raise LayoutError(f"a dim of {extent} elements does not hold {units} {what}")
    return extent // units
