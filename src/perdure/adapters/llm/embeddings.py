"""`OpenAIEmbedder`: vectors from any endpoint that speaks the embeddings of OpenAI's API.

How many numbers a vector has is asked of the model, never assumed, and checked in every answer: a server that
changes its model is found out before a vector of the new one is compared with those of the old.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from perdure.adapters.llm.address import address_of
from perdure.adapters.llm.calling import Caller, Refused
from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError, StateMismatch

__all__ = ["OpenAIEmbedder"]

_MOST_CHARS: Final = 200_000
_BYTES_A_NUMBER: Final = 40
_SHORTEST: Final = 200


class OpenAIEmbedder:
    """An `Embedder` behind ``base_url``. Key, TLS and tries as of `OpenAIChat`.

    ``prefixes`` are put before questions and before passages, for models that want them (``("query: ", "passage:
    ")``). ``dims`` is what is expected; if not given, the first use asks the model. A text of more than
    ``longest_chars`` is cut, and one that the server finds too long is cut further. ``deadline_s`` is for one call of
    `embed`, all batches of it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        dims: int | None = None,
        prefixes: tuple[str, str] = ("", ""),
        batch: int = 64,
        longest_chars: int = 8000,
        deadline_s: float = 60.0,
        insecure: bool = False,
        tries: int = 4,
        certificates: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        address = address_of(base_url, key=key, insecure=insecure)
        context = (certificates or ssl.create_default_context()) if address.tls else None
        self._caller = Caller(address, clock, tries, context)
        self._model = model
        self._dims = dims
        self._prefixes = prefixes
        self._batch = batch
        self._longest = longest_chars
        self._deadline_s = deadline_s
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._model!r} at {self._caller.address.shown})"

    @property
    def dims(self) -> int:
        """How many numbers a vector has; asks the endpoint if it is not known."""
        if self._dims is None:
            self.embed(["dims"], kind="query")
        assert self._dims is not None
        return self._dims

    @property
    def name(self) -> str:
        """The model, how many numbers its vectors have, and what is put before texts."""
        marks = hashlib.sha256("\0".join(self._prefixes).encode()).hexdigest()[:8] if any(self._prefixes) else ""
        return f"{self._model}/{self.dims}" + (f"/{marks}" if marks else "")

    def embed(self, texts: Sequence[str], *, kind: Literal["query", "passage"]) -> NDArray[np.float32]:
        """Return (len(texts), dims), each row of length 1.

        Raises `TryAgain` where the endpoint is away, busy or too slow, `StateMismatch` where its vectors are of
        another size than before, and `CallError` where they are no numbers or the request is wrong.
        """
        end = self._caller.clock.monotonic() + self._deadline_s
        mark = self._prefixes[0 if kind == "query" else 1]
        ready = [mark + _sendable(text[: self._longest]) for text in texts]
        rows = [self._some(batch, end) for batch in _batches(ready, self._batch)]
        return np.concatenate(rows) if rows else np.zeros((0, self.dims), np.float32)

    def _some(self, texts: Sequence[str], end: float) -> NDArray[np.float32]:
        left = max(0.0, end - self._caller.clock.monotonic())
        most = 65536 + len(texts) * _BYTES_A_NUMBER * (self._dims or 16384)
        asked = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        try:
            value = self._caller.call("/embeddings", asked, deadline_s=left, most_bytes=most)
        except Refused as refusal:
            if refusal.facts["status"] not in (400, 413, 422):
                raise
            if len(texts) > 1:
                half = len(texts) // 2
                return np.concatenate([self._some(texts[:half], end), self._some(texts[half:], end)])
            if len(texts[0]) <= _SHORTEST:
                raise
            return self._some([texts[0][: len(texts[0]) // 2]], end)
        return self._checked(value, len(texts))

    def _checked(self, value: Any, count: int) -> NDArray[np.float32]:
        where = self._caller.address.shown
        try:
            rows = sorted(value["data"], key=lambda row: int(row["index"]))
            places = [int(row["index"]) for row in rows]
            table = np.array([row["embedding"] for row in rows], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise CallError(f"{where} answered with no embeddings; is its base URL right?") from error
        if places != list(range(count)) or table.ndim != 2 or table.shape[1] == 0:
            raise CallError(f"{where} gave {len(places)} embeddings for {count} texts, or of several sizes")
        with self._lock:
            self._dims = self._dims or table.shape[1]
        if table.shape[1] != self._dims:
            raise StateMismatch(
                f"{where} gives vectors of {table.shape[1]} numbers for {self._model!r}, and gave or should give"
                f" {self._dims}; name the model that made the first, or index again with the new one",
                shape=[self._dims, table.shape[1]],
            )
        lengths = np.linalg.norm(table, axis=1, keepdims=True)
        if not np.isfinite(table).all() or not (lengths > 0).all():
            raise CallError(f"{where} gives vectors with numbers that are none, or all zero; use another model")
        unit: NDArray[np.float32] = (table / lengths).astype(np.float32)
        return unit


def _batches(texts: Sequence[str], most: int) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and (len(batch) == most or chars + len(text) > _MOST_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch


def _sendable(text: str) -> str:
    """``text`` as Unicode, and never empty, which many servers refuse."""
    return text.encode("utf-8", "replace").decode() if text.strip() else "."
