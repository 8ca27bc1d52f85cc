"""The board of `perdure.checkpoint.notes`, in the key-value store that the process group was made with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from perdure.errors import LinkLost

__all__ = ["StoreNotes"]

_TIMEOUT_S = 10.0


class StoreNotes:
    """Notes in a connection of its own to torch's store, so that no background thread waits for what training does."""

    def __init__(self) -> None:
        own = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]  # the stubs lack it
        own.set_timeout(timedelta(seconds=_TIMEOUT_S))
        self._store = PrefixStore("perdure-notes", own)

    def leave(self, name: str, text: bytes) -> None:
        """Put ``text`` under ``name``."""
        try:
            self._store.set(name, text.decode())
        except RuntimeError as error:
            raise LinkLost(f"torch's store is gone: {error}") from error

    def read(self, name: str) -> bytes | None:
        """What was left under ``name``, at once."""
        try:
            return bytes(self._store.get(name)) if self._store.check([name]) else None
        except RuntimeError as error:
            raise LinkLost(f"torch's store is gone: {error}") from error

    def read_all(self, names: Sequence[str]) -> list[bytes] | None:
        """What was left under each of ``names``, at once; None if under one nothing was."""
        try:
            if not self._store.check(list(names)):
                return None
            if self._store.has_extended_api():  # type: ignore[attr-defined]  # the stubs lack it
                return [bytes(each) for each in self._store.multi_get(list(names))]
            return [bytes(self._store.get(name)) for name in names]
        except RuntimeError as error:
            raise LinkLost(f"torch's store is gone: {error}") from error
