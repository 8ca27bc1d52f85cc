"""Whether the ranks of a save hold the names that they must hold: all of them, or those of a stage that was declared.

Pure; every rank looks at the same offers, and raises the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perdure.errors import StateMismatch
from perdure.state.save import Offer
from perdure.state.scopes import Among

__all__ = ["check_names"]

_Names = list[dict[str, Among | None]]
"""For each rank the names that it holds, and among whom."""


def check_names(offers: Sequence[Offer]) -> None:
    """Raise `StateMismatch`, naming a tensor or value and the rank that lacks it, unless every rank holds what it must.

    A name that a rank holds without a word must be on all ranks, else none of them could restore what was saved. The
    names of a stage must be on all ranks of that stage, and on no other stage unless both say that they share them.
    """
    tensors = [{each.name: each.among for each in one.tensors if not each.local} for one in offers]
    values = [{key: among for key, local, among in one.values if not local} for one in offers]
    for kind, names in (("tensor", tensors), ("value", values)):
        _check_everywhere(kind, names)
        for entry in sorted({among.entry for one in names for among in one.values() if among and among.of}):
            _check_stages(kind, entry, names)
    for entry in sorted({among.entry for one in tensors for among in one.values() if among and among.of}):
        _check_all_there(entry, tensors)


def _check_everywhere(kind: str, names: _Names) -> None:
    holder: dict[str, int] = {}
    for rank, mine in enumerate(names):
        for name, among in mine.items():
            if among is None:
                holder.setdefault(name, rank)
    for rank, mine in enumerate(names):
        missing = sorted(holder.keys() - mine.keys())
        if missing:
            name = missing[0]
            raise StateMismatch(
                f"the {kind} {name} is in the state of rank {holder[name]} but not of rank {rank}; save the same names "
                "on every rank, and give what differs by intent as perdure.RankLocal(...), or the layers of a pipeline "
                "as perdure.Stage(...)",
                missing=missing,
            )


def _check_stages(kind: str, entry: str, names: _Names) -> None:
    first: dict[int, tuple[int, set[str]]] = {}  # of each stage the first rank, and what it holds
    owner: dict[str, tuple[int, int, bool]] = {}  # of each name the stage, the rank, and whether it is shared
    for rank, mine in enumerate(names):
        for index, held in _stages_of(mine, entry).items():
            known, others = first.setdefault(index, (rank, set(held)))
            if others != held.keys():
                lacking = sorted(others ^ held.keys())
                name = lacking[0]
                has, lacks = (known, rank) if name in others else (rank, known)
                raise StateMismatch(
                    f"the {kind} {name} is in the state of rank {has} but not of rank {lacks}, and both are stage "
                    f"{index} of {entry}; ranks of one stage hold the same names",
                    missing=lacking,
                )
            for name, shared in held.items():
                stage, other, both = owner.setdefault(name, (index, rank, shared))
                if stage != index and not (both and shared):
                    raise StateMismatch(
                        f"the {kind} {name} is in stage {stage} of {entry} (rank {other}) and in stage {index} (rank "
                        f"{rank}); give perdure.Stage names= that count layers as the whole model does, and say with "
                        "tied= or shared= what stages hold alike",
                        unexpected=[name],
                    )


def _check_all_there(entry: str, names: _Names) -> None:
    """All ranks count the same stages, and each stage is on some rank."""
    counts: dict[int, int] = {}
    there: set[int] = set()
    for rank, mine in enumerate(names):
        for among in mine.values():
            if among and among.of and among.entry == entry:
                counts.setdefault(among.of, rank)
                there.add(among.stage)
    if len(counts) > 1:
        (one, rank), (other, who) = sorted(counts.items())[:2]
        raise StateMismatch(f"{entry} has {one} stages on rank {rank} but {other} on rank {who}; count them alike")
    gone = sorted(set(range(next(iter(counts)))) - there)
    if gone:
        raise StateMismatch(
            f"no rank holds a tensor of stage {gone[0]} of the {next(iter(counts))} stages of {entry}; give every "
            "stage that has tensors to a rank, and count no others",
            missing=[f"stage {each} of {entry}" for each in gone],
        )


def _stages_of(mine: Mapping[str, Among | None], entry: str) -> dict[int, dict[str, bool]]:
    """For each stage of ``entry`` that a rank holds: its names, and whether other stages may have them too."""
    found: dict[int, dict[str, bool]] = {}
    for name, among in _staged(mine):
        if among.entry == entry:
            found.setdefault(among.stage, {})[name] = among.shared
    return found


def _staged(mine: Mapping[str, Among | None]) -> Iterator[tuple[str, Among]]:
    for name, among in mine.items():
        if among is not None and among.of:
            yield name, among
