"""What the agent takes for itself, beside the segments that hold steps: next to no CPU while idle, bounded memory."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import perdure
from conftest import await_that, is_alive

MIB = 1 << 20
STATE_BYTES = 32 * MIB


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run and an agent of this test alone, which leaves soon after it."""
    with tempfile.TemporaryDirectory(prefix="perdure-foot-") as folder:
        (Path(folder) / "sockets").mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{folder}/sockets")
        monkeypatch.setenv("PERDURE_LEASE_S", "0.2")
        yield Path(folder)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int) -> int:
    """Memory that is in no segment: resident, less what is shared."""
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(words[1]) - int(words[2])) * resource.getpagesize()


@pytest.mark.parametrize("coding", ["raw", "lossless"])
def test_an_agent_takes_little_beside_the_steps_and_nothing_while_it_waits(alone: Path, coding: str) -> None:
    ckpt = perdure.Checkpointer(alone / "run", coding=coding)
    tree = {f"w{i}": torch.randn(STATE_BYTES // 16) for i in range(4)}
    ckpt.save(0, tree).committed()
    assert ckpt._link is not None
    pid = ckpt._link.agent_pid
    after: list[int] = []
    for step in range(1, 7):
        for tensor in tree.values():
            tensor.mul_(1.0001)
        ckpt.save(step, tree).committed()
        after.append(private_bytes(pid))
    # The interpreter, and the frames of a pack.
    assert max(after) < 64 * MIB + 2 * STATE_BYTES, [each >> 20 for each in after]
    assert max(after[3:]) < max(after[:3]) + STATE_BYTES // 2, [each >> 20 for each in after]
    before = cpu_s(pid)
    time.sleep(1.0)
    assert cpu_s(pid) - before <= 0.05
    ckpt.close()
    await_that(lambda: not is_alive(pid), "the agent to leave", within_s=30.0)
