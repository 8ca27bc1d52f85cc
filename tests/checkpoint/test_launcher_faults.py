"""The same faults under the real ``perdure run``: launcher, agent and ranks, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest

from conftest import TRAINER, Place, await_that

Digests = Mapping[tuple[int, int], str]


def perdure_run(place: Place, *argv: str, lease_s: str = "30") -> subprocess.Popen[bytes]:
    """Start two ranks of the trainer under a launcher, whose process group is its own as in a terminal."""
    command = (sys.executable, "-m", "perdure", "run", "--nproc", "2", "--job", place.job, "--", TRAINER)
    return place.popen(*command, "--to", str(place.run_dir), *argv, PERDURE_LEASE_S=lease_s)


def read_until(process: subprocess.Popen[bytes], pattern: str, *, lines: int = 2000) -> str:
    """What the process prints up to a line that matches; its end is a failure."""
    assert process.stdout is not None
    seen = ""
    for _ in range(lines):
        line = process.stdout.readline().decode()
        assert line, f"no {pattern}\n{seen}"
        seen += line
        if re.search(pattern, line):
            break
    return seen


def digests(text: str) -> dict[tuple[int, int], str]:
    found = re.findall(r"^\[(\d+)\] D (\d+) (\w+)$", text, re.M)
    return {(int(rank), int(step)): digest for rank, step, digest in found}


def test_a_killed_rank_costs_seconds_and_no_bit(place: Place, undisturbed: Digests) -> None:
    argv = ("--steps", "12", "--every", "3", "--fault", "forward@7")
    out, _ = perdure_run(place, *argv).communicate(timeout=100)
    text = out.decode()
    assert "the job succeeded in attempt 2 of this run" in text, text
    assert "was killed by SIGKILL after step 7" in text
    assert re.search(r"restored step 6 .*from memory", text), text
    assert digests(text).items() <= undisturbed.items()
    assert (0, 12) in digests(text)
    assert place.steps() == [3, 6, 9, 12]
    await_that(lambda: place.agent_pid() is None, "the agent to leave: the launcher has let it go")
    assert place.holders() == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_launcher_that_is_asked_to_stop_saves_one_step_and_leaves_nothing(
    place: Place, undisturbed: Digests, number: signal.Signals
) -> None:
    launcher = perdure_run(place, "--steps", "400", "--every", "3", "--step-s", "0.1")
    seen = read_until(launcher, r"\[1\] D 4 ")
    if number == signal.SIGINT:
        os.killpg(launcher.pid, signal.SIGINT)
    else:
        launcher.terminate()
    out, _ = launcher.communicate(timeout=60)
    text = seen + out.decode()
    assert launcher.returncode == 128 + number, text
    (step,) = {int(found) for found in re.findall(r"all ranks stop after step (\d+)", text)}
    assert place.steps()[-1] == step
    assert digests(text).items() <= undisturbed.items()
    await_that(lambda: place.agent_pid() is None, "the agent to leave")
    assert place.holders() == []
    rest = place.train("--steps", "16", "--every", "3")
    assert rest.began_at() == [step, step]
    assert rest.digests().items() <= undisturbed.items()
