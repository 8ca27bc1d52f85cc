"""The thread that copies: in order, nothing lost, nothing kept."""

from __future__ import annotations

import gc
import threading
import weakref

from perdure.checkpoint.background import Worker
from perdure.errors import PerdureError, StorageFull


class Thing:
    """Something that a job holds."""


def test_jobs_run_one_after_another_and_errors_reach_whoever_asked() -> None:
    worker = Worker("test")
    did: list[object] = []
    done = threading.Event()

    def full() -> None:
        raise StorageFull("no space left")

    def bug() -> None:
        raise ZeroDivisionError("by zero")

    def fail(error: PerdureError) -> None:
        did.append((error.kind, str(error)))

    worker.submit(lambda: did.append(1), fail)
    worker.submit(full, fail)
    worker.submit(bug, fail)
    worker.submit(done.set, fail)
    assert done.wait(5)
    assert did == [1, ("storage-full", "no space left"), ("bug", "ZeroDivisionError: by zero")]
    worker.end()


def test_an_idle_thread_keeps_nothing_of_its_last_job_alive() -> None:
    worker = Worker("test")
    thing = Thing()
    known = weakref.ref(thing)
    done = threading.Event()
    worker.submit(lambda held=thing: done.set(), lambda error, held=thing: None)  # type: ignore[misc]
    assert done.wait(5)
    del thing
    for _ in range(100):
        gc.collect()
        if known() is None:
            break
        threading.Event().wait(0.01)
    assert known() is None
    worker.end()


def test_a_thread_that_is_told_to_end_first_does_what_was_submitted() -> None:
    worker = Worker("test")
    did: list[int] = []
    for number in range(3):
        worker.submit(lambda n=number: did.append(n), lambda error: None)  # type: ignore[misc]
    worker.end()
    worker._thread.join(5)
    assert not worker._thread.is_alive()
    assert did == [0, 1, 2]
