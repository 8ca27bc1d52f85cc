"""What is in a committed step: its catalog, from all of its parts, and its packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.errors import FormatRefused
from perdure.state.ahead import read_ahead
from perdure.state.catalogs import Patterns, catalog_of
from perdure.state.disk_pack import DiskPack
from perdure.state.index import Catalog
from perdure.state.part_reader import PartReader
from perdure.state.source import PackSource
from perdure.store import Run
from perdure.store.places import slot_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["read_catalog"]


def read_catalog(
    run: Run,
    slot: int,
    *,
    names: Sequence[str] | None = None,
    rank: int | None = None,
    known: Mapping[str, Buffer] | None = None,
    moved: Callable[[int], None] = lambda parts: None,
) -> tuple[Catalog, dict[str, PackSource]]:
    """The catalog of a commit, and for each pack its source in the store.

    ``names`` (names and patterns with ``*``) reads of the index what is needed for those tensors alone. With ``rank``
    what is of one rank alone is left out, but for that whose state rank ``rank`` may take. ``known`` are parts that
    somebody else has read. ``moved`` is called after every part.
    """
    commit = run.read_slot(slot)
    if not commit.parts:
        raise FormatRefused(
            f"{slot_name(slot)} is refused: it names no part; use another copy or an older step", file=slot_name(slot)
        )
    packs: dict[str, PackSource] = {}
    needs = None if names is None else Patterns(names).needs

    def readers() -> Iterator[PartReader]:
        for view, ref, part in read_ahead(run, commit.parts, needs=needs, known=known):
            if (part.epoch, part.step) != (commit.epoch, commit.step):
                raise FormatRefused(
                    f"{ref.name} is of another save than {slot_name(slot)}; use another copy or an older step",
                    file=ref.name,
                )
            packs.update({pack.name: DiskPack(run, pack) for pack in part.packs})
            yield PartReader.of(view, ref, part)
            moved(1)

    return catalog_of(readers(), wanted=names, rank=rank), packs
