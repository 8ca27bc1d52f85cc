"""A layout: for each named tensor, which rank holds which piece of it, and where.

Geometry only. A layout may be partial (what survivors hold) and may overlap; `Layout.check` is for those that must be
whole: their boxes tile each tensor, and what two ranks hold alike is declared by being the very same box.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from perdure.errors import LayoutError, StateMismatch
from perdure.layout.box import Box
from perdure.layout.element import element_bytes
from perdure.layout.pattern import Pattern, Pieces
from perdure.layout.piece import Piece
from perdure.layout.tiling import first_gap, first_overlap

__all__ = ["Layout", "Piece", "TensorLayout"]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Where the pieces of one tensor of ``shape`` are; ``dtype`` is torch's name without ``torch.``.

    Whatever sequence of pieces is given is kept as `Pieces`, which may be a rule instead of a list.
    """

    shape: tuple[int, ...]
    pieces: Sequence[Piece]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", Pieces.of(self.pieces))

    @property
    def placed(self) -> Pieces:
        """The pieces, as what they are: a pattern and its first rank."""
        assert isinstance(self.pieces, Pieces), "made so when the layout was"
        return self.pieces

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that holds a piece, in rising order."""
        return self.placed.ranks

    @property
    def whole(self) -> Box:
        """The box of the whole tensor."""
        return Box.whole(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return element_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor, each element counted once."""
        return self.whole.size * self.element_bytes

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        """The pieces that ``rank`` holds."""
        return self.placed.of_rank(rank)

    def own_shape(self, rank: int) -> tuple[int, ...] | None:
        """The least shape of the own tensor of ``rank`` that has all its places, or None if it holds no piece."""
        ends = [piece.place.hi for piece in self.of_rank(rank)]
        return tuple(map(max, zip(*ends, strict=True))) if ends else None

    def check(self, name: str = "") -> None:
        """Raise `LayoutError`, naming ``name`` and the boxes, unless the pieces tile the tensor.

        No box may leave the tensor, no element may be missing, and boxes may overlap only as replicas: the same box on
        different ranks. In a rank's own tensor no two places may overlap. Empty pieces are allowed anywhere inside.
        """
        if _fault(self.shape, self.placed.pattern) is None:  # whatever the first rank is
            return
        fault = _found_fault(self.shape, self.pieces)
        if fault is not None:
            sentence, boxes = fault
            raise LayoutError(f"tensor {name!r}: {sentence}", tensor=name, boxes=[box.as_json() for box in boxes])


class Layout(Mapping[str, TensorLayout]):
    """Names of tensors to `TensorLayout`; never changes, equal by value, hashable.

    >>> half = [Piece.alone(rank, Box((4 * rank,), (4 * rank + 4,))) for rank in range(2)]
    >>> layout = Layout({"w": TensorLayout((8,), tuple(half), "float32")})
    >>> layout.check()
    >>> layout.nbytes, layout.ranks
    (32, (0, 1))
    """

    def __init__(self, tensors: Mapping[str, TensorLayout]) -> None:
        self._tensors = dict(tensors)

    @classmethod
    def merge(cls, parts: Iterable[Mapping[str, TensorLayout]]) -> Layout:
        """The layout of all ``parts`` together, as when every rank tells what it holds.

        Raises `StateMismatch` if two parts give a tensor another shape or dtype.
        """
        seen: dict[str, list[TensorLayout]] = {}
        for part in parts:
            for name, tensor in part.items():
                seen.setdefault(name, []).append(tensor)
        for name, tensors in seen.items():
            forms = sorted({f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors})
            if len(forms) > 1:
                raise StateMismatch(f"ranks disagree on tensor {name!r}: {' and '.join(forms)}", shape=[name])
        return cls(
            {
                name: TensorLayout(tensors[0].shape, tuple(p for t in tensors for p in t.pieces), tensors[0].dtype)
                for name, tensors in seen.items()
            }
        )

    def __getitem__(self, name: str) -> TensorLayout:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Layout({len(self)} tensors, {len(self.ranks)} ranks, {self.nbytes} bytes)"

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self._tensors.items()))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that holds a piece, in rising order."""
        lying = {(tensor.placed.pattern, tensor.placed.first) for tensor in self._tensors.values()}
        return tuple(sorted({rank + first for pattern, first in lying for rank in pattern.ranks}))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors, replicas counted once."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def of_rank(self, rank: int) -> Layout:
        """The part of this layout that ``rank`` holds; tensors of which it holds nothing are left out."""
        held: dict[tuple[Pattern, int], Pieces] = {}  # what lies alike is looked at once, and lies alike afterwards
        found: dict[str, TensorLayout] = {}
        for name, tensor in self._tensors.items():
            key = tensor.placed.pattern, tensor.placed.first
            pieces = held.get(key)
            if pieces is None:
                pieces = held[key] = tensor.placed.part(rank)
            if len(pieces):
                found[name] = TensorLayout(tensor.shape, pieces, tensor.dtype)
        return Layout(found)

    def check(self) -> None:
        """Raise `LayoutError`, naming the tensor and the boxes, unless the pieces of every tensor tile it."""
        for name, tensor in self._tensors.items():
            tensor.check(name)


# The layers of a model repeat each other's layouts, so most tensors are proved by one look-up.
@lru_cache(maxsize=1024)
def _fault(shape: tuple[int, ...], pattern: Pattern) -> tuple[str, tuple[Box, ...]] | None:
    return _found_fault(shape, pattern.pieces)


def _found_fault(shape: tuple[int, ...], pieces: Iterable[Piece]) -> tuple[str, tuple[Box, ...]] | None:
    """What keeps the pieces from tiling their tensor, as a sentence and the boxes it is about."""
    whole = Box.whole(shape)
    holders: dict[Box, set[int]] = {}
    places: dict[int, list[Box]] = {}
    for piece in pieces:
        if piece.box not in whole:
            return f"box {piece.box} of rank {piece.rank} leaves the shape {list(shape)}", (piece.box,)
        if piece.box.empty:
            continue
        if piece.rank in holders.setdefault(piece.box, set()):
            return f"rank {piece.rank} holds box {piece.box} twice", (piece.box,)
        holders[piece.box].add(piece.rank)
        places.setdefault(piece.rank, []).append(piece.place)
    boxes = list(holders)
    overlap = first_overlap(boxes)
    if overlap is not None:
        one, other = (boxes[position] for position in overlap)
        who = f"rank {min(holders[one])} and {other} of rank {min(holders[other])}"
        return f"box {one} of {who} overlap without being replicas", (one, other)
    if sum(box.size for box in boxes) != whole.size:
        gap = first_gap(whole, boxes)
        assert gap is not None
        return f"no rank holds {gap}", (gap,)
    return _place_fault(places)


def _place_fault(places: Mapping[int, list[Box]]) -> tuple[str, tuple[Box, ...]] | None:
    for rank, held in places.items():
        if len({place.ndim for place in held}) > 1:
            return f"rank {rank} mixes flat and shaped places in its own tensor", tuple(held)
        overlap = first_overlap(held)
        if overlap is not None:
            one, other = (held[position] for position in overlap)
            return f"rank {rank} keeps two boxes at overlapping places {one} and {other}", (one, other)
    return None
