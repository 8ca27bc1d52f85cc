"""A store in this process's memory: for tests, demos, and whatever may die with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perdure.store.api import as_bytes, check_name, check_prefix, check_span, missing, taken

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Ram"]


class Ram:
    """The six verbs over a dictionary. "Durable" lasts as long as this object.

    >>> ram = Ram()
    >>> ram.create("a", b"1"), ram.create("a", b"2"), bytes(ram.read("a"))
    (True, False, b'1')
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Ram({len(self._blobs)} blobs)"

    def __str__(self) -> str:
        return f"ram://{self._name}" if self._name else "memory"

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        check_name(name)
        if name in self._blobs or not self.create(name, b"".join(bytes(as_bytes(chunk)) for chunk in chunks)):
            raise taken(name, file=name)

    def create(self, name: str, data: Buffer) -> bool:
        copy = bytes(as_bytes(data))
        with self._lock:
            if check_name(name) in self._blobs:
                return False
            self._blobs[name] = copy
            return True

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        blob = self._blobs.get(check_name(name))
        if blob is None:
            raise missing(name, file=name)
        target = None if into is None else as_bytes(into)
        nbytes = check_span(name, len(blob), start=start, nbytes=nbytes, into=target, file=name)
        found = memoryview(blob)[start : start + nbytes]
        if target is None:
            return found
        target[:nbytes] = found
        return target[:nbytes]

    def size(self, name: str) -> int | None:
        blob = self._blobs.get(check_name(name))
        return None if blob is None else len(blob)

    def names(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        with self._lock:
            return sorted(name for name in self._blobs if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._lock:
            self._blobs.pop(check_name(name), None)
