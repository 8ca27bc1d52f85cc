"""A save whose tensors are coded: what each is stored as, and the packs, made in turn so that only one is in memory
beside the step itself.

The base of a delta lies in memory too, as it was committed: each block of it that is used is compared with the digests
of that commit first, for what has rotted there no reader could ever compute again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from perdure.checkpoint.policy import LEAST_BYTES, Choice, Offered, Policy, Way
from perdure.checkpoint.unchanged import Entry, Stored, StoredTensor
from perdure.codec import tile_digests
from perdure.layout import Box
from perdure.state.again import Estimate
from perdure.state.coding import Coding
from perdure.state.index import RankIndex
from perdure.state.relations import Previous, Relation, Rounding, sources
from perdure.state.sampling import Block
from perdure.state.save import PACK_TENSORS
from perdure.store import PackItem, plan_pack
from perdure.store.counted import Anew

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Base", "CodedSave", "NewPack", "Wanted"]

_PACK_BYTES: Final = 1 << 30  # of tensors before they are coded


@dataclass(frozen=True, slots=True)
class Wanted:
    """A block that a base is computed from: its key and dtype, and where it lies if that is in the base step."""

    key: str
    dtype: str
    at: StoredTensor | None


@dataclass(frozen=True, slots=True)
class NewPack:
    """A pack to write: how many bytes each key takes up in it, and its bytes, which can be read as often as a store
    tries.

    ``coded`` are the keys that are frames; ``bases`` says of those that have a base how it is computed, and from which
    blocks; ``notes`` say of keys why they are stored as they are.
    """

    keys: dict[str, int]
    chunks: Iterable[Buffer]
    coded: frozenset[str] = frozenset()
    bases: dict[str, tuple[Relation, tuple[Wanted, ...]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Base:
    """A full save that is durable and still in memory: its step, what of it is ``stored`` without a base, its
    segments.
    """

    step: int
    stored: Stored
    segments: Sequence[tuple[RankIndex, memoryview]] = field(repr=False)
    entries: Mapping[str, Entry] = field(repr=False)

    def within(self, last: Stored | None) -> dict[str, StoredTensor]:
        """The tensors of it that a save after ``last`` may use: that commit names their packs, or is the base itself.

        So one commit answers for all that the part of the save will refer to.
        """
        if last is None or last.run != self.stored.run:
            return {}
        own = last.slot == self.stored.slot
        return {key: each for key, each in self.stored.tensors.items() if own or each.pack.name in last.packs}


class CodedSave:
    """How one save of a writer is stored. ``why_full`` says why no base is used, if none is."""

    def __init__(
        self,
        entries: Sequence[Entry],
        indexes: Sequence[RankIndex],
        *,
        policy: Policy,
        goal: str,
        base: Base | None = None,
        usable: Mapping[str, StoredTensor] | None = None,
        why_full: str,
    ) -> None:
        self._entries = {each.entry.key: each for each in entries}
        self._policy, self._goal = policy, goal
        self._blocks = _blocks(self._entries, indexes)
        self._raw_nbytes = sum(each.data.size for each in self._blocks.values())
        self._usable = usable or {}
        self.base = base if self._usable else None
        self._below: dict[str, Block] = {}
        if self.base is not None:
            indexes = [index for index, _ in self.base.segments]
            found = _blocks(self.base.entries, indexes)
            self._below = {key: block for key, block in found.items() if key in self._usable}
        self._coding = Coding(self._blocks, self._below, policy.findings.get(self.base is not None))
        policy.found(self._coding.findings, on=self.base is not None)
        self._choices: dict[str, Choice] = {}
        self._offers: dict[str, Offered] = {}
        self.why_full = why_full

    def decide(self, written: Sequence[Entry]) -> bool:
        """Choose for what is to be ``written``; the other entries of the step may be what bases are computed from.

        False if the base is of no use, for the reason in ``why_full``: then this save should be a full one.
        """
        keys = {each.entry.key for each in written}
        self._offers = {key: self._offered(key) for key in self._blocks if key in keys}
        self._measure()
        self._choices = self._policy.choose(self._offers.values(), self._goal)
        if self.base is None:
            return True
        size = sum(each.nbytes for each in self._choices.values()) / max(self._raw_nbytes, 1)
        used = self._used()
        why = self._policy.due(size) if used else "its tensors are no smaller on their base"
        if why is None:
            why = self._damage(used)
        self.why_full = why or ""
        return why is None

    def note(self) -> str:
        """How the save as a whole is stored, in words."""
        size = sum(each.nbytes for each in self._choices.values()) / max(self._raw_nbytes, 1)
        what = f"a full save, because {self.why_full}" if self.base is None else f"a delta on step {self.base.step}"
        return f"{self._goal}: {what}; {size:.2f} of raw expected{self._policy.told}"

    def packs(self) -> Iterator[NewPack]:
        """The packs of what `decide` was asked about."""
        batch: list[str] = []
        nbytes = 0
        for key in self._offers:
            size = self._blocks[key].data.size
            if batch and (nbytes + size > _PACK_BYTES or len(batch) == PACK_TENSORS):
                yield self._pack(batch)
                batch, nbytes = [], 0
            batch.append(key)
            nbytes += size
        if batch:
            yield self._pack(batch)
        self._policy.learn()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _offered(self, key: str) -> Offered:
        block = self._blocks[key]
        found = self._coding.estimates.get(key, Estimate(None, None, None))
        offered = Offered(key, block.dtype, block.data.size, found)
        if offered.nbytes < LEAST_BYTES or found.alone is not None:
            return offered
        bits = {way: self._tried(key, way) for way in offered.ways}  # no estimate: elements that are no floats
        return replace(offered, estimate=Estimate(found.relation, bits["alone"], bits.get("on")))

    def _tried(self, key: str, way: Way) -> float:
        before, after = self._coding.trial(key, on=way == "on")
        return 8 * self._blocks[key].itemsize * after / max(before, 1)

    def _measure(self) -> None:
        """How fast are codecs that were not used yet? Twice: what happens once in a process does not count."""
        large = [each for each in self._offers.values() if each.nbytes >= LEAST_BYTES]
        for offered, way in self._policy.unknown(large).values():
            self._coding.trial(offered.key, on=way == "on")
            began = time.perf_counter()
            before, after = self._coding.trial(offered.key, on=way == "on")
            self._policy.coded(replace(offered, nbytes=before), way, after, time.perf_counter() - began)
        self._policy.learn()

    def _used(self) -> set[str]:
        """The blocks of the base step that the choices need."""
        needed: set[str] = set()
        for key, choice in self._choices.items():
            relation = self._offers[key].estimate.relation
            if choice.way == "on" and relation is not None:
                needed |= {of.name for of in sources(key, relation) if of.step == "base"}
        return needed

    def _damage(self, keys: Collection[str]) -> str | None:
        assert self.base is not None
        for key in keys:
            each = self.base.entries[key]
            if tile_digests(each.data, each.index.tile_bytes) != self._usable[key].digests:
                return f"its base in memory is damaged ({key} does not hash to its digest)"
        return None

    def _pack(self, keys: Sequence[str]) -> NewPack:
        items: list[PackItem] = []
        data: list[Buffer] = []
        digests: list[bytes] = []
        made = NewPack({}, ())
        coded: set[str] = set()
        for key in keys:
            each, choice, offered = self._entries[key], self._choices[key], self._offers[key]
            began = time.perf_counter()
            frame = None if choice.way == "raw" else self._coding.code(key, on=choice.way == "on")
            if frame is None:
                if choice.way != "raw":
                    self._policy.coded(offered, choice.way, offered.nbytes, time.perf_counter() - began)
                if offered.nbytes >= LEAST_BYTES:
                    made.notes[key] = choice.why if choice.way == "raw" else "raw: no codec made it smaller"
                items.append(PackItem(key, each.entry.dtype, each.entry.shape, each.entry.nbytes))
                data.append(each.data)
                digests.append(each.digests)
                continue
            size = len(frame.frame)
            self._policy.coded(offered, choice.way, size, time.perf_counter() - began)
            items.append(PackItem(key, "uint8", (size,), size))
            data.append(frame.frame)
            digests.append(tile_digests(frame.frame))
            coded.add(key)
            made.notes[key] = self._why(key, frame.codec, frame.relation, size)
            if frame.relation is not None:
                made.bases[key] = frame.relation, self._wanted(key, frame.relation)
        plan = plan_pack(items)
        header = plan.render_header(b"".join(digests))
        return replace(
            made,
            keys={item.key: item.nbytes for item in items},
            chunks=Anew(partial(plan.chunks, header, data)),
            coded=frozenset(coded),
        )

    def _wanted(self, key: str, relation: Relation) -> tuple[Wanted, ...]:
        return tuple(
            Wanted(of.name, self._blocks[of.name].dtype, None)
            if of.step == "this"
            else Wanted(of.name, self._below[of.name].dtype, self._usable[of.name])
            for of in sources(key, relation)
        )

    def _why(self, key: str, codec: str, relation: Relation | None, size: int) -> str:
        offered = self._offers[key]
        alone = offered.bits("alone")
        text = f"{codec}, {size / offered.nbytes:.3f} of raw"
        if relation is None:
            return text
        match relation:
            case Rounding():
                on = f"the rounding of {relation.of}"
            case Previous():
                on = "its value"
            case _:
                others = dict.fromkeys(of.name for of in sources(key, relation) if of.name != key)
                on = "its value" + (f", {', '.join(others)}" if others else ", faded")
        if not isinstance(relation, Rounding) and self.base is not None:
            on += f" at step {self.base.step}"
        whole = 8 * self._blocks[key].itemsize
        return f"{text} on {on}" + ("" if alone is None else f" (alone about {alone / whole:.2f})")


def _blocks(entries: Mapping[str, Entry], indexes: Sequence[RankIndex]) -> dict[str, Block]:
    return {
        piece.key: Block(tensor.dtype, Box(piece.lo, piece.hi), np.frombuffer(entries[piece.key].data, np.uint8))
        for index in indexes
        for tensor in index.tensors
        for piece in tensor.pieces
    }
