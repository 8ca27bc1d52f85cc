"""The log: a sentence for people, a line for machines, whole under concurrency, never in the way."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from perdure.errors import StorageError
from perdure.events import Log, Notice, Other, RankDied, StopAgreed, read_log


def test_a_fact_is_told_to_people_and_to_machines(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = Log(tmp_path / "events", rank=3, stream=stream)
    log.emit(StopAgreed(step=12))
    log.record(RankDied(rank=1, attempt=0, signal=9))
    assert stream.getvalue() == "perdure: rank 3: asked to stop: all ranks stop after step 12\n"
    first, second = read_log(tmp_path / "events")
    assert (first.rank, first.pid, first.fact) == (3, os.getpid(), StopAgreed(step=12))
    assert (second.rank, second.fact) == (3, RankDied(rank=1, attempt=0, signal=9))
    assert first.monotonic <= second.monotonic
    log.close()


def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    def write(number: int) -> None:
        log = Log(tmp_path / "events", rank=number, stream=io.StringIO())
        for i in range(50):
            log.emit(Notice(text=f"{number}.{i} " + "x" * 500))
        log.close()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_log(tmp_path / "events")) == 200


def test_newer_kinds_and_broken_lines_do_not_stop_a_reader(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(
        b'{"at":1.0,"monotonic":2.0,"pid":3,"rank":null,"kind":"from-the-future","x":1}\n'
        b'{"at":1.0,"monotonic":2.0,"pid":3,"rank":null,"kind":"stop-agreed","step":4}\n'
        b'{"at":1.0,"mono'
    )
    assert [entry.fact for entry in read_log(tmp_path / "events")] == [
        Other(name="from-the-future", fields={"kind": "from-the-future", "x": 1}),
        StopAgreed(step=4),
    ]


def test_a_file_that_cannot_be_written_is_named_once_and_given_up(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = Log(tmp_path / "no" / "events", stream=stream)
    log.emit(StopAgreed(step=1))
    log.emit(StopAgreed(step=2))
    assert stream.getvalue().count("no more events are written") == 1
    with pytest.raises(StorageError):
        read_log(tmp_path / "no" / "events")


def test_a_closed_stderr_is_ignored(tmp_path: Path) -> None:
    stream = io.StringIO()
    stream.close()
    log = Log(tmp_path / "events", stream=stream)
    log.emit(StopAgreed(step=1))
    assert len(read_log(tmp_path / "events")) == 1
    log.close()
