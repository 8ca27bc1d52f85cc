"""How an agent starts: what it is told, what it refuses, and what it clears away of agents that died."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from conftest import Place, await_that, is_alive
from perdure.checkpoint.config import Deadlines
from perdure.errors import CallError


@pytest.mark.parametrize("lease", ["soon", "-1", "nan", "inf", "1e30", "60s"])
def test_an_odd_lease_is_refused_with_a_sentence(place: Place, lease: str) -> None:
    command = (sys.executable, "-m", "perdure", "agent", "--job", "j", "--url", place.url)
    done = subprocess.run(command, env=place.env(PERDURE_LEASE_S=lease), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"PERDURE_LEASE_S is {lease!r}; give seconds from 0 to" in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_are_told_why_their_agent_could_not_start(place: Place) -> None:
    ranks = place.start("--steps", "4", "--every", "3", PERDURE_LEASE_S="soon")
    assert ranks.wait() == [0, 0], ranks.text()
    told = " ".join(ranks.said(0))
    assert "saving without an agent: the node's agent ended at once with code" in told
    assert "PERDURE_LEASE_S is 'soon'; give seconds" in told


def test_what_agents_that_died_have_left_is_cleared_away(place: Place) -> None:
    folder = place.runtime / "perdure"
    folder.mkdir(mode=0o700)
    for number in range(3):
        for kind in ("lock", "sock", "log"):
            path = folder / f"dead{number}-0-0.{kind}"
            path.touch()
            os.utime(path, (time.time() - 3600, time.time() - 3600))
    (folder / "dead1-0-0.log").write_text("its last words")
    pid = place.start_agent(node="b")
    own = {path.name for path in folder.glob("*.lock")}
    left = {path.name for path in folder.iterdir()} - {path.with_suffix(s).name for path in folder.glob("*.lock")
                                                        for s in (".lock", ".sock", ".log")}  # fmt: skip
    assert len(own) == 1
    assert left == {"dead1-0-0.log"}
    os.kill(pid, 15)
    await_that(lambda: not is_alive(pid), "the agent to leave")
    assert not list(folder.glob("*.lock"))
    assert not list(folder.glob("*.sock"))


def test_odd_deadlines_are_refused_with_a_sentence() -> None:
    for odd in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(CallError, match=r"Deadlines.stage_s is .*; give a number of seconds above 0"):
            Deadlines(stage_s=odd)
    with pytest.raises(CallError, match=r"Deadlines\.silent_s is 1; give 2 seconds or more"):
        Deadlines(silent_s=1)
