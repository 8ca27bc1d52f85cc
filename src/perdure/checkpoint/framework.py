"""What the checkpoint system needs of a tensor library; `perdure.adapters.torch` has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

from perdure.checkpoint.copying import Copier
from perdure.state.index import Catalog
from perdure.state.items import Capture, TensorItem
from perdure.state.scopes import OnResize

__all__ = ["Framework", "Target"]


class Target(Protocol):
    """Where a restore writes; made by `Framework.prepare`."""

    @property
    def apart(self) -> Set[str]:
        """Names that other ranks need not hold: of stages, of flat slices. If there are any, others hold others."""
        ...

    @property
    def alike(self) -> Mapping[str, str]:
        """Names of tensors to names of others that must have been saved with the same value: they are one here."""
        ...

    @property
    def anew(self) -> Set[str]:
        """Keys of rank-local state that begins anew in a world of another size, whatever was saved there."""
        ...

    def items(self, catalog: Catalog, *, rank: int, world: int) -> tuple[TensorItem, ...]:
        """The tensors to fill."""
        ...

    def value_keys(self) -> tuple[tuple[str, bool, OnResize], ...]:
        """``(key, local, on_resize)`` of the values that are wanted."""
        ...

    def finish(self, catalog: Catalog, *, rank: int, world: int) -> None:
        """All tensors are filled on all ranks: hand over the values."""
        ...


class Framework(Protocol):
    """Describes live state; never touches a store, a socket or another rank."""

    def capture(self, tree: Mapping[str, Any]) -> Capture:
        """Describe the tensors and values of ``tree`` as they are now."""
        ...

    def prepare(self, tree: Mapping[str, Any], catalog: Catalog) -> Target:
        """Say where the saved state of ``catalog`` goes in ``tree``."""
        ...

    def fence(self, tree: Mapping[str, Any], wait: Callable[[], None]) -> None:
        """See that ``wait`` is called before any owned tensor of ``tree`` changes."""
        ...

    def copier(self, tell: Callable[[str], None]) -> Copier:
        """Make what copies the memory that `capture` describes; ``tell`` takes sentences for people."""
        ...
