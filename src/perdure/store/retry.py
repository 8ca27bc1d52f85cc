"""A store that tries again what a store may be asked again, for as long as it is worth it.

    store = Retry(open_store("s3://bucket/run7"), budget_s=120.0)

Only a `TryAgain` is repeated: every other error says that somebody must do something first. The waits grow, each drawn
at random from none to the longest of its turn ("full jitter"), so that a thousand ranks that failed together do not
come back together. How often is not counted unless asked for: a server that restarts refuses a connection within a
millisecond, and any count would be used up long before it is back. Time decides.

Writing is where repetition is dangerous. After an unclear outcome the blob may be there, and a repetition that meets it
must not report "exists" for its own success. So it compares: the blob is ours if it holds exactly our bytes. (Whoever
must know *who* wrote them puts something of its own into them, as epochs and commits do.)

`put` can repeat only what it can read again. A list of chunks, or an object whose every ``iter()`` starts anew, is
repeated; an iterator that was asked for a chunk is used up, and its error passes, saying so.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError, TryAgain
from perdure.store.api import Store, as_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Retry"]

T = TypeVar("T")
_COMPARE_BYTES = 16 << 20
_DELETE_BUDGET_S = 10.0  # what is not deleted is garbage, which the next sweep finds; a job need not wait for it


class Retry:
    """``store``, each verb tried until ``budget_s`` have passed: a last try begins then, none later.

    ``attempts``, if given, bounds the number of tries as well. Until the store has answered once, ``first_budget_s``
    is all: its place may be mistyped.
    """

    def __init__(
        self,
        store: Store,
        *,
        attempts: int | None = None,
        budget_s: float = 120.0,
        first_budget_s: float = 30.0,
        first_wait_s: float = 0.2,
        longest_wait_s: float = 10.0,
        clock: Clock = SYSTEM,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if attempts is not None and attempts < 1:
            raise CallError(f"attempts must be 1 or more, not {attempts}")
        self.store = store
        self._attempts, self._budget_s, self._first_budget_s = attempts, budget_s, first_budget_s
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._clock, self._chance = clock, chance
        self._answered = False

    def __repr__(self) -> str:
        return f"Retry({self.store!r}, budget_s={self._budget_s:g})"

    def __str__(self) -> str:
        return str(self.store)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        source = _Source(chunks)
        unclear = False

        def attempt() -> None:
            nonlocal unclear
            try:
                self.store.put(name, source.read())
            except TryAgain as error:
                if error is source.error:
                    raise _Final(error) from None
                if not source.can_repeat:
                    raise _Final(_used_up(error, name)) from error
                unclear = True
                raise
            except CallError as error:
                if error is source.error or not unclear or not self._holds(name, source.read()):
                    raise

        self._again(attempt)

    def create(self, name: str, data: Buffer) -> bool:
        unclear = False

        def attempt() -> bool:
            nonlocal unclear
            try:
                return self.store.create(name, data) or (unclear and self._holds(name, [data]))
            except TryAgain:
                unclear = True
                raise

        return self._again(attempt)

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        return self._again(lambda: self.store.read(name, start=start, nbytes=nbytes, into=into))

    def size(self, name: str) -> int | None:
        return self._again(lambda: self.store.size(name))

    def names(self, prefix: str) -> list[str]:
        return self._again(lambda: self.store.names(prefix))

    def delete(self, name: str) -> None:
        self._again(lambda: self.store.delete(name), budget_s=min(self._budget_s, _DELETE_BUDGET_S))

    def _again(self, attempt: Callable[[], T], *, budget_s: float | None = None) -> T:
        within_s = self._budget_s if budget_s is None else budget_s
        give_up = self._clock.monotonic() + (within_s if self._answered else min(within_s, self._first_budget_s))
        longest_s = self._first_wait_s
        for tried in itertools.count(1):
            try:
                result = attempt()
                self._answered = True
                return result
            except _Final as final:
                raise final.error from final.__cause__
            except TryAgain:
                left_s = give_up - self._clock.monotonic()
                if tried == self._attempts or left_s <= 0:
                    raise
            self._clock.sleep(min(longest_s * self._chance(), left_s))
            longest_s = min(2 * longest_s, self._longest_wait_s)
        raise AssertionError("unreachable")

    def _holds(self, name: str, chunks: Iterable[Buffer]) -> bool:
        """Whether the blob is the concatenation of ``chunks``."""
        at, nbytes = 0, self.store.size(name)
        for chunk in chunks:
            view = as_bytes(chunk)
            for lo in range(0, view.nbytes, _COMPARE_BYTES):
                piece = view[lo : lo + _COMPARE_BYTES]
                if nbytes is None or at + piece.nbytes > nbytes:
                    return False
                if self.store.read(name, start=at, nbytes=piece.nbytes) != piece:
                    return False
                at += piece.nbytes
        return at == nbytes


class _Source:
    """Chunks, with what became of reading them: whether they can be read once more, and their own error."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self._once = iter(chunks) is chunks
        self._begun = False
        self.error: BaseException | None = None

    @property
    def can_repeat(self) -> bool:
        return not self._once or not self._begun

    def read(self) -> Iterator[Buffer]:
        self.error = None
        chunks = iter(self._chunks)
        while True:
            self._begun = True
            try:
                chunk = next(chunks)
            except StopIteration:
                return
            except BaseException as error:
                self.error = error
                raise
            yield chunk


class _Final(Exception):
    """Carries a `TryAgain` that must not be tried again."""

    def __init__(self, error: TryAgain) -> None:
        super().__init__()
        self.error = error


def _used_up(error: TryAgain, name: str) -> TryAgain:
    return type(error)(
        f"{error}; {name} was not tried again, for its chunks can be read once only: write it anew, or hand over "
        "a list",
        **error.facts,
    )
