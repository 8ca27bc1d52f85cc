"""What a memory can be given: a model that embeds, one that reads, one that ranks. It works with none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ChatModel", "Embedder", "Message", "Reranker"]

Message = Mapping[str, str]
"""``{"role": "system" | "user" | "assistant", "content": ...}``."""


class Embedder(Protocol):
    """Texts to vectors. ``name`` stands for the model and all that shapes its vectors; vectors of another name are
    never compared."""

    @property
    def name(self) -> str: ...

    @property
    def dims(self) -> int: ...

    def embed(self, texts: Sequence[str], *, kind: Literal["query", "passage"]) -> NDArray[np.float32]:
        """Return (len(texts), dims), each row of length 1.

        Raises `perdure.errors.TryAgain` where the model cannot be reached.
        """
        ...


class ChatModel(Protocol):
    """A language model that reads a conversation and writes one reply."""

    @property
    def name(self) -> str: ...

    def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        max_tokens: int,
        deadline_s: float,
    ) -> str:
        """Return its words. ``schema`` (JSON Schema) is asked for, and not to be relied on.

        Raises `perdure.errors.TryAgain` (also `DeadlineExceeded`) where it cannot be reached or takes too long.
        """
        ...


class Reranker(Protocol):
    """Scores whole sections against a question."""

    @property
    def name(self) -> str: ...

    def score(self, question: str, sections: Sequence[str]) -> Sequence[float]:
        """One score for each section, the higher the better."""
        ...
