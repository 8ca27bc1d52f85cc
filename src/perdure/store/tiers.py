"""Several stores as one: a home that decides, and nearer ones that are faster and may be lost.

    store = Tiers([Disk("/nvme/run7")], home=open_store("s3://bucket/run7"), tell=print_note)

What is true is true at home: `create` is decided there, a `put` is durable there before any copy is made, and names are
listed there alone. The nearer stores get copies as well as they can; whatever goes wrong with them is told and fails
nothing. A read takes the nearest copy and falls to the next one where a copy is missing, cut or out of reach. (That its
bytes are wrong is found by who compares digests, above; ``near`` and ``home`` are open to it.)

Copies of another run would be believed: a near place belongs to one run, like a home.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from perdure.errors import BlobMissing, IntegrityError, PerdureError, StorageError, TryAgain
from perdure.store.api import Store, check_name
from perdure.store.lineage import Note, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = ["Tiers"]

_COPY_BYTES = 16 << 20
_FALLS = (IntegrityError, StorageError, TryAgain)


class Tiers:
    """``home`` with copies in the ``near`` stores, the nearest first. ``tell`` hears what a person should know."""

    def __init__(self, near: Sequence[Store], *, home: Store, tell: Callable[[Note], None] = warn) -> None:
        self.near, self.home = tuple(near), home
        self._tell = tell

    def __repr__(self) -> str:
        return f"Tiers({list(self.near)!r}, home={self.home!r})"

    def __str__(self) -> str:
        return str(self.home)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        self.home.put(name, chunks)
        for store in self.near:
            self._try(store, name, "copied to", lambda to: to.put(name, self._from_home(name)))

    def create(self, name: str, data: Buffer) -> bool:
        if not self.home.create(name, data):
            return False
        for store in self.near:
            self._try(store, name, "copied to", lambda to: to.create(name, data))
        return True

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        for store in self.near:
            try:
                return store.read(name, start=start, nbytes=nbytes, into=into)
            except BlobMissing:
                continue  # it was not copied; nothing is wrong
            except _FALLS as error:
                self._tell(Note(f"{name} was not read from {store} but further away: {error}", file=name))
        return self.home.read(name, start=start, nbytes=nbytes, into=into)

    def size(self, name: str) -> int | None:
        try:
            return self.home.size(name)
        except _FALLS as error:
            # What is near was at home before: it is there. Only home can say that something is not.
            for store in self.near:
                try:
                    nbytes = store.size(name)
                except _FALLS:
                    continue  # home's error counts
                if nbytes is not None:
                    self._tell(Note(f"the size of {name} was asked of {store}, home is out of reach: {error}", name))
                    return nbytes
            raise

    def names(self, prefix: str) -> list[str]:
        return self.home.names(prefix)

    def delete(self, name: str) -> None:
        check_name(name)
        for store in self.near:  # first: a copy must not outlive what it is a copy of
            self._try(store, name, "deleted from", lambda to: to.delete(name))
        self.home.delete(name)

    def _from_home(self, name: str) -> Iterator[memoryview]:
        """What home holds now: the chunks may be used up, and this is what counts."""
        nbytes = self.home.size(name) or 0
        for start in range(0, nbytes, _COPY_BYTES):
            yield self.home.read(name, start=start, nbytes=min(_COPY_BYTES, nbytes - start))

    def _try(self, store: Store, name: str, what: str, verb: Callable[[Store], object]) -> None:
        try:
            verb(store)
        except PerdureError as error:
            self._tell(Note(f"{name} was not {what} {store}; home has it all: {error}", file=name))
