"""Find how tensors of a checkpoint follow from one another, by looking at their bytes, never at their names.

Pure: blocks of one rank in, relations out. For each block the cheapest base is chosen among none, its own older self,
the rounding of a wider tensor, and what an optimizer makes of moments; where the block is large, by coding samples of
it with each. That costs a few hundred elements a block, and the samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from perdure.codec.stage import Bytes
from perdure.errors import CallError, NotCovered
from perdure.layout import Box
from perdure.state.again import Estimate, Findings, Kind, Priced, Wide, kinds_of, offers_again, still_good
from perdure.state.pairing import rounded_from
from perdure.state.predicting import NARROWER, PREDICTABLE, predict
from perdure.state.pricing import alone_bits, coded_nbytes, distance_bits, spread
from perdure.state.recipes import Offer, offers
from perdure.state.relations import Of, Previous, Relation, Rounding, sources
from perdure.state.sampling import Block, Group, groups_of

__all__ = ["base_of", "estimate", "relate", "trial"]

_FLOATS: Final = ("float64", "float32", "float16", "bfloat16")
_TRIED_ELEMENTS: Final = 1 << 18  # blocks of as many are worth coding samples of
_LEAST_GAIN: Final = 0.02
"""A relation to other tensors must save that part of a tensor: who reads it must read those too."""
_SOURCE_BITS: Final = 0.02
"""Of relations that are as good, the one with fewer sources."""


def relate(now: Mapping[str, Block], base: Mapping[str, Block]) -> dict[str, Relation]:
    """The relation of each block of ``now`` that should be coded on a base; those not named are best coded alone.

    ``now`` and ``base`` are the blocks of one rank in this step and in the step that deltas are made on (empty if there
    is none). The relations have a decoding order: no tensor's base needs the tensor itself.
    """
    found = estimate(now, base).estimates
    return {name: each.relation for name, each in found.items() if each.relation is not None}


def estimate(now: Mapping[str, Block], base: Mapping[str, Block], last: Findings | None = None) -> Findings:
    """The relations of `relate`, and what each block costs with its own and without; empty blocks are left out.

    ``last`` is what this returned for the save before with a base, or for the one before without. What it found is
    tried first, and other relations are searched only where that does not serve (`perdure.state.again`).
    """
    kinds = kinds_of(groups_of(now, base))
    names = {kind: group.names for kind, group in kinds.items()}
    costs: dict[str, float] = {}
    alone: dict[str, float] = {}
    chosen: dict[str, Relation] = {}
    for group in kinds.values():
        _alone_or_plain(group, costs, alone, chosen)
    without = dict(costs)
    known = last if last is not None and last.serve(names) else None
    wide: dict[tuple[str, Box], list[Group]] = defaultdict(list)
    for group in kinds.values():
        wide[group.dtype, group.box].append(group)
    made: list[Offer] = []
    kept: dict[str, Relation] = {}
    fresh: set[str] = set()
    searched: set[Kind] = set()
    for kind, group in kinds.items():
        if known is not None:
            again = offers_again(group, known.kept, wide)
            if still_good(group, known.priced, without, again):
                made += again
                kept.update({name: known.kept[name] for name in group.names if name in known.kept})
                kept.update({offer.name: offer.relation for offer in again})
                continue
        searched.add(kind)
        fresh.update(group.names)
        made += _roundings(group, wide)
        if group.dtype in PREDICTABLE:
            made += offers(group)
    _choose(made, costs, chosen, now, base, fresh)
    estimates = {
        name: Estimate(chosen.get(name), alone.get(name), costs[name] if name in alone and name in chosen else None)
        for name in costs
    }
    kept.update({name: relation for name, relation in chosen.items() if name in fresh})
    priced = {n: Priced(without[n], costs[n]) if known is None or n in fresh else known.priced[n] for n in costs}
    return Findings(estimates, kept, names, priced, frozenset(searched), 0 if known is None else known.reused + 1)


def base_of(name: str, relation: Relation, now: Mapping[str, Block], base: Mapping[str, Block]) -> Bytes:
    """The whole base of the tensor ``name``, uint8[n]. Of ``now[name]`` only dtype and box count.

    Raises: `NotCovered` if a source is not there or has another box; `CallError` if its dtype does not fit.
    """
    block = now[name]
    for of in sources(name, relation):
        found = (now if of.step == "this" else base).get(of.name)
        if found is None or found.box != block.box:
            raise NotCovered(
                f"the base of {name} is computed from {of.name} of the {of.step} step, which has no block {block.box}",
                tensor=of.name,
                box=str(block.box),
            )
        if found.dtype != block.dtype and not isinstance(relation, Rounding):
            raise CallError(f"{of.name} is {found.dtype}, {name} is {block.dtype}", tensor=of.name)
    return _part_of(name, relation, now, base, slice(0, now[name].box.size))


def trial(name: str, relation: Relation | None, now: Mapping[str, Block], base: Mapping[str, Block]) -> tuple[int, int]:
    """Code samples of a block on the base that ``relation`` gives it, or alone: their bytes before and after."""
    block = now[name]
    at = spread(block.box.size)
    data = np.concatenate([_bytes(block, part) for part in at])
    below = None if relation is None else np.concatenate([_part_of(name, relation, now, base, part) for part in at])
    return data.size, coded_nbytes(data, below, block.dtype)


def _alone_or_plain(
    group: Group, costs: dict[str, float], alone: dict[str, float], chosen: dict[str, Relation]
) -> None:
    """What the blocks of ``group`` cost without other tensors: alone, or on their older selves."""
    if group.dtype not in _FLOATS:  # nothing predicts these; their codec sees whether the older self is of use
        costs.update(dict.fromkeys(group.names, 0.0))
        chosen.update({name: Previous() for name in group.names if group.base is not None})
        return
    bits = alone_bits(group.now, group.dtype)
    plain = np.full_like(bits, np.inf) if group.base is None else distance_bits(group.now, group.base, group.dtype)
    for name, without, on in zip(group.names, bits.tolist(), plain.tolist(), strict=True):
        costs[name], alone[name] = min(without, on), without
        if on <= without:
            chosen[name] = Previous()


def _choose(
    made: list[Offer],
    costs: dict[str, float],
    chosen: dict[str, Relation],
    now: Mapping[str, Block],
    base: Mapping[str, Block],
    fresh: Collection[str],
) -> None:
    """Take the offers that save most, as long as no block needs itself; large ones of ``fresh`` blocks are tried."""
    useful = [offer for offer in made if offer.bits < costs[offer.name] * (1 - _LEAST_GAIN)]
    useful.sort(key=lambda offer: offer.bits + _SOURCE_BITS * len(sources(*offer[:2])) - costs[offer.name])
    for name, relation, bits in useful:
        if bits < costs[name] * (1 - _LEAST_GAIN) and not _needs(name, relation, chosen):
            tried = name in fresh and now[name].box.size >= _TRIED_ELEMENTS
            if tried and not _wins(name, relation, chosen.get(name), now, base):
                continue
            costs[name], chosen[name] = bits, relation


def _roundings(group: Group, wide: Wide) -> list[Offer]:
    """Offers for blocks that are the rounding of a wider block with the same box."""
    made = []
    for dtype in NARROWER.get(group.dtype, ()):
        for other in wide.get((dtype, group.box), ()):
            owners = rounded_from(group.now, group.dtype, other.now, dtype)
            found = {row: owner for row, owner in enumerate(owners) if owner is not None}
            if not found:
                continue
            rows, masters = list(found), other.now[list(found.values())]
            flat = masters.view(np.uint8).reshape(-1)
            base = predict(Rounding("-"), [flat], dtype=group.dtype, wide=dtype)
            bits = distance_bits(group.now[rows], base.view(group.now.dtype).reshape(len(rows), -1), group.dtype)
            made += [
                Offer(group.names[row], Rounding(other.names[found[row]]), float(cost))
                for row, cost in zip(rows, bits, strict=True)
            ]
    return made


def _needs(name: str, relation: Relation, chosen: Mapping[str, Relation]) -> bool:
    """Whether the base of ``name`` would need ``name`` itself."""
    ahead = [of.name for of in sources(name, relation) if of.step == "this"]
    seen: set[str] = set()
    while ahead:
        need = ahead.pop()
        if need == name:
            return True
        if need not in seen and need in chosen:
            seen.add(need)
            ahead += [of.name for of in sources(need, chosen[need]) if of.step == "this"]
    return False


def _wins(
    name: str, relation: Relation, other: Relation | None, now: Mapping[str, Block], base: Mapping[str, Block]
) -> bool:
    """Whether samples of the block coded with ``relation`` are smaller than with ``other`` (alone, if that is None)."""
    return trial(name, relation, now, base)[1] < trial(name, other, now, base)[1] * (1 - _LEAST_GAIN)


def _part_of(name: str, relation: Relation, now: Mapping[str, Block], base: Mapping[str, Block], part: slice) -> Bytes:
    inputs = [_bytes(_found(of, now, base), part) for of in sources(name, relation)]
    wide = now[relation.of].dtype if isinstance(relation, Rounding) else None
    return predict(relation, inputs, dtype=now[name].dtype, wide=wide)


def _found(of: Of, now: Mapping[str, Block], base: Mapping[str, Block]) -> Block:
    return (now if of.step == "this" else base)[of.name]


def _bytes(block: Block, part: slice) -> Bytes:
    return block.data[part.start * block.itemsize : part.stop * block.itemsize]
