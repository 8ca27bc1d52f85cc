"""Which saved names the ranks of a restore want between them, where no rank wants all: stages of a pipeline.

Each rank says it in one bit a name, so that the ranks together find what nobody wants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.errors import StateMismatch
from perdure.state.index import Catalog
from perdure.state.match import Match
from perdure.state.scopes import OnResize

__all__ = ["check_claims", "claims"]


def claims(catalog: Catalog, matches: Sequence[Match], value_keys: Sequence[tuple[str, bool, OnResize]]) -> str:
    """The names of ``catalog`` that are not rank-local, in their order: a bit for each that this rank wants, in hex."""
    tensors = {each.saved.name for each in matches if each.saved.rank is None}
    values = {key for key, local, _ in value_keys if not local}
    bits = ["1" if name in (tensors if of_tensor else values) else "0" for name, of_tensor in _names(catalog)]
    return f"{int(''.join(bits) or '0', 2):x}"


def check_claims(catalog: Catalog, told: Sequence[str | None]) -> None:
    """Raise `StateMismatch` that lists what no rank wants. ``told``: of each rank its claims; None claims everything.

    >>> check_claims(Catalog(1, {}, values={"lr": 1, "seed": 7}), ["1", "2"])  # "2" is the first of the two
    """
    if any(each is None for each in told):
        return
    claimed = 0
    for each in told:
        claimed |= int(each or "0", 16)
    names = [name for name, _ in _names(catalog)]
    bits = f"{claimed:b}".zfill(len(names))
    unwanted = [name for name, bit in zip(names, bits[-len(names) :], strict=True) if bit == "0"] if names else []
    if unwanted:
        shown = ", ".join(unwanted[:6]) + (f" and {len(unwanted) - 6} more" if len(unwanted) > 6 else "")
        raise StateMismatch(
            f"the checkpoint does not fit this state: in the checkpoint but on no rank here: {shown}; restore all that "
            "was saved, on some stage each, or read a part of it with perdure.load(url, names=[...])",
            unexpected=unwanted,
        )


def _names(catalog: Catalog) -> Iterator[tuple[str, bool]]:
    """The shared names in an order that all ranks have alike, and whether each is that of a tensor."""
    yield from ((name, True) for name in sorted(catalog.tensors))
    yield from ((key, False) for key in sorted(catalog.values))
