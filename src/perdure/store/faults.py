"""A store that wraps a store and goes wrong on purpose, by rules: for tests of what happens at every crash point.

    store = Faults(Disk(path), [Rule("create", Crash(when="after"), match="slots/*")])

Without rules it behaves as the store inside. ``store.calls`` records what was asked, so that a test can first count the
points of an operation and then crash at each of them.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from perdure.clock import SYSTEM, Clock
from perdure.errors import LinkLost, PerdureError
from perdure.store.api import Store, as_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Call", "Corrupt", "Crash", "Crashed", "Delay", "Fail", "Faults", "Rule"]

Verb = Literal["put", "create", "read", "size", "names", "delete"]


class Crashed(BaseException):
    """The process "died" here. No `except Exception` catches it, and the store is dead from now on."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise ``error``, before the verb did anything or ``after`` it did all (a response that is lost)."""

    error: PerdureError = LinkLost("the connection to the store closed")  # noqa: RUF009  (never changed)
    when: Literal["before", "after"] = "before"


@dataclass(frozen=True, slots=True)
class Crash:
    """Raise `Crashed` before the verb, after it, or ``during`` it (put only: when half of the chunks are written)."""

    when: Literal["before", "during", "after"] = "before"


@dataclass(frozen=True, slots=True)
class Delay:
    """Let time pass on ``clock``, then go on."""

    seconds: float
    clock: Clock = SYSTEM


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Flip the bits of ``mask`` in byte ``at`` (of what is read; counted from the end if negative)."""

    at: int = 0
    mask: int = 1


@dataclass(frozen=True, slots=True)
class Rule:
    """Do ``fault`` at the ``nth`` call (from 1) of ``verb`` whose name or prefix fits the glob ``match``.

    ``times`` calls in a row are hit; None means all from then on.
    """

    verb: Verb
    fault: Fail | Crash | Delay | Corrupt
    match: str = "*"
    nth: int = 1
    times: int | None = 1


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made."""

    verb: Verb
    name: str


class Faults:
    """``store`` with ``rules``. Any number of rules may hit one call; they act in their order."""

    def __init__(self, store: Store, rules: Sequence[Rule] = ()) -> None:
        self.store = store
        self.calls: list[Call] = []
        self.dead = False
        self._rules = list(rules)
        self._hits = [0] * len(self._rules)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Faults({self.store!r}, {len(self._rules)} rules)"

    def __str__(self) -> str:
        return str(self.store)

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        faults = self._enter("put", name)
        if Crash("during") in faults:
            chunks = self._half(list(chunks))
        self.store.put(name, chunks)
        self._leave(faults)

    def create(self, name: str, data: Buffer) -> bool:
        faults = self._enter("create", name)
        created = self.store.create(name, data)
        self._leave(faults)
        return created

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        faults = self._enter("read", name)
        found = self.store.read(name, start=start, nbytes=nbytes, into=into)
        for fault in faults:
            if isinstance(fault, Corrupt) and found.nbytes:
                if into is None:
                    found = memoryview(bytearray(found))
                found[fault.at % found.nbytes] ^= fault.mask
        self._leave(faults)
        return found

    def size(self, name: str) -> int | None:
        faults = self._enter("size", name)
        found = self.store.size(name)
        self._leave(faults)
        return found

    def names(self, prefix: str) -> list[str]:
        faults = self._enter("names", prefix)
        found = self.store.names(prefix)
        self._leave(faults)
        return found

    def delete(self, name: str) -> None:
        faults = self._enter("delete", name)
        self.store.delete(name)
        self._leave(faults)

    def _enter(self, verb: Verb, name: str) -> list[Fail | Crash | Delay | Corrupt]:
        faults = self._due(verb, name)
        for fault in faults:
            if isinstance(fault, Delay):
                fault.clock.sleep(fault.seconds)
            elif fault == Crash("before"):
                self._die()
            elif isinstance(fault, Fail) and fault.when == "before":
                raise fault.error.with_traceback(None)
        return faults

    def _leave(self, faults: Sequence[Fail | Crash | Delay | Corrupt]) -> None:
        for fault in faults:
            if isinstance(fault, Crash):  # "during" too: a verb without a middle dies at its end
                self._die()
            if isinstance(fault, Fail) and fault.when == "after":
                raise fault.error.with_traceback(None)

    def _due(self, verb: Verb, name: str) -> list[Fail | Crash | Delay | Corrupt]:
        due: list[Fail | Crash | Delay | Corrupt] = []
        with self._lock:
            if self.dead:
                raise Crashed("this process is dead")
            self.calls.append(Call(verb, name))
            for i, rule in enumerate(self._rules):
                if rule.verb == verb and fnmatch.fnmatchcase(name, rule.match):
                    self._hits[i] += 1
                    late = self._hits[i] - rule.nth
                    if late >= 0 and (rule.times is None or late < rule.times):
                        due.append(rule.fault)
        return due

    def _half(self, chunks: Sequence[Buffer]) -> Iterator[memoryview]:
        views = [as_bytes(chunk) for chunk in chunks]
        left = sum(view.nbytes for view in views) // 2
        for view in views:
            yield view[:left]
            left -= min(left, view.nbytes)
        self._die()

    def _die(self) -> None:
        self.dead = True
        raise Crashed("a rule says that the process dies here")
