"""The segments of an agent: freed at its end, all but those that a thread still reads."""

from __future__ import annotations

from pathlib import Path

from perdure.checkpoint.agent_memory import AgentMemory


def mapped(job: str) -> int:
    return Path("/proc/self/maps").read_text().count(f"/memfd:perdure:{job}.")


def test_an_agent_that_ends_frees_its_memory_but_for_what_is_still_read() -> None:
    memory = AgentMemory(job="ends")
    memory.provide(0, 4096)
    memory.provide(1, 4096)
    kept = memory.make(4096, "kept")
    read = memory[1].view[:8]
    assert mapped("ends") == 3
    memory.close()
    assert (kept.closed, mapped("ends")) == (True, 1)
    assert bytes(read) == bytes(8)
    read.release()
    memory.close()
    assert mapped("ends") == 0
