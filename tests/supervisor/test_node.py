"""The ranks of an attempt on one node, before there are any."""

from __future__ import annotations

import pytest

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
