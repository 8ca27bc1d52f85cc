"""Make blocks of a step smaller, bit for bit: frames that stand alone, or on a base that follows from other blocks.

A 16-bit tensor that is the rounding of a wider one is found by looking at bytes (`perdure.state.relating`); its frame
has a base that is computed from the wider one, and costs next to nothing. With blocks of an earlier step, what an
optimizer made of them is a base too. Everything else is grouped by bytes and entropy-coded (`planes`). What does not
get smaller by a fiftieth stays as it is, so that it can be read where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perdure.codec import encode_parts, frame_info
from perdure.errors import CallError
from perdure.state.again import Estimate, Findings
from perdure.state.pricing import codec_for
from perdure.state.relating import base_of, estimate, trial
from perdure.state.relations import Relation
from perdure.state.sampling import Block

__all__ = ["CODINGS", "Coded", "Coding", "checked_coding"]

CODINGS: Final = ("raw", "auto", "lossless")
"""How the tensors of a step can be stored: as they are, as what is durable soonest, as what is smallest."""

_LEAST_GAIN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Coded:
    """A block as it is to be stored: a frame, and how its base is computed if it has one."""

    frame: bytes
    relation: Relation | None
    codec: str


class Coding:
    """Codes the blocks of one writer, by key; keeps no frame. ``base`` are its blocks in an earlier step, or empty.

    ``last`` is what was found for the save before, which is tried first; ``findings`` is that for the next one.
    """

    def __init__(self, blocks: Mapping[str, Block], base: Mapping[str, Block], last: Findings | None = None) -> None:
        self._blocks, self._base = blocks, base
        self.findings = estimate(blocks, base, last)

    @property
    def estimates(self) -> dict[str, Estimate]:
        """What each block costs, with a relation and without."""
        return self.findings.estimates

    def trial(self, key: str, *, on: bool) -> tuple[int, int]:
        """Code a few places of a block, on its base or alone: their bytes before and after."""
        return trial(key, self.estimates[key].relation if on else None, self._blocks, self._base)

    def code(self, key: str, *, on: bool) -> Coded | None:
        """The frame of a block, on its base or alone; None if it should be stored as it is.

        Releases the interpreter's lock in the heavy parts.
        """
        block = self._blocks[key]
        relation = self.estimates[key].relation if on else None
        base = None if relation is None else base_of(key, relation, self._blocks, self._base)
        codec = "planes" if base is None else codec_for(block.dtype)
        parts = encode_parts(block.data, codec=codec, base=base, dtype=block.dtype, shape=block.box.shape)
        if sum(map(len, parts)) > block.data.size * (1 - _LEAST_GAIN):
            return None
        return Coded(b"".join(parts), None if frame_info(parts[0]).base is None else relation, codec)


def checked_coding(coding: str) -> str:
    """``coding`` if it is one; raises `CallError` with what there is."""
    if coding not in CODINGS:
        raise CallError(f"coding is {coding!r}; there are: {', '.join(map(repr, CODINGS))}", coding=repr(coding))
    return coding
