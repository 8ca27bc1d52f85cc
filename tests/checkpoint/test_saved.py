"""The handle of a save: what it waits for, for how long, and what it raises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure.checkpoint.saved import Outcome, Saved
from perdure.errors import CallError, DeadlineExceeded, PerdureError, StorageFull

OUTCOME = Outcome(slot=4, raw_nbytes=100, stored_nbytes=120, seconds=0.5)
FULL = StorageFull("no space left", file="x")


def handle() -> Saved:
    return Saved(7, 3, stage_s=20.0, commit_s=20.0)


def later(act: Callable[[], Any]) -> None:
    threading.Timer(0.05, act).start()


def test_it_says_how_far_the_save_is() -> None:
    saved = handle()
    assert (repr(saved), saved.is_staged, saved.settled) == ("Saved(step=7, copying)", False, False)
    saved.note_staged()
    assert (repr(saved), saved.is_staged, saved.settled) == ("Saved(step=7, staged)", True, False)
    saved.note_memory()
    saved.note_committed(OUTCOME)
    assert (repr(saved), saved.settled, saved.error) == ("Saved(step=7, committed)", True, None)


@pytest.mark.parametrize(
    ("wait", "event"),
    [
        (lambda saved: saved.staged(), lambda saved: saved.note_staged()),
        (lambda saved: saved.staged(), lambda saved: saved.note_failed(FULL)),
        (lambda saved: saved.reached("memory"), lambda saved: saved.note_memory()),
        (lambda saved: saved.reached("disk"), lambda saved: saved.note_committed(OUTCOME)),
        (lambda saved: saved.committed(), lambda saved: saved.note_committed(OUTCOME)),
        (lambda saved: saved.staged(), lambda saved: saved.note_committed(OUTCOME)),
        (lambda saved: saved.reached("memory"), lambda saved: saved.note_committed(OUTCOME)),
    ],
)
def test_a_wait_ends_with_what_it_waits_for(wait: Callable[[Saved], Any], event: Callable[[Saved], None]) -> None:
    saved = handle()
    later(lambda: event(saved))
    wait(saved)
    wait(saved)


def test_a_commit_gives_its_outcome_again_and_again() -> None:
    saved = handle()
    saved.note_committed(OUTCOME)
    assert saved.committed() is saved.committed(0) is OUTCOME


@pytest.mark.parametrize("wait", [lambda s: s.committed(), lambda s: s.reached("disk"), lambda s: s.reached("memory")])
def test_a_failure_raises_from_every_wait_for_a_tier_but_frees_the_tensors(wait: Callable[[Saved], Any]) -> None:
    saved = handle()
    later(lambda: saved.note_failed(FULL))
    for _ in range(2):
        with pytest.raises(StorageFull):
            wait(saved)
    saved.staged()
    assert (saved.error, saved.settled, repr(saved)) == (FULL, True, "Saved(step=7, failed)")


def test_what_has_reached_memory_stays_there_when_the_disk_fails() -> None:
    saved = handle()
    saved.note_staged()
    saved.note_memory()
    saved.note_failed(FULL)
    saved.reached("memory")
    with pytest.raises(StorageFull):
        saved.committed()


def test_the_first_failure_counts_and_none_after_a_commit() -> None:
    saved = handle()
    saved.note_failed(FULL)
    saved.note_failed(CallError("another"))
    assert saved.error is FULL
    other = handle()
    other.note_committed(OUTCOME)
    other.note_failed(FULL)
    assert other.error is None
    assert other.committed() is OUTCOME


def test_a_commit_after_all_is_a_commit() -> None:
    """As when a checkpointer that closes gives up a wait, and the agent makes it all the same."""
    saved = handle()
    saved.note_failed(DeadlineExceeded("too late"))
    saved.note_committed(OUTCOME)
    assert saved.committed() is OUTCOME


@pytest.mark.parametrize("timeout_s", [0, 0.01])
@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (lambda saved, t: saved.staged(t), "to be copied"),
        (lambda saved, t: saved.reached("memory", t), "to reach memory"),
        (lambda saved, t: saved.committed(t), "to reach disk"),
    ],
)
def test_a_wait_ends_at_its_own_timeout_zero_too(
    wait: Callable[[Saved, float], Any], words: str, timeout_s: float
) -> None:
    saved = handle()
    with pytest.raises(
        DeadlineExceeded, match=f"step 7 took longer than {timeout_s:g} s {words}; it may still get there"
    ):
        wait(saved, timeout_s)
    saved.note_committed(OUTCOME)
    wait(saved, timeout_s)


def test_without_a_timeout_the_deadlines_of_the_checkpointer_count() -> None:
    saved = Saved(1, 1, stage_s=0.01, commit_s=0.02)
    with pytest.raises(DeadlineExceeded, match=r"0\.01 s"):
        saved.staged()
    with pytest.raises(DeadlineExceeded, match=r"0\.02 s"):
        saved.committed()


def test_a_tier_that_there_is_not_is_refused() -> None:
    with pytest.raises(CallError, match="no tier 'tape'"):
        handle().reached("tape")


def test_many_threads_may_wait() -> None:
    saved = handle()
    seen: list[Outcome | PerdureError] = []
    threads = [threading.Thread(target=lambda: seen.append(saved.committed()), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    saved.note_committed(OUTCOME)
    for thread in threads:
        thread.join(10)
    assert seen == [OUTCOME] * 4
