"""Which saved names the ranks of a restore want between them, where no rank wants all: stages of a pipeline.

Each rank says it in two bits a name, so that the ranks together find what nobody wants, and what all were to want.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set

from perdure.errors import StateMismatch
from perdure.state.index import Catalog
from perdure.state.match import Match
from perdure.state.scopes import OnResize

__all__ = ["check_claims", "claims"]


def claims(
    catalog: Catalog,
    matches: Sequence[Match],
    value_keys: Sequence[tuple[str, bool, OnResize]],
    *,
    apart: Set[str] = frozenset(),
) -> tuple[str, str]:
    """What this rank wants of the shared names of ``catalog``, and what of it all ranks are to want: not ``apart``.

    Each a text of hex digits, with a bit for each name, in an order that all ranks have alike.
    """
    tensors = {each.saved.name for each in matches if each.saved.rank is None}
    live = {each.saved.name: each.item.name for each in matches if each.saved.rank is None}
    values = {key for key, local, _ in value_keys if not local}
    names = list(_names(catalog))
    wanted = [name in (tensors if of_tensor else values) for name, of_tensor in names]
    everyones = [
        want and name not in apart and not (of_tensor and live[name] in apart)
        for want, (name, of_tensor) in zip(wanted, names, strict=True)
    ]
    return _hex(wanted), _hex(everyones)


def check_claims(catalog: Catalog, told: Sequence[tuple[str, str] | None]) -> None:
    """Raise `StateMismatch` for what no rank wants, and for what one wants as everyone's and another does not.

    ``told``: what each rank claims; None claims everything, as everyone's.

    >>> catalog = Catalog(1, {}, values={"lr": 1, "seed": 7})
    >>> check_claims(catalog, [("2", "0"), ("1", "0")])
    >>> check_claims(catalog, [("3", "2"), ("1", "0")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    perdure.errors.StateMismatch: lr is in the state of rank 0 but not of rank 1, and no stage's; give all of them ...
    """
    if all(each is None for each in told):
        return
    names = [name for name, _ in _names(catalog)]
    everything = (1 << len(names)) - 1
    bits = [(everything,) * 2 if each is None else (int(each[0], 16), int(each[1], 16)) for each in told]
    claimed = everyones = 0
    for mine, of_all in bits:
        claimed, everyones = claimed | mine, everyones | of_all
    for rank, (mine, _) in enumerate(bits):
        lacking = _chosen(names, everyones & ~mine)
        if lacking:
            has = next(other for other, (_, of_all) in enumerate(bits) if _chosen(names, of_all & ~mine))
            raise StateMismatch(
                f"{lacking[0]} is in the state of rank {has} but not of rank {rank}, and no stage's; give all of them "
                "the same",
                missing=lacking,
            )
    unwanted = _chosen(names, everything & ~claimed)
    if unwanted:
        shown = ", ".join(unwanted[:6]) + (f" and {len(unwanted) - 6} more" if len(unwanted) > 6 else "")
        raise StateMismatch(
            f"the checkpoint does not fit this state: in the checkpoint but on no rank here: {shown}; restore all that "
            "was saved, on some stage each, or read a part of it with perdure.load(url, names=[...])",
            unexpected=unwanted,
        )


def _hex(bits: Collection[bool]) -> str:
    return f"{int(''.join('1' if bit else '0' for bit in bits) or '0', 2):x}"


def _chosen(names: Sequence[str], bits: int) -> list[str]:
    """The names whose bit is set; that of the first name is the highest."""
    return [name for name, bit in zip(names, f"{bits:b}".zfill(len(names)), strict=True) if bit == "1"] if names else []


def _names(catalog: Catalog) -> Iterator[tuple[str, bool]]:
    """The shared names in an order that all ranks have alike, and whether each is that of a tensor."""
    yield from ((name, True) for name in sorted(catalog.tensors))
    yield from ((key, False) for key in sorted(catalog.values))
