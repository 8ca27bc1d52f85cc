"""`AsyncMemory`: every verb of a memory, calls at once, cancelled waits, and an end that waits for what runs."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.memory import Memory
from perdure.memory.aio import AsyncMemory


def test_every_verb_of_a_memory_can_be_awaited() -> None:
    verbs = {name for name, each in vars(Memory).items() if inspect.isfunction(each) and not name.startswith("_")}
    missing = verbs - set(dir(AsyncMemory))
    assert missing == set()
    for name in verbs - {"close"}:
        assert inspect.iscoroutinefunction(getattr(AsyncMemory, name))
        assert inspect.signature(getattr(AsyncMemory, name)) == inspect.signature(getattr(Memory, name))


def test_calls_at_once_are_all_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncMemory(tmp_path, threads=3) as memory:
            done = await asyncio.gather(*(memory.observe(f"Number {n}.") for n in range(50)))
            assert len({each.evidence for each in done}) == 50
            assert len(await memory.search("number", limit=100)) == 50

    asyncio.run(run())


def test_a_call_that_is_cancelled_before_it_began_never_begins(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncMemory(tmp_path, threads=1) as memory:
            gate, began = threading.Event(), threading.Event()
            busy = asyncio.create_task(memory._run(lambda opened: (began.set(), gate.wait(30))))
            await asyncio.to_thread(began.wait, 30)
            late = asyncio.create_task(memory.observe("never"))
            await asyncio.sleep(0)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            gate.set()
            await busy
            assert (await memory.status()).evidence == 0

    asyncio.run(run())


def test_a_wait_that_is_cancelled_returns_at_once_and_the_end_waits_for_the_call(tmp_path: Path) -> None:
    async def run() -> None:
        memory = AsyncMemory(tmp_path, threads=1)
        await memory.status()
        gate, began = threading.Event(), threading.Event()

        def slow(opened: Memory) -> None:
            began.set()
            gate.wait(30)
            opened.observe("kept")

        task = asyncio.create_task(memory._run(slow))
        await asyncio.to_thread(began.wait, 30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await task
        ending = asyncio.create_task(memory.close())
        await asyncio.sleep(0.05)
        assert not ending.done()
        gate.set()
        await ending
        await memory.close()
        with pytest.raises(CallError, match="closed"):
            await memory.observe("x")

    asyncio.run(run())
    with Memory(tmp_path) as again:
        assert again.evidence(1).text == "kept"


def test_errors_come_out_of_the_await(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncMemory(tmp_path) as memory:
            with pytest.raises(CallError, match="there is no fact f7"):
                await memory.fact("f7")
        with pytest.raises(CallError, match="needs a name"):
            async with AsyncMemory(tmp_path, space=""):
                pass

    with pytest.raises(CallError):
        AsyncMemory(tmp_path, threads=0)
    asyncio.run(run())
