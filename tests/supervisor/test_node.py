"""The ranks of an attempt on one node, before there are any."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perdure.clock import Deadline
from perdure.process.environ import Placement
from perdure.process.tree import Rank
from perdure.progress import Page
from perdure.supervisor.node import NodeAttempt
from perdure.supervisor.vocabulary import Start

ORDER = Start(node="n", attempt=3, place=0, n_places=1, base=0, world=2, master_addr="127.0.0.1", master_port=1)


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_ranks_that_are_to_end_before_they_were_started_never_start(end: str) -> None:
    attempt = NodeAttempt(ORDER, mark="no-process-has-this-mark")
    assert attempt.may_start
    getattr(attempt, end)()
    assert not attempt.may_start  # although nothing has been said of its end yet
    over = attempt.finish("n", wait_s=20.0)
    assert over is not None
    assert (over.attempt, over.killed, over.left) == (3, 0, ())
    assert not attempt.may_start


_HEARS = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pathlib.Path(sys.argv[1]).touch()
signal.pause()
"""


@pytest.mark.parametrize("failed", [True, False])
def test_of_a_failed_attempt_ranks_that_only_wait_are_killed_and_the_others_asked(tmp_path: Path, failed: bool) -> None:
    attempt, started = NodeAttempt(ORDER, mark="no-process-has-this-mark"), list[Rank]()

    def start(_: object) -> Rank:
        here = tmp_path / str(len(started))
        started.append(Rank.start([sys.executable, "-c", _HEARS, str(here)], env={}))
        return started[-1]

    deadline = Deadline.after(30.0, "two ranks that hear SIGTERM, then their end")
    with Page.create(2) as page, open("/dev/null", "wb") as sink:
        at = Placement(world=2, local_world=2)
        attempt.start(start, nproc=2, placement=at, env={}, max_restarts=0, stdout=sink, stderr=sink, log_dir=None)
        for i, rank in enumerate(started):
            page.rank(i).claim(rank=i, pid=rank.pid)
        page.rank(1).expendable = True
        while len(list(tmp_path.iterdir())) < 2:
            deadline.check()
        attempt.look(page)
        attempt.terminate(failed=failed)
        while len(attempt.ended) < 2:
            attempt.poll("n")
            deadline.check()
        ended = {each.local_rank: (each.code, each.signal) for each in attempt.ended}
        assert ended == {0: (7, None), 1: (None, 9) if failed else (7, None)}
        attempt.kill()
        assert attempt.finish("n", wait_s=20.0) is not None
