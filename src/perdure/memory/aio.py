"""`AsyncMemory`: the same verbs to await. Each call runs in a thread of a pool of its own, so no loop waits for a disk.

A call that is cancelled is no longer waited for. If it has not begun it never will; if it has, it goes on to its end in
its thread, as a commit must: what was being observed may be kept. Give it a ``key`` and tell it again, if in doubt.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from perdure.errors import CallError
from perdure.memory.memory import Memory

__all__ = ["AsyncMemory"]

P = ParamSpec("P")
T = TypeVar("T")


def _verb(method: Callable[Concatenate[Memory, P], T]) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, T]]:
    """The verb ``method`` of a memory, to await."""

    async def awaited(self: AsyncMemory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(lambda memory: method(memory, *args, **kwargs))

    functools.update_wrapper(awaited, method)
    return awaited


class AsyncMemory:
    """One space of the folder ``root``, as `Memory`, with at most ``threads`` calls at once; more wait their turn.

    >>> import tempfile
    >>> async def main() -> list[str]:
    ...     async with AsyncMemory(tempfile.mkdtemp()) as memory:
    ...         await memory.observe("Anna lives in Lisbon.")
    ...         return [hit.fact.text for hit in await memory.search("Anna")]
    >>> asyncio.run(main())
    ['Anna lives in Lisbon.']
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        space: str = "default",
        threads: int = 4,
        wall: Callable[[], float] = time.time,
        **options: Any,
    ) -> None:
        if threads < 1:
            raise CallError(f"a memory needs a thread or more to work in, not {threads}")
        self.space = space
        self._make = functools.partial(Memory, root, space=space, wall=wall, **options)
        self._memory: Memory | None = None
        self._opening = threading.Lock()
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="perdure-memory")

    async def __aenter__(self) -> AsyncMemory:
        await self._run(lambda memory: None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls that run, drop those that have not begun, and close the files; twice is fine."""
        self._closed = True
        await asyncio.shield(asyncio.to_thread(self._end))

    def _end(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._opening:
            memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    async def _run(self, work: Callable[[Memory], T]) -> T:
        if self._closed:
            raise CallError(f"the memory {self.space!r} is closed; open it again")
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(self._opened()))

    def _opened(self) -> Memory:
        with self._opening:
            if self._memory is None:
                self._memory = self._make()
            return self._memory

    observe = _verb(Memory.observe)
    observe_many = _verb(Memory.observe_many)
    search = _verb(Memory.search)
    recall = _verb(Memory.recall)
    embed = _verb(Memory.embed)
    calibrate = _verb(Memory.calibrate)
    ask = _verb(Memory.ask)
    settle = _verb(Memory.settle)
    resolve = _verb(Memory.resolve)
    tools = _verb(Memory.tools)
    fact = _verb(Memory.fact)
    evidence = _verb(Memory.evidence)
    history = _verb(Memory.history)
    forget = _verb(Memory.forget)
    would_forget = _verb(Memory.would_forget)
    consolidate = _verb(Memory.consolidate)
    consolidation = _verb(Memory.consolidation)
    topics = _verb(Memory.topics)
    topic = _verb(Memory.topic)
    show = _verb(Memory.show)
    edit = _verb(Memory.edit)
    undo = _verb(Memory.undo)
    changes = _verb(Memory.changes)
    change = _verb(Memory.change)
    backup = _verb(Memory.backup)
    export = _verb(Memory.export)
    import_ = _verb(Memory.import_)
    doctor = _verb(Memory.doctor)
    status = _verb(Memory.status)
