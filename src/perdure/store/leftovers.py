"""What dead writers left in a store beside blobs: temporaries in a folder, cut uploads in an object store.

No reader sees them; they only take room. What is younger than a day may belong to a living writer and stays.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from perdure.store.api import Store

__all__ = ["Sweeps", "sweeper_of"]


@runtime_checkable
class Sweeps(Protocol):
    """A store that can find its leftovers. Raises `CallError` where the kind of store keeps no list of them."""

    def leftovers(self) -> list[str]:
        """What is there and a day old, for people."""
        ...

    def sweep(self) -> list[str]:
        """Remove what `leftovers` lists; return it."""
        ...


def sweeper_of(store: Store) -> Sweeps | None:
    """``store``, or the one inside its wrappers, if it can have leftovers."""
    inner: object | None = store
    while inner is not None:
        if isinstance(inner, Sweeps):
            return inner
        inner = getattr(inner, "store", None)
    return None
