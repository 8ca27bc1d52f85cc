"""The page: what one process writes another reads; what is no page is refused."""

from __future__ import annotations

import fcntl
import os
import time

import pytest

from perdure.errors import CallError, ProtocolError
from perdure.progress import Page, Phase


def test_another_process_reads_what_a_rank_writes() -> None:
    with Page.create(2) as page:
        child = os.fork()
        if child == 0:
            record = Page.attach(os.dup(page.fd)).rank(1)
            record.claim(rank=7, step=40)
            record.step = 41
            record.enter(Phase.SAVING, deadline_s=60.0)
            record.tick()
            record.ask_to_stop()
            os._exit(0)
        os.waitpid(child, 0)
        absent, seen = page.snapshot()
        assert absent.phase is Phase.ABSENT
        assert (seen.local_rank, seen.rank, seen.pid, seen.step, seen.phase) == (1, 7, child, 41, Phase.SAVING)
        assert (seen.beat, seen.term) == (1, True)
        assert 0 < seen.phase_since_ns <= time.monotonic_ns() < seen.deadline_ns
        assert not seen.overdue(time.monotonic_ns())
        assert seen.overdue(seen.deadline_ns + 1)


def test_a_phase_for_a_block_gives_back_the_one_before() -> None:
    with Page.create(1) as page:
        record = page.rank(0)
        record.enter(Phase.FORWARD, deadline_s=9.0)
        deadline_ns = record.deadline_ns
        with record.during(Phase.EVALUATING):
            assert (record.phase, record.deadline_ns) == (Phase.EVALUATING, 0)
        assert (record.phase, record.deadline_ns) == (Phase.FORWARD, deadline_ns)


def test_a_page_has_room_for_256_ranks_and_no_more() -> None:
    with Page.create(256) as page:
        page.rank(255).step = 3
        assert page.snapshot()[255].step == 3
        with pytest.raises(CallError):
            page.rank(256)
    for n in (0, 257):
        with pytest.raises(CallError):
            Page.create(n)


def test_what_is_no_page_is_refused_and_closed() -> None:
    fds = [os.open("/dev/null", os.O_RDWR)]
    for seals, content in ((0, b""), (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, b"x" * 640)):
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        fds.append(fd)
    with Page.create(2) as good:
        fd = os.memfd_create("short", os.MFD_ALLOW_SEALING)
        os.write(fd, os.pread(good.fd, 640, 0))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        fds.append(fd)
    for fd in fds:
        with pytest.raises(ProtocolError):
            Page.attach(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_nobody_can_shrink_a_page_under_a_reader() -> None:
    with Page.create(1) as page, pytest.raises(PermissionError):
        os.ftruncate(page.fd, 0)
